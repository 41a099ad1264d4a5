// matmul_prologue_wgmma: c[b, m, n] = epilogue(sum over k of a[b, m, k] * b[b, k, n]), where one operand is a pointwise
// function of a tensor in memory, for sm_90a.
//
// Operand p is the one of a and b that has the prologue. It gives the rows of the tiles, which are rows of the output
// or, with TRANSPOSED, its columns. Its stages hold elements of RAW_TYPE, K-major, which pass through registers to the
// tensor cores (register_operand.cuh). Operand q gives the tile's columns, in the layout
// of its tensor map (Q_MN_MAJOR: its n is contiguous, otherwise its k). Output, TRANSPOSED, blocks, shared memory and
// launch are as in matmul_wgmma.cu, but there are no clusters and k is not split.
// SHARES_LOADS: whether the prologue's other operands are the same for all rows of p. HAS_TAIL: whether k ends within a
// stage. generated.cuh defines two functors: Functor, the epilogue, and Prologue, over (batch axes, rows of p, k).

#include "include/epilogue/output_map.cuh"
#include "include/tile/register_operand.cuh"
#include "include/tile/wgmma_kernel.cuh"
#include "include/tile/wgmma_multiply.cuh"

typedef OperandStage<TYPE, stage_lines(TILE_N, Q_MN_MAJOR), Q_MN_MAJOR> StageQ;
typedef KernelTile<false, Q_MN_MAJOR, StageQ, RawStage<RAW_TYPE, TILE_M>> Tile;
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#include "include/epilogue/wgmma_output.cuh"

typedef RegisterOperand<Tile, Prologue, MultiplyRegisters<Q_MN_MAJOR>, SHARES_LOADS, HAS_TAIL> OperandP;

struct Params {
  TensorMap p, q;
  Epilogue::Output output;
  OperandP::Input input;
  Tile::Schedule schedule;
  BatchAxes<BATCH_AXES> batches;
};

typedef TiledOperand<Tile::StageA, true, TILE_M, Tile::K, 1, BATCH_AXES> LoaderP;
typedef TiledOperand<Tile::StageB, false, TILE_N, Tile::K, 1, BATCH_AXES> LoaderQ;

WGMMA_KERNEL(const __grid_constant__ Params params) {
  const auto produce = [&](const Tile& tile) {
    LoaderP load_p(params.p, params.batches, {0, 1});
    LoaderQ load_q(params.q, params.batches, {0, 1});
    tile.produce(params.schedule, load_p, load_q);
  };
  const auto consume = [&](const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
    const OperandP operand{tile, params.input};
    const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      const MatrixLines<BATCH_AXES> lines(params.batches, work, params.input.lines);
      operand.sum(d, work, lines, first_row, at, issued);
    };
    tile.consume_by(params.schedule, warpgroup, sum, epilogue);
  };
  run_roles<Tile, Epilogue>(params.output, produce, consume);
}
