// conv_depthwise_filter_sum: dw[k, t] = epilogue(sum over s of slices[s, t, k]).
//
// Layouts: slices [shares][taps][filters] of f32, taps over planes, rows and columns; dw has any strides.
// Block: COLUMNS neighbouring elements (t, k) with PARTS threads each. Each thread adds every PARTS-th slice, then the
// parts are added in ascending order, so that equal inputs give equal bits.
// Launch: COLUMNS * PARTS threads; ceil(taps * filters / COLUMNS) blocks; it may be a dependent launch
// (dependent_launch.cuh).
// Macros: COLUMNS PARTS.

#include "include/ptx/dependent_launch.cuh"
#include "include/math/division.cuh"
#include "generated.cuh"

constexpr int RANK = Functor::RANK;  // k, c, taps

struct Params {
  const f32* slices;
  i32 shares, elements;  // elements of a slice
  Divider filters;
  Divider taps[RANK - 2];
  Functor::Args epilogue;
};

extern "C" __global__ void __launch_bounds__(COLUMNS * PARTS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ f32 sums[PARTS][COLUMNS];
  const u32 column = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
  const u32 element = blockIdx.x * COLUMNS + column;
  wait_for_previous_kernel();
  allow_next_kernel();
  f32 sum = 0.0f;
  if (element < u32(p.elements)) {
#pragma unroll 8
    for (i32 share = part; share < p.shares; share += PARTS) sum += p.slices[i64(share) * p.elements + element];
  }
  sums[part][column] = sum;
  __syncthreads();
  if (part > 0 || element >= u32(p.elements)) return;
#pragma unroll
  for (int i = 1; i < PARTS; ++i) sum += sums[i][column];

  const u32 tap = p.filters.divide(element);
  i64 coordinate[RANK] = {element - tap * p.filters.divisor};
  digits<RANK - 2>(p.taps, tap, coordinate + 2);
  const f32 total[1] = {sum};
  Functor::apply<1>(p.epilogue, Functor::cursor(p.epilogue, coordinate), coordinate[0], 1, total);
}
