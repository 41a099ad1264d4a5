// matmul_list_wgmma: c_i[b, m, n] = epilogue_i(sum over k of a_i[b, m, k] * b_i[b, k, n]) for a list of independent
// products i with TMA and wgmma, for sm_90a.
//
// Operand p of a product is the one of a and b that gives the output's rows, and q the one that gives its columns,
// along which the output is contiguous. Their maps are (contiguous dimension, other dimension, batch). P_MN_MAJOR: p is
// contiguous along the rows, otherwise along k; Q_MN_MAJOR: q is contiguous along the columns, otherwise along k. All
// products have the same types and layouts.
// Block: persistent, warps specialised, in clusters of CLUSTER_M x CLUSTER_N (tile_wgmma.cuh); it computes tiles of
// TILE_M x TILE_N of all products, one after the other (product_list.cuh).
// Shared memory: STAGES stages of (p, q), a staging area for each consumer warp, barriers.
// Launch: at most as many blocks as are resident at once, of (1 + CONSUMER_TEAMS * CONSUMER_WARPGROUPS) * 128 threads.
// PRODUCTS: number of products. STORE: how the accumulators are stored (wgmma_output.cuh), not STORE_SLICE.

#include "include/ptx/dependent_launch.cuh"
#include "include/epilogue/output_map.cuh"
#include "product_list.cuh"
#include "include/tile/tile_wgmma.cuh"

typedef TileWgmma<TYPE, ACCUMULATOR, TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M, CLUSTER_N,
                  P_MN_MAJOR, Q_MN_MAJOR>
    Tile;
#include "include/tile/wgmma_multiply.cuh"
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#include "include/epilogue/wgmma_output.cuh"

typedef ProductList<Tile, Epilogue::Output, PRODUCTS> List;
typedef TiledOperand<Tile::StageA, true, TILE_M, Tile::K, CLUSTER_N, 1> TiledP;
typedef TiledOperand<Tile::StageB, false, TILE_N, Tile::K, CLUSTER_M, 1> TiledQ;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, BLOCKS_PER_SM)
#if CLUSTER_M * CLUSTER_N > 1
    __cluster_dims__(CLUSTER_M * CLUSTER_N, 1, 1)
#endif
    KERNEL_NAME(const __grid_constant__ List list) {
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
      ListOperand<List, TiledP, true> load_p(list, share_of_a<CLUSTER_M, CLUSTER_N>(rank));
      ListOperand<List, TiledQ, false> load_q(list, share_of_b<CLUSTER_M>(rank));
      tile.produce(list, load_p, load_q);
    }
  } else {
    take_registers<CONSUMER_REGISTERS>();
    ListEpilogue<List, Epilogue, STORE == STORE_MAP> epilogue(list, staging + warp * Epilogue::STAGING_BYTES);
    tile.consume<PROMOTED>(list, warp / 4, Multiply<P_MN_MAJOR, Q_MN_MAJOR>(), epilogue);
    epilogue.finish();
  }
}
