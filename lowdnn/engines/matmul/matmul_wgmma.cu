// matmul_wgmma: c[b, m, n] = epilogue(sum over k of a[b, m, k] * b[b, k, n]) with TMA and wgmma, for sm_90a.
//
// Operand p is the one of a and b that gives the tiles' rows, and q the one that gives their columns. Their tensor maps
// have dimensions (contiguous dimension, other dimension, BATCH_AXES batch axes). P_MN_MAJOR: p is contiguous along the
// tile's rows, otherwise along k; Q_MN_MAJOR: q is contiguous along the tile's columns, otherwise along k. The output's
// index space (output_map.cuh) has ROW_AXES axes of rows (batch axes, then one of m and n), and its contiguous axis as
// columns. A tile's rows are the output's rows or, with TRANSPOSED, its columns: an output of few rows wastes less of a
// transposed tile, since tiles have at least 64 rows but as few as 8 columns.
// Block: computes tiles of TILE_M x TILE_N, each over all of k or a part of it (tile_schedule.cuh). One thread of the
// last warpgroup loads p and q by TMA; the other warpgroups multiply and store (wgmma_kernel.cuh, as are clusters and
// the launch).
// Shared memory: STAGES stages of (p, q), then as in wgmma_kernel.cuh.
// STORE: how the accumulators are stored (wgmma_output.cuh).
// TF32X3: each product of fp32 is three of TF32, of p as it is in memory, and of q in parts (tf32x3_operands.cuh).

#include "include/epilogue/output_map.cuh"
#include "include/tile/tile_operands.cuh"
#include "include/tile/wgmma_kernel.cuh"
#include "include/tile/wgmma_multiply.cuh"

#if TF32X3
#include "include/tile/tf32x3_operands.cuh"
typedef KernelTile<P_MN_MAJOR, Q_MN_MAJOR, SplitStage<TILE_N>> Tile;
#else
typedef KernelTile<P_MN_MAJOR, Q_MN_MAJOR> Tile;
#endif
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#include "include/epilogue/wgmma_output.cuh"

struct Params {
  TensorMap p, q;
  Epilogue::Output output;
  Tile::Schedule schedule;
  BatchAxes<BATCH_AXES> batches;
};

typedef TiledOperand<Tile::StageA, true, TILE_M, Tile::K, CLUSTER_N, BATCH_AXES> LoaderP;
typedef TiledOperand<Tile::StageB, false, TILE_N, Tile::K, CLUSTER_M, BATCH_AXES> WholeLoaderQ;
#if TF32X3
typedef SplitOperand<WholeLoaderQ, TILE_N> LoaderQ;
#else
typedef WholeLoaderQ LoaderQ;
#endif

WGMMA_KERNEL(const __grid_constant__ Params params) {
  if (threadIdx.x == WARP_SIZE) {  // while another warp initialises the barriers
    prefetch(params.p);
    prefetch(params.q);
  }
  const auto produce = [&](const Tile& tile) {
    const u32 rank = Tile::sharer();
    LoaderP load_p(params.p, params.batches, share_of_a<CLUSTER_M, CLUSTER_N>(rank));
    LoaderQ load_q(params.q, params.batches, share_of_b<CLUSTER_M>(rank));
    tile.produce(params.schedule, load_p, load_q);
  };
  const auto consume = [&](const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
#if TF32X3
    const Tf32x3Sum<Tile> multiply{tile};
    const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      multiply(d, work.blocks, first_row, at, issued);
    };
    tile.consume_by(params.schedule, warpgroup, sum, epilogue);
#else
    tile.consume<PROMOTED>(params.schedule, warpgroup, Multiply<P_MN_MAJOR, Q_MN_MAJOR>(), epilogue);
#endif
  };
  run_roles<Tile, Epilogue>(params.output, produce, consume);
}
