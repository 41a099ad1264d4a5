// norm_join: adds partial gradients of scale and bias, one for each block (norm_backward_summing) or for each sample
// (norm_backward):
//   gradient[e] = epilogue(sum over p of partials[p][e])
//
// Layouts: partials packed, [count][elements]; the gradient in any strides over RANK axes, its elements numbered with
// the last axis fastest.
// Block: COLUMNS neighbouring elements, numbered by blockIdx.x, of gradient blockIdx.y. Each row r of the THREADS /
// COLUMNS rows of threads sums the partials r, r + rows, ... in this order; then the rows are added as a tree.
// Shared memory (static): one number for each thread.
// Launch: THREADS threads, ceil(elements / COLUMNS) x GRADIENTS blocks.
// Macros: THREADS COLUMNS; GRADIENTS: 1 (dscale) or 2 (dscale and dbias); OVERLAPS_PREVIOUS: whether it is a dependent
// launch (dependent_launch.cuh); INDEX: u32 below 2^31 elements, else i64.

#include "include/math/division.cuh"
#include "include/optional.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "generated.cuh"

struct BiasGradient;  // optional

typedef ScaleGradient::Accumulator Value;
constexpr int RANK = ScaleGradient::RANK, ROWS = THREADS / COLUMNS;

struct Numbers {
  i64 elements;
  i64 count;
  Divider axes[RANK];
  const Value* partials[GRADIENTS];
};

struct Params : Numbers, ArgsOf<ScaleGradient>, ArgsOf<BiasGradient, (GRADIENTS > 1)> {};

template <class Target> __device__ __forceinline__ void finish(const Params& p, i64 element, Value total) {
  i64 coordinate[RANK];
  digits<RANK>(p.axes, INDEX(element), coordinate);
  const Value result[1] = {total};
  const typename Target::Args& args = args_of<Target>(p);
  Target::template apply<1>(args, Target::cursor(args, coordinate), coordinate[RANK - 1], 1, result);
}

// Finishes an element of this block's gradient.
template <class Bias> __device__ __forceinline__ void finish_own(const Params& p, i64 element, Value total) {
  if constexpr (GRADIENTS > 1) {
    if (blockIdx.y == 1) {
      finish<Bias>(p, element, total);
      return;
    }
  }
  finish<ScaleGradient>(p, element, total);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Value shared[THREADS];
  const i64 element = i64(blockIdx.x) * COLUMNS + threadIdx.x % COLUMNS;
  const int row = threadIdx.x / COLUMNS;
  const bool exists = element < p.elements;
  if constexpr (OVERLAPS_PREVIOUS) wait_for_previous_kernel();

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
  if (exists && row == 0) finish_own<BiasGradient>(p, element, total);
}
