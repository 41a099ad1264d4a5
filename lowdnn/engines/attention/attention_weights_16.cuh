// The products of attention_forward_wgmma.cu in 16-bit types. Rounded accumulators of scores are an operand in
// registers without any exchange; values are an operand in shared memory as they are loaded.
// Macros: as in attention_forward.cuh.

#pragma once

#include "attention_forward_weights.cuh"
#include "attention_wgmma.cuh"

typedef SwizzledRows<TILE_KV, HEAD_V> LoadedValues;
typedef LoadedValues Values;
typedef u32 WeightTile[TILE_KV / 16][4];
constexpr int TRANSPOSERS = 0;

DEFINE_WGMMA(multiply_k_major, TILE_KV, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_registers, HEAD_V, f32.TYPE.TYPE)

__device__ __forceinline__ void multiply_by_keys(ScoreTile& scores, u64 queries, u64 keys, bool accumulate) {
  multiply_k_major<false, false>(flat(scores), queries, keys, accumulate);
}

__device__ __forceinline__ void multiply_by_values(OutputTile& o, const WeightTile& weights, const Values& values) {
#pragma unroll
  for (int step = 0; step < TILE_KV / 16; ++step) {
    multiply_registers<true>(flat(o), weights[step], values.mn_major(step * 16), true);
  }
}

__device__ __forceinline__ void make_weights(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                             const ScoreTile& scores, WeightTile& weights) {
#pragma unroll
  for (int step = 0; step < TILE_KV / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int block = step * 2 + i / 2, half = i % 2;
      weights[step][i] = weights_of<Weights>(p, place, rows, tile, 0, half, block, scores[0][block] + half * 2);
      make_ready(weights[step][i]);
    }
  }
}
