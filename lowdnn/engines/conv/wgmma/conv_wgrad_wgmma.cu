// conv_wgrad_wgmma: dw[k, c, taps] = epilogue(sum over pixels of dy[pixel, k] * x[pixel at tap, c]) with TMA and wgmma,
// for sm_90a; 16-bit types, and fp32 by TF32.
//
// Product: a row is a filter of a group. A column is a channel of one filter tap: taps outermost, each padded to blocks
// of 64 channels. k is the output pixel.
//
// Operands: both are channels-last, hence MN-major, which the tensor cores take only in 16-bit types. In fp32, dy passes
// through registers, and x is transposed in shared memory (transposed_pixels.cuh). A k block is 64 pixels, or 32 in
// fp32, by 64 filters or channels.
//
// TF32X3: each product of fp32 is three of TF32; x is also split in shared memory, where its low parts follow the high
// ones, and dy in registers (transposed_pixels.cuh, tf32x3_operands.cuh). Taps share no windows.
//
// Walk: the order in which k runs through the pixels of an operand, images outermost (pixel_walk.cuh). Position i of the
// walk through dy is output pixel i; position i of the walk through x is the pixel that the tap reads for that output.
// Pixels of padding, and positions past the last image, are zeros. DY_AXES, X_AXES: the axes of an operand's walk
// through an im2col map, which are SPATIAL; 0 for a plain matrix of pixels by channels, which x is only if the filter
// has one tap, stride 1 and no padding.
//
// TAP_RUN = 1: a tile loads x for each of its taps. TAP_RUN > 1: a tile's columns are the TAP_RUN taps of the last
// filter axis, which has stride 1, for the same channels. All of them read one window of WINDOW_PIXELS positions of x,
// each TAP_DISTANCE positions after the tap before it. So that a tap may read past the end of a line of pixels, lines
// are walked with additional positions, at which dy is zero and x is padding.
//
// VALID_TAPS = 0: every tap sums over all outputs. VALID_TAPS > 0 is the number of taps, and a tap sums only those
// outputs for which its pixel of x is no padding. These are a box of outputs, and a box of the same extents in x: the
// tap walks through the boxes, and taps with boxes of equal extents share one of WALKS walks, moved by offsets. Each tap
// has its own schedule and number of slices, and the columns of a tile belong to one tap.
//
// CONVERTED: x is a function of a tensor in memory, Prologue of generated.cuh over (image, channel), which is applied
// in shared memory (converted_pixels.cuh). HAS_TAIL: whether a group's channels end inside a block of 64.
// Block: computes tiles of TILE_M x TILE_N over parts of the pixels (tile_schedule.cuh). One thread of the last
// warpgroup loads; the other warpgroups multiply, convert or transpose x if they must, and store.
// Shared memory: STAGES stages of (dy, x), then as in wgmma_kernel.cuh, which also describes the launch.
// STORE_FUNCTOR: the functor stores. STORE_SLICE: accumulators go to slice `split` of the workspace, and
// gemm/split_k_reduce.cu applies the epilogue.

#include "converted_pixels.cuh"
#include "include/epilogue/epilogue_wgmma.cuh"
#include "filter_columns.cuh"
#include "pixel_walk.cuh"
#include "include/optional.cuh"
#include "include/tile/wgmma_kernel.cuh"
#include "include/tile/wgmma_multiply.cuh"
#include "generated.cuh"

#define STORE_FUNCTOR 0
#define STORE_SLICE 2

#if MN_MAJOR_TYPES
typedef Either<(TAP_RUN > 1), TapStage<WINDOW_PIXELS, TAP_DISTANCE>, OperandStage<TYPE, TILE_N, true>>::Type StageX;
#elif TF32X3
#include "include/tile/tf32x3_operands.cuh"
#include "transposed_pixels.cuh"
typedef TransposedColumns<TILE_N, true> StageX;
#else
#include "transposed_pixels.cuh"
typedef Either<(TAP_RUN > 1), TransposedWindow<WINDOW_PIXELS, TAP_RUN, TAP_DISTANCE>, TransposedColumns<TILE_N>>::Type
    StageX;
#endif

// Functors that the kernel may lack.
struct Functor;
struct Prologue;

typedef KernelTile<MN_MAJOR_TYPES, MN_MAJOR_TYPES, StageX> Tile;
typedef StoredTile<Tile> Stored;
typedef FilterColumns<SPATIAL, TAP_RUN> Columns;
typedef Either<STORE == STORE_FUNCTOR,
               FunctorEpilogue<Stored, Functor, VECTOR, OutputMap<OUTPUT_RANK, ROW_AXES>, Columns>,
               SliceEpilogue<Stored, Columns>>::Type Epilogue;

