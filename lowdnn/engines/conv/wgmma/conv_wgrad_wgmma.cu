// conv_wgrad_wgmma: dw[k, c, taps] = epilogue(sum over pixels of dy[pixel, k] * x[pixel at tap, c]) with TMA and wgmma,
// for sm_90a; 16-bit types, and fp32 by TF32.
//
// Product: rows are the filters of a group; columns are blocks of 64 channels of a filter tap, taps outermost; k walks
// over the output pixels. Both operands are channels-last, hence MN-major, which the tensor cores take of 16-bit types
// only: of fp32, dy goes through registers, and x is transposed in shared memory (transposed_pixels.cuh). A k block is
// 64 pixels, or 32 of fp32, by 64 filters or channels. DY_AXES, X_AXES: how an operand is walked through
// (pixel_walk.cuh): by an im2col map of SPATIAL axes, or, with 0, as a matrix of pixels by channels; x only where the
// filter has one tap, stride 1 and no padding.
// TAP_RUN = 1: a block's channels are loaded for each tap. A walk past the last image reads zeros.
// VALID_TAPS > 0: so many taps, of which each walks over those outputs alone whose pixel of x is none of the padding: a
// box of the outputs, and one of the same extents in x. Taps of equal extents share one of WALKS walks. Each tap has a
// schedule of its own, and as many slices as that says; a tile has columns of one tap.
// TAP_RUN > 1: a tile's blocks are all taps of the last axis, which has stride 1, for the same channels. All are read
// from one window of WINDOW_PIXELS positions of x: each tap sees the pixels TAP_DISTANCE further on than the tap before
// it does. For that, the walk has more positions in a line than there are outputs; dy reads as zeros there, and where a
// tap's window runs on into the next line, it meets that line's padding.
// CONVERTED: x is a function of what lies in memory, Prologue of generated.cuh over (image, channel), which is applied
// in shared memory (converted_pixels.cuh). HAS_TAIL: whether a group's channels end within a block of 64.
// Block: computes tiles of TILE_M x TILE_N over parts of the pixels (tile_schedule.cuh).
// Shared memory: STAGES stages of (dy, x), and what wgmma_kernel.cuh says, as it does of blocks and launch.
// STORE_FUNCTOR: the functor stores. STORE_SLICE: accumulators go to slice `split` of the workspace, and
// gemm/split_k_reduce.cu applies the epilogue.

#include "converted_pixels.cuh"
#include "include/epilogue/epilogue_wgmma.cuh"
#include "filter_columns.cuh"
#include "pixel_walk.cuh"
#include "include/tile/wgmma_kernel.cuh"
#include "include/tile/wgmma_multiply.cuh"

#define STORE_FUNCTOR 0
#define STORE_SLICE 2

#if !MN_MAJOR_TYPES
#include "transposed_pixels.cuh"
#if TAP_RUN > 1
#define TAP_COLUMNS 64
typedef TransposedWindow<WINDOW_PIXELS, TAP_RUN, TAP_DISTANCE> StageX;
#else
#define TAP_COLUMNS TILE_N
typedef TransposedColumns<TILE_N> StageX;
#endif
DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(wgmma_tap, TAP_COLUMNS, WGMMA_K, WGMMA_D.WGMMA_A.WGMMA_B)
struct MultiplyTap {
  __device__ __forceinline__ void operator()(f32 (&d)[TAP_COLUMNS / 2], const u32 (&a)[4], u64 b,
                                             bool accumulate) const {
    wgmma_tap(d, a, b, accumulate);
  }
};
#elif TAP_RUN > 1
typedef TapStage<WINDOW_PIXELS, TAP_DISTANCE> StageX;
#else
typedef OperandStage<TYPE, TILE_N, true> StageX;
#endif
typedef KernelTile<MN_MAJOR_TYPES, MN_MAJOR_TYPES, StageX> Tile;
typedef StoredTile<Tile> Stored;
typedef FilterColumns<SPATIAL, TAP_RUN> Columns;
#if STORE == STORE_FUNCTOR
#include "generated.cuh"
typedef FunctorEpilogue<Stored, Functor, VECTOR, OutputMap<OUTPUT_RANK, ROW_AXES>, Columns> Epilogue;
#else
typedef SliceEpilogue<Stored, Columns> Epilogue;
#endif

#if CONVERTED
#include "generated.cuh"
#endif

// Of a tap: its walk, and how far from it the tap's outputs and their pixels of x lie. One without any adds zeros up.
struct ValidTap {
  u32 walk, is_empty;
  i32 dy_offset[SPATIAL], x_offset[SPATIAL];
};

#if VALID_TAPS
// Longest items first; first_column: of each schedule's tap.
struct Schedule : ClassSchedule<Tile::Schedule, VALID_TAPS> {
  u32 first_column[VALID_TAPS];

  __device__ __forceinline__ ClassWork work(u32 item, u32 rank) const {
    ClassWork work = ClassSchedule::work(item, rank);
    work.column += first_column[work.product_class];
    return work;
  }
};
#else
typedef Tile::Schedule Schedule;
#endif

