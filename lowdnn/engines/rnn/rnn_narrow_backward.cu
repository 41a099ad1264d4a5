// rnn_narrow_backward: all steps back of a recurrent layer in all of its directions in one launch, with the recurrent
// weights on chip, for few sequences; for sm_90a. Formulas: ops/rnn_cells.py.
//
// Blocks, product, exchange, shared memory and launch: narrow_step.cuh. The weights are transposed: a row for each
// unit, over k = gate * UNITS_OF_ALL + unit. The blocks of a group exchange the gate gradients, which these are
// multiplied with, through `exchange`: a slot for each step, modulo SLOTS. The gradients of step s of this walk lie in
// slot s + 1, since the product of step s + 1 reads them. Cells: the threads add up the warps' sums, in the order of
// the warps, and compute a pair of units of a sequence each, or several.
// Alignment: gates, their gradients and cells begin at multiples of 8 bytes.
// Macros: the macros of narrow_step.cuh; UNITS_OF_ALL; CELL and CLIPS as in backward_layer.cuh.

#include "include/ptx/grid_barrier.cuh"
#include "include/ptx/prefetch.cuh"
#include "resident_pair.cuh"
#include "narrow_step.cuh"

typedef NarrowStep<1, CELL::GATES * UNITS_OF_ALL> Step;

constexpr int LINE_PAIRS = UNITS / 2;                                  // pairs of units of a sequence
constexpr int PAIRS = (LINE_PAIRS * COLUMNS + THREADS - 1) / THREADS;  // pairs of a thread

constexpr int GATE_BYTES = UNITS_OF_ALL / Step::PAIR * Step::PAIR_BYTES;  // bytes of a slot for each gate
static_assert(UNITS_OF_ALL % Step::PAIR == 0, "a gate has whole pairs of k");

// A line of what later steps read, which a thread asks for before the others load it: so no load waits for device
// memory.
struct LineAhead {
  static constexpr int LINE_BYTES = 64, LINES = (UNITS * int(sizeof(TYPE)) + LINE_BYTES - 1) / LINE_BYTES;
  static constexpr int STREAMS = CELL::BLOCKS + 1 + CELL::CARRIES + 2 * CELL::HAS_CELLS;  // cells: two halves
  static_assert(COLUMNS * LINES * STREAMS <= THREADS, "a thread has a line at most");

  const u8* first;  // in the row of time 0; null for none
  i64 stride;       // bytes from time to time
  i32 distance;     // steps ahead; one more for rows that the step behind them reads too

  __device__ __forceinline__ explicit LineAhead(const Step& place) : first(nullptr), stride(0), distance(2) {
    const Layer& p = place.p.layer;
    const u32 item = THREADS - 1 - threadIdx.x;  // threads with pairs come last
    const u32 b = place.sequence(item % COLUMNS), line = item / COLUMNS % LINES, stream = item / COLUMNS / LINES;
    if (b >= p.batch) return;
    if (stream < CELL::BLOCKS) {
      set(p.gates + i64(stream) * p.units, p.gate_rows, place, b, line);
    } else if (stream == CELL::BLOCKS) {
      set(p.dy, p.dy_rows, place, b, line);
    } else if (stream < STREAMS) {
      distance = 3;
      if constexpr (CELL::HAS_CELLS) {
        set(p.cells + (stream - CELL::BLOCKS - 1) * (UNITS / 2), p.cell_rows, place, b, line);
      } else {
        set(p.states, p.state_rows, place, b, line);
      }
    }
  }

  __device__ __forceinline__ void request(i32 time) const { prefetch_to_l2(first + time * stride); }

 private:
  template <class T>
  __device__ __forceinline__ void set(const T* at, const Rows& rows, const Step& place, u32 b, u32 line) {
    first = reinterpret_cast<const u8*>(at + rows.of(0, b, place.direction) + place.first_unit()) + line * LINE_BYTES;
    stride = rows.step * i64(sizeof(T));
  }
};

// A thread: a part of the product, and pairs of units, all of the same two.
struct Worker {
  const Step& place;
  const u32 unit;  // the first one of the pairs
  const u32 word;  // where the first pair's word of the first gate lies in a slot
  const LineAhead ahead;
  Pair pairs[PAIRS];