// One schedule for each tap, those with the longest items first. first_column: the first column of each schedule's tap.
template <class One, int TAPS> struct TapSchedule : ClassSchedule<One, TAPS> {
  u32 first_column[TAPS];

  __device__ __forceinline__ ClassWork work(u32 item, u32 rank) const {
    ClassWork work = ClassSchedule<One, TAPS>::work(item, rank);
    work.column += first_column[work.product_class];
    return work;
  }
};
typedef Either<VALID_TAPS != 0, TapSchedule<Tile::Schedule, VALID_TAPS>, Tile::Schedule>::Type Schedule;

// A tap that sums only valid pixels: the index of its walk, and the offsets of its box of outputs and its box of x from
// that walk. A tap without valid pixels sums zeros.
struct ValidTap {
  u32 walk, is_empty;
  i32 dy_offset[SPATIAL], x_offset[SPATIAL];

  // Sets the boxes' offset from the walk, and returns the index of the walk.
  template <int BOXES>
  __device__ __forceinline__ u32 move(const i32 (&offset)[SPATIAL], PixelBox (&box)[BOXES]) const {
#pragma unroll
    for (int i = 0; i < BOXES; ++i) {
#pragma unroll
      for (int axis = 0; axis < SPATIAL; ++axis) box[i].offset[axis] = u16(offset[axis]);
    }
    return walk;
  }
};

// All taps with their walks. move_dy and move_x set the offsets of a tap's boxes of dy and of x, and return its walk.
template <int TAPS> struct ValidTaps {
  ValidTap taps[TAPS];

  template <int BOXES> __device__ __forceinline__ u32 move_dy(u32 tap, PixelBox (&box)[BOXES]) const {
    return taps[tap].move(taps[tap].dy_offset, box);
  }

  template <int BOXES> __device__ __forceinline__ u32 move_x(u32 number, PixelBox (&box)[BOXES]) const {
    const ValidTap& tap = taps[number];
#pragma unroll
    for (int i = 0; i < BOXES; ++i) {
      if (tap.is_empty) box[i].channel = -64;
    }
    return tap.move(tap.x_offset, box);
  }
};
template <> struct ValidTaps<0> {
  template <class Boxes> __device__ __forceinline__ u32 move_dy(u32, const Boxes&) const { return 0; }
  template <class Boxes> __device__ __forceinline__ u32 move_x(u32, const Boxes&) const { return 0; }
};

// The walks of an operand through im2col maps.
template <class Operand, int AXES> struct WalksOf {
  PixelWalk<AXES> all[WALKS];
  __device__ __forceinline__ const PixelWalk<AXES>* walks() const { return all; }
};
template <class Operand> struct WalksOf<Operand, 0> {
  __device__ __forceinline__ const PixelWalk<0>* walks() const { return nullptr; }
};
struct Dy;
struct X;

// The conversion of x by a functor.
template <class Functor, bool IS_THERE> struct ConversionOf {
  ConvertedInput<Functor> input;
  i32 x_extent[X_AXES + 1];  // converted_pixels.cuh
};
template <class Functor> struct ConversionOf<Functor, false> {};

// The members after the base classes begin with aligned tensor maps, which cannot lie in a base's tail padding: the
// layout is as the host writes it.
struct Params : ValidTaps<VALID_TAPS>, WalksOf<Dy, DY_AXES>, WalksOf<X, X_AXES>, ConversionOf<Prologue, CONVERTED> {
  TensorMap dy[WALKS], x[WALKS];
  Epilogue::Output output;
  Schedule schedule;
  u32 group_filters;  // channels of dy from one group to the next
};

#if MN_MAJOR_TYPES
// Multiplies the tiles of a warpgroup with operands as they are in shared memory.
__device__ __forceinline__ void multiply_plain(const Params& p, const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
  tile.consume(p.schedule, warpgroup, Multiply<true, true>(), epilogue);
}
#elif TF32X3
// Multiplies the tiles of a warpgroup in parts, with x transposed.
__device__ __forceinline__ void multiply_plain(const Params& p, const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
  const Tf32x3Sum<Tile, RowsOfPixels, TransposedArrival<Tile>> product{tile};
  const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
    product(d, work.blocks, first_row, at, issued);
  };
  tile.consume_by(p.schedule, warpgroup, sum, epilogue);
}
#else
DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(wgmma_chunk, 64, WGMMA_K, WGMMA_D.WGMMA_A.WGMMA_B)
DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(wgmma_tile, TILE_N, WGMMA_K, WGMMA_D.WGMMA_A.WGMMA_B)

