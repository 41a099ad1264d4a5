// reduction_combine: y[k] = epilogue(op over slices s of partials[s][k]), the second launch of a split reduction.
//
// Layouts: partials [slices][outputs] of totals; y has any strides over RANK axes, the first launch's kept ones.
// Block: COLUMNS outputs wide and THREADS / COLUMNS rows high; a thread reduces every row-th slice of one output in
// ascending order, then the rows are reduced as a tree.
// Shared memory (static): one total for each thread.
// Launch: THREADS threads, ceil(outputs / COLUMNS) blocks.
// Macros: OPERATOR THREADS COLUMNS; MOMENTS: 1 if the operator is GenStats; OVERLAPS: 1 for a dependent launch (sm_90);
// INDEX: u32 if outputs are below 2^31, otherwise i64.

#include "include/math/division.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/math/reduction_operators.cuh"
#include "generated.cuh"
#include "epilogues.cuh"

typedef TotalOf<OPERATOR, Epilogue::Accumulator>::Type Total;

struct Params {
  i64 outputs;
  i64 slices;
  i64 count;  // elements reduced into one output
  Divider axes[Epilogue::RANK];
  const Total* partials;
  Outputs<MOMENTS> after;
};

constexpr int RANK = Epilogue::RANK;
constexpr int ROWS = THREADS / COLUMNS;

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Total shared[THREADS];
  if constexpr (OVERLAPS) wait_for_previous_kernel();
  const i64 output = i64(blockIdx.x) * COLUMNS + threadIdx.x % COLUMNS;
  const int row = threadIdx.x / COLUMNS;
  const bool exists = output < p.outputs;

  Total total = OPERATOR::neutral<Epilogue::Accumulator>();
  if (exists) {
#pragma unroll 4
    for (i64 slice = row; slice < p.slices; slice += ROWS) {
      total = OPERATOR::combine(total, p.partials[slice * p.outputs + output]);
    }
  }
#pragma unroll
  for (int half = ROWS / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) shared[threadIdx.x] = total;
    __syncthreads();
    if (row < half) total = OPERATOR::combine(total, shared[threadIdx.x + half * COLUMNS]);
  }
  if (!exists || row != 0) return;

  i64 kept[RANK];
  digits<RANK>(p.axes, INDEX(output), kept);
  const Total result[1] = {OPERATOR::finish(total, p.count)};
  p.after.store<1>(kept, kept[RANK - 1], 1, result);
}
