// The filters of a unit as operands of mma.sync, for two neighbouring blocks of 8 output channels at a time.
//
// Macros: as in grouped_stages.cuh.

#pragma once

#include "grouped_stages.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"

typedef Mma<TYPE> Product;

// Filters that a warp reads from shared memory for each set of pixels, with the offsets in the box of the inputs that
// they multiply.
struct ReadFilters {
  static constexpr int UNROLL = 2;
  u32 filters;  // shared-memory address of the lane's row of the unit's first chunks
  const u32* offsets;

  __device__ __forceinline__ ReadFilters(const Params&, const Shared& shared, u32 unit) : offsets(shared.offsets) {
    const u32 lane = threadIdx.x % WARP_SIZE, block = unit * BLOCKS_N + lane / 16;
    filters = shared_address(shared.filters) + block * (DEPTH * FILTER_CHUNK_BYTES) + lane % 16 * CHUNK_BYTES;
  }

  // Loads the operands of two neighbouring blocks.
  __device__ __forceinline__ void operands(u32 (&b)[4], int block, int step) const {
    const u32 from = filters + (block * DEPTH + 2 * step) * FILTER_CHUNK_BYTES;
    if constexpr (FILTERS_ARE_DEPTH) {
      ldmatrix_x4_transposed(b, from);
    } else {
      ldmatrix_x4(b, from);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) b[word] = Product::operand(b[word]);
  }

  // Offset in the box of the lane's chunk.
  __device__ __forceinline__ u32 offset(int step) const { return offsets[2 * step + threadIdx.x % WARP_SIZE / 16]; }
};

// Filters in shared memory with the layout of w.
struct WholeFilters {
  const Params& p;
  u32 filters;  // address of the lane's row of the unit's first chunks, at tap 0

  __device__ __forceinline__ WholeFilters(const Params& p, const Shared& shared, u32 unit) : p(p) {
    const u32 lane = threadIdx.x % WARP_SIZE, block = lane / 16, chunk = lane / 8 % 2, row = lane % 8;
    const u32 filter = unit * UNIT_PACKS * (BACKWARD ? IN : OUT) + (BACKWARD ? chunk : block) * 8 + row;
    filters = shared_address(shared.filters) + filter * FILTER_PITCH + (BACKWARD ? 0 : chunk) * CHUNK_BYTES;
  }

  __device__ __forceinline__ void operands(u32 (&b)[4], int block, int step) const {
    const int chunk = 2 * step % IN_CHUNKS;
    const u32 tap = filters + p.taps[2 * step / IN_CHUNKS].index * (WHOLE_FILTER_BYTES / TAPS);
    if constexpr (BACKWARD) {
      // The lane's block. The second one of a pair may be the first of the next pack.
      const u32 own = block + threadIdx.x % WARP_SIZE / 16;
      const u32 filter = own / OUT_BLOCKS * IN + chunk * 8;
      ldmatrix_x4_transposed(b, tap + filter * FILTER_PITCH + own % OUT_BLOCKS * CHUNK_BYTES);
    } else {
      ldmatrix_x4(b, tap + block * 8 * FILTER_PITCH + chunk * CHUNK_BYTES);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) b[word] = Product::operand(b[word]);
  }
};

// Filters that a warp keeps in registers from tile to tile.
struct KeptFilters {
  static constexpr int UNROLL = DEPTH / 2;
  const Params& p;
  u32 words[DEPTH / 2][BLOCKS_N / 2][4];

  template <class From> __device__ __forceinline__ KeptFilters(const Params& p, const From& from) : p(p) {
#pragma unroll
    for (int step = 0; step < DEPTH / 2; ++step) {
#pragma unroll
      for (int pair = 0; pair < BLOCKS_N / 2; ++pair) from.operands(words[step][pair], 2 * pair, step);
    }
  }

  __device__ __forceinline__ void operands(u32 (&b)[4], int block, int step) const {
#pragma unroll
    for (int word = 0; word < 4; ++word) b[word] = words[step][block / 2][word];
  }

  __device__ __forceinline__ u32 offset(int step) const {
    const u32 half = threadIdx.x % WARP_SIZE / 16;
    const int chunk = 2 * step, first = chunk / IN_CHUNKS, second = (chunk + 1) / IN_CHUNKS;
    if (first == second) return p.taps[first].offset + (chunk % IN_CHUNKS + half) * CHUNK_BYTES;
    const u32 last_chunk = chunk % IN_CHUNKS * CHUNK_BYTES;
    return half ? p.taps[second].offset : p.taps[first].offset + last_chunk;
  }
};

// Waits until the filters have arrived, and returns those of a unit.
__device__ __forceinline__ auto filters_of(const Params& p, const Shared& shared, u32 unit) {
  if constexpr (WHOLE_FILTERS) {
    __syncthreads();  // the barrier is initialised
    mbarrier_wait(shared_address(shared.barriers + STAGES), 0);
    return KeptFilters(p, WholeFilters(p, shared, unit));
  } else if constexpr (KEEPS_FILTERS) {
    await_copies();
    return KeptFilters(p, ReadFilters(p, shared, unit));
  } else {
    return ReadFilters(p, shared, unit);
  }
}
