// The running softmax over tiles of keys.
// Macros: as in attention_forward.cuh.
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", algorithm 3.

#pragma once

#include "attention_forward_place.cuh"

// Merges the online softmax of one row over two sets of keys: the largest score and the sum of exponentials. `kept` and
// `added` are set to the factors of outputs computed relative to the largest score of the first and of the second set.
// unit: scale * log2(e), so that a weight is 2^(score * unit - ...).
__device__ __forceinline__ void join(f32 unit, f32& largest, f32& sum, f32 other_largest, f32 other_sum, f32& kept,
                                     f32& added) {
  const f32 both = fmaxf(largest, other_largest);
  kept = largest == both ? 1 : power_of_two((largest - both) * unit);
  added = other_largest == both ? 1 : power_of_two((other_largest - both) * unit);
  largest = both;
  sum = sum * kept + other_sum * added;
}

// The greatest score so far of each of the thread's rows, for kernels that store the largest weight.
// RunningSoftmax::largest may be less by up to SLACK.
template <bool IS_THERE> struct GreatestScores {
  f32 scores[PARTS][2];

  __device__ __forceinline__ void begin(int part, int half) { scores[part][half] = -INFINITE; }
  __device__ __forceinline__ void note(int part, int half, f32 score) {
    scores[part][half] = fmaxf(scores[part][half], score);
  }
  __device__ __forceinline__ f32 at(int part, int half) const { return scores[part][half]; }
};
template <> struct GreatestScores<false> {
  __device__ __forceinline__ void begin(int part, int half) {}
  __device__ __forceinline__ void note(int part, int half, f32 score) {}
  __device__ __forceinline__ f32 at(int part, int half) const { return -INFINITE; }
};

// The running softmax of the thread's rows.
struct RunningSoftmax {
  // Exponents of two by which a score may exceed `largest` before `largest` is raised and the sums are rescaled.
  // Kernels that store the largest score allow 0. In fp8 weights reach 2^8, to use the type's exponents for small ones,
  // so the slack is small.
  static constexpr f32 SLACK = MAX || SUM_EXP ? 0 : IS_FP8 ? 2 : 8;
  static constexpr f32 ONE_EXPONENT = IS_FP8 ? 8 - SLACK : 0, ONE = 1 << int(ONE_EXPONENT);

  f32 unit;
  f32 largest[PARTS][2], sum[PARTS][2];  // sum: over this thread's columns only, until `end`
  GreatestScores<AMAX_S> greatest;

  __device__ __forceinline__ explicit RunningSoftmax(f32 scale) : unit(scale * LOG2_E) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[part][half] = -INFINITE;
        sum[part][half] = 0;
        greatest.begin(part, half);
      }
  }

  // Adds the sink as the score of one more key, before the first scores. If several softmaxes are merged, only one of
  // them adds it.
  __device__ __forceinline__ void add_sink(const Forward& p, const Place& place, const Rows& rows) {
    if constexpr (HAS_SINK) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          i64 coordinate[4];
          rows.coordinate(p, place, part, half, coordinate);
          const bool exists = !CUTS_SINK || rows.at(part, half) / PACK < place.band.queries;
          const f32 sink = exists ? args_of<Sink>(p.parts).at(coordinate) : -INFINITE;
          largest[part][half] = sink / p.score_scale();
          sum[part][half] = sink == -INFINITE || threadIdx.x % 4 > 0 ? 0 : ONE;
        }
    }
  }

  // Replaces scores by exponentials relative to `largest`, which it raises if scores exceed it by more than the slack.
  // Sets `shrinking` to the factors of outputs computed so far; returns whether one of the warp's is not 1.
  __device__ __forceinline__ bool add(ScoreTile& scores, f32 (&shrinking)[PARTS][2]) {
    bool moves = false;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f32 here = fmaxf(scores[part][0][half * 2], scores[part][0][half * 2 + 1]);
#pragma unroll
        for (int block = 1; block < SCORE_BLOCKS; ++block) {
          const f32* const pair = scores[part][block] + half * 2;
          here = fmaxf(here, fmaxf(pair[0], pair[1]));
        }
        here = largest_of_row(here);
        const f32 before = largest[part][half];
        const bool exceeds = (here - before) * unit > SLACK;
        const f32 after = exceeds ? here : before;
        // With all scores minus infinity any base will do, except minus infinity, which would give NaN.
        const f32 base = after == -INFINITE ? 0 : after * unit - ONE_EXPONENT;
        shrinking[part][half] = exceeds ? power_of_two((before - after) * unit) : 1;
        largest[part][half] = after;
        greatest.note(part, half, here);
        moves |= exceeds;
        f32 total = 0;
#pragma unroll
        for (int block = 0; block < SCORE_BLOCKS; ++block) {
          f32* const pair = scores[part][block] + half * 2;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            pair[i] = power_of_two(pair[i] * unit - base);
            total += pair[i];
          }
        }
        sum[part][half] = sum[part][half] * shrinking[part][half] + total;
      }
    }
    return __any_sync(~0u, moves);
  }

  __device__ __forceinline__ void end() {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[part][half] = sum_of_row(sum[part][half]) * (1 / ONE);
  }

  // Returns the largest weight of a row; call it after `end`.
  __device__ __forceinline__ f32 largest_weight(int part, int half) const {
    if (sum[part][half] == 0) return 0;
    return power_of_two((greatest.at(part, half) - largest[part][half]) * unit) / sum[part][half];
  }
};

// o *= factors, one for each row.
template <int BLOCKS>
__device__ __forceinline__ void scale_rows(f32 (&o)[PARTS][BLOCKS][4], const f32 (&factors)[PARTS][2]) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[part][block][i] *= factors[part][i / 2];
}
