// custom_reduction: y[k] = epilogue(initial o state(x[k, 0]) o state(x[k, 1]) o ...) with a generated associative
// operator o, which need not be commutative.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then the reduced ones in the order of the tensor's dims. The
// vector axis, the last reduced or the last kept one, is cut into groups of VECTOR elements (1 if it is kept); groups
// of reduced axes are numbered with the last axis fastest.
// Block: blockIdx.x = block of outputs * slices + slice. A block has SIDE neighbouring outputs, and PARTS parts of one
// slice of `slice_groups` groups of each. LANES neighbouring threads of a warp work on a part batch by batch: each
// reads UNROLL consecutive groups, then they combine their states.
// Order: a thread combines its elements from left to right, lanes as a tree of neighbours, batches from left to right,
// parts as a tree of neighbours. With one lane, one part and one slice everything is combined from left to right, the
// initial state first.
// Shared memory (static): one state for each part, if an output has several.
// Launch: THREADS threads, ceil(outputs / SIDE) * slices blocks.
// Macros: THREADS LANES PARTS UNROLL VECTOR KEPT; ROWS: 1 if the vector axis is reduced; SPLIT: 0 if results are
// stored, 1 if the states of slices go to partials[slice][output], for custom_reduction_combine.cu; INDEX: u32 if
// outputs and groups are below 2^31, otherwise i64.

#include "include/math/division.cuh"
#include "include/math/reduction_operators.cuh"
#include "include/optional.cuh"
#include "generated.cuh"
#include "join_parts.cuh"

typedef Reducer::State State;

struct Slices {
  struct Args {
    State* partials;
  };
};

struct Params {
  i64 outputs;
  i64 groups;  // groups of one output
  i64 extent;  // elements along the vector axis
  i64 slice_groups;
  i64 slices;
  i64 part_groups;
  Divider axes[Streams::RANK];  // the vector axis in groups
  Reducer::Args reducer;
  Streams::Args streams;
  Either<SPLIT, Slices, Results>::Type::Args sink;
};

constexpr int RANK = Streams::RANK;
constexpr int SIDE = THREADS / (LANES * PARTS);

// A thread's groups in a batch.
struct Batch {
  Streams::Cursor at[UNROLL];
  i64 column[UNROLL];
  int valid[UNROLL];  // elements that exist
  Streams::Loaded<VECTOR> in[UNROLL];
};

// Reads the groups from `first` on. Groups from `end` on take the coordinates of `begin`, but nothing is read for them.
__device__ __forceinline__ void load_batch(
    const Params& p, i64 (&coordinate)[RANK], INDEX first, INDEX begin, INDEX end, Batch& batch) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const bool exists = first + u < end;
    digits<RANK - KEPT>(p.axes + KEPT, exists ? first + u : begin, coordinate + KEPT);
    batch.column[u] = coordinate[ROWS ? RANK - 1 : KEPT - 1] * VECTOR;
    const i64 remaining = p.extent - batch.column[u];
    batch.valid[u] = !exists ? 0 : remaining < VECTOR ? int(remaining) : VECTOR;
    batch.at[u] = Streams::cursor(p.streams, coordinate);
    Streams::load<VECTOR>(p.streams, batch.at[u], batch.column[u], batch.valid[u], batch.in[u]);
  }
}

// Combines the elements of a batch with `own`, which is ignored unless it `exists`; returns whether it does afterwards.
__device__ __forceinline__ bool combine_batch(const Params& p, const Batch& batch, State& own, bool exists) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    State states[VECTOR];
    Streams::finish<VECTOR>(p.streams, batch.at[u], batch.column[u], batch.valid[u], batch.in[u], states);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      if (v >= batch.valid[u]) continue;
      own = exists ? Reducer::combine(p.reducer, own, states[v]) : states[v];
      exists = true;
    }
  }
  return exists;
}

// Combines the states of neighbouring lanes, of which the first `present` have one; the result is valid in lane 0.
__device__ __forceinline__ State join_lanes(const Params& p, State own, int lane, int present) {
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) {
    const State next = Reducer::shuffle_down(own, step);
    if (lane + step < present) own = Reducer::combine(p.reducer, own, next);
  }
  return own;
}

// Combines `total`, if it `exists`, with the groups from `begin` to `end`; the result is valid in lane 0. Unless
// `reads`, nothing is read or written.
__device__ __forceinline__ State reduce_part(
    const Params& p, i64 (&coordinate)[RANK], INDEX begin, INDEX end, bool reads, State total, bool exists) {
  const int lane = threadIdx.x % LANES;
#pragma unroll 1
  for (INDEX batch_begin = begin; batch_begin < end; batch_begin += LANES * UNROLL) {
    Batch batch;
    load_batch(p, coordinate, batch_begin + lane * UNROLL, begin, reads ? end : begin, batch);
    if constexpr (LANES == 1) {
      exists = combine_batch(p, batch, total, exists);
    } else {
      State own = total;
      combine_batch(p, batch, own, false);
      const INDEX left = (end - batch_begin + UNROLL - 1) / UNROLL;
      own = join_lanes(p, own, lane, left < LANES ? int(left) : LANES);
      total = exists ? Reducer::combine(p.reducer, total, own) : own;
      exists = true;
    }
  }
  return total;
}

template <class Params>
__device__ __forceinline__ void store_total(
    const Params& p, const i64 (&coordinate)[RANK], INDEX slice, INDEX output, const State& total) {
  if constexpr (SPLIT) {
    p.sink.partials[i64(slice) * p.outputs + output] = total;
  } else {
    i64 kept[KEPT];
#pragma unroll
    for (int axis = 0; axis < KEPT; ++axis) kept[axis] = coordinate[axis];
    Results::store(p.sink, kept, total);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const INDEX slice = SPLIT ? INDEX(blockIdx.x) % INDEX(p.slices) : 0;
  const INDEX block = SPLIT ? INDEX(blockIdx.x) / INDEX(p.slices) : INDEX(blockIdx.x);
  const int side = threadIdx.x / LANES % SIDE, part = threadIdx.x / (LANES * SIDE);
  const INDEX output = block * SIDE + side;
  const bool exists = output < p.outputs;

  // All lanes of a warp take part in its shuffles, those without an output too.
  i64 coordinate[RANK];
  digits<KEPT>(p.axes, exists ? output : INDEX(p.outputs - 1), coordinate);
  const INDEX slice_begin = slice * INDEX(p.slice_groups);
  const INDEX slice_end = slice_begin + p.slice_groups < p.groups ? slice_begin + p.slice_groups : p.groups;
  const INDEX part_groups = p.part_groups, begin = slice_begin + part * part_groups;
  const INDEX end = begin + part_groups < slice_end ? begin + part_groups : slice_end;
  const State initial = Reducer::initial(p.reducer);
  State total = reduce_part(p, coordinate, begin, end, exists, initial, slice == 0 && part == 0);

  const INDEX parts = (slice_end - slice_begin + part_groups - 1) / part_groups;
  total = join_parts<PARTS, SIDE>(p.reducer, total, part, side, int(parts), threadIdx.x % LANES == 0);
  if (!exists || part != 0 || threadIdx.x % LANES != 0) return;

  store_total(p, coordinate, slice, output, total);
}
