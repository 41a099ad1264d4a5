// A block of rnn_narrow_forward or rnn_narrow_backward: its place in the grid, and its product in a step; for sm_90a.
//
// Blocks: a group of blocks computes COLUMNS sequences in one direction, each of its blocks UNITS units, whose weights
// it keeps. A block is blockIdx.x = (direction * groups + group) * blocks of a group + block.
// Product: rows of weights (m), row gate * UNITS + unit, the values that the blocks of a group exchange (n), k split
// over the warps, on tensor cores with mma.sync. Pairs of instructions, 32 of k each, go round the warps. In a pair k
// is permuted so that a lane's operands of both instructions are 16 neighbouring bytes of a row: of weights, and of the
// exchanged values, which the lane reads from `exchange` straight into registers. All pairs of a warp are polled before
// the first is multiplied: a pair that has to be read again would hold up the next one. The first REGISTER_PAIRS of a
// warp's weights lie in registers, the others in shared memory, each lane's own.
// Exchange: [direction][group][slot][k / 32][column] of 64 bytes; see polled_states.cuh.
// Shared memory (dynamic): weights [warp][pair][m / 16][2][lane] of 16 bytes, sums [2][warp] (Sums): those of a step in
// one half, of the next in the other. So one barrier a step is enough.
// Launch: cooperative, 256 threads, a block for each multiprocessor at most.
// Macros: TYPE, UNITS (8 to 64), COLUMNS (8 or 16), REGISTER_PAIRS; the layer's header comes before this one.

#pragma once

#include "include/ptx/mma.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/vector.cuh"
#include "polled_states.cuh"

constexpr int WARPS = 8, THREADS = WARPS * WARP_SIZE;

extern __shared__ __align__(16) u8 memory[];

struct Params {
  Layer layer;
  u8* exchange;
  i32 groups, blocks;  // groups of a direction, blocks of a group
};

