// rnn_narrow_forward: all steps of a recurrent layer in all of its directions in one launch, with the recurrent weights on
// chip, for few sequences; for sm_90a. Formulas: ops/rnn.py.
//
// Blocks: a group of blocks computes COLUMNS sequences in one direction, each of its blocks UNITS units, whose weights it
// keeps. A block is blockIdx.x = (direction * groups + group) * blocks of a group + block.
// Product: rows of weights (m), row gate * UNITS + unit, the states before the step (n), k split over the warps, on tensor
// cores with mma.sync. Pairs of instructions, 32 of k each, go round the warps. In a pair k is permuted so that a lane's
// operands of both instructions are 16 neighbouring bytes of a row: of weights, and of the states, which the lane reads
// from `exchange` straight into registers. All pairs of a warp are polled before the first is multiplied: a pair that has
// to be read again would hold up the next one. The first REGISTER_PAIRS of a warp's weights lie in registers, the others
// in shared memory, each lane's own.
// Cells: the threads add up the warps' sums, in the order of the warps, and compute an element each, or several.
// Exchange: [direction][group][slot][k / 32][column] of 64 bytes; see polled_states.cuh.
// Shared memory (dynamic): weights [warp][pair][m / 16][2][lane] of 16 bytes, sums [2][warp] (Sums): those of a step in one
// half, of the next in the other. So one barrier a step is enough.
// Launch: cooperative, 256 threads, a block for each multiprocessor at most.
// Macros: TYPE, UNITS (8 to 64), COLUMNS (8 or 16), UNITS_OF_ALL, REGISTER_PAIRS; CELL, CLIPS and SAVES as in
// forward_layer.cuh.

#include "include/ptx/grid_barrier.cuh"
#include "include/ptx/mma.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/vector.cuh"
#include "polled_states.cuh"
#include "resident_cell.cuh"

constexpr int WARPS = 8, THREADS = WARPS * WARP_SIZE;
constexpr int ROWS = CELL::GATES * UNITS, M_TILES = (ROWS + 15) / 16, N_TILES = COLUMNS / 8;
constexpr int PAIR = 32, ROW_BYTES = PAIR * int(sizeof(TYPE)), PAIR_BYTES = COLUMNS * ROW_BYTES;
constexpr int PAIRS_OF_ALL = UNITS_OF_ALL / PAIR;
// Pairs of a warp.
constexpr int PAIRS = (PAIRS_OF_ALL + WARPS - 1) / WARPS;
constexpr int SHARED_PAIRS = PAIRS - REGISTER_PAIRS;
constexpr int SLOT_BYTES = PAIRS_OF_ALL * PAIR_BYTES;
// Elements of a thread.
constexpr int ELEMENTS = (UNITS * COLUMNS + THREADS - 1) / THREADS;
static_assert(UNITS_OF_ALL % PAIR == 0 && THREADS % UNITS == 0, "whole pairs; a thread's elements have one unit");

// Sums of a warp: [column][unit] of all gates of an element. A warp stores units lane / 4 of columns 2 * (lane % 4), and
// reads neighbouring units of a column: both without two lanes in a bank, or nearly so.
struct alignas(CELL::GATES == 1 ? 4 : 16) Sums {
  static constexpr bool IS_SINGLE = CELL::GATES == 1;
  static constexpr int COLUMN = !IS_SINGLE ? UNITS : UNITS % 16 ? 20 : UNITS + 4, SIZE = COLUMNS * COLUMN;

  f32 of_gate[IS_SINGLE ? 1 : 4];  // in one access

  static __device__ __forceinline__ u32 at(u32 column, u32 unit) {
    return column * COLUMN + (IS_SINGLE ? unit : unit ^ column & 6);
  }
};

constexpr int SUMS_AT = WARPS * SHARED_PAIRS * M_TILES * 2 * WARP_SIZE * 16;

extern __shared__ __align__(16) u8 memory[];

struct Params {
  Layer layer;
  u8* exchange;
  i32 groups, blocks;  // groups of a direction, blocks of a group
};

