// Sums over the positions of a block, of which several parts make up the sums of each channel: [part][row][channel].

#pragma once

#include "sequence_tile.cuh"

// Adds up the sums of the threads that share a channel, in a fixed order, and stores row r as row row_of(r) of the
// block's part where that is below `rows`. All threads of the block take part.
// shared: ROWS * THREADS * CHANNELS values where ALONG_CHANNELS is 1.
template <int ROWS, class RowOf>
__device__ __forceinline__ void store_sums(
    Value* parts, const Shape& shape, const Place& place, const Value (&sums)[ROWS][CHANNELS], i32 rows, Value* shared,
    RowOf row_of) {
  const i64 pitch = shape.channels;
  Value* const part = parts + i64(place.part) * rows * pitch;
  if constexpr (ALONG_CHANNELS) {
    constexpr int WIDTH = LANES * CHANNELS;
    const u32 group = threadIdx.x / LANES, column = threadIdx.x % LANES * CHANNELS;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) shared[(r * GROUPS + group) * WIDTH + column + c] = sums[r][c];
    }
    __syncthreads();
    const i64 channel = place.channel - column;  // the block's first channel
    for (u32 i = threadIdx.x; i < u32(ROWS * WIDTH); i += THREADS) {
      const u32 r = i / WIDTH, at = i % WIDTH;
      Value sum = shared[r * GROUPS * WIDTH + at];
#pragma unroll
      for (int other = 1; other < GROUPS; ++other) sum += shared[(r * GROUPS + other) * WIDTH + at];
      const i32 row = row_of(i32(r));
      if (channel + at < shape.channels && row >= 0 && row < rows) part[row * pitch + channel + at] = sum;
    }
  } else {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      Value sum = sums[r][0];
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      const i32 row = row_of(r);
      if (threadIdx.x % LANES == 0 && place.exists && row >= 0 && row < rows) {
        part[row * pitch + place.channel] = sum;
      }
    }
  }
}
