// conv_implicit_gemm_mma:
//     y[n, k, o] = epilogue(sum over c, r of x[n, c, o * stride + r * dilation - padding] * w[k, c, r])
// as a matrix product with mma.sync, for sm_80 and newer.
//
// Layouts: x channels-last with any other strides; w [filters][taps][channels], packed; both with channels padded to
// ALIGNMENT bytes (x in place, or repacked: gemm/packing.py). Product: pixels (n, o) by filters, or, with
// PIXELS_ARE_COLUMNS (y contiguous along its last spatial axis), filters by pixels; k = (taps, channels).
// Block: blockIdx.x = ((split * groups) + group) * tiles + tile in grouped order; it computes one TILE_M x TILE_N tile
// over `split_tiles` k tiles.
// Shared memory: STAGES stages of (A tile, B tile), later the epilogue's staging (epilogue_tile.cuh).
// Launch: WARPS_M * WARPS_N * 32 threads; dynamic shared memory max(STAGES * stage, staging) bytes.
// SPLIT_K = 1 writes accumulators to slice `split` of the workspace, and gemm/split_k_reduce.cu applies the epilogue.
// COLUMN_OPERATOR, ROW_OPERATOR, WHOLE_OPERATOR: reductions in the epilogue (tile_reductions.cuh), NoOperator for none;
// not with SPLIT_K.
// It may be a dependent launch (dependent_launch.cuh).

#include "include/ptx/dependent_launch.cuh"
#include "include/epilogue/epilogue_tile.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/optional.cuh"
#include "pixel_operand.cuh"
#include "include/tile/raster.cuh"
#include "include/tile/mma_tf32x3.cuh"
#include "include/tile/strided_operand.cuh"
#include "generated.cuh"

// With SPLIT_K the kernel has no functor.
struct Functor;

typedef TileMma<TYPE, TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, STAGES, true, true> Product;
typedef EpilogueTile<Product> Epilogue;
typedef Epilogue::Reductions<COLUMN_OPERATOR, ROW_OPERATOR, WHOLE_OPERATOR> Reductions;
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
template <class Tile> using Pixels = PixelOperand<TYPE, Tile, ALIGNMENT, Product::THREADS, TAPS_INSIDE<SPATIAL>>;
template <class Tile> using Filters = StridedOperand<TYPE, Tile, ALIGNMENT, Product::THREADS>;

struct Numbers : Reductions::Output {
  const TYPE* x;
  const TYPE* w;
  Product::Accumulator* workspace;  // [splits][rows][workspace_pitch], rows and columns of all groups
  i64 workspace_pitch, slice_stride;
  PixelGeometry<SPATIAL> pixels;
  i32 group_filters, group_channels;  // channels in elements of x, padding included
  i32 depth;  // extent of k: taps * group_channels
  i32 groups, tile_rows, tile_columns, split_tiles;
  Map map;
};

struct Params : Numbers, ArgsOf<Functor, !SPLIT_K> {};

template <class Params>
__device__ __forceinline__ void finish(const Params& p, const Product& product, u8* shared, const TilePlace& place,
                                       u32 split, const ReductionSlices& slices) {
  if constexpr (SPLIT_K) {
    Epilogue::store(product, p.workspace + split * p.slice_stride, p.workspace_pitch, place);
  } else {
    Epilogue::run<Functor, VECTOR>(product, shared, place, p.map, args_of<Functor>(p), Reductions(), p, slices);
  }
}

extern "C" __global__ void __launch_bounds__(Product::THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  constexpr int UNIT = ALIGNMENT / int(sizeof(TYPE));

  // The block's tile, its group, and its part of k.
  const u32 tiles = p.tile_rows * p.tile_columns;
  const u32 slab = blockIdx.x / tiles;
  const u32 split = slab / p.groups, group = slab % p.groups;
  const TileIndex tile = grouped_tile(blockIdx.x % tiles, p.tile_rows, p.tile_columns, 8);
  const u32 row = tile.row * TILE_M, column = tile.column * TILE_N;
  const u32 pixel = PIXELS_ARE_COLUMNS ? column : row, filter = PIXELS_ARE_COLUMNS ? row : column;
  const i32 first_k = split * p.split_tiles * TILE_K;
  const i32 end_k = min(p.depth, first_k + p.split_tiles * TILE_K);
  const i32 k_tiles = (end_k - first_k + TILE_K - 1) / TILE_K;

  const TYPE* x = p.x + i64(group) * p.group_channels;
  const TYPE* w = p.w + i64(group * p.group_filters + filter) * p.depth + first_k;
  const i32 filters = p.group_filters - filter;
  Product product;
  const auto multiply = [&](auto& load_a, auto& load_b) {
    wait_for_previous_kernel(load_a.place() ^ load_b.place());
    allow_next_kernel();
    product.run(load_a, load_b, shared_address(shared), k_tiles);
  };
  if constexpr (PIXELS_ARE_COLUMNS) {
    Filters<Product::TileA> load_a(w, p.depth, filters, end_k - first_k);
    Pixels<Product::TileB> load_b(x, p.pixels, pixel, first_k / UNIT, end_k / UNIT, shared);
    multiply(load_a, load_b);
  } else {
    Pixels<Product::TileA> load_a(x, p.pixels, pixel, first_k / UNIT, end_k / UNIT, shared);
    Filters<Product::TileB> load_b(w, p.depth, filters, end_k - first_k);
    multiply(load_a, load_b);
  }

  const u32 first_filter = group * p.group_filters, end_filter = first_filter + p.group_filters;
  if constexpr (PIXELS_ARE_COLUMNS) {
    finish(p, product, shared, {first_filter + row, column, end_filter, u32(p.pixels.rows)}, split,
           {group * p.tile_rows + tile.row, tile.column});
  } else {
    finish(p, product, shared, {row, first_filter + column, u32(p.pixels.rows), end_filter}, split,
           {tile.row, group * p.tile_columns + tile.column});
  }
}
