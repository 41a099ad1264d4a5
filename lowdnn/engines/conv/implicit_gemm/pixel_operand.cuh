// Loader of the implicit im2col matrix of a channels-last tensor: element (row, k) is
//     x[n, o * stride + r * dilation - padding, c]  with row = (n, o), k = (r, c), each of o and r over AXES axes,
// and 0 where the position lies outside x. Rows are output pixels, k runs over filter taps and, innermost, channels.
//
// All offsets are counted in units of UNIT_BYTES bytes, so that they fit 32 bits; channels, strides and base must be
// multiples of that. A bit mask for every row tells which taps along each axis read inside x: TAP_BITS bits for an
// axis, of which a filter may use all but one. Negative dilations flip the filter.

#pragma once

#include "include/math/division.cuh"
#include "include/tile/operand_tile.cuh"

// AXES axes, outermost first.
template <int AXES> struct PixelGeometry {
  i32 extent[AXES];  // extents of x
  i32 unit_stride[AXES];  // strides of x, in units
  i32 image_stride;  // stride of x, in units
  Divider output[AXES];
  Divider taps[AXES];
  Divider channels;  // channels of one group, in units
  i32 stride[AXES], dilation[AXES], padding[AXES];
  i32 rows;  // images * output pixels
};

template <class T, class Tile, int UNIT_BYTES, int THREADS, int AXES, class Mask> struct PixelOperand {
  static constexpr int TAP_BITS = int(sizeof(Mask)) * 8 / AXES;
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
    Place* places = static_cast<Place*>(scratch);
    for (u32 at = threadIdx.x; at < Tile::ROWS; at += THREADS) places[at] = place(first_row + at);
    __syncthreads();
#pragma unroll
    for (int copy = 0; copy < COPIES; ++copy) {
      const Place found = places[row + copy * ROW_STEP];
      base[copy] = found.base;
      inside[copy] = found.inside;
    }
    __syncthreads();
  }

  // Address in x of the thread's first row at tap 0.
  __device__ __forceinline__ u64 place() const { return u64(x + i64(base[0]) * UNIT_BYTES); }

  // Issues part `part` of `parts` of the next k tile's copies.
  __device__ __forceinline__ void load(u32 stage, int part, int parts) {
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      if (part == 0) taps[piece] = locate(unit + piece);
      const Tap tap = taps[piece];
#pragma unroll
      for (int copy = COPIES * part / parts; copy < COPIES * (part + 1) / parts; ++copy) {
        const u8* from = x + i64(base[copy] + tap.offset) * UNIT_BYTES;
        const u32 to = stage + Tile::offset(row + copy * ROW_STEP, chunk) + piece * UNIT_BYTES;
        cp_async<UNIT_BYTES>(to, from, (inside[copy] & tap.bits) == tap.bits);
      }
    }
    if (part == parts - 1) unit += DEPTH_UNITS;
  }

 private:
  struct Place {
    Mask inside;  // 0 for a row past the end
    i32 base;  // offset of tap 0 in units, possibly outside x
  };
  struct Tap {
    i32 offset;  // offset of the tap and channel, in units
    Mask bits;  // one bit for each axis, that of the tap; all ones past the end of k
  };

  const PixelGeometry<AXES>& geometry;
  const u8* x;
  u32 row, chunk;
  i32 unit, units;  // the thread's first unit in the next k tile; the end of k
  Tap taps[PIECES];  // taps of this k tile's pieces, computed in part 0 of `load` and used in all parts
  i32 base[COPIES];
  Mask inside[COPIES];

  __device__ __forceinline__ Place place(u32 pixel) const {
    const bool exists = pixel < u32(geometry.rows);
    i32 offset = 0;
    Mask mask = 0;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 rest = geometry.output[axis].divide(pixel);
      const i32 position = pixel - rest * geometry.output[axis].divisor;
      const i32 start = position * geometry.stride[axis] - geometry.padding[axis];
      pixel = rest;
      offset += start * geometry.unit_stride[axis];
      mask |= taps_inside(axis, start) << (axis * TAP_BITS);
    }
    return {exists ? mask : 0, offset + i32(pixel) * geometry.image_stride};
  }

  __device__ __forceinline__ Mask taps_inside(int axis, i32 start) const {
    Mask mask = 0;
    for (u32 tap = 0; tap < geometry.taps[axis].divisor; ++tap) {
      const i32 position = start + i32(tap) * geometry.dilation[axis];
      if (u32(position) < u32(geometry.extent[axis])) mask |= Mask(1) << tap;
    }
    return mask;
  }

  // Returns the tap at unit `at` of k. Past the end of k its bits match no row's mask, so that zeros are loaded.
  __device__ __forceinline__ Tap locate(i32 at) const {
    u32 index = geometry.channels.divide(u32(at));
    Tap tap = {i32(at - index * geometry.channels.divisor), 0};
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 rest = axis ? geometry.taps[axis].divide(index) : 0;
      const u32 position = index - rest * geometry.taps[axis].divisor;
      index = rest;
      tap.offset += i32(position) * geometry.dilation[axis] * geometry.unit_stride[axis];
      tap.bits |= Mask(1) << (axis * TAP_BITS + position);
    }
    if (at >= units) tap.bits = ~Mask(0);
    return tap;
  }
};
