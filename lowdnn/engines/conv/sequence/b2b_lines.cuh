// Lines of shared memory for back-to-back convolutions: rows of a sequence as numbers of the compute type, in groups of
// POSITIONS neighbouring positions.
//
// A block has one batch, one channel, and `chunk` positions from `first` on. A line begins at a position of its own,
// `begin`, before the chunk, and all begin and end at multiples of POSITIONS. Elements outside of the sequence are 0.

#pragma once

#include "sequence_tile.cuh"

typedef Value Group[POSITIONS];

// The sizes that all blocks have. halo: the taps, rounded up to a multiple of POSITIONS.
struct Sizes {
  Divider channels, chunks;  // chunks: blocks of a row
  i32 length, chunk;
  i32 projection_taps, mixer_taps, projection_halo, mixer_halo;
};

// The work of a block.
struct Work {
  i64 batch, channel;
  i32 first;
  u32 part;  // the number of the block among those of its channel

  __device__ __forceinline__ explicit Work(const Sizes& sizes) {
    const u32 row = sizes.chunks.divide(blockIdx.x), number = blockIdx.x - row * sizes.chunks.divisor;
    const u32 own = sizes.channels.divide(row);
    batch = own;
    channel = row - own * sizes.channels.divisor;
    first = i32(number) * sizes.chunk;
    part = own * sizes.chunks.divisor + number;
  }
};

struct Line {
  Value* values;
  i32 begin;

  __device__ __forceinline__ Value* at(i32 position) const { return values + (position - begin); }
  __device__ __forceinline__ void get(i32 position, Group& to) const {
    const auto from = reinterpret_cast<const Vector<Value, 16 / sizeof(Value)>*>(at(position));
    constexpr int WIDTH = 16 / sizeof(Value);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) to[i] = from[i / WIDTH].v[i % WIDTH];
  }
  __device__ __forceinline__ void put(i32 position, const Group& from) const {
    const auto to = reinterpret_cast<Vector<Value, 16 / sizeof(Value)>*>(at(position));
    constexpr int WIDTH = 16 / sizeof(Value);
#pragma unroll
    for (int i = 0; i < POSITIONS; i += WIDTH) {
      Vector<Value, WIDTH> part;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) part.v[k] = from[i + k];
      to[i / WIDTH] = part;
    }
  }
};

// The first position of each group of the thread from `begin` to `end`.
#define FOR_GROUPS(position, begin, end) \
  for (i32 position = (begin) + i32(threadIdx.x) * POSITIONS; position < (end); position += THREADS * POSITIONS)

// The elements of a row from `position` on; `row` leads to position 0.
template <int WIDTH, class T>
__device__ __forceinline__ void load_group(const T* row, const Strides& strides, i32 position, i32 length, Group& to) {
  Packed<T> tile;
  load_tile<WIDTH>(tile, row, strides, position, 0, length);
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) to[i] = convert<Value>(tile(i, 0));
}

template <int WIDTH, class T>
__device__ __forceinline__ void store_group(const Group& from, T* row, const Strides& strides, i32 position, i32 length) {
  T results[POSITIONS][1];
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) results[i][0] = convert<T>(from[i]);
  store_tile<WIDTH>(row, results, strides, position, length);
}

// The taps of a filter in shared memory, in the order of the distance from the element that they are for.
template <class T>
__device__ __forceinline__ void load_taps(Value* to, const T* filter, const i64 (&strides)[2], i64 channel, i32 taps) {
  for (i32 q = threadIdx.x; q < taps; q += THREADS) {
    to[q] = convert<Value>(filter[channel * strides[0] + (taps - 1 - q) * strides[1]]);
  }
}

// sums[i] += sum over q < taps of weights[q] * line[position + i - q], or of line[position + i + q] where ADJOINT is
// true, as far as the sequence goes: as zeros, the elements after it could become NaN by the weight.
template <bool ADJOINT>
__device__ __forceinline__ void add_taps(
    Group& sums, const Line& line, i32 position, const Value* weights, i32 taps, i32 length) {
  constexpr i32 STEP = ADJOINT ? POSITIONS : -POSITIONS;
  const i32 left = length - position;  // positions of the sequence from the group's first on
  Group near, far;
  line.get(position, near);
  for (i32 chunk = 0; chunk < taps; chunk += POSITIONS) {
    position += STEP;
    line.get(position, far);
#pragma unroll
    for (int q = 0; q < POSITIONS; ++q) {
      if (chunk + q >= taps) break;
      const Value weight = weights[chunk + q];
#pragma unroll
      for (int i = 0; i < POSITIONS; ++i) {
        if (ADJOINT && chunk + q + i >= left) continue;
        const int at = ADJOINT ? i + q : i - q;
        sums[i] += weight * (at >= 0 && at < POSITIONS ? near[at] : far[at & (POSITIONS - 1)]);
      }
    }
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) near[i] = far[i];
  }
}

// x of the block's channel from the lines' begin to `end`, and the taps: the projection's row by row, then the mixer's.
template <class Params>
__device__ __forceinline__ void load_inputs(
    const Params& p, const Work& work, const Line (&x)[3], i32 end, Value* taps) {
  const Sizes& sizes = p.sizes;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const i64 row = 3 * work.channel + i;
    const X* const from = p.x + work.batch * p.x_strides.batch + row * p.x_strides.channel;
    load_taps(taps + i * sizes.projection_halo, p.projection, p.projection_strides, row, sizes.projection_taps);
    FOR_GROUPS(position, x[i].begin, end) {
      Group group;
      load_group<X_WIDTH>(from, p.x_strides, position, sizes.length, group);
      x[i].put(position, group);
    }
  }
  load_taps(taps + 3 * sizes.projection_halo, p.mixer, p.mixer_strides, work.channel, sizes.mixer_taps);
}

// p_1 and p_2 of a group, and their product g, which is 0 before the sequence.
__device__ __forceinline__ void find_gates(
    const Sizes& sizes, const Line (&x)[3], const Value* taps, i32 position, Group& one, Group& other, Group& gate) {
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) one[i] = other[i] = 0;
  add_taps<false>(one, x[1], position, taps + sizes.projection_halo, sizes.projection_taps, sizes.length);
  add_taps<false>(other, x[2], position, taps + 2 * sizes.projection_halo, sizes.projection_taps, sizes.length);
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) gate[i] = position + i >= 0 ? one[i] * other[i] : Value(0);
}
