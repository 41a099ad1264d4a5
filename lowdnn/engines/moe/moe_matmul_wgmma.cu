// moe_matmul_wgmma: output[to(r), n] = epilogue(sum over k of token[r, k] * weight[expert(r), k, n]) with TMA and
// wgmma, for sm_90a (token_groups.cuh, routing.cuh).
//
// Operands: p is token, its map (contiguous dimension, other dimension, 1); q is weight, its map (contiguous dimension,
// other dimension, experts). P_MN_MAJOR: token is contiguous along its rows r, otherwise along k; Q_MN_MAJOR: weight is
// contiguous along n, otherwise along k. A launch before has gathered the rows (moe_gather.cu), so that from(r) = r.
// Block: persistent, warps specialised, in clusters of CLUSTER_M x CLUSTER_N (tile_wgmma.cuh); it computes tiles of
// TILE_M rows of one group and TILE_N columns (grouped_tiles.cuh).
// Shared memory: STAGES stages of (p, q), a staging area for each consumer warp, barriers, groups + 1 words for
// GroupTiles.
// Launch: at most as many blocks as are resident at once, of (1 + CONSUMER_TEAMS * CONSUMER_WARPGROUPS) * 128 threads.
// BY_MAP: the output is stored by tensor map, otherwise the functor stores it, VECTOR elements at a time.

#include "include/ptx/dependent_launch.cuh"
#include "grouped_output.cuh"
#include "include/tile/tile_operands.cuh"
#include "include/tile/tile_wgmma.cuh"
#include "generated.cuh"

typedef TileWgmma<TYPE, ACCUMULATOR, TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M, CLUSTER_N,
                  P_MN_MAJOR, Q_MN_MAJOR>
    Tile;
#include "include/tile/wgmma_multiply.cuh"
typedef GroupSchedule<TILE_M, TILE_N, CLUSTER_M, CLUSTER_N, TokenGroups<OFFSET_TYPE>> Schedule;
#if BY_MAP
typedef MapEpilogue<Tile, Functor, GroupMap, GroupTarget, OUTPUT_TYPE, 0, u8, NoOperator, NoOperator, NoOperator>
    Epilogue;
#else
typedef RoutedEpilogue<Tile, Functor, VECTOR> Epilogue;
#endif

struct Params {
  TensorMap p, q;
  Epilogue::Output output;
  Schedule::Arguments schedule;
  BatchAxes<1> one, experts;
};

typedef TiledOperand<Tile::StageA, true, TILE_M, Tile::K, CLUSTER_N, 1> LoaderP;
typedef ExpertOperand<TiledOperand<Tile::StageB, false, TILE_N, Tile::K, CLUSTER_M, 1>> LoaderQ;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, BLOCKS_PER_SM)
#if CLUSTER_M * CLUSTER_N > 1
    __cluster_dims__(CLUSTER_M * CLUSTER_N, 1, 1)
#endif
    KERNEL_NAME(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) u8 shared[];
  u8* staging = shared + Tile::RING_BYTES;
  u8* behind = staging + Tile::CONSUMER_WARPS * Epilogue::STAGING_BYTES;
  const Tile tile(shared_address(shared), shared_address(behind));
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  wait_for_previous_kernel();
  allow_next_kernel();
  const Schedule schedule(params.schedule, reinterpret_cast<u32*>(behind + Tile::BARRIER_BYTES));

  // The last warpgroup loads, the others multiply.
  if (warp >= Tile::CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == Tile::CONSUMER_WARPS && elect_one()) {
      const u32 rank = cluster_rank();
      LoaderP load_p(params.p, params.one, share_of_a<CLUSTER_M, CLUSTER_N>(rank));
      LoaderQ load_q(params.q, params.experts, share_of_b<CLUSTER_M>(rank));
      tile.produce(schedule, load_p, load_q);
    }
  } else {
    take_registers<CONSUMER_REGISTERS>();
    Epilogue epilogue(params.output, staging + warp * Epilogue::STAGING_BYTES, 0);
    tile.consume<PROMOTED>(schedule, warp / 4, Multiply<P_MN_MAJOR, Q_MN_MAJOR>(), epilogue);
    epilogue.finish();
  }
}
