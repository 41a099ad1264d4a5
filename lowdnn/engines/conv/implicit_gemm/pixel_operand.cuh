// Loader of the implicit im2col matrix of a channels-last tensor: element (row, k) is
//     x[n, o * stride + r * dilation - padding, c]  with row = (n, o), k = (r, c), each of o and r over AXES axes,
// and 0 where the position lies outside x. Rows are output pixels, k runs over filter taps and, innermost, channels.
//
// All offsets are counted in units of UNIT_BYTES bytes, so that they fit 32 bits; channels, strides and base must be
// multiples of that. Inside tells which taps of a row read inside x: TapMasks or TapBounds (taps_inside.cuh). Negative
// dilations flip the filter.

#pragma once

#include "include/tile/operand_tile.cuh"
#include "taps_inside.cuh"

template <class T, class Tile, int UNIT_BYTES, int THREADS, class Inside> struct PixelOperand {
  static constexpr int AXES = Inside::AXES;
  static constexpr int ROW_STEP = THREADS / Tile::CHUNKS;
  static constexpr int COPIES = Tile::ROWS / ROW_STEP;
  static constexpr int PIECES = CHUNK_BYTES / UNIT_BYTES;  // pieces of one chunk, each with its own tap and channels
  static constexpr int DEPTH_UNITS = Tile::ROW_BYTES / UNIT_BYTES;
  static_assert(Tile::K_MAJOR, "pixels have their channels contiguous");
  static_assert(THREADS % Tile::CHUNKS == 0 && COPIES * ROW_STEP == Tile::ROWS && COPIES >= 1, "whole rows each");

  // x: first channel of the group.  first_row: first row of the tile.  first_unit, units: begin and end of k, in units.
  // scratch: shared memory of Tile::ROWS places, free again on return. Called by all threads of the block.
  __device__ __forceinline__ PixelOperand(const T* x, const PixelGeometry<AXES>& geometry, u32 first_row,
                                          i32 first_unit, i32 units, void* scratch)
      : geometry(geometry), x(reinterpret_cast<const u8*>(x)), row(threadIdx.x / Tile::CHUNKS),
        chunk(threadIdx.x % Tile::CHUNKS), unit(first_unit + chunk * PIECES), units(units) {
    // Each row's place is computed by one thread and used by all that copy from the row.
    Place* shared_places = static_cast<Place*>(scratch);
    for (u32 at = threadIdx.x; at < Tile::ROWS; at += THREADS) shared_places[at] = placed(first_row + at);
    __syncthreads();
#pragma unroll
    for (int copy = 0; copy < COPIES; ++copy) places[copy] = shared_places[row + copy * ROW_STEP];
    __syncthreads();
  }

  // Address in x of the thread's first row at tap 0.
  __device__ __forceinline__ u64 place() const { return u64(x + i64(places[0].base) * UNIT_BYTES); }

  // Issues part `part` of `parts` of the next k tile's copies.
  __device__ __forceinline__ void load(u32 stage, int part, int parts) {
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      if (part == 0) taps[piece] = located(unit + piece);
      const Tap tap = taps[piece];
#pragma unroll
      for (int copy = COPIES * part / parts; copy < COPIES * (part + 1) / parts; ++copy) {
        const u8* from = x + i64(places[copy].base + tap.offset) * UNIT_BYTES;
        const u32 to = stage + Tile::offset(row + copy * ROW_STEP, chunk) + piece * UNIT_BYTES;
        cp_async<UNIT_BYTES>(to, from, Inside::reads(geometry, places[copy].inside, tap.inside));
      }
    }
    if (part == parts - 1) unit += DEPTH_UNITS;
  }

 private:
  struct Place {
    typename Inside::Row inside;
    i32 base;  // offset of tap 0 in units, possibly outside x
  };
  struct Tap {
    typename Inside::Tap inside;
    i32 offset;  // offset of the tap and channel, in units
  };

  const PixelGeometry<AXES>& geometry;
  const u8* x;
  u32 row, chunk;
  i32 unit, units;  // the thread's first unit in the next k tile; the end of k
  Tap taps[PIECES];  // taps of this k tile's pieces, computed in part 0 of `load` and used in all parts
  Place places[COPIES];  // the rows from which the thread copies

  __device__ __forceinline__ Place placed(u32 pixel) const {
    const bool exists = pixel < u32(geometry.rows);
    i32 start[AXES], offset = 0;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 rest = geometry.output[axis].divide(pixel);
      const i32 position = pixel - rest * geometry.output[axis].divisor;
      start[axis] = position * geometry.stride[axis] - geometry.padding[axis];
      pixel = rest;
      offset += start[axis] * geometry.unit_stride[axis];
    }
    return {Inside::row(geometry, start, exists), offset + i32(pixel) * geometry.image_stride};
  }

  // Returns the tap at unit `at` of k. Past the end of k no row reads it, so that zeros are loaded.
  __device__ __forceinline__ Tap located(i32 at) const {
    u32 index = geometry.channels.divide(u32(at)), tap[AXES];
    i32 offset = at - index * geometry.channels.divisor;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 rest = axis ? geometry.taps[axis].divide(index) : 0;
      tap[axis] = index - rest * geometry.taps[axis].divisor;
      index = rest;
      offset += i32(tap[axis]) * geometry.dilation[axis] * geometry.unit_stride[axis];
    }
    return {Inside::tap(geometry, tap, at < units), offset};
  }
};
