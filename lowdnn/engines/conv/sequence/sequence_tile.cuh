// Tiles of tensors (batch, channel, position), whose sequences lie along the positions.
//
// A thread's tile has POSITIONS neighbouring positions of CHANNELS neighbouring channels. Where ALONG_CHANNELS is 1,
// LANES neighbouring threads have neighbouring channels, and the THREADS / LANES groups of them follow each other along
// the positions. Otherwise LANES neighbouring threads follow each other along the positions, CHANNELS is 1, and each
// group has its own row: a batch and a channel. A thread has one or several tiles, of which it has a `unit`.
//
// WIDTH of loads and stores: elements of an access along the lanes' axis; 0 where those are strided.

#pragma once

#include "include/math/division.cuh"
#include "include/vector.cuh"

typedef COMPUTE Value;

constexpr int POSITIONS = 8;
constexpr int GROUPS = THREADS / LANES;
constexpr int SPAN = ALONG_CHANNELS ? POSITIONS : LANES * POSITIONS;  // positions of a group at a time

struct Strides {
  i64 batch, channel, position;
};

struct Shape {
  i64 channels;
  i32 length, rows;  // rows: batches times channels
  Divider units;     // units of a row, or blocks of them where ALONG_CHANNELS is 1
  Divider inner;     // channels, or blocks of them where ALONG_CHANNELS is 1
};

// The work of a thread; it takes part in shuffles and barriers where its row or channel does not exist.
struct Place {
  i64 batch, channel;
  u32 unit, part;  // part: the number of the block's sums among those of all batches
  bool exists;

  // The first position of tile `number` among `count` tiles of each thread.
  __device__ __forceinline__ i32 first(i32 number, i32 count) const {
    const i32 own = ALONG_CHANNELS ? 0 : threadIdx.x % LANES * POSITIONS;
    return (i32(unit) * count + number) * SPAN + own;
  }
};

__device__ __forceinline__ Place place_of(const Shape& shape) {
  const u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  if constexpr (ALONG_CHANNELS) {
    const u32 outer = shape.inner.divide(blockIdx.x), column = blockIdx.x - outer * shape.inner.divisor;
    const u32 batch = shape.units.divide(outer), unit = (outer - batch * shape.units.divisor) * GROUPS + group;
    const i64 channel = (i64(column) * LANES + lane) * CHANNELS;
    return {i64(batch), channel, unit, outer, channel < shape.channels};
  } else {
    const u32 rows = shape.units.divide(blockIdx.x), unit = blockIdx.x - rows * shape.units.divisor;
    const bool exists = rows * GROUPS + group < u32(shape.rows);
    const u32 row = exists ? rows * GROUPS + group : 0, batch = shape.inner.divide(row);
    return {i64(batch), i64(row - batch * shape.inner.divisor), unit, batch * shape.units.divisor + unit, exists};
  }
}

// Loads the tile whose first position is `first`. `row` leads to position 0 of its channel. Positions below `begin` and
// from `end` on get zero bits. The kernel must not write the tensor.
template <int WIDTH, class T>
__device__ __forceinline__ void load_tile(
    T (&to)[POSITIONS][CHANNELS], const T* row, const Strides& strides, i32 first, i32 begin, i32 end) {
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) to[i][c] = T{};
  }
  if constexpr (WIDTH > 0 && !ALONG_CHANNELS) {
    const bool is_whole = first >= begin && first <= end - POSITIONS;
    T line[POSITIONS] = {};
    load_where<WIDTH>(is_whole, line, row + first);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) to[i][0] = line[i];
    if (is_whole) return;
  }
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
    const bool exists = first + i >= begin && first + i < end;
    const T* const at = row + (first + i) * strides.position;
    if constexpr (WIDTH > 0 && ALONG_CHANNELS) {
      load_where<WIDTH>(exists, to[i], at);
    } else {
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        if (exists) to[i][c] = at[c * strides.channel];
      }
    }
  }
}

// Stores the positions of a tile that are below `end`.
template <int WIDTH, class T>
__device__ __forceinline__ void store_tile(
    T* row, const T (&from)[POSITIONS][CHANNELS], const Strides& strides, i32 first, i32 end) {
  if constexpr (WIDTH > 0 && !ALONG_CHANNELS) {
    if (first <= end - POSITIONS) {
      T line[POSITIONS];
#pragma unroll
      for (int i = 0; i < POSITIONS; ++i) line[i] = from[i][0];
      store<WIDTH>(row + first, line);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
    if (first + i >= end) break;
    T* const at = row + (first + i) * strides.position;
    if constexpr (WIDTH > 0 && ALONG_CHANNELS) {
      store<WIDTH>(at, from[i]);
    } else {
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) at[c * strides.channel] = from[i][c];
    }
  }
}

template <class T> __device__ __forceinline__ T* row_at(T* tensor, const Strides& strides, const Place& place) {
  return tensor + place.batch * strides.batch + place.channel * strides.channel;
}
