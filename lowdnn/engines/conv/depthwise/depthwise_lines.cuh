// Depthwise correlations of lines: lines of samples in shared memory, as f32, and sliding products in registers.
//
// A line has the positions along the filter's axis of one channel of one image, at one position of the other spatial
// axes. A block's rows cover the same few positions: of LANES neighbouring channels each, in neighbouring threads, or,
// if LANES is 1, of one channel each, whose neighbouring positions are neighbours in memory.
// Shared memory of a row: sample i of lane v at [i * LANES + v]. Macros: LANES, and CLASSES of depthwise.cuh.

#pragma once

#include "depthwise.cuh"

constexpr int CHUNK = 4;  // samples of one access to shared memory

// Strides (in elements) and the extent of the lines of a tensor.
struct Lines {
  i64 batch_strides[3];  // strides of images and of the two other spatial axes, the fastest first
  i64 channel_stride, stride;
  i32 extent;
};

// The lines of a block: row = batch * channels + channel. If LANES is not 1, `channels` is 1.
struct Rows {
  Digits<3> batches;  // radices of a batch's number
  i32 batch_count, channel_count;
  i32 own_batches;  // batches of a block
  Divider own_channels;  // channels of a block

  __device__ __forceinline__ i32 count() const { return own_batches * i32(own_channels.divisor); }
  __device__ __forceinline__ i32 block_channels() const { return LANES > 1 ? LANES : own_channels.divisor; }
  __device__ __forceinline__ u32 batch_of(u32 row) const { return own_channels.divide(row); }
  __device__ __forceinline__ u32 channel_of(u32 row) const { return row - batch_of(row) * own_channels.divisor; }

  // Offset of the row's line, or -1 if there is no such line.
  __device__ __forceinline__ i64 offset(const Lines& lines, i32 first_batch, i32 first_channel, u32 row) const {
    const i32 batch = first_batch + i32(batch_of(row)), channel = first_channel + i32(channel_of(row));
    if (batch >= batch_count || channel >= channel_count) return -1;
    return offset_of(batches, lines.batch_strides, batch) + channel * lines.channel_stride;
  }
};

// Samples of a block's rows: positions first, first + spacing, ...
struct Samples {
  i32 first, spacing;
};

// Reads values that are neighbours in shared memory.
template <int COUNT> __device__ __forceinline__ void read_neighbours(f32 (&to)[COUNT], const f32* from) {
  constexpr int WIDTH = COUNT < CHUNK ? COUNT : CHUNK;
#pragma unroll
  for (int i = 0; i < COUNT; i += WIDTH) {
    const Vector<f32, WIDTH> part = *reinterpret_cast<const Vector<f32, WIDTH>*>(from + i);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) to[i + j] = part.v[j];
  }
}

template <int COUNT> __device__ __forceinline__ void write_neighbours(f32* to, const f32 (&values)[COUNT]) {
  constexpr int WIDTH = COUNT < CHUNK ? COUNT : CHUNK;
#pragma unroll
  for (int i = 0; i < COUNT; i += WIDTH) {
    Vector<f32, WIDTH> part;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) part.v[j] = values[i + j];
    *reinterpret_cast<Vector<f32, WIDTH>*>(to + i) = part;
  }
}

