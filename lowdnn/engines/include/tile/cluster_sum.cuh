// The sum of a tile's parts along k, each of which one block of a cluster has computed. A block gets the sum for its
// share of the tile's columns, so that all blocks store.
//
// A thread holds the same positions of the tile in every block. It sends each other block that block's share of its
// accumulators, to the thread of the same number. Then it adds its own and the received accumulators in the order of
// the blocks, so that equal inputs give equal bits. A warp waits only for the warps of its number.
//
// Each consumer warp has two barriers: a phase of `full` ends when the accumulators of all other blocks have arrived, a
// phase of `empty` when all other blocks have read what this warp sent.

#pragma once

#include "include/ptx/cluster.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/shared_memory.cuh"

// WARPS: the block's first warps, whose threads have PARTS x COLUMNS / 2 accumulators each. BLOCKS: blocks of the
// cluster.
template <class Accumulator, int PARTS, int COLUMNS, int WARPS, int BLOCKS> struct ClusterSum {
  static constexpr int SHARE = COLUMNS / BLOCKS;  // columns of one block
  static_assert(SHARE * BLOCKS == COLUMNS && SHARE % 8 == 0, "shares of whole blocks of 8 columns");
  static constexpr int QUADS = PARTS * SHARE / 8;  // groups of 4 accumulators of a thread, in one share
  static constexpr u32 QUAD_BYTES = 16;
  static constexpr u32 SLOT_BYTES = QUADS * WARP_SIZE * QUAD_BYTES;  // one share of a warp
  static constexpr int WARP_BYTES = (BLOCKS - 1) * SLOT_BYTES, AREA_BYTES = WARPS * WARP_BYTES;
  static constexpr int WARP_BARRIER_BYTES = 2 * MBARRIER_BYTES;
  static constexpr int BARRIER_BYTES = BLOCKS > 1 ? WARPS * WARP_BARRIER_BYTES : 0;

  const u32 rank;  // rank of this block
  const u32 area, full, empty;
  u32 parity = 0;

  // Called by one thread, before the cluster barrier at the kernel's start.
  static __device__ __forceinline__ void init_barriers(u32 barriers) {
    for (int warp = 0; warp < WARPS; ++warp) {
      mbarrier_init(barriers + warp * WARP_BARRIER_BYTES, 1);
      mbarrier_init(barriers + warp * WARP_BARRIER_BYTES + MBARRIER_BYTES, BLOCKS - 1);
    }
  }

  __device__ __forceinline__ ClusterSum(u32 rank, u32 areas, u32 barriers)
      : rank(rank), area(areas + threadIdx.x / WARP_SIZE * WARP_BYTES),
        full(barriers + threadIdx.x / WARP_SIZE * WARP_BARRIER_BYTES), empty(full + MBARRIER_BYTES) {}

  // Copies block `block`'s share of d.
  static __device__ __forceinline__ void take(const Accumulator (&d)[PARTS][COLUMNS / 2], u32 block,
                                              Accumulator (&share)[PARTS][SHARE / 2]) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      const Quad q = quad(d, block, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) share[0][i * 4 + j] = q.v[j];
    }
  }

  // Called by all threads of the warp: computes this block's share of the sum of all blocks' d.
  __device__ __forceinline__ void add(const Accumulator (&d)[PARTS][COLUMNS / 2],
                                      Accumulator (&sum)[PARTS][SHARE / 2]) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    if (lane == 0) mbarrier_expect(full, WARP_BYTES);
    mbarrier_wait_cluster(empty, parity ^ 1);
    Quad own[QUADS];
#pragma unroll
    for (u32 block = 0; block < BLOCKS; ++block) {
      if (block == rank) {
#pragma unroll
        for (int i = 0; i < QUADS; ++i) own[i] = quad(d, block, i);
      } else {
        const u32 to = cluster_address(slot(rank, block), block), barrier = cluster_address(full, block);
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
          const Quad q = quad(d, block, i);
          store_async_16(to + i * WARP_SIZE * QUAD_BYTES, barrier, bits(q.v[0]), bits(q.v[1]), bits(q.v[2]),
                         bits(q.v[3]));
        }
      }
    }
    mbarrier_wait_cluster(full, parity);
    parity ^= 1;
#pragma unroll
    for (u32 block = 0; block < BLOCKS; ++block) {
#pragma unroll
      for (int i = 0; i < QUADS; ++i) {
        const Quad part = block == rank ? own[i] : received(slot(block, rank) + i * WARP_SIZE * QUAD_BYTES);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Accumulator& total = sum[0][i * 4 + j];
          total = block == 0 ? part.v[j] : total + part.v[j];
        }
      }
    }
    __syncwarp();
    if (lane < BLOCKS && lane != rank) mbarrier_release_cluster(cluster_address(empty, lane));
  }

  // No block may end while others can still arrive at its barriers.
  __device__ __forceinline__ void finish() const { mbarrier_wait_cluster(empty, parity ^ 1); }

 private:
  struct alignas(QUAD_BYTES) Quad { Accumulator v[4]; };

  // Address in block `to` for this thread's accumulators of block `from`.
  __device__ __forceinline__ u32 slot(u32 from, u32 to) const {
    return area + (from - (from > to)) * SLOT_BYTES + threadIdx.x % WARP_SIZE * QUAD_BYTES;
  }

  static __device__ __forceinline__ Quad quad(const Accumulator (&d)[PARTS][COLUMNS / 2], u32 block, int i) {
    const Accumulator* from = d[i / (SHARE / 8)] + block * (SHARE / 2) + i % (SHARE / 8) * 4;
    return {from[0], from[1], from[2], from[3]};
  }

  static __device__ __forceinline__ u32 bits(const Accumulator& x) { return *reinterpret_cast<const u32*>(&x); }

  static __device__ __forceinline__ Quad received(u32 from) {
    const uint4 words = load_shared_128(from);
    return *reinterpret_cast<const Quad*>(&words);
  }
};
