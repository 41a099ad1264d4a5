// norm_join: the gradients of scale and bias from sums of blocks (norm_backward_summing) or samples (norm_backward):
//   gradient[e] = epilogue(sum over p of partials[p][e])
//
// Layouts: partials packed, [count][elements]; the gradient in any strides over RANK axes, its elements numbered with
// the last axis fastest.
// Block: blockIdx.x has COLUMNS neighbouring elements, blockIdx.y the gradient. Row r of its THREADS / COLUMNS rows of
// threads sums the partials r, r + rows, ... in this order; then the rows are joined as a tree.
// Shared memory (static): a number of each thread.
// Launch: THREADS threads, ceil(elements / COLUMNS) x GRADIENTS blocks.
// Macros: THREADS COLUMNS; GRADIENTS: 1 (dscale) or 2 (dscale and dbias); OVERLAPS_PREVIOUS: as a dependent launch
// (dependent_launch.cuh); INDEX: u32 below 2^31 elements, else i64.

#if OVERLAPS_PREVIOUS
#include "include/ptx/dependent_launch.cuh"
#endif
#include "include/math/division.cuh"
#include "generated.cuh"

typedef ScaleGradient::Accumulator Value;
constexpr int RANK = ScaleGradient::RANK, ROWS = THREADS / COLUMNS;

struct Params {
  i64 elements;
  i64 count;
  Divider axes[RANK];
  const Value* partials[GRADIENTS];
  ScaleGradient::Args scale;
#if GRADIENTS > 1
  BiasGradient::Args bias;
#endif
};

template <class Target> __device__ __forceinline__ void finish(const Params& p, const typename Target::Args& args,
                                                               i64 element, Value total) {
  i64 coordinate[RANK];
  digits<RANK>(p.axes, INDEX(element), coordinate);
  const Value result[1] = {total};
  Target::template apply<1>(args, Target::cursor(args, coordinate), coordinate[RANK - 1], 1, result);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Value shared[THREADS];
  const i64 element = i64(blockIdx.x) * COLUMNS + threadIdx.x % COLUMNS;
  const int row = threadIdx.x / COLUMNS;
  const bool exists = element < p.elements;
#if OVERLAPS_PREVIOUS
  wait_for_previous_kernel();
#endif

  Value total = Value(0);
  if (exists) {
    const Value* const own = p.partials[GRADIENTS > 1 ? blockIdx.y : 0] + element;
#pragma unroll 8
    for (i64 part = row; part < p.count; part += ROWS) total += own[part * p.elements];
  }
#pragma unroll
  for (int half = ROWS / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) shared[threadIdx.x] = total;
    __syncthreads();
    if (row < half) total += shared[threadIdx.x + half * COLUMNS];
  }
  if (!exists || row != 0) return;
#if GRADIENTS > 1
  if (blockIdx.y == 1) {
    finish<BiasGradient>(p, p.bias, element, total);
    return;
  }
#endif
  finish<ScaleGradient>(p, p.scale, element, total);
}