// Where the block stands, and what of the arguments is its own.
struct Place {
  const Params& p;
  u32 direction, group, block;
  u8* exchange;  // the group's

  __device__ __forceinline__ explicit Place(const Params& params) : p(params) {
    const u32 team = blockIdx.x / p.blocks;
    block = blockIdx.x % p.blocks, direction = team / p.groups, group = team % p.groups;
    exchange = p.exchange + i64(team) * (SLOTS * SLOT_BYTES);
  }
  __device__ __forceinline__ u32 first_unit() const { return block * UNITS; }
  __device__ __forceinline__ i32 time(i32 step) const { return direction ? p.layer.steps - 1 - step : step; }
  __device__ __forceinline__ u8* slot(i32 step) const { return exchange + u32(step) % SLOTS * SLOT_BYTES; }

  // The sums of warp `warp` in a step.
  __device__ __forceinline__ Sums* sums(i32 step, u32 warp) const {
    return reinterpret_cast<Sums*>(memory + SUMS_AT) + (step % 2 * WARPS + warp) * Sums::SIZE;
  }

  // 8 weights of row `row` of the block from `k` on, or zeros.
  __device__ __forceinline__ uint4 weights(u32 row, u32 k) const {
    const Weights& weights = p.layer.weights;
    if (row >= ROWS || k >= UNITS_OF_ALL) return {0, 0, 0, 0};
    const i64 line = i64(row / UNITS) * p.layer.units + first_unit() + row % UNITS;
    TYPE values[8];
    load<Plain, 8>(values, weights.at + direction * weights.direction + line * weights.pitch + k);
    return *reinterpret_cast<const uint4*>(values);
  }
};

// The weights of a warp: of row lane / 4 of each half of 16 rows, k from 8 * (lane % 4) of a pair on.
struct WarpWeights {
  uint4 own[REGISTER_PAIRS ? REGISTER_PAIRS : 1][M_TILES][2];
  u32 others;  // address of those of the lane in shared memory

  __device__ __forceinline__ WarpWeights(const Place& place, u32 warp, u32 lane) {
    others = shared_address(memory) + (warp * SHARED_PAIRS * M_TILES * 2 * WARP_SIZE + lane) * 16;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 row = m * 16 + half * 8 + lane / 4, k = (pair * WARPS + warp) * PAIR + lane % 4 * 8;
          const uint4 words = place.weights(row, k);
          if (pair < REGISTER_PAIRS) {
            own[pair][m][half] = words;
          } else {
            store_shared_16(at(pair, m, half), words.x, words.y, words.z, words.w);
          }
        }
      }
    }
  }
  __device__ __forceinline__ u32 at(int pair, int m, int half) const {
    return others + ((pair - REGISTER_PAIRS) * M_TILES * 2 + m * 2 + half) * (WARP_SIZE * 16);
  }
  __device__ __forceinline__ uint4 of(int pair, int m, int half) const {
    return pair < REGISTER_PAIRS ? own[pair][m][half] : load_shared_128(at(pair, m, half));
  }

  // Adds the product with the states of 8 columns.
  __device__ __forceinline__ void multiply(const Polled (&states)[PAIRS], f32 (&sums)[M_TILES][4]) const {
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
      const u32(&words)[4] = states[pair].words;
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        const uint4 low = of(pair, m, 0), high = of(pair, m, 1);
        Mma<TYPE>::apply(sums[m], {low.x, high.x, low.y, high.y}, words[0], words[1]);
        Mma<TYPE>::apply(sums[m], {low.z, high.z, low.w, high.w}, words[2], words[3]);
      }
    }
  }
};

// A thread: a part of the product, and elements, all of one unit.
struct Worker {
  const Place& place;
  const u32 warp, lane, unit;
  const u32 word;  // where the first element's lies in a slot
  const Biases biases;
  Sequence sequences[ELEMENTS];
  Resident elements[ELEMENTS];

