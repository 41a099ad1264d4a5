// The weights that a block of rnn_persistent_forward or rnn_persistent_backward keeps: 64 rows for each warpgroup, k in
// chunks of 64. The first REGISTER_CHUNKS of a warpgroup lie in registers, as wgmma takes its operand A; the others in
// shared memory, in swizzled rows of 128 bytes.
// Macros: TYPE, WARPGROUPS, REGISTER_CHUNKS.

#pragma once

#include "include/ptx/shared_memory.cuh"
#include "include/vector.cuh"

constexpr int CHUNK = 64, LINE_BYTES = 128, WEIGHT_BYTES = 64 * LINE_BYTES;

// The chunks in registers of a thread.
struct OwnWeights {
  u32 words[REGISTER_CHUNKS ? REGISTER_CHUNKS : 1][CHUNK / 16][4];

  // from(chunk, row, k): where two weights of the warpgroup lie, or null for zeros.
  template <class From> __device__ __forceinline__ explicit OwnWeights(const From& from) {
    const u32 lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
#pragma unroll
    for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk) {
#pragma unroll
      for (int step = 0; step < CHUNK / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const TYPE* at = from(chunk, warp * 16 + i % 2 * 8 + lane / 4, step * 16 + i / 2 * 8 + lane % 4 * 2);
          words[chunk][step][i] = at ? *reinterpret_cast<const u32*>(at) : 0;
        }
      }
    }
  }
};

// Copies the other SHARED_CHUNKS chunks of each warpgroup to shared memory, by all THREADS threads of a block, which
// have several loads under way.  from(warpgroup, chunk, row, k): where 8 weights lie, or null for zeros.
template <int SHARED_CHUNKS, int THREADS, class From>
__device__ __forceinline__ void stage_weights(u32 memory, const From& from) {
  constexpr u32 LINE_PIECES = CHUNK / 8, TILE_PIECES = 64 * LINE_PIECES, AT_ONCE = 4;
  constexpr u32 ITEMS = WARPGROUPS * SHARED_CHUNKS * TILE_PIECES;
#pragma unroll 1
  for (u32 first = threadIdx.x; first < ITEMS; first += AT_ONCE * THREADS) {
    union {
      TYPE values[8];
      u32 words[4];
    } pieces[AT_ONCE] = {};
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; ++i) {
      const u32 item = min(first + i * THREADS, ITEMS - 1), tile = item / TILE_PIECES;
      const u32 chunk = REGISTER_CHUNKS + tile % SHARED_CHUNKS;
      const TYPE* at = from(tile / SHARED_CHUNKS, chunk, item / LINE_PIECES % 64, item % LINE_PIECES * 8);
      if (at) load<Plain, 8>(pieces[i].values, at);
    }
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; ++i) {
      const u32 item = first + i * THREADS, piece = item % LINE_PIECES, line = item / LINE_PIECES;
      if (item >= ITEMS) break;
      const u32(&words)[4] = pieces[i].words;
      store_shared_16(memory + line * LINE_BYTES + (piece ^ line % 8) * 16, words[0], words[1], words[2], words[3]);
    }
  }
}