  __device__ __forceinline__ explicit Worker(const Step& of)
      : place(of),
        unit(of.first_unit() + threadIdx.x % LINE_PAIRS * 2),
        word(Step::place_of(unit, column(0))),
        ahead(of),
        pairs() {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      pairs[i].sequence = sequence_of(p.lengths, place.sequence(column(i)), place.direction, p.steps, p.batch);
    }
  }

  __device__ __forceinline__ u32 column(int i) const { return (threadIdx.x + i * THREADS) / LINE_PAIRS; }
  __device__ __forceinline__ i32 time(i32 step) const {
    return place.direction ? step : place.p.layer.steps - 1 - step;
  }
  // Products: the one behind all steps is the gradient of the first states.
  __device__ __forceinline__ i32 products() const { return place.p.layer.steps - !place.p.layer.dfirst_states; }

  // Calls visit(i, first element, whether its sequence has the step) for the pairs whose sequences there are.
  template <class Visit> __device__ __forceinline__ void for_each(i32 step, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      if (!pairs[i].sequence.exists()) continue;
      const Element e = pairs[i].at(time(step), unit, place.p.layer);
      visit(i, e, step < place.p.layer.steps && e.sequence.has(e.t));
    }
  }

  // Calls visit(i, block of gates, where its word lies) for what the pairs exchange in the slot of a step.
  template <class Visit> __device__ __forceinline__ void for_each_word(i32 step, const Visit& visit) const {
    constexpr int STRIDE = THREADS / LINE_PAIRS * Step::ROW_BYTES;  // from pair to pair
    u8* const first = place.slot(step) + word;
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      if (!pairs[i].sequence.exists()) continue;
#pragma unroll
      for (int gate = 0; gate < CELL::GATES; ++gate) {
        visit(i, gate + 1 == CELL::GATES ? CELL::BLOCKS - 1 : gate, first + i * STRIDE + gate * GATE_BYTES);
      }
    }
  }
  // Makes the words of a slot UNSET.
  __device__ __forceinline__ void clear(i32 step) const {
    for_each_word(step, [](int, int, u8* word) { set(word, UNSET); });
  }
  // The gradients to the other blocks, for the product of step `step`.
  __device__ __forceinline__ void publish(i32 step) const {
    for_each_word(step, [&](int i, int block, u8* word) { set(word, pairs[i].made[block]); });
  }

  // The products of a pair.
  __device__ __forceinline__ void add_up(i32 step, int i, Value (&sums)[2]) const {
    const u32 own = Step::Sums::at(column(i), unit - place.first_unit()) * sizeof(f32);
    const u32 from = shared_address(Step::sums(step, 0)) + own;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const uint2 of_warp = load_shared_64(from + w * (Step::Sums::SIZE * int(sizeof(f32))));
      sums[0] += __uint_as_float(of_warp.x);
      sums[1] += __uint_as_float(of_warp.y);
    }
  }

  // Asks for what later steps read.
  __device__ __forceinline__ void look_ahead(i32 step) const {
    const i32 later = step + ahead.distance;
    if (ahead.first && later < place.p.layer.steps) ahead.request(time(later));
  }

  __device__ __forceinline__ void run(const Step::WarpWeights& weights) {
    const i32 steps = place.p.layer.steps, last = products();
    for_each(0, [&](int i, const Element& e, bool is_step) { pairs[i].fetch(e, is_step); });
#pragma unroll 1
    for (i32 step = 0; step <= last; ++step) {
      Value sums[PAIRS][2] = {};
      if (step > 0) {
        place.multiply(weights, step);
        order_slots(step);
        __syncthreads();
      }
      for_each(step, [&](int i, const Element& e, bool is_step) {
        if (step > 0) add_up(step, i, sums[i]);
        pairs[i].compute(e, is_step, sums[i]);
      });
      if (step < last) publish(step + 1);
      look_ahead(step);
      if (step > 1) clear(step - 1);
      for_each(step, [&](int i, const Element& e, bool is_step) {
        if (step < steps) store(e, pairs[i]);
        pairs[i].finish(e, is_step, step, sums[i]);
      });
      if (step < steps) {
        for_each(step + 1, [&](int i, const Element& e, bool is_step) { pairs[i].fetch(e, is_step); });
      }
    }
  }

 private:
  static __device__ __forceinline__ void store(const Element& e, const Pair& pair) {
    TYPE* const row = e.p.dgates + e.gate_place(0);
#pragma unroll
    for (int block = 0; block < CELL::BLOCKS; ++block) {
      *reinterpret_cast<u32*>(row + block * UNITS_OF_ALL) = pair.made[block];
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  const Step place(p);
  Worker worker(place);
  const Step::WarpWeights weights(place);
  for (i32 step = 0; step < min(SLOTS, p.layer.steps + 1); ++step) worker.clear(step);
  grid_sync();  // all words are UNSET
  worker.run(weights);
}
