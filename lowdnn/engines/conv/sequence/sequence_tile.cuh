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

// The elements of a tile, in words: an element is taken out where it is used, so that a load which is under way is not
// waited for before.
template <class T> struct Packed {
  static constexpr int BYTES = sizeof(T);                      // bytes of an element
  static constexpr int ELEMENTS = BYTES < 4 ? 4 / BYTES : 1;  // elements of a word
  u32 words[POSITIONS * CHANNELS * BYTES / 4];

  __device__ __forceinline__ T operator()(int i, int c) const {
    const int at = i * CHANNELS + c;
    if constexpr (BYTES == 8) {
      const u64 bits = words[2 * at] | u64(words[2 * at + 1]) << 32;
      return reinterpret_cast<const T&>(bits);
    } else if constexpr (BYTES == 2) {  // a conversion takes a half of a register, but would take a shift as well
      u16 halves[2];
      asm("mov.b32 {%0, %1}, %2;" : "=h"(halves[0]), "=h"(halves[1]) : "r"(words[at / 2]));
      return reinterpret_cast<const T&>(halves[at % 2]);
    } else {
      const typename Word<BYTES>::Type bits = words[at / ELEMENTS] >> (at % ELEMENTS * 8 * BYTES);
      return reinterpret_cast<const T&>(bits);
    }
  }
  // Loads the WIDTH elements from (i, c) on, which are zero bits before, if they exist.
  template <int WIDTH> __device__ __forceinline__ void load(bool exists, int i, int c, const T* from) {
    const int at = i * CHANNELS + c;
    typename Word<WIDTH * BYTES>::Type part = {};
    load_where(exists, part, from);
    if constexpr (WIDTH * BYTES < 4) {
      words[at / ELEMENTS] |= u32(part) << (at % ELEMENTS * 8 * BYTES);
    } else {
#pragma unroll
      for (int word = 0; word < WIDTH * BYTES / 4; ++word) {
        words[at * BYTES / 4 + word] = reinterpret_cast<const u32*>(&part)[word];
      }
    }
  }
  // Loads POSITIONS neighbouring elements, in accesses of WIDTH, of which all exist; CHANNELS is 1.
  template <int WIDTH> __device__ __forceinline__ void load_line(const T* from) {
    constexpr int W = access_width(WIDTH, POSITIONS, BYTES);
    if constexpr (W * BYTES < 4) *this = {};
#pragma unroll
    for (int i = 0; i < POSITIONS; i += W) load<W>(true, i, 0, from + i);
  }
};

// Loads the tile whose first position is `first`. `row` leads to position 0 of its channel. Positions below `begin` and
// from `end` on get zero bits. The kernel must not write the tensor.
template <int WIDTH, class T>
__device__ __forceinline__ void load_tile(
    Packed<T>& to, const T* row, const Strides& strides, i32 first, i32 begin, i32 end) {
  to = {};
  const bool is_line = WIDTH > 0 && !ALONG_CHANNELS && first >= begin && first <= end - POSITIONS;
  if constexpr (WIDTH > 0 && !ALONG_CHANNELS) {
    constexpr int W = access_width(WIDTH, POSITIONS, sizeof(T));
#pragma unroll
    for (int i = 0; i < POSITIONS; i += W) to.template load<W>(is_line, i, 0, row + first + i);
    if (is_line || first >= end || first <= begin - POSITIONS) return;
  }
  constexpr int W = WIDTH > 0 && ALONG_CHANNELS ? access_width(WIDTH, CHANNELS, sizeof(T)) : 1;
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
    const bool exists = first + i >= begin && first + i < end;
    const T* const at = row + (first + i) * strides.position;
#pragma unroll
    for (int c = 0; c < CHANNELS; c += W) to.template load<W>(exists, i, c, at + c * strides.channel);
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
