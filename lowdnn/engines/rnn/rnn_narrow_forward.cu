// rnn_narrow_forward: all steps of a recurrent layer in all of its directions in one launch, with the recurrent weights
// on chip, for few sequences; for sm_90a. Formulas: ops/rnn.py.
//
// Blocks, product, exchange, shared memory and launch: narrow_step.cuh; the blocks of a group exchange the states
// before a step. Cells: the threads add up the warps' sums, in the order of the warps, and compute an element each, or
// several.
// Macros: the macros of narrow_step.cuh; UNITS_OF_ALL; CELL, CLIPS and SAVES as in forward_layer.cuh.

#include "include/ptx/grid_barrier.cuh"
#include "resident_cell.cuh"
#include "narrow_step.cuh"

typedef NarrowStep<CELL::GATES, UNITS_OF_ALL> Step;

// Elements of a thread.
constexpr int ELEMENTS = (UNITS * COLUMNS + THREADS - 1) / THREADS;

// A thread: a part of the product, and elements, all of one unit.
struct Worker {
  const Step& place;
  const u32 unit;
  const u32 word;  // where the first element's lies in a slot
  const Biases biases;
  Sequence sequences[ELEMENTS];
  Resident elements[ELEMENTS];

  __device__ __forceinline__ explicit Worker(const Step& of)
      : place(of),
        unit(threadIdx.x % UNITS),
        word(Step::place_of(of.first_unit() + unit, column(0))),
        biases(of.p.layer, of.direction, of.first_unit() + unit) {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      sequences[i] = sequence_of(p.lengths, place.sequence(column(i)), place.direction, p.steps, p.batch);
    }
  }

  __device__ __forceinline__ u32 column(int i) const { return (threadIdx.x + i * THREADS) / UNITS; }
  __device__ __forceinline__ i32 time(i32 step) const {
    return place.direction ? place.p.layer.steps - 1 - step : step;
  }

  // Calls visit(i, element) for the elements whose sequences there are.
  template <class Visit> __device__ __forceinline__ void for_each(i32 step, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      if (!sequences[i].exists()) continue;
      const Element e{sequences[i], time(step), place.first_unit() + unit, place.p.layer};
      visit(i, ResidentElement(e, elements[i]));
    }
  }

  // Sets the word of an element and its neighbour in the unit of the next number, before step `step`.
  __device__ __forceinline__ void set_word(i32 step, int i, u32 states) const {
    constexpr int STRIDE = THREADS / UNITS * Step::ROW_BYTES;  // from element to element
    if (unit % 2 == 0 && sequences[i].exists()) set(place.slot(step) + word + i * STRIDE, states);
  }

  // Makes the words of step `step` UNSET.
  __device__ __forceinline__ void clear(i32 step) const {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) set_word(step, i, UNSET);
  }

  // The states to the other blocks, as those before step `step`.
  __device__ __forceinline__ void publish(i32 step) const {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      const TYPE own = convert<TYPE>(elements[i].h), next = {u16(__shfl_down_sync(~0u, u32(own.bits), 1))};
      set_word(step, i, word_of(own, next));
    }
  }

  __device__ __forceinline__ void compute(i32 step) {
    for_each(step, [&](int i, const ResidentElement& e) {
      Value sums[CELL::GATES] = {};
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const Step::Sums of_warp = Step::sums(step, w)[Step::Sums::at(column(i), unit)];
#pragma unroll
        for (int gate = 0; gate < CELL::GATES; ++gate) sums[gate] += of_warp.of_gate[gate];
      }
      e.compute(biases, sums);
    });
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) elements[i].begin();
    for_each(0, [&](int i, const ResidentElement& e) { elements[i].begin(e); });
    publish(0);
    for_each(0, [&](int i, const Element& e) { elements[i].fetch(e); });
  }

  __device__ __forceinline__ void run(const Step::WarpWeights& weights) {
    const i32 steps = place.p.layer.steps;
    begin();
#pragma unroll 1
    for (i32 step = 0; step < steps; ++step) {
      place.multiply(weights, step);
      order_slots(step);
      __syncthreads();
      compute(step);
      const bool is_last = step + 1 == steps;
      if (!is_last) publish(step + 1);
      if (step > 0) clear(step - 1);
      for_each(step, [](int, const ResidentElement& e) { e.store(); });
      if (!is_last) for_each(step + 1, [&](int i, const Element& e) { elements[i].fetch(e); });
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  const Step place(p);
  Worker worker(place);
  const Step::WarpWeights weights(place);
  for (i32 step = 0; step < min(SLOTS, p.layer.steps); ++step) worker.clear(step);
  grid_sync();  // all words are UNSET
  worker.run(weights);
}