// The wgmma for the columns of one tap: 64 channels with windows of x, otherwise all columns of the tile.
struct MultiplyTap {
  template <int SUMS>
  __device__ __forceinline__ void operator()(f32 (&d)[SUMS], const u32 (&a)[4], u64 b, bool accumulate) const {
    if constexpr (TAP_RUN > 1) wgmma_chunk(d, a, b, accumulate);
    else wgmma_tile(d, a, b, accumulate);
  }
};

// Multiplies the tiles of a warpgroup, with dy through registers and x transposed.
__device__ __forceinline__ void multiply_plain(const Params& p, const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
  const PixelProduct<Tile, MultiplyTap> product(tile, warpgroup);
  const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
    product.sum(d, work.blocks, first_row, at, issued);
  };
  tile.consume_by(p.schedule, warpgroup, sum, epilogue);
}
#endif

// Multiplies the tiles of a warpgroup, with x converted first if CONVERTED. boxes: sets the boxes of x for a tile.
template <int X_BOXES, class Params, class Boxes>
__device__ __forceinline__ void multiply(const Params& p, const Tile& tile, u32 warpgroup, const Boxes& boxes,
                                         Epilogue& epilogue) {
  if constexpr (CONVERTED) {
    constexpr int TEAM_THREADS = CONSUMER_WARPGROUPS * WARPGROUP_SIZE;
    typedef ConvertedBoxes<Prologue, X_BOXES, WINDOW_PIXELS, TEAM_THREADS, X_AXES, HAS_TAIL> Converted;
    const u32 barrier = Tile::FREE_BARRIER + warpgroup / CONSUMER_WARPGROUPS;
    const auto sum = [&](auto& d, const TileWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      const auto* walks = p.WalksOf<X, X_AXES>::walks();
      Converted converted(p.input, walks, p.x_extent, work, boxes, p.output.columns.group_channels);
      const auto prepare = [&](u32 stage) { converted.convert(stage + Tile::STAGE_A_BYTES, barrier); };
      tile.plain_sum(d, work.blocks, first_row, at, Multiply<true, true>(), prepare, issued);
    };
    tile.consume_by(p.schedule, warpgroup, sum, epilogue);
  } else {
    multiply_plain(p, tile, warpgroup, epilogue);
  }
}

WGMMA_KERNEL(const __grid_constant__ Params p) {
  constexpr int DY_BOXES = TILE_M / 64, X_BOXES = TILE_N / 64 / TAP_RUN;
  const auto x_boxes = [&](const TileWork& work, PixelBox(&box)[X_BOXES]) -> u32 {
#pragma unroll
    for (int i = 0; i < X_BOXES; ++i) box[i] = p.output.columns.box(work.batch, work.column / 64 / TAP_RUN + i);
    return p.move_x(p.output.columns.tap(work.column / 64), box);
  };
  if (threadIdx.x == WARP_SIZE) {  // while another warp initialises the barriers
    prefetch(p.dy[0]);
    prefetch(p.x[0]);
  }
  const auto produce = [&](const Tile& tile) {
    const auto dy_boxes = [&](const TileWork& work, PixelBox(&box)[DY_BOXES]) -> u32 {
#pragma unroll
      for (int i = 0; i < DY_BOXES; ++i) box[i] = {i32(work.batch * p.group_filters + work.row + i * 64), {}};
      return p.move_dy(p.output.columns.tap(work.column / 64), box);
    };
    const u32 rank = Tile::sharer();
    PixelOperand<TYPE, DY_AXES, DY_BOXES, Tile::K, CLUSTER_N, decltype(dy_boxes)> load_a(
        p.dy, p.WalksOf<Dy, DY_AXES>::walks(), dy_boxes, share_of_a<CLUSTER_M, CLUSTER_N>(rank));
    PixelOperand<TYPE, X_AXES, X_BOXES, WINDOW_PIXELS, CLUSTER_M, decltype(x_boxes)> load_b(
        p.x, p.WalksOf<X, X_AXES>::walks(), x_boxes, share_of_b<CLUSTER_M>(rank));
    tile.produce(p.schedule, load_a, load_b);
  };
  const auto consume = [&](const Tile& tile, u32 warpgroup, Epilogue& epilogue) {
    multiply<X_BOXES>(p, tile, warpgroup, x_boxes, epilogue);
  };
  run_roles<Tile, Epilogue>(p.output, produce, consume);
}
