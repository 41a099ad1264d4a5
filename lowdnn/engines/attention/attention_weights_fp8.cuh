// The products of attention_forward_wgmma.cu in fp8. Tensor cores take only K-major fp8 operands, so values are
// transposed in shared memory.
//
// Accumulators of scores become an operand in registers without any exchange, which permutes its k: in each 16 keys,
// column 4 * t + 2 * s + e of the operand is key 8 * s + 2 * t + e (t < 4, s and e < 2). The transposed values have
// their keys in the same order.
// Macros: as in attention_forward.cuh.
// Source: Shah et al., "FlashAttention-3", section 3.3.

#pragma once

#include "attention_forward_place.cuh"
#include "attention_wgmma.cuh"
#include "include/math/fp8_pairs.cuh"
#include "include/ptx/ldmatrix.cuh"

typedef SwizzledRows<TILE_KV, HEAD_V, 1> LoadedValues;
typedef SwizzledRows<HEAD_V, TILE_KV, 1> Values;
typedef u32 WeightTile[TILE_KV / 32][4];
constexpr int TRANSPOSERS = 3;  // three warps of the last warpgroup transpose values; its first warp loads
static_assert(TILE_KV % 32 == 0 && !HAS_WEIGHTS, "whole steps along the keys, weights that are rounded only");

DEFINE_WGMMA_K_MAJOR(multiply_k_major, TILE_KV, 32, f32.TYPE.TYPE, f32, "+f", ", 1, 1")
DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(multiply_registers, HEAD_V, 32, f32.TYPE.TYPE)

__device__ __forceinline__ void multiply_by_keys(ScoreTile& scores, u64 queries, u64 keys, bool accumulate) {
  multiply_k_major(flat(scores), queries, keys, accumulate);
}

__device__ __forceinline__ void multiply_by_values(OutputTile& o, const WeightTile& weights, const Values& values) {
#pragma unroll
  for (int step = 0; step < TILE_KV / 32; ++step) {
    multiply_registers(flat(o), weights[step], values.k_major(0, step * 32), true);
  }
}

__device__ __forceinline__ void make_weights(const Forward&, const Place&, const Rows&, i32, const ScoreTile& scores,
                                             WeightTile& weights) {
#pragma unroll
  for (int step = 0; step < TILE_KV / 32; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int block = step * 4 + i / 2 * 2, half = i % 2;
      const u16 low = packed_pair(Tag<T>(), scores[0][block] + half * 2);
      const u16 high = packed_pair(Tag<T>(), scores[0][block + 1] + half * 2);
      asm("mov.b32 %0, {%1, %2};" : "=r"(weights[step][i]) : "h"(low), "h"(high));
      make_ready(weights[step][i]);
    }
  }
}

// Transposes a tile of values, with TRANSPOSERS warps; `warp` is the calling one's index. Each takes 16 elements of all
// keys at a time.
//
// ldmatrix transposes 16-bit units, which are pairs of fp8 elements: with r = lane / 4 and t = lane % 4, a lane gets
// elements 2 * r and 2 * r + 1 of keys 2 * t and 2 * t + 1. The bytes of two such words, whose keys differ by 8, make
// one word of either element's row. Rows of elements of equal parity share banks, so each matrix that is written takes
// even elements from the lower lanes and odd ones from the others, or the other way round.
__device__ __forceinline__ void transpose(const LoadedValues& from, const Values& to, u32 warp) {
  constexpr int STEPS = TILE_KV / 32;
  const u32 lane = threadIdx.x % WARP_SIZE, matrix = lane / 8, row = lane % 8;
  const u32 bytes = lane < 16 ? 0x6420 : 0x7531, other_bytes = bytes ^ 0x1111;
  const u32 written = row * 2 + (matrix % 2 ^ row / 4);
#pragma unroll  // so that the common part of all addresses is computed once
  for (int first = 0; first < HEAD_V; first += TRANSPOSERS * 16) {
    const u32 element = first + warp * 16;
    if (element >= HEAD_V) break;
    const u32 source = from.at(lane, element), target = to.at(element + written, matrix / 2 * 16);
    u32 words[STEPS][4];  // all loads in flight at once: the tensor cores' reads of shared memory delay each
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      ldmatrix_x4_transposed(words[step], source + step * 32 * LoadedValues::ROW_BYTES);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const auto& word = words[step];
      const u32 results[4] = {__byte_perm(word[0], word[1], bytes), __byte_perm(word[0], word[1], other_bytes),
                              __byte_perm(word[2], word[3], bytes), __byte_perm(word[2], word[3], other_bytes)};
      const int key = step * 32, box = key / Values::BOX_ELEMENTS, inside = key % Values::BOX_ELEMENTS;
      stmatrix_x4((target ^ inside) + box * Values::BOX_BYTES, results);  // ^ moves along an aligned row
    }
  }
}