struct Params {
  TensorMap dy[WALKS], x[WALKS];
  Epilogue::Output output;
  Schedule schedule;
#if VALID_TAPS
  ValidTap taps[VALID_TAPS];
#endif
#if DY_AXES
  PixelWalk<DY_AXES> dy_walks[WALKS];
#endif
#if X_AXES
  PixelWalk<X_AXES> x_walks[WALKS];
#endif
  u32 group_filters;  // in dy, from one group to the next
#if CONVERTED
  ConvertedInput<Prologue> input;
  i32 x_extent[X_AXES + 1];  // converted_pixels.cuh
#endif
};

#if VALID_TAPS
// Boxes as far from their walk as a tap's; returns which of the walks it is.
template <int BOXES>
__device__ __forceinline__ u32 walk_of(const ValidTap& tap, const i32 (&offset)[SPATIAL], PixelBox (&box)[BOXES]) {
#pragma unroll
  for (int i = 0; i < BOXES; ++i) {
#pragma unroll
    for (int axis = 0; axis < SPATIAL; ++axis) box[i].offset[axis] = u16(offset[axis]);
  }
  return tap.walk;
}
#endif

// Multiplies the tiles of a warpgroup. x_walks, x_boxes: what they are made of along pixels.
template <int X_BOXES, class Walks, class Boxes>
__device__ __forceinline__ void multiply(const Params& p, const Tile& tile, u32 warpgroup, const Walks& x_walks,
                                         const Boxes& x_boxes, Epilogue& epilogue) {
#if CONVERTED
  constexpr int TEAM_THREADS = CONSUMER_WARPGROUPS * WARPGROUP_SIZE;
  typedef ConvertedBoxes<Prologue, X_BOXES, WINDOW_PIXELS, TEAM_THREADS, X_AXES, HAS_TAIL> Converted;
  const u32 barrier = Tile::FREE_BARRIER + warpgroup / CONSUMER_WARPGROUPS;
  const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
    Converted boxes(p.input, x_walks[0], p.x_extent, work, x_boxes, p.output.columns.group_channels);
    const auto prepare = [&](u32 stage) { boxes.convert(stage + Tile::STAGE_A_BYTES, barrier); };
    tile.plain_sum(d, work.blocks, first_row, at, Multiply<true, true>(), prepare, issued);
  };
  tile.consume_by(p.schedule, warpgroup, sum, epilogue);
#elif MN_MAJOR_TYPES
  tile.consume(p.schedule, warpgroup, Multiply<true, true>(), epilogue);
#else
  const PixelProduct<Tile, MultiplyTap> product(tile, warpgroup);
  const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
    product.sum(d, work.blocks, first_row, at, issued);
  };
  tile.consume_by(p.schedule, warpgroup, sum, epilogue);
#endif
}

WGMMA_KERNEL(const __grid_constant__ Params p) {
  constexpr int DY_BOXES = TILE_M / 64, X_BOXES = TILE_N / 64 / TAP_RUN;
  const auto x_boxes = [&](const TileWork& work, PixelBox(&box)[X_BOXES]) -> u32 {
#pragma unroll
    for (int i = 0; i < X_BOXES; ++i) box[i] = p.output.columns.box(work.batch, work.column / 64 / TAP_RUN + i);
#if VALID_TAPS
    const ValidTap& tap = p.taps[p.output.columns.tap(work.column / 64)];
#pragma unroll
    for (int i = 0; i < X_BOXES; ++i) {
      if (tap.is_empty) box[i].channel = -64;
    }
    return walk_of(tap, tap.x_offset, box);
#else
    return 0;
#endif
  };
#if X_AXES
  const auto& x_walks = p.x_walks;
#else
  const PixelWalk<0> x_walks[1];
#endif
  if (threadIdx.x == WARP_SIZE) {  // while another warp makes the barriers
    prefetch(p.dy[0]);
    prefetch(p.x[0]);
  }
  const auto produce = [&](const Tile& tile) {
    const auto dy_boxes = [&](const TileWork& work, PixelBox(&box)[DY_BOXES]) -> u32 {
#pragma unroll
      for (int i = 0; i < DY_BOXES; ++i) box[i] = {i32(work.batch * p.group_filters + work.row + i * 64), {}};
#if VALID_TAPS
      const ValidTap& tap = p.taps[p.output.columns.tap(work.column / 64)];
      return walk_of(tap, tap.dy_offset, box);
#else
      return 0;
#endif
    };
#if DY_AXES
    const auto& dy_walks = p.dy_walks;
#else
    const PixelWalk<0> dy_walks[1];
#endif
    const u32 rank = Tile::sharer();
    PixelOperand<TYPE, DY_AXES, DY_BOXES, Tile::K, CLUSTER_N, decltype(dy_boxes)> load_a(
        p.dy, dy_walks, dy_boxes, share_of_a<CLUSTER_M, CLUSTER_N>(rank));
    PixelOperand<TYPE, X_AXES, X_BOXES, WINDOW_PIXELS, CLUSTER_M, decltype(x_boxes)> load_b(
        p.x, x_walks, x_boxes, share_of_b<CLUSTER_M>(rank));
    tile.produce(p.schedule, load_a, load_b);
  };
  const auto consume = [&](const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
    multiply<X_BOXES>(p, tile, warpgroup, x_walks, x_boxes, epilogue);
  };
  run_roles<Tile, Epilogue>(p.output, produce, consume);
}