  __device__ __forceinline__ explicit Worker(const Place& of)
      : place(of),
        warp(threadIdx.x / WARP_SIZE),
        lane(threadIdx.x % WARP_SIZE),
        unit(threadIdx.x % UNITS),
        word(word_at(of.first_unit() + unit)),
        biases(of.p.layer, of.direction, of.first_unit() + unit) {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      const u32 b = column(i) < COLUMNS ? place.group * COLUMNS + column(i) : p.batch;
      sequences[i] = sequence_of(p.lengths, b, place.direction, p.steps, p.batch);
    }
  }

  __device__ __forceinline__ u32 column(int i) const { return (threadIdx.x + i * THREADS) / UNITS; }
  __device__ __forceinline__ u32 word_at(u32 k) const {
    return k / PAIR * PAIR_BYTES + column(0) * ROW_BYTES + k % PAIR * sizeof(TYPE);
  }

  // Calls visit(i, element) for the elements whose sequences there are.
  template <class Visit> __device__ __forceinline__ void for_each(i32 step, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      if (!sequences[i].exists()) continue;
      const Element e{sequences[i], place.time(step), place.first_unit() + unit, place.p.layer};
      visit(i, ResidentElement(e, elements[i]));
    }
  }

  // Sets the word of an element and its neighbour in the unit of the next number, before step `step`.
  __device__ __forceinline__ void set_word(i32 step, int i, u32 states) const {
    constexpr int STRIDE = THREADS / UNITS * ROW_BYTES;  // from element to element
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

  // Polls this warp's states of 8 columns; those of sequences that there are not are 0.
  __device__ __forceinline__ void poll(i32 step, u32 column, Polled (&states)[PAIRS]) const {
    const u8* const from = place.slot(step) + warp * PAIR_BYTES + column * ROW_BYTES + lane % 4 * 16;
    const bool exists = place.group * COLUMNS + column < place.p.layer.batch;
    const auto request = [&](int pair) {
      const bool is_pair = PAIRS * WARPS == PAIRS_OF_ALL || pair * WARPS + warp < PAIRS_OF_ALL;
      if (exists && is_pair) {
        states[pair].request(from + pair * WARPS * PAIR_BYTES);
      } else {
        states[pair].clear();
      }
    };
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) request(pair);
    bool is_missing;
    do {
      is_missing = false;
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        if (states[pair].is_set()) continue;
        request(pair);
        is_missing = true;
      }
    } while (is_missing);
    __syncwarp();
  }

  // This warp's sums of the step.
  __device__ __forceinline__ void multiply(const WarpWeights& weights, i32 step) const {
#pragma unroll 1
    for (int n = 0; n < N_TILES; ++n) {
      Polled states[PAIRS];
      f32 own[M_TILES][4] = {};
      poll(step, n * 8 + lane / 4, states);
      weights.multiply(states, own);
      Sums* const to = place.sums(step, warp) + Sums::at(n * 8 + lane % 4 * 2, lane / 4);
#pragma unroll
      for (int units = 0; units < UNITS / 8; ++units) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          Sums element = {};
#pragma unroll
          for (int gate = 0; gate < CELL::GATES; ++gate) {
            const int eighth = gate * (UNITS / 8) + units;
            element.of_gate[gate] = own[eighth / 2][eighth % 2 * 2 + column];
          }
          to[column * Sums::COLUMN + units * 8] = element;
        }
      }
    }
  }

  __device__ __forceinline__ void compute(i32 step) {
    for_each(step, [&](int i, const ResidentElement& e) {
      Value sums[CELL::GATES] = {};
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const Sums of_warp = place.sums(step, w)[Sums::at(column(i), unit)];
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

  __device__ __forceinline__ void run(const WarpWeights& weights) {
    const i32 steps = place.p.layer.steps;
    begin();
#pragma unroll 1
    for (i32 step = 0; step < steps; ++step) {
      multiply(weights, step);
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
  const Place place(p);
  Worker worker(place);
  const WarpWeights weights(place, worker.warp, worker.lane);
  for (i32 step = 0; step < min(SLOTS, p.layer.steps); ++step) worker.clear(step);
  grid_sync();  // all words are UNSET
  worker.run(weights);
}
