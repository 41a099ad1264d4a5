// reduction_columns: y[k] = epilogue(op over r of prologue(x[r, k])), if the vector axis, which is contiguous in
// memory, is kept.
//
// Layouts: any strides over RANK axes: KEPT kept ones, the vector axis last among them, then the reduced ones. The kept
// axes are cut into groups of VECTOR neighbouring outputs, the reduced ones give steps; both are numbered with the last
// axis fastest.
// Block: blockIdx.x = block of groups * slices + slice. A block is COLUMNS threads wide and THREADS / COLUMNS rows
// high: a thread owns one group of outputs and takes every row-th step of one slice of `slice_steps` steps.
// Order of summation: each thread sums chains of at most STEPS * UNROLL terms and adds them to its totals; then the
// rows of the block are added as a tree. It depends only on the parameters.
// Shared memory (static): VECTOR totals for each thread.
// Launch: THREADS threads, ceil(groups / COLUMNS) * slices blocks.
// Macros: OPERATOR THREADS COLUMNS UNROLL VECTOR KEPT; SPLIT: 0 if the first row applies the epilogue, 1 if it writes
// the totals of its slice to partials[slice][output], for reduction_combine.cu; MOMENTS: 1 if the operator is GenStats;
// INDEX: u32 if groups and steps are below 2^31, otherwise i64.

#define READS_ONLY
#include "include/math/division.cuh"
#include "include/math/reduction_operators.cuh"
#include "generated.cuh"
#include "epilogues.cuh"

typedef TotalVector<OPERATOR, Prologue::Result, VECTOR> Totals;  // the totals of a thread, or of a chain
typedef Totals::Total Total;

struct Numbers {
  i64 outputs;
  i64 groups;
  i64 extent;  // elements along the vector axis
  i64 steps;   // steps of one output
  i64 slice_steps;
  i64 slices;
  i64 count;                     // elements reduced into one output
  Divider axes[Prologue::RANK];  // the vector axis in groups
  Prologue::Args before;
};

struct Params : Numbers, Either<SPLIT, Partials<Total>, Outputs<MOMENTS>>::Type {};

constexpr int RANK = Prologue::RANK;
constexpr int ROWS = THREADS / COLUMNS;
constexpr int STEPS = 16;

__device__ __forceinline__ Prologue::Cursor locate(const Params& p, i64 (&coordinate)[RANK], INDEX step) {
  digits<RANK - KEPT>(p.axes + KEPT, step, coordinate + KEPT);
  return Prologue::cursor(p.before, coordinate);
}

// Adds the steps `step`, step + ROWS, ... before `end` to chains: UNROLL of them or, without ALL, as many as there are.
// Then the first step is loaded again in place of those beyond the end, since a predicated load would need a register
// for each element.
template <bool ALL>
__device__ __forceinline__ void add_steps(
    const Params& p, i64 (&coordinate)[RANK], i64 column, INDEX step, INDEX end, Totals& chains) {
  Prologue::Cursor rows[UNROLL];
  Prologue::Loaded<VECTOR> in[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const INDEX own = step + u * ROWS;
    rows[u] = locate(p, coordinate, ALL || own < end ? own : step);
    Prologue::load<VECTOR>(p.before, rows[u], column, VECTOR, in[u]);
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    Prologue::Result values[VECTOR];
    Prologue::finish<VECTOR>(p.before, rows[u], column, VECTOR, in[u], values);
    if (ALL || step + u * ROWS < end) chains.add(values);
  }
}

// Reduces a thread's part of a slice: the steps begin, begin + ROWS, ... before `end`, for `valid` outputs from
// `column` on.
__device__ __forceinline__ Totals reduce_slice(
    const Params& p, i64 (&coordinate)[RANK], i64 column, int valid, INDEX begin, INDEX end) {
  Totals totals;
  totals.clear();
  INDEX step = begin;

  while (valid == VECTOR && step < end) {
    Totals chains;
    chains.clear();
    int i = 0;
    for (; i < STEPS && step + (UNROLL - 1) * ROWS < end; ++i, step += UNROLL * ROWS) {
      add_steps<true>(p, coordinate, column, step, end, chains);
    }
    if (i < STEPS && step < end) {
      add_steps<false>(p, coordinate, column, step, end, chains);
      step = end;
    }
    totals.join(chains);
  }

#pragma unroll 1
  for (; step < end; step += ROWS) {
    const Prologue::Cursor row = locate(p, coordinate, step);
    Prologue::Result values[VECTOR];
    Prologue::apply<VECTOR>(p.before, row, column, valid, values);
    totals.add(values);
  }
  return totals;
}

// Reduces the rows' totals; the result is valid in the first row.
__device__ __forceinline__ void reduce_rows(Totals& totals) {
  __shared__ Total shared[VECTOR][THREADS];
  const int row = threadIdx.x / COLUMNS;
#pragma unroll
  for (int half = ROWS / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) shared[v][threadIdx.x] = totals.value[v];
    }
    __syncthreads();
    if (row < half) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        totals.value[v] = OPERATOR::combine(totals.value[v], shared[v][threadIdx.x + half * COLUMNS]);
      }
    }
  }
}

template <class Params>
__device__ __forceinline__ void store_totals(const Params& p, const i64 (&coordinate)[RANK], INDEX slice, INDEX group,
                                             i64 column, int valid, Totals& totals) {
  if constexpr (SPLIT) {
    const i64 row = KEPT > 1 ? p.axes[KEPT - 1].divide(group) : 0;
    Total* partials = p.partials + i64(slice) * p.outputs + row * p.extent + column;
    store_strided(partials, totals.value, 1, valid);
  } else {
    i64 kept[KEPT];
#pragma unroll
    for (int axis = 0; axis < KEPT; ++axis) kept[axis] = coordinate[axis];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) totals.value[v] = OPERATOR::finish(totals.value[v], p.count);
    p.template store<VECTOR>(kept, column, valid, totals.value);
  }
}

// The bound is below the blocks that fit: without one ptxas spills a few registers of some kernels to fit one more
// block.
extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL_NAME(const __grid_constant__ Params p) {
  const INDEX slice = SPLIT ? INDEX(blockIdx.x) % INDEX(p.slices) : 0;
  const INDEX block = SPLIT ? INDEX(blockIdx.x) / INDEX(p.slices) : INDEX(blockIdx.x);
  const INDEX group = block * COLUMNS + threadIdx.x % COLUMNS;
  const bool exists = group < p.groups;

  i64 coordinate[RANK];
  i64 column = 0;
  int valid = 0;
  Totals totals;
  totals.clear();
  if (exists) {
    digits<KEPT>(p.axes, group, coordinate);
    column = coordinate[KEPT - 1] * VECTOR;
    valid = p.extent - column < VECTOR ? int(p.extent - column) : VECTOR;
    const INDEX begin = slice * INDEX(p.slice_steps);
    const INDEX end = begin + p.slice_steps < p.steps ? begin + p.slice_steps : p.steps;
    totals = reduce_slice(p, coordinate, column, valid, begin + threadIdx.x / COLUMNS, end);
  }
  reduce_rows(totals);
  if (!exists || threadIdx.x >= COLUMNS) return;

  store_totals(p, coordinate, slice, group, column, valid, totals);
}
