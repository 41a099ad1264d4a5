// reduction_rows: y[k] = epilogue(op over r of prologue(x[k, r])), if the vector axis, which is contiguous in memory,
// is reduced.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then the reduced ones, the vector axis last. The reduced axes
// are cut into groups of VECTOR neighbouring elements, numbered with the last axis fastest.
// Block: blockIdx.x = block of outputs * slices + slice. A team of TEAM threads computes one output over one slice of
// `slice_groups` groups; a block has THREADS / TEAM teams with neighbouring outputs.
// Order of summation: each thread sums its groups in VECTOR chains of at most STEPS * UNROLL terms, adds the chains as
// a tree and adds that to its total; then the team adds its totals as a tree. It depends only on the parameters.
// Shared memory (static): one total for each warp, if a team has several.
// Launch: THREADS threads, ceil(outputs / teams) * slices blocks.
// Macros: OPERATOR THREADS TEAM UNROLL VECTOR KEPT; SPLIT: 0 if the team's first thread applies the epilogue, 1 if it
// writes the total of its slice to partials[slice][output], for reduction_combine.cu; MOMENTS: 1 if the operator is
// GenStats; INDEX: u32 if outputs and groups are below 2^31, otherwise i64.

#define READS_ONLY
#include "include/math/division.cuh"
#include "include/math/reduction_operators.cuh"
#include "generated.cuh"
#include "epilogues.cuh"

typedef TotalVector<OPERATOR, Prologue::Result, VECTOR> Chains;  // the chains of a thread
typedef Chains::Total Total;

struct Numbers {
  i64 outputs;
  i64 groups;        // groups of one output
  i64 whole_groups;  // leading groups with VECTOR elements each
  i64 extent;        // elements along the vector axis
  i64 slice_groups;
  i64 slices;
  i64 count;                     // elements reduced into one output
  Divider axes[Prologue::RANK];  // the vector axis in groups
  Prologue::Args before;
};

struct Params : Numbers, Either<SPLIT, Partials<Total>, Outputs<MOMENTS>>::Type {};

constexpr int RANK = Prologue::RANK;
constexpr int TEAMS = THREADS / TEAM;
constexpr int STEPS = 16;

// The cursor of a group's row; `column` is set to the group's first element along the vector axis.
__device__ __forceinline__ Prologue::Cursor locate(const Params& p, i64 (&coordinate)[RANK], INDEX group, i64& column) {
  digits<RANK - KEPT>(p.axes + KEPT, group, coordinate + KEPT);
  column = coordinate[RANK - 1] * VECTOR;
  return Prologue::cursor(p.before, coordinate);
}

// Adds the whole groups `group`, group + TEAM, ... before `end` to chains: UNROLL of them or, without ALL, as many as
// there are. Then the first group is loaded again in place of those beyond the end, since a predicated load would need
// a register for each element. Returns the next group.
template <bool ALL>
__device__ __forceinline__ INDEX add_groups(
    const Params& p, i64 (&coordinate)[RANK], INDEX group, INDEX end, Chains& chains) {
  Prologue::Cursor rows[UNROLL];
  i64 columns[UNROLL];
  Prologue::Loaded<VECTOR> in[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const INDEX own = group + u * TEAM;
    rows[u] = locate(p, coordinate, ALL || own < end ? own : group, columns[u]);
    Prologue::load<VECTOR>(p.before, rows[u], columns[u], VECTOR, in[u]);
  }
  INDEX next = group;
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    Prologue::Result values[VECTOR];
    Prologue::finish<VECTOR>(p.before, rows[u], columns[u], VECTOR, in[u], values);
    if (ALL || group + u * TEAM < end) {
      chains.add(values);
      next += TEAM;
    }
  }
  return next;
}

// Reduces a thread's part of a slice: the groups begin, begin + TEAM, ... before `end`.
__device__ __forceinline__ Total reduce_slice(
    const Params& p, i64 (&coordinate)[RANK], INDEX begin, INDEX end, INDEX whole_end) {
  Total total = OPERATOR::neutral<Prologue::Result>();
  INDEX group = begin;

  while (group < whole_end) {
    Chains chains;
    chains.clear();
    int step = 0;
    for (; step < STEPS && group + (UNROLL - 1) * TEAM < whole_end; ++step) {
      group = add_groups<true>(p, coordinate, group, whole_end, chains);
    }
    if (step < STEPS && group < whole_end) group = add_groups<false>(p, coordinate, group, whole_end, chains);
    total = OPERATOR::combine(total, chains.joined());
  }

#pragma unroll 1
  for (; group < end; group += TEAM) {
    i64 column;
    const Prologue::Cursor row = locate(p, coordinate, group, column);
    const i64 remaining = p.extent - column;
    const int valid = remaining < VECTOR ? int(remaining) : VECTOR;
    Prologue::Result values[VECTOR];
    Prologue::apply<VECTOR>(p.before, row, column, valid, values);
    Chains chains;
    chains.clear();
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      if (v < valid) chains.value[v] = OPERATOR::prepare(values[v]);
    }
    total = OPERATOR::combine(total, chains.joined());
  }
  return total;
}

// Reduces the team's totals; the result is valid in its first thread.
__device__ __forceinline__ Total reduce_team(Total total) {
#pragma unroll
  for (int offset = (TEAM < 32 ? TEAM : 32) / 2; offset > 0; offset /= 2) {
    total = OPERATOR::combine(total, shuffle_down(total, offset));
  }
  if (TEAM > 32) {
    __shared__ Total warps[THREADS / 32];
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) warps[warp] = total;
    __syncthreads();
    if (threadIdx.x % TEAM == 0) {
#pragma unroll
      for (int other = 1; other < TEAM / 32; ++other) total = OPERATOR::combine(total, warps[warp + other]);
    }
  }
  return total;
}

template <class Params>
__device__ __forceinline__ void store_total(const Params& p, const i64 (&coordinate)[RANK], INDEX slice, INDEX output,
                                            Total total) {
  if constexpr (SPLIT) {
    p.partials[i64(slice) * p.outputs + output] = total;
  } else {
    i64 kept[KEPT];
#pragma unroll
    for (int axis = 0; axis < KEPT; ++axis) kept[axis] = coordinate[axis];
    const Total result[1] = {OPERATOR::finish(total, p.count)};
    p.template store<1>(kept, kept[KEPT - 1], 1, result);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const INDEX slice = SPLIT ? INDEX(blockIdx.x) % INDEX(p.slices) : 0;
  const INDEX block = SPLIT ? INDEX(blockIdx.x) / INDEX(p.slices) : INDEX(blockIdx.x);
  const INDEX output = block * TEAMS + threadIdx.x / TEAM;
  const bool exists = output < p.outputs;

  i64 coordinate[RANK];
  Total total = OPERATOR::neutral<Prologue::Result>();
  if (exists) {
    digits<KEPT>(p.axes, output, coordinate);
    const INDEX begin = slice * INDEX(p.slice_groups);
    const INDEX end = begin + p.slice_groups < p.groups ? begin + p.slice_groups : p.groups;
    const INDEX whole_end = end < p.whole_groups ? end : p.whole_groups;
    total = reduce_slice(p, coordinate, begin + threadIdx.x % TEAM, end, whole_end);
  }
  total = reduce_team(total);
  if (!exists || threadIdx.x % TEAM != 0) return;

  store_total(p, coordinate, slice, output, total);
}
