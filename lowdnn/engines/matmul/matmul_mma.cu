// matmul_mma: c[b, m, n] = epilogue(sum over k of a[b, m, k] * b[b, k, n]) with mma.sync, for sm_80 and newer.
//
// Layouts: A_K_MAJOR: a's k is contiguous, otherwise its m; B_K_MAJOR: b's k is contiguous, otherwise its n; the other
// dimension has any stride. Rows are the first ROW_AXES axes of the output's index space (batch axes, then m),
// columns its last axis (output_map.cuh): the engine swaps a and b if the output is contiguous along m.
// Block: blockIdx.x = ((split * batches) + batch) * tiles + tile in grouped order; it computes one TILE_M x TILE_N tile
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
#include "include/tile/raster.cuh"
#include "include/tile/mma_tf32x3.cuh"
#include "include/tile/strided_operand.cuh"
#include "generated.cuh"

// With SPLIT_K the kernel has no functor.
struct Functor;

typedef TileMma<TYPE, TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, STAGES, A_K_MAJOR, B_K_MAJOR> Product;
typedef EpilogueTile<Product> Epilogue;
typedef Epilogue::Reductions<COLUMN_OPERATOR, ROW_OPERATOR, WHOLE_OPERATOR> Reductions;
typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;

struct Numbers : Reductions::Output {
  const TYPE* a;
  const TYPE* b;
  Product::Accumulator* workspace;  // [splits][batches * m][workspace_pitch]
  i64 a_stride, b_stride;  // strides of the dimension that is not contiguous
  i64 a_axis_stride[OUTPUT_RANK], b_axis_stride[OUTPUT_RANK];  // strides along the output's axes; 0 for m and n
  i64 workspace_pitch, slice_stride;
  i32 m, n, k;
  i32 batches, tile_rows, tile_columns, split_tiles;
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

  // The block's tile, its batch, and its part of k.
  const u32 tiles = p.tile_rows * p.tile_columns;
  const u32 slab = blockIdx.x / tiles;
  const u32 split = slab / p.batches, batch = slab % p.batches;
  const TileIndex tile = grouped_tile(blockIdx.x % tiles, p.tile_rows, p.tile_columns, 8);
  const u32 row = tile.row * TILE_M, column = tile.column * TILE_N;
  const i32 first_k = split * p.split_tiles * TILE_K;
  const i32 depth = min(p.k - first_k, p.split_tiles * TILE_K);

  // Offsets of the operands in the batch.
  i64 coordinate[OUTPUT_RANK] = {};
  p.map.locate_row(batch * p.m, coordinate);
  const TYPE* a = p.a;
  const TYPE* b = p.b;
#pragma unroll
  for (int axis = 0; axis < OUTPUT_RANK; ++axis) {
    a += coordinate[axis] * p.a_axis_stride[axis];
    b += coordinate[axis] * p.b_axis_stride[axis];
  }
  a += A_K_MAJOR ? row * p.a_stride + first_k : first_k * p.a_stride + row;
  b += B_K_MAJOR ? column * p.b_stride + first_k : first_k * p.b_stride + column;

  StridedOperand<TYPE, Product::TileA, A_ALIGNMENT, Product::THREADS> load_a(a, p.a_stride, p.m - row, depth);
  StridedOperand<TYPE, Product::TileB, B_ALIGNMENT, Product::THREADS> load_b(b, p.b_stride, p.n - column, depth);
  Product product;
  wait_for_previous_kernel(load_a.place() ^ load_b.place());
  allow_next_kernel();
  product.run(load_a, load_b, shared_address(shared), (depth + TILE_K - 1) / TILE_K);

  const u32 first_row = batch * p.m;
  const TilePlace place = {first_row + row, column, first_row + p.m, u32(p.n)};
  finish(p, product, shared, place, split, {batch * p.tile_rows + tile.row, tile.column});
}
