// Common parts of all wgmma kernels: the tile that their macros describe, their head, and the roles of their warps.
//
// Block: persistent, warps specialised, in clusters of CLUSTER_M x CLUSTER_N x CLUSTER_K (tile_wgmma.cuh). The last
// warpgroup loads, the others multiply and store.
// Shared memory: the tile's ring, the area of a cluster's sum, a staging area for each consumer warp, the tile's
// barriers, the barriers of each consumer warp's epilogue.
// Launch: at most as many blocks as are resident at once, of (1 + CONSUMER_TEAMS * CONSUMER_WARPGROUPS) * 128 threads;
// it may be a dependent launch (dependent_launch.cuh).
//
// Macros: the tile's TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M, CLUSTER_N, CLUSTER_K,
// BLOCKS_PER_SM, PRODUCER_REGISTERS, CONSUMER_REGISTERS; its data types TYPE and ACCUMULATOR.

#pragma once

#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_wgmma.cuh"

template <bool A_IS_M_MAJOR, bool B_IS_N_MAJOR,
          class StageB = OperandStage<TYPE, stage_lines(TILE_N, B_IS_N_MAJOR), B_IS_N_MAJOR>,
          class StageA = OperandStage<TYPE, TILE_M, A_IS_M_MAJOR>, int KEPT_BLOCKS = 0, bool KEEPS_B = false>
using KernelTile = TileWgmma<TYPE, ACCUMULATOR, TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M,
                             CLUSTER_N, A_IS_M_MAJOR, B_IS_N_MAJOR, StageB, StageA, KEPT_BLOCKS, CLUSTER_K,
                             KEEPS_B>;

#if CLUSTER_M * CLUSTER_N * CLUSTER_K > 1
#define WGMMA_CLUSTER __cluster_dims__(CLUSTER_M * CLUSTER_N * CLUSTER_K, 1, 1)
#else
#define WGMMA_CLUSTER
#endif

// The head of a kernel that has defined Tile; its parameters follow.
#define WGMMA_KERNEL \
  extern "C" __global__ void __launch_bounds__(Tile::THREADS, BLOCKS_PER_SM) WGMMA_CLUSTER KERNEL_NAME

// Called by all threads at the kernel's start. produce(tile) runs in one thread; consume(tile, warpgroup, epilogue)
// runs in the consumer warpgroups, counted from 0, with the Epilogue of each warp.
//
// Everything that needs no global memory comes before the wait for the previous kernel. With one block on a
// multiprocessor the next kernel may start at once, since its blocks find room only as this kernel's end. With room for
// two blocks, they would keep some of this kernel's blocks from having a multiprocessor to themselves.
template <class Tile, class Epilogue, class Output, class Produce, class Consume>
__device__ __forceinline__ void run_roles(const Output& output, const Produce& produce, const Consume& consume) {
  extern __shared__ __align__(1024) u8 shared[];
  if constexpr (BLOCKS_PER_SM == 1) allow_next_kernel();
  u8* staging = shared + Tile::SHARED_BYTES;
  const u32 barriers = shared_address(staging) + Tile::CONSUMER_WARPS * Epilogue::STAGING_BYTES;
  const Tile tile(shared_address(shared), barriers);
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);

  if (warp >= Tile::CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == Tile::CONSUMER_WARPS && elect_one()) produce(tile);
  } else {
    take_registers<CONSUMER_REGISTERS>();
    wait_for_previous_kernel();
    if constexpr (BLOCKS_PER_SM > 1) allow_next_kernel();
    Epilogue epilogue(output, staging + warp * Epilogue::STAGING_BYTES,
                      barriers + Tile::BARRIER_BYTES + warp * Epilogue::BARRIER_BYTES);
    consume(tile, warp / 4, epilogue);
    epilogue.finish();
  }
}
