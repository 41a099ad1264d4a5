// Recomputes outputs that are NaN from their own group's elements. In the block-diagonal product a zero of another
// group, or of a null tap, times an infinity or a NaN gives a NaN that the convolution does not have.

#pragma once

#include "grouped_sums.cuh"

template <class Visit> __device__ __forceinline__ void for_each(const Sums& sums, Visit visit) {
#pragma unroll
  for (int index = 0; index < Sums::COUNT; ++index)
    visit(index, sums.values[index / 4 / BLOCKS_N][index / 4 % BLOCKS_N][index % 4]);
}

// Whether any sum may be a NaN; infinities of both signs look like one.
__device__ __forceinline__ bool may_have_nan(const Sums& sums) {
  Accumulator total = 0;
  for_each(sums, [&](int, const Accumulator& value) { total += value; });
  return total != total;
}

// Whether the sum `number` is a NaN. The number is not a compile-time value.
__device__ __forceinline__ bool is_nan(const Sums& sums, int number) {
  bool is = false;
  for_each(sums, [&](int index, const Accumulator& value) { is |= (index == number) & (value != value); });
  return is;
}

// Replaces the sum `number`, which is not a compile-time value.
__device__ __forceinline__ void put(Sums& sums, int number, Accumulator sum) {
#pragma unroll
  for (int index = 0; index < Sums::COUNT; ++index) {
    Accumulator& value = sums.values[index / 4 / BLOCKS_N][index / 4 % BLOCKS_N][index % 4];
    value = index == number ? sum : value;
  }
}

__device__ __forceinline__ f32 operand_value(f32 x) { return __uint_as_float(Mma<f32>::operand(__float_as_uint(x))); }
template <class T> __device__ __forceinline__ f32 operand_value(T x) { return widen(x); }

// Returns the sum of one output over its own group's elements. place: bytes from the box's start to the output's first
// input.
__device__ f32 own_sum(const Params& p, const Shared& shared, const OutputClass& output, u32 place, u32 block,
                       u32 column) {
  const u32 pack = block / OUT_BLOCKS;
  const u32 group = (block % OUT_BLOCKS * BLOCK_N + column) / OUT;
  const TYPE* filters = reinterpret_cast<const TYPE*>(shared.filters);
  place += pack * IN_CHUNKS * CHUNK_BYTES;
  f32 sum = 0;
#pragma unroll 1
  for (u32 chunk = output.first_tap * IN_CHUNKS; chunk < u32(output.end_tap * IN_CHUNKS); ++chunk) {
    if (p.taps[chunk / IN_CHUNKS].index < 0) continue;
    const TYPE* row = filters + (block * DEPTH + chunk) * (8 * CHUNK);
    const TYPE* in = reinterpret_cast<const TYPE*>(shared.filters + Box::swizzled(place + shared.offsets[chunk]));
#pragma unroll 1
    for (u32 k = 0; k < CHUNK; ++k) {
      if ((chunk % IN_CHUNKS * CHUNK + k) / IN != group) continue;
      const TYPE w = FILTERS_ARE_DEPTH ? row[k * CHUNK + column] : row[column * CHUNK + k];
      sum += operand_value(in[k]) * operand_value(w);
    }
  }
  return sum;
}

// Replaces the lane's sums that are NaN by own sums. places: the Places of its pixels, from the first one on.
// first_block: the first block of output channels of its unit.
__device__ __forceinline__ void replace_nans(const Params& p, const Shared& shared, const OutputClass& output,
                                             const u8* box, const Place* places, u32 first_block, Sums& sums) {
  constexpr int PIXEL_SUMS = 4 * BLOCKS_N;  // sums of 16 pixels
#pragma unroll 1
  for (int number = 0; number < BLOCKS_M * PIXEL_SUMS; ++number) {
    const int pixel = number / PIXEL_SUMS * 16 + number / 2 % 2 * 8, block = number / 4 % BLOCKS_N;
    if (!is_nan(sums, number)) continue;
    const u32 column = threadIdx.x % 4 * 2 + number % 2;
    put(sums, number,
        own_sum(p, shared, output, box - shared.filters + places[pixel].box, first_block + block, column));
  }
}
