// split_k_reduce: c = epilogue(sum over s of slice[s]), the last step of a product whose K was split.
//
// Layouts: slices [splits][rows][pitch] of accumulators; rows and columns map to the output as in output_map.cuh.
// Block: 256 threads, each VECTOR (at most 4) columns of one row; the slices are added in ascending order, so that
// equal inputs give equal bits.
// Launch: ceil(rows * groups / 256) blocks, groups = ceil(columns / VECTOR).

#include "include/output_map.cuh"
#include "generated.cuh"

typedef OutputMap<OUTPUT_RANK, ROW_AXES> Map;
typedef Functor::Accumulator Accumulator;

struct Params {
  const Accumulator* slices;
  i64 pitch, slice_stride;  // elements
  i32 splits, rows, columns;
  Divider groups;  // of VECTOR columns in a row
  Map map;
  Functor::Args epilogue;
};

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 item = blockIdx.x * 256 + threadIdx.x;
  const u32 row = p.groups.divide(item);
  const u32 column = (item - row * p.groups.divisor) * VECTOR;
  if (row >= u32(p.rows)) return;

  // The sum; the pitch is a multiple of VECTOR, so that whole vectors may be read.
  typedef Vector<Accumulator, VECTOR> Part;
  Accumulator sum[VECTOR] = {};
  const Accumulator* from = p.slices + row * p.pitch + column;
#pragma unroll 4
  for (i32 split = 0; split < p.splits; ++split, from += p.slice_stride) {
    const Part part = *reinterpret_cast<const Part*>(from);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) sum[v] += part.v[v];
  }

  // The epilogue.
  i64 at[OUTPUT_RANK] = {};
  const i64 along = p.map.locate(row, column, at);
  const Functor::Cursor cursor = Functor::cursor(p.epilogue, at);
  Functor::apply<VECTOR>(p.epilogue, cursor, along, min(i32(p.columns) - i32(column), VECTOR), sum);
}