// Copies rows to shared memory, widened; samples outside the lines are 0. ACCESS: elements of an access along the
// samples, if they are contiguous, or along the lanes; an access lies inside a line as a whole or not at all.
template <int ACCESS, class T> struct StagedRows {
  static_assert(LANES == 1 || LANES % ACCESS == 0, "whole vectors of lanes");
  static constexpr int AT_A_TIME = 4;  // accesses of a thread in flight

  Divider vectors;  // vectors of a row
  i32 pitch;  // elements from one row to the next

  // offsets: the offset in the tensor of each row's line; -1 for a row without a line.
  __device__ __forceinline__ void copy(const T* from, const Lines& lines, const i64* offsets, i32 rows, Samples samples,
                                       i32 lanes, f32* to) const {
    const u32 count = rows * vectors.divisor;
#pragma unroll 1
    for (u32 begin = threadIdx.x; begin < count; begin += AT_A_TIME * blockDim.x) {
      T values[AT_A_TIME][ACCESS] = {};
      f32* places[AT_A_TIME];
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        const u32 number = begin + i * blockDim.x, row = vectors.divide(number);
        const u32 element = (number - row * vectors.divisor) * ACCESS;
        const i32 lane = element % LANES, position = samples.first + i32(element / LANES) * samples.spacing;
        const i64 offset = number < count ? offsets[row] : -1;
        const bool exists = offset >= 0 && u32(position) < u32(lines.extent) && lane < lanes;
        load_where<ACCESS>(exists, values[i], from + offset + position * lines.stride + lane);
        places[i] = number < count ? to + row * pitch + element : nullptr;
      }
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        if (places[i]) widen_to(places[i], values[i]);
      }
    }
  }

 private:
  static __device__ __forceinline__ void widen_to(f32* to, const T (&values)[ACCESS]) {
    f32 wide[ACCESS];
#pragma unroll
    for (int i = 0; i < ACCESS; ++i) wide[i] = convert<f32>(values[i]);
    write_neighbours(to, wide);
  }
};

// Reads neighbouring samples of one lane.
template <int COUNT> __device__ __forceinline__ void read_samples(f32 (&to)[COUNT], const f32* from) {
  if constexpr (LANES == 1) {
    read_neighbours(to, from);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = from[i * LANES];
  }
}

template <int COUNT> __device__ __forceinline__ void write_samples(f32* to, const f32 (&values)[COUNT]) {
  if constexpr (LANES == 1) {
    write_neighbours(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i * LANES] = values[i];
  }
}

// Returns the CHUNK elements of `window` from index `first` on.
template <int COUNT> __device__ __forceinline__ f32 (&chunk_of(f32 (&window)[COUNT], int first))[CHUNK] {
  return *reinterpret_cast<f32(*)[CHUNK]>(window + first);
}

// sums[o] += sum over t of x[o + t] * v[t], for the t of `chunks` chunks. The window over x is a ring of registers, in
// which every value is back in its register after a round.
template <int SUMS>
__device__ __forceinline__ void add_products(f32 (&sums)[SUMS], const f32* x, const f32* v, i32 chunks) {
  static_assert(SUMS % CHUNK == 0, "whole chunks");
  constexpr int RING = SUMS + CHUNK;
  f32 ring[RING];
#pragma unroll
  for (int i = 0; i < SUMS; i += CHUNK) read_samples(chunk_of(ring, i), x + i * LANES);
#pragma unroll 1
  while (chunks > 0) {
#pragma unroll
    for (int u = 0; u < RING; u += CHUNK) {
      if (u > 0 && chunks <= 0) break;
      --chunks;
      f32 factors[CHUNK];
      read_samples(chunk_of(ring, (u + SUMS) % RING), x + (u + SUMS) * LANES);
      read_samples(factors, v + u * LANES);
#pragma unroll
      for (int t = 0; t < CHUNK; ++t) {
#pragma unroll
        for (int o = 0; o < SUMS; ++o) sums[o] += ring[(u + t + o) % RING] * factors[t];
      }
    }
    x += RING * LANES;
    v += RING * LANES;
  }
}

// As add_products, for the elements t of one chunk from `begin` to `end`.
template <int SUMS>
__device__ __forceinline__ void add_part(f32 (&sums)[SUMS], const f32* x, const f32* v, i32 begin, i32 end) {
  f32 window[SUMS + CHUNK];
  read_samples(window, x);
#pragma unroll
  for (int t = 0; t < CHUNK; ++t) {
    if (t < begin || t >= end) continue;
    const f32 factor = v[t * LANES];
#pragma unroll
    for (int o = 0; o < SUMS; ++o) sums[o] += window[t + o] * factor;
  }
}

