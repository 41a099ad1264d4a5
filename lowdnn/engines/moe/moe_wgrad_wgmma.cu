// moe_wgrad_wgmma: dweight[e, k, n] = epilogue(sum over the rows r of expert e of token[r, k] * doutput[r, n]) with TMA
// and wgmma, for sm_90a (token_groups.cuh).
//
// Operand p is the one of token and doutput that gives dweight's rows, and q the one that gives its columns, along
// which dweight is contiguous. Their maps are (contiguous elements, rows, 1).
// Block: persistent, warps specialised, in clusters of CLUSTER_M x CLUSTER_N (tile_wgmma.cuh); it computes tiles of
// TILE_M x TILE_N over all rows of an expert (expert_rows.cuh).
// Shared memory: STAGES stages of (p, q), a staging area for each consumer warp, barriers.
// Launch: at most as many blocks as are resident at once, of (1 + CONSUMER_TEAMS * CONSUMER_WARPGROUPS) * 128 threads.
// STORE: how the accumulators are stored (wgmma_output.cuh).

#include "include/ptx/dependent_launch.cuh"
#include "expert_rows.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/tile/tile_operands.cuh"

typedef TileWgmma<TYPE, ACCUMULATOR, TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M, CLUSTER_N,
                  true, true>
    Tile;
#include "include/tile/wgmma_multiply.cuh"
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#include "include/epilogue/wgmma_output.cuh"

typedef TokenGroups<OFFSET_TYPE> Groups;

struct Params {
  TensorMap p, q;
  Epilogue::Output output;
  Tile::Schedule tiles;
  Groups groups;
  BatchAxes<1> one;
};

typedef TiledOperand<Tile::StageA, true, TILE_M, Tile::K, CLUSTER_N, 1> LoaderP;
typedef TiledOperand<Tile::StageB, false, TILE_N, Tile::K, CLUSTER_M, 1> LoaderQ;

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
  const ExpertSchedule<Tile::Schedule, Groups, Tile::K> schedule(params.tiles, params.groups);

  // The last warpgroup loads, the others multiply.
  if (warp >= Tile::CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == Tile::CONSUMER_WARPS && elect_one()) {
      const u32 rank = cluster_rank();
      RowsOperand<LoaderP, Groups, Tile::K> load_p(params.groups, params.p, params.one,
                                                   share_of_a<CLUSTER_M, CLUSTER_N>(rank));
      RowsOperand<LoaderQ, Groups, Tile::K> load_q(params.groups, params.q, params.one, share_of_b<CLUSTER_M>(rank));
      tile.produce(schedule, load_p, load_q);
    }
  } else {
    take_registers<CONSUMER_REGISTERS>();
    Epilogue epilogue(params.output, staging + warp * Epilogue::STAGING_BYTES,
                      barriers + Tile::BARRIER_BYTES + warp * Epilogue::BARRIER_BYTES);
    const ExpertSum<Tile, Groups, Multiply<true, true>> sum = {tile, params.groups};
    tile.consume_by(schedule, warp / 4, sum, epilogue);
    epilogue.finish();
  }
}