// GATES: rows of weights of a unit.  DEPTH: elements of k.
template <int GATES, int DEPTH> struct NarrowStep {
  static constexpr int ROWS = GATES * UNITS, M_TILES = (ROWS + 15) / 16, N_TILES = COLUMNS / 8;
  static constexpr int PAIR = 32, ROW_BYTES = PAIR * int(sizeof(TYPE)), PAIR_BYTES = COLUMNS * ROW_BYTES;
  static constexpr int PAIRS_OF_ALL = DEPTH / PAIR;
  static constexpr int PAIRS = (PAIRS_OF_ALL + WARPS - 1) / WARPS;  // pairs that one warp multiplies, at most
  static constexpr int SHARED_PAIRS = PAIRS - REGISTER_PAIRS;
  static constexpr int SLOT_BYTES = PAIRS_OF_ALL * PAIR_BYTES;
  static constexpr int SUMS_AT = WARPS * SHARED_PAIRS * M_TILES * 2 * WARP_SIZE * 16;
  static_assert(DEPTH % PAIR == 0 && THREADS % UNITS == 0, "whole pairs; a thread's elements have one unit");

  // Sums of a warp: [column][unit] of all gates of an element. A warp stores units lane / 4 of columns 2 * (lane % 4),
  // and reads neighbouring units of a column: both without two lanes in a bank, or nearly so.
  struct alignas(GATES == 1 ? 4 : 16) Sums {
    static constexpr bool IS_SINGLE = GATES == 1;
    static constexpr int COLUMN = !IS_SINGLE ? UNITS : UNITS % 16 ? 20 : UNITS + 4, SIZE = COLUMNS * COLUMN;

    f32 of_gate[IS_SINGLE ? 1 : 4];  // in one access

    static __device__ __forceinline__ u32 at(u32 column, u32 unit) {
      return column * COLUMN + (IS_SINGLE ? unit : unit ^ column & 6);
    }
  };

  const Params& p;
  const u32 warp, lane;
  u32 direction, group, block;
  u8* exchange;  // the group's

  __device__ __forceinline__ explicit NarrowStep(const Params& params)
      : p(params), warp(threadIdx.x / WARP_SIZE), lane(threadIdx.x % WARP_SIZE) {
    const u32 team = blockIdx.x / p.blocks;
    block = blockIdx.x % p.blocks, direction = team / p.groups, group = team % p.groups;
    exchange = p.exchange + i64(team) * (SLOTS * SLOT_BYTES);
  }

  __device__ __forceinline__ u32 first_unit() const { return block * UNITS; }
  // The sequence of a column; one that is not there behind the last column.
  __device__ __forceinline__ u32 sequence(u32 column) const {
    return column < COLUMNS ? group * COLUMNS + column : u32(p.layer.batch);
  }
  __device__ __forceinline__ u8* slot(i32 step) const { return exchange + u32(step) % SLOTS * SLOT_BYTES; }
  // Where element k of a column lies in a slot.
  static __device__ __forceinline__ u32 place_of(u32 k, u32 column) {
    return k / PAIR * PAIR_BYTES + column * ROW_BYTES + k % PAIR * sizeof(TYPE);
  }
  // The sums of warp `of` in a step.
  static __device__ __forceinline__ Sums* sums(i32 step, u32 of) {
    return reinterpret_cast<Sums*>(memory + SUMS_AT) + (step % 2 * WARPS + of) * Sums::SIZE;
  }

  // The weights of a warp: of row lane / 4 of each half of 16 rows, k from 8 * (lane % 4) of a pair on.
  struct WarpWeights {
    uint4 own[REGISTER_PAIRS ? REGISTER_PAIRS : 1][M_TILES][2];
    u32 others;  // address of those of the lane in shared memory

    __device__ __forceinline__ explicit WarpWeights(const NarrowStep& step) {
      others = shared_address(memory) + (step.warp * SHARED_PAIRS * M_TILES * 2 * WARP_SIZE + step.lane) * 16;
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32 row = m * 16 + half * 8 + step.lane / 4, of_all = pair * WARPS + step.warp;
            const uint4 words = step.weights(row, of_all * PAIR + step.lane % 4 * 8);
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

    // Adds the product with the values of 8 columns.
    __device__ __forceinline__ void multiply(const Polled (&values)[PAIRS], f32 (&sums)[M_TILES][4]) const {
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const u32(&words)[4] = values[pair].words;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          const uint4 low = of(pair, m, 0), high = of(pair, m, 1);
          Mma<TYPE>::apply(sums[m], {low.x, high.x, low.y, high.y}, words[0], words[1]);
          Mma<TYPE>::apply(sums[m], {low.z, high.z, low.w, high.w}, words[2], words[3]);
        }
      }
    }
  };

  // This warp's sums of a step, from what lies in its slot.
  __device__ __forceinline__ void multiply(const WarpWeights& weights, i32 step) const {
#pragma unroll 1
    for (int n = 0; n < N_TILES; ++n) {
      Polled values[PAIRS];
      f32 own[M_TILES][4] = {};
      poll(step, n * 8 + lane / 4, values);
      weights.multiply(values, own);
      Sums* const to = sums(step, warp) + Sums::at(n * 8 + lane % 4 * 2, lane / 4);
#pragma unroll
      for (int units = 0; units < UNITS / 8; ++units) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          Sums element = {};
#pragma unroll
          for (int gate = 0; gate < GATES; ++gate) {
            const int eighth = gate * (UNITS / 8) + units;
            element.of_gate[gate] = own[eighth / 2][eighth % 2 * 2 + column];
          }
          to[column * Sums::COLUMN + units * 8] = element;
        }
      }
    }
  }

 private:
  // 8 weights of row `row` of the block from `k` on, or zeros.
  __device__ __forceinline__ uint4 weights(u32 row, u32 k) const {
    const Weights& weights = p.layer.weights;
    if (row >= ROWS || k >= DEPTH) return {0, 0, 0, 0};
    const i64 line = i64(row / UNITS) * p.layer.units + first_unit() + row % UNITS;
    TYPE values[8];
    load<Plain, 8>(values, weights.at + direction * weights.direction + line * weights.pitch + k);
    return *reinterpret_cast<const uint4*>(values);
  }

  // Polls this warp's values of 8 columns; those of sequences that there are not are 0.
  __device__ __forceinline__ void poll(i32 step, u32 column, Polled (&values)[PAIRS]) const {
    const u8* const from = slot(step) + place_of(warp * PAIR + lane % 4 * 8, column);
    const bool exists = sequence(column) < p.layer.batch;
    const auto request = [&](int pair) {
      const bool is_pair = PAIRS * WARPS == PAIRS_OF_ALL || pair * WARPS + warp < PAIRS_OF_ALL;
      if (exists && is_pair) {
        values[pair].request(from + pair * WARPS * PAIR_BYTES);
      } else {
        values[pair].clear();
      }
    };
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) request(pair);
    bool is_missing;
    do {
      is_missing = false;
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        if (values[pair].is_set()) continue;
        request(pair);
        is_missing = true;
      }
    } while (is_missing);
    __syncwarp();
  }
};
