// conv_im2col_wgmma:
//     out[pixel, column] = epilogue(sum over taps t, channels c of image[pixel + t, c] * filter[column, t, c])
// with im2col TMA and wgmma, for sm_90a: convolution forward (columns: filters) and backward data (columns: channels).
//
// Layouts: image channels-last, by im2col maps; filter by a tiled map, k contiguous, or columns (FILTER_MN_MAJOR).
// Product: pixels by columns, k = (channels, taps) (im2col_operand.cuh); groups are its batches. The output's index
// space has pixels as rows, or as columns if it is contiguous along them. A tile's rows are pixels (PIXELS_ARE_ROWS) or
// not; they are the output's rows or, TRANSPOSED, its columns.
// Pixels fall into PIXEL_CLASSES classes, each with its own taps and its own part of the output; several classes are
// stored by functor or as pixels, without an operand.
// TAP_RUN > 1: a stage has a run of TAP_RUN taps of the last axis, which has stride 1: all of them, or several runs of
// which the last has LAST_RUN taps. They are read from one window of WINDOW_PIXELS pixels; each tap reads TAP_DISTANCE
// pixels after the tap before it. Lines of pixels are then longer than the output's, and the surplus outputs are
// dropped. Not with a store by tensor map or as a slice.
// RESIDENT_BLOCKS > 0: the filter, which has one tile of rows or columns and RESIDENT_BLOCKS k blocks, stays in shared
// memory. CHANNEL_BYTES: bytes of channels in a k block: 128, or 64 where 128 would be half empty.
// CONVERTED: one operand is a function of a tensor in memory, and generated.cuh defines Prologue as well, over (image
// or filter, channel); without clusters. Windows of pixels are converted in place (converted_pixels.cuh). Otherwise the
// operand of the tile's rows passes through registers (register_operand.cuh, im2col_lines.cuh): its stages hold
// elements of RAW_TYPE, 64 channels of one tap, K-major. SHARES_LOADS, HAS_TAIL, HAS_PADDING: see there.
// TF32X3: each product of fp32 is three of TF32; pixels make up the tile's rows as they are in memory, and the filter's
// lines come in parts (tf32x3_operands.cuh), without windows and without a resident filter.
// Shared memory: the resident filter, STAGES stages of (A, B), then as in wgmma_kernel.cuh, which also describes blocks
// and launch.
// STORE: how the accumulators are stored (wgmma_output.cuh).

#include "converted_pixels.cuh"
#include "im2col_lines.cuh"
#include "im2col_operand.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/tile/wgmma_kernel.cuh"
#include "include/tile/wgmma_multiply.cuh"

constexpr bool A_IS_M_MAJOR = FILTER_MN_MAJOR && !PIXELS_ARE_ROWS, B_IS_N_MAJOR = FILTER_MN_MAJOR && PIXELS_ARE_ROWS;
constexpr int LINES = PIXELS_ARE_ROWS ? TILE_N : TILE_M;
constexpr int PIXEL_SHARERS = PIXELS_ARE_ROWS ? CLUSTER_N : CLUSTER_M;
constexpr int LINE_SHARERS = PIXELS_ARE_ROWS ? CLUSTER_M : CLUSTER_N;
typedef OperandStage<TYPE, WINDOW_PIXELS, false, TAP_RUN, TAP_DISTANCE, CHANNEL_BYTES> PixelStage;
constexpr int FILTER_LINES = stage_lines(LINES, FILTER_MN_MAJOR);
#if TF32X3
#include "include/tile/tf32x3_operands.cuh"
typedef SplitStage<FILTER_LINES> FilterStage;
#else
typedef OperandStage<TYPE, TAP_RUN * FILTER_LINES, FILTER_MN_MAJOR, TAP_RUN, FILTER_LINES, CHANNEL_BYTES> FilterStage;
#endif
#if PIXELS_ARE_ROWS
typedef PixelStage StageA;
typedef FilterStage StageB;
#else
typedef FilterStage StageA;
typedef PixelStage StageB;
#endif
#define THROUGH_REGISTERS (CONVERTED && TAP_RUN == 1)
#if THROUGH_REGISTERS
typedef KernelTile<A_IS_M_MAJOR, B_IS_N_MAJOR, StageB, RawStage<RAW_TYPE, TILE_M>> Tile;
#else
typedef KernelTile<A_IS_M_MAJOR, B_IS_N_MAJOR, StageB, StageA, RESIDENT_BLOCKS, PIXELS_ARE_ROWS> Tile;
#endif
#if TAP_RUN > 1
typedef LineMap<OUTPUT_RANK, ROW_AXES> Map;
#else
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#endif
#include "include/epilogue/wgmma_output.cuh"

typedef ClassSchedule<Tile::Schedule, PIXEL_CLASSES> Schedule;
typedef PixelClass<SPATIAL> Pixels;
#if CONVERTED
#include "generated.cuh"
#endif

struct Params {
  TensorMap image[MAPS], filter;
  Epilogue::Output output[PIXEL_CLASSES];
  Schedule schedule;
  Pixels classes[PIXEL_CLASSES];
  i32 group_channels, group_lines, group_depth;  // strides of groups in image and filter (im2col_operand.cuh)
#if CONVERTED
  ConvertedInput<Prologue> input;
  i32 image_extent[SPATIAL];
#endif
};

typedef Im2colOperand<PixelStage, PIXELS_ARE_ROWS, WINDOW_PIXELS, Tile::K, PIXEL_SHARERS, SPATIAL, TAP_RUN>
    PixelLoader;
