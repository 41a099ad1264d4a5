// rnn_rows: rows of sequences from one tensor to another, a row of `elements` for each step of each sequence:
//
//   to(t, b) = scale * kept * from(t + shift, b)    kept: 0 or 1, by the random numbers of dropout (ops/rnn_forward.py)
//
// and 0 past the end of a sequence. With a shift of -1 or 1 it is the state before each step, forwards or backwards
// in time; the first one comes from `first`.
//
// Layouts: a tensor over steps has any strides of step and sequence, and contiguous elements. A packed one has the rows
// of step 0, of step 1 and so on, of those sequences that have the step, each `sequence` elements behind the one
// before: row (t, b) is first(t) + b, where first(t) is the sum over all sequences of min(t, length). Rows of a packed
// target behind them all become 0.
// Block: blockIdx.x = step * blocks + block; a block takes THREADS vectors of the rows of a step. The step behind the
// last one, of a packed target only, is what is left of that. Launch: THREADS threads; no dynamic shared memory. It may
// be a dependent launch.
// Macros: TYPE, VECTOR (elements of an access), FROM_PACKED, TO_PACKED, SHIFT, DROPS, THREADS.

#include "include/numeric.cuh"
#include "include/math/division.cuh"
#include "include/philox.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/vector.cuh"

typedef Compute<TYPE>::Type Value;

struct Params {
  const TYPE* from;
  TYPE* to;
  const TYPE* first;       // null for 0
  const i32* lengths;      // null where all sequences have all steps
  const i64* seed;
  const i64* offset;
  i64 from_step, from_sequence, to_step, to_sequence, first_sequence;
  i64 threshold;           // words below it keep their element
  i64 first_index;         // index of the first element's random number
  i64 rows;                // rows of a packed target
  Value scale;
  i32 steps, batch, elements;
  Divider blocks;          // blocks of a step
  Divider vectors;         // vectors of a row
};

// The number of steps of a sequence.
__device__ __forceinline__ i32 length_of(const Params& p, u32 b) {
  return p.lengths ? min(max(p.lengths[b], 0), p.steps) : p.steps;
}

// Rows of a packed tensor before step t; all threads.
__device__ __forceinline__ i64 rows_before(const Params& p, i32 t) {
  __shared__ i64 sums[THREADS / WARP_SIZE];
  i64 sum = 0;
  for (i32 b = threadIdx.x; b < p.batch; b += THREADS) sum += min(t, length_of(p, b));
#pragma unroll
  for (int step = WARP_SIZE / 2; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  __syncthreads();
  if (threadIdx.x % WARP_SIZE == 0) sums[threadIdx.x / WARP_SIZE] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int warp = 0; warp < THREADS / WARP_SIZE; ++warp) sum += sums[warp];
  return sum;
}

// Elements by the random numbers; index: of the first of them.
__device__ __forceinline__ void drop(const Params& p, TYPE (&values)[VECTOR], i64 index) {
  const Philox philox = {u64(*p.seed), u64(*p.offset)};
  Value kept[VECTOR];
  draw_whole(kept, Bernoulli<Value>{p.threshold}, philox, p.first_index + index, 1);
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) {
    values[i] = convert<TYPE>(kept[i] != Value(0) ? Value(widen(values[i])) * p.scale : Value(0));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const u32 step = p.blocks.divide(blockIdx.x), block = blockIdx.x - step * p.blocks.divisor;
  const i32 t = step, source = t + SHIFT;
  const i64 from_begin = FROM_PACKED ? rows_before(p, min(max(source, 0), p.steps)) : 0;
  const i64 to_begin = TO_PACKED ? rows_before(p, t) : 0;
  const u32 number = block * THREADS + threadIdx.x;
  const u32 b = p.vectors.divide(number), vector = number - b * p.vectors.divisor;
  const i64 element = i64(vector) * VECTOR;
  if (b >= p.batch) return;

  TYPE values[VECTOR] = {};
  if (TO_PACKED && t == p.steps) {
    for (i64 row = to_begin + b; row < p.rows; row += p.batch) {
      store<VECTOR>(p.to + row * p.to_sequence + element, values);
    }
    return;
  }
  const i32 length = length_of(p, b);
  const i64 to_row = TO_PACKED ? (to_begin + b) * p.to_sequence : t * p.to_step + b * p.to_sequence;
  if (t >= length) {
    if (!TO_PACKED) store<VECTOR>(p.to + to_row + element, values);
    return;
  }
  if (SHIFT != 0 && (source < 0 || source >= length)) {
    if (p.first) load<Plain, VECTOR>(values, p.first + b * p.first_sequence + element);
  } else {
    const i64 from_row = FROM_PACKED ? (from_begin + b) * p.from_sequence : source * p.from_step + b * p.from_sequence;
    load<Plain, VECTOR>(values, p.from + from_row + element);
  }
  if constexpr (DROPS) drop(p, values, (i64(t) * p.batch + b) * p.elements + element);
  store<VECTOR>(p.to + to_row + element, values);
}
