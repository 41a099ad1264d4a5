// conv_im2col_wgmma:
//     out[pixel, column] = epilogue(sum over taps t, channels c of image[pixel + t, c] * filter[column, t, c])
// with im2col TMA and wgmma, for sm_90a: convolution forward (columns: filters) and backward data (columns: channels).
//
// Layouts: image channels-last, by im2col maps; filter by a tiled map, k contiguous, or columns (FILTER_MN_MAJOR).
// Product: pixels by columns, k = (channels, taps) (im2col_operand.cuh); groups are its batches. The output's index
// space has pixels as rows, or as columns where it is contiguous along them. A tile's rows are pixels (PIXELS_ARE_ROWS)
// or not; they are the output's rows or, TRANSPOSED, its columns.
// Pixels come in PIXEL_CLASSES classes, each with taps and with a part of the output of its own; several classes are
// stored by functor or as pixels, without an operand.
// TAP_RUN > 1: a stage has all taps of the last axis, which has stride 1. They are read from one window of
// WINDOW_PIXELS pixels, which each tap sees TAP_DISTANCE further on than the tap before it; the outputs of the pixels
// that the lines have beyond the output's are dropped. Not with a store by tensor map or as a slice.
// RESIDENT_BLOCKS > 0: the filter, which is A and has one tile of rows and so many k blocks, stays in shared memory.
// CHANNEL_BYTES: of channels in a k block, 128 or, where those would be half empty, 64.
// Block: persistent, warps specialised, in clusters of CLUSTER_M x CLUSTER_N (tile_wgmma.cuh).
// Shared memory: the resident filter, STAGES stages of (A, B), a staging area for each consumer warp, barriers.
// Launch: at most as many blocks as are resident, (1 + CONSUMER_TEAMS * CONSUMER_WARPGROUPS) * 128 threads.
// STORE: what becomes of the accumulators (wgmma_output.cuh).

#include "include/dependent_launch.cuh"
#include "include/im2col_operand.cuh"
#include "include/output_map.cuh"
#include "include/tile_wgmma.cuh"
#include "include/wgmma_multiply.cuh"

constexpr bool A_IS_M_MAJOR = FILTER_MN_MAJOR && !PIXELS_ARE_ROWS, B_IS_N_MAJOR = FILTER_MN_MAJOR && PIXELS_ARE_ROWS;
constexpr int LINES = PIXELS_ARE_ROWS ? TILE_N : TILE_M;
typedef OperandStage<TYPE, WINDOW_PIXELS, false, TAP_RUN, TAP_DISTANCE, CHANNEL_BYTES> PixelStage;
typedef OperandStage<TYPE, TAP_RUN * LINES, FILTER_MN_MAJOR, TAP_RUN, LINES, CHANNEL_BYTES> FilterStage;
#if PIXELS_ARE_ROWS
typedef PixelStage StageA;
typedef FilterStage StageB;
#else
typedef FilterStage StageA;
typedef PixelStage StageB;
#endif
typedef TileWgmma<TYPE, ACCUMULATOR, TILE_M, TILE_N, STAGES, CONSUMER_TEAMS, CONSUMER_WARPGROUPS, CLUSTER_M, CLUSTER_N,
                  A_IS_M_MAJOR, B_IS_N_MAJOR, StageB, StageA, RESIDENT_BLOCKS>
    Tile;
#if TAP_RUN > 1
typedef LineMap<OUTPUT_RANK, ROW_AXES> Map;
#else
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
#endif
#include "include/wgmma_output.cuh"

typedef ClassSchedule<TILE_M, TILE_N, CLUSTER_M, CLUSTER_N, PIXEL_CLASSES> Schedule;
typedef PixelClass<SPATIAL> Pixels;

struct Params {
  TensorMap image[MAPS], filter;
  Epilogue::Output output[PIXEL_CLASSES];
  Schedule schedule;
  Pixels classes[PIXEL_CLASSES];
  i32 group_channels, group_lines, group_depth;  // of image and filter (im2col_operand.cuh)
};

#if PIXELS_ARE_ROWS
typedef Im2colOperand<StageA, true, WINDOW_PIXELS, Tile::K, CLUSTER_N, SPATIAL> LoaderA;
typedef FilterOperand<StageB, false, TILE_N, Tile::K, CLUSTER_M, SPATIAL, TAP_RUN> LoaderB;
#else
typedef FilterOperand<StageA, true, TILE_M, Tile::K, CLUSTER_N, SPATIAL, TAP_RUN> LoaderA;
typedef Im2colOperand<StageB, false, WINDOW_PIXELS, Tile::K, CLUSTER_M, SPATIAL> LoaderB;
#endif

#if PIXEL_CLASSES > 1
// Stores each class's pixels to their part of the output.
struct ClassEpilogue {
  const Epilogue::Output* outputs;
  u8* staging;
  u32 barriers;

  __device__ __forceinline__ void begin(const ClassWork&, u32) const {}
  template <class Accumulators>
  __device__ __forceinline__ void end(const Accumulators& d, const ClassWork& work, u32 first_row) const {
    // What the last tile stored has long left the staging area, which a new epilogue takes for empty.
    bulk_wait_read<0>();
    __syncwarp();
    Epilogue(outputs[work.pixel_class], staging, barriers).end(d, work, first_row);
  }
  __device__ __forceinline__ void finish() const { bulk_wait<0>(); }
};
#endif

extern "C" __global__ void __launch_bounds__(Tile::THREADS, BLOCKS_PER_SM)
    KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  u8* staging = shared + Tile::RING_BYTES;
  const u32 barriers = shared_address(staging) + Tile::CONSUMER_WARPS * Epilogue::STAGING_BYTES;
  if (threadIdx.x == WARP_SIZE) {  // while another warp makes the barriers
    prefetch(p.image[0]);
    prefetch(p.filter);
  }
  const Tile tile(shared_address(shared), barriers);
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  wait_for_previous_kernel();
  allow_next_kernel();

  // The last warpgroup loads, the others multiply.
  if (warp >= Tile::CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == Tile::CONSUMER_WARPS && elect_one()) {
      const u32 rank = cluster_rank();
      const Share share_a = share_of_a<CLUSTER_M, CLUSTER_N>(rank), share_b = share_of_b<CLUSTER_M>(rank);
#if PIXELS_ARE_ROWS
      LoaderA load_a(p.image, p.classes, p.group_channels, share_a);
      LoaderB load_b(p.filter, p.classes, p.group_lines, p.group_depth, share_b);
#else
      LoaderA load_a(p.filter, p.classes, p.group_lines, p.group_depth, share_a);
      LoaderB load_b(p.image, p.classes, p.group_channels, share_b);
#endif
      tile.produce(p.schedule, load_a, load_b);
    }
  } else {
    take_registers<CONSUMER_REGISTERS>();
    u8* own = staging + warp * Epilogue::STAGING_BYTES;
    const u32 own_barriers = barriers + Tile::BARRIER_BYTES + warp * Epilogue::BARRIER_BYTES;
#if PIXEL_CLASSES > 1
    ClassEpilogue epilogue{p.output, own, own_barriers};
#else
    Epilogue epilogue(p.output[0], own, own_barriers);
#endif
    tile.consume<PROMOTED>(p.schedule, warp / 4, Multiply<A_IS_M_MAJOR, B_IS_N_MAJOR>(), epilogue);
    epilogue.finish();
  }
}