typedef FilterOperand<FilterStage, !PIXELS_ARE_ROWS, LINES, Tile::K, LINE_SHARERS, SPATIAL, TAP_RUN, 1 + TF32X3>
    FilterLoader;

// Stores each class's pixels to its part of the output.
template <class Epilogue, int CLASSES> struct ClassEpilogue {
  typedef const typename Epilogue::Output (&Outputs)[CLASSES];
  static constexpr int STAGING_BYTES = Epilogue::STAGING_BYTES, BARRIER_BYTES = Epilogue::BARRIER_BYTES;

  Outputs outputs;
  Epilogue epilogue;

  __device__ __forceinline__ ClassEpilogue(Outputs outputs, u8* staging, u32 barriers)
      : outputs(outputs), epilogue(outputs[0], staging, barriers) {}

  __device__ __forceinline__ void begin(const ClassWork& work, u32 first_row) {
    epilogue.output = &outputs[work.product_class];
    epilogue.begin(work, first_row);
  }
  template <class Accumulators>
  __device__ __forceinline__ void end(const Accumulators& d, const ClassWork& work, u32 first_row) {
    epilogue.end(d, work, first_row);
  }
  __device__ __forceinline__ void finish() { epilogue.finish(); }
};
template <class Epilogue> struct ClassEpilogue<Epilogue, 1> : Epilogue {
  __device__ __forceinline__ ClassEpilogue(const typename Epilogue::Output (&outputs)[1], u8* staging, u32 barriers)
      : Epilogue(outputs[0], staging, barriers) {}
};
typedef ClassEpilogue<Epilogue, PIXEL_CLASSES> PixelEpilogue;

WGMMA_KERNEL(const __grid_constant__ Params p) {
  if (threadIdx.x == WARP_SIZE) {  // while another warp initialises the barriers
    prefetch(p.image[0]);
    prefetch(p.filter);
  }
  const auto produce = [&](const Tile& tile) {
    const u32 rank = Tile::sharer();
    const Share share_a = share_of_a<CLUSTER_M, CLUSTER_N>(rank), share_b = share_of_b<CLUSTER_M>(rank);
    PixelLoader pixels(p.image, p.classes, p.group_channels, PIXELS_ARE_ROWS ? share_a : share_b);
    FilterLoader filter(p.filter, p.classes, p.group_lines, p.group_depth, PIXELS_ARE_ROWS ? share_b : share_a);
    if constexpr (PIXELS_ARE_ROWS) tile.produce(p.schedule, pixels, filter);
    else tile.produce(p.schedule, filter, pixels);
  };
  const auto consume = [&](const Tile& tile, u32 warpgroup, PixelEpilogue& epilogue) {
#if THROUGH_REGISTERS
    typedef RegisterOperand<Tile, Prologue, MultiplyRegisters<B_IS_N_MAJOR>, SHARES_LOADS, HAS_TAIL> Converted;
    const Converted converted{tile, p.input};
    const auto sum = [&](auto& d, const ClassWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      const Pixels& pixels = p.classes[work.product_class];
#if PIXELS_ARE_ROWS
      const PixelLines<SPATIAL, HAS_PADDING> lines(pixels, p.image_extent, work, p.input.lines);
#else
      const FilterLines<SPATIAL> lines(pixels, work, p.input.lines);
#endif
      converted.sum(d, work, lines, first_row, at, issued);
    };
    tile.consume_by(p.schedule, warpgroup, sum, epilogue);
#elif CONVERTED
    constexpr int TEAM_THREADS = CONSUMER_WARPGROUPS * WARPGROUP_SIZE;
    typedef ConvertedWindow<Prologue, WINDOW_PIXELS, TEAM_THREADS, SPATIAL, HAS_PADDING, HAS_TAIL> Window;
    const u32 barrier = Tile::FREE_BARRIER + warpgroup / CONSUMER_WARPGROUPS;
    const auto sum = [&](auto& d, const ClassWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      Window window(p.input, p.classes[0], p.image_extent, work, PIXELS_ARE_ROWS ? work.row : work.column);
      const auto prepare = [&](u32 stage) {
        window.convert(PIXELS_ARE_ROWS ? stage : stage + Tile::STAGE_A_BYTES, barrier);
      };
      tile.plain_sum(d, work.blocks, first_row, at, Multiply<A_IS_M_MAJOR, B_IS_N_MAJOR>(), prepare, issued);
    };
    tile.consume_by(p.schedule, warpgroup, sum, epilogue);
#elif TF32X3
    const Tf32x3Sum<Tile> multiply{tile};
    const auto sum = [&](auto& d, const ClassWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      multiply(d, work.blocks, first_row, at, issued);
    };
    tile.consume_by(p.schedule, warpgroup, sum, epilogue);
#elif LAST_RUN < TAP_RUN
    const auto sum = [&](auto& d, const ClassWork& work, u32 first_row, Tile::Position& at, const auto& issued) {
      const i32 runs = p.classes[0].taps[SPATIAL - 1].divisor;
      tile.uneven_sum<LAST_RUN * PixelStage::TAP_STEPS>(d, work.blocks, runs, first_row, at,
                                                        Multiply<A_IS_M_MAJOR, B_IS_N_MAJOR>(), issued);
    };
    tile.consume_by(p.schedule, warpgroup, sum, epilogue);
#else
    tile.consume<PROMOTED>(p.schedule, warpgroup, Multiply<A_IS_M_MAJOR, B_IS_N_MAJOR>(), epilogue);
#endif
  };
  run_roles<Tile, PixelEpilogue>(p.output, produce, consume);
}
