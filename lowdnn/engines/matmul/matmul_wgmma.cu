// matmul_wgmma: c[b, m, n] = epilogue(sum over k of a[b, m, k] * b[b, k, n]) with TMA and wgmma, for sm_90a.
//
// Operands p and q are a and b, in the order in which they make the rows and columns of the tiles. Each lies as its
// tensor map says: (contiguous dimension, other dimension, BATCH_AXES batch axes); P_MN_MAJOR: p's m is contiguous,
// otherwise its k; Q_MN_MAJOR likewise. The output's index space (output_map.cuh) has ROW_AXES axes of rows (batch
// axes, then one of m and n), and the axis along which it is contiguous as its columns. A tile's rows are the output's
// rows or, TRANSPOSED, its columns: where there are few of one kind, they are the tile's columns.
// Block: persistent, warps specialised, in clusters of CLUSTER_M x CLUSTER_N (tile_wgmma.cuh); it computes tiles
// of TILE_M x TILE_N over parts of k (tile_schedule.cuh).
// Shared memory: STAGES stages of (p, q), a staging area for each consumer warp, barriers.
// Launch: at most as many blocks as are resident, (1 + CONSUMER_TEAMS * CONSUMER_WARPGROUPS) * 128 threads.
// STORE: what becomes of the accumulators (wgmma_output.cuh).

#include "include/dependent_launch.cuh"
#include "include/output_map.cuh"
#include "include/tile_operands.cuh"
#include "include/tile_wgmma.cuh"

typedef TileWgmma<TYPE, ACCUMULATOR, TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M, CLUSTER_N,
    P_MN_MAJOR,
                  Q_MN_MAJOR>
    Tile;
#include "include/wgmma_multiply.cuh"
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#include "include/wgmma_output.cuh"

struct Params {
  TensorMap p, q;
  Epilogue::Output output;
  Tile::Schedule schedule;
  BatchAxes<BATCH_AXES> batches;
};

typedef TiledOperand<Tile::StageA, true, TILE_M, Tile::K, CLUSTER_N, BATCH_AXES> LoaderP;
typedef TiledOperand<Tile::StageB, false, TILE_N, Tile::K, CLUSTER_M, BATCH_AXES> LoaderQ;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, BLOCKS_PER_SM)
#if CLUSTER_M * CLUSTER_N > 1
    __cluster_dims__(CLUSTER_M * CLUSTER_N, 1, 1)
#endif
    KERNEL_NAME(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) u8 shared[];
  u8* staging = shared + Tile::RING_BYTES;
  const u32 barriers = shared_address(staging) + Tile::CONSUMER_WARPS * Epilogue::STAGING_BYTES;
  const Tile tile(shared_address(shared), barriers);
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  wait_for_previous_kernel();
  allow_next_kernel();

  // The last warpgroup loads, the others multiply.
  if (warp >= Tile::CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == Tile::CONSUMER_WARPS && elect_one()) {
      const u32 rank = cluster_rank();
      LoaderP load_p(params.p, params.batches, share_of_a<CLUSTER_M, CLUSTER_N>(rank));
      LoaderQ load_q(params.q, params.batches, share_of_b<CLUSTER_M>(rank));
      tile.produce(params.schedule, load_p, load_q);
    }
  } else {
    take_registers<CONSUMER_REGISTERS>();
    Epilogue epilogue(params.output, staging + warp * Epilogue::STAGING_BYTES,
                      barriers + Tile::BARRIER_BYTES + warp * Epilogue::BARRIER_BYTES);
    tile.consume<PROMOTED>(params.schedule, warp / 4, Multiply<P_MN_MAJOR, Q_MN_MAJOR>(), epilogue);
    epilogue.finish();
  }
}
