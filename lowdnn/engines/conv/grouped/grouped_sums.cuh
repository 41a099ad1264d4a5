// The sums of a set of pixels of a grouped convolution, and their way to the functor.
//
// Macros: as in grouped_stages.cuh, and VECTOR of the functor; WHOLE: 1 where 4 divides the output channels.

#pragma once

#include "grouped_stages.cuh"
#include "include/ptx/mma.cuh"

typedef Mma<TYPE>::Accumulator Accumulator;

// The sums of a warp, in the order of mma.cuh; those of one block of pixels are in the order of wgmma, too.
struct Sums {
  static constexpr int COUNT = BLOCKS_M * BLOCKS_N * 4;
  Accumulator values[BLOCKS_M][BLOCKS_N][4];

  // Four neighbouring output channels for each lane: even lanes get those of `block`, odd ones those of `block` + 1.
  __device__ __forceinline__ void exchange(int i, int half, int block, Accumulator (&four)[4]) const {
    const bool odd = threadIdx.x & 1;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const Accumulator even_block = values[i][block][2 * half + v], odd_block = values[i][block + 1][2 * half + v];
      const Accumulator kept = odd ? odd_block : even_block;
      const Accumulator other = __shfl_xor_sync(~0u, odd ? even_block : odd_block, 1);
      four[v] = odd ? other : kept;
      four[2 + v] = odd ? kept : other;
    }
  }
};

// Hands the sums of a set's pixels to the functor. places: those from the lane's first pixel on.
__device__ __forceinline__ void finish(const Params& p, const Sums& sums, const Place* places, i32 slab,
                                       u32 first_block) {
  const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * BLOCKS_M; ++i) {
    const Place place = places[i * 8];
    i64 coordinate[Map::RANK];
    p.map.locate_row(place.row, coordinate);
    coordinate[Map::RANK - 1] = 0;
    const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
#pragma unroll
    for (int pair = 0; pair < BLOCKS_N; pair += 2) {
      Accumulator four[4];
      sums.exchange(i / 2, i % 2, pair, four);
      const u32 block = first_block + pair + lane % 2, column = lane % 4 / 2 * 4;
      const i32 channel = (slab * SLAB_BLOCKS + block) * BLOCK_N + column;
      if (place.row == OUTSIDE || channel >= p.out_channels) continue;
#pragma unroll
      for (int v = 0; v < 4; v += VECTOR) {
        Accumulator part[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) part[j] = four[v + j];
        const i32 valid = WHOLE ? VECTOR : min(p.out_channels - channel - v, VECTOR);
        if (valid > 0) Functor::apply<VECTOR>(p.epilogue, cursor, channel + v, valid, part);
      }
    }
  }
}
