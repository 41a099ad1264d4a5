// split_k_reduce: c = epilogue(sum over s of slice[s]), the last step of a product whose K was split.
//
// Layouts: slices [splits][rows][pitch] of accumulators; rows and columns map to the output as in output_map.cuh.
// PARTS > 0: the columns fall into PARTS parts of equal width, each with its own number of slices.
// Block: 256 threads = LANES lanes of items; an item is VECTOR (4, 2 or 1, a divisor of the columns) columns of one
// row. Lane l adds up the slices l, l + LANES, ..., of which it reads READS at once: one read at a time would make a
// small sum wait for memory again and again. Then the first lane adds up the lanes. The order is fixed: equal inputs
// give equal bits.
// Shared memory: the sums of the lanes.
// Launch: ceil(rows * groups / (256 / LANES)) blocks, groups = columns / VECTOR; it may be a dependent launch
// (dependent_launch.cuh).

#include "include/ptx/dependent_launch.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/optional.cuh"
#include "generated.cuh"

typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
typedef Functor::Accumulator Accumulator;

struct Slices {
  const Accumulator* slices;
  i64 pitch, slice_stride;  // elements
  i32 splits, rows;
};
struct Columns {
  Divider groups;  // groups of VECTOR columns in a row
};
template <int COUNT> struct Parts {
  Divider part_columns;
  i32 part_splits[COUNT];
};
template <> struct Parts<0> {};
struct Target {
  Map map;
};

struct Params : Slices, Columns, Parts<PARTS>, Target, ArgsOf<Functor> {};

constexpr int ITEMS = 256 / LANES;  // items of a block
constexpr int READS = 4;
typedef Vector<Accumulator, VECTOR> Part;

__device__ __forceinline__ void add(Part& sum, const Part& part) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) sum.v[v] += part.v[v];
}

// The number of slices of a column.
template <class Params> __device__ __forceinline__ i32 splits_of(const Params& p, u32 column) {
  if constexpr (PARTS > 0) return p.part_splits[p.part_columns.divide(column)];
  else return p.splits;
}

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 lane = threadIdx.x / ITEMS;
  const u32 item = blockIdx.x * ITEMS + threadIdx.x % ITEMS;
  const u32 row = p.groups.divide(item);
  const u32 column = (item - row * p.groups.divisor) * VECTOR;
  const bool exists = row < u32(p.rows);
  const Accumulator* from = p.slices + lane * p.slice_stride + row * p.pitch + column;
  wait_for_previous_kernel(u64(from));

  // Sums the slices; the pitch is a multiple of VECTOR too, so that whole vectors may be read.
  Part sum = {};
  const i32 end = exists ? splits_of(p, column) : 0;
#pragma unroll 1  // so that 32 registers do, and an SM is full of threads
  for (i32 split = lane; split < end; split += READS * LANES) {
    Part parts[READS];
#pragma unroll
    for (int i = 0; i < READS; ++i, from += LANES * p.slice_stride) {
      parts[i] = split + i * LANES < end ? *reinterpret_cast<const Part*>(from) : Part{};
    }
#pragma unroll
    for (int i = 0; i < READS; ++i) add(sum, parts[i]);
  }
  if constexpr (LANES > 1) {
    __shared__ Part sums[LANES][ITEMS];
    sums[lane][threadIdx.x % ITEMS] = sum;
    __syncthreads();
    if (lane > 0) return;
#pragma unroll
    for (int other = 1; other < LANES; ++other) add(sum, sums[other][threadIdx.x]);
  }
  if (!exists) return;

  i64 at[OUTPUT_RANK] = {};
  const i64 along = p.map.locate(row, column, at);
  const Functor::Cursor cursor = Functor::cursor(args_of<Functor>(p), at);
  Functor::apply<VECTOR>(args_of<Functor>(p), cursor, along, VECTOR, sum.v);
}
