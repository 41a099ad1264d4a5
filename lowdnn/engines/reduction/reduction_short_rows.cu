// reduction_short_rows: y[k] = epilogue(op over r of prologue(x[k * count + r])), for rows that lie one after the other
// in memory, aligned or not, and are too short to be read one by one in whole vectors.
//
// Layouts: all tensors of the prologue are one row of outputs * count elements.
// Block: `block_outputs` neighbouring outputs. Their elements are read as one row in groups of VECTOR, pass through the
// prologue and go to shared memory; then TEAM threads reduce those of one output.
// Order of summation: each thread of a team sums every TEAM-th element, then the team adds its totals as a tree. It
// depends only on the parameters.
// Shared memory (static): STAGED results of the prologue, unconverted if it only reads.
// Launch: THREADS threads, ceil(outputs / block_outputs) blocks; block_outputs * count is a multiple of VECTOR and at
// most STAGED.
// Macros: OPERATOR COMPUTE (the type of the arithmetic) THREADS TEAM UNROLL VECTOR STAGED; MOMENTS: 1 if the operator
// is GenStats.

#define READS_ONLY
#include "include/math/reduction_operators.cuh"
#include "generated.cuh"
#include "epilogues.cuh"

typedef TotalOf<OPERATOR, COMPUTE>::Type Total;
typedef Vector<Prologue::Result, VECTOR> Group;

struct Params {
  i64 outputs;
  i64 block_outputs;
  i64 count;  // elements reduced into one output
  Prologue::Args before;
  Outputs<MOMENTS> after;
};

// Passes the elements from `begin` on, a multiple of VECTOR, through the prologue to shared memory, in whole groups.
__device__ __forceinline__ void stage(const Params& p, i64 begin, int elements, Group* staged) {
  const i64 origin[1] = {0};
  const Prologue::Cursor row = Prologue::cursor(p.before, origin);
  const int whole_groups = elements / VECTOR, rest = elements % VECTOR;
#pragma unroll 1
  for (int group = threadIdx.x; group < whole_groups; group += UNROLL * THREADS) {
    Prologue::Loaded<VECTOR> in[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = group + u * THREADS;
      if (at < whole_groups) Prologue::load<VECTOR>(p.before, row, begin + at * VECTOR, VECTOR, in[u]);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = group + u * THREADS;
      if (at >= whole_groups) continue;
      Group values;
      Prologue::finish<VECTOR>(p.before, row, begin + at * VECTOR, VECTOR, in[u], values.v);
      staged[at] = values;
    }
  }
  if (rest > 0 && threadIdx.x == 0) {
    Group values;
    Prologue::apply<VECTOR>(p.before, row, begin + whole_groups * VECTOR, rest, values.v);
    staged[whole_groups] = values;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Group groups[STAGED / VECTOR];
  const Prologue::Result* staged = groups[0].v;
  const i64 first_output = blockIdx.x * p.block_outputs, remaining = p.outputs - first_output;
  const int outputs = int(remaining < p.block_outputs ? remaining : p.block_outputs), count = int(p.count);
  stage(p, first_output * p.count, outputs * count, groups);
  __syncthreads();

  const int lane = threadIdx.x % TEAM;
#pragma unroll 1
  for (int begin = 0; begin < outputs; begin += THREADS / TEAM) {
    const int output = begin + threadIdx.x / TEAM;
    Total total = OPERATOR::neutral<COMPUTE>();
    if (output < outputs) {
#pragma unroll 8
      for (int i = lane; i < count; i += TEAM) {
        total = OPERATOR::combine(total, OPERATOR::prepare(convert<COMPUTE>(staged[output * count + i])));
      }
    }
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2) {
      total = OPERATOR::combine(total, shuffle_down(total, offset));
    }
    if (output < outputs && lane == 0) {
      const i64 kept[1] = {first_output + output};
      const Total result[1] = {OPERATOR::finish(total, p.count)};
      p.after.store<1>(kept, kept[0], 1, result);
    }
  }
}
