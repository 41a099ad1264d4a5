// What kernels of attention forward have in common, whichever instruction multiplies: which keys a block's queries see,
// the scores, the running softmax over tiles of keys, the weights, and what is stored for each query.
//
// Warps have WARP_Q rows each, in parts of 16. Accumulators are [parts][blocks of 8 columns][4], as mma.sync and
// wgmma have them: this thread's columns are 2 * (lane % 4) and the next, elements 0 and 1 of row lane / 4, 2 and 3 of the row 8
// further down. A row is one query of one head: of PACK neighbouring heads, which share those of k and v, the rows of a
// query follow each other.
// Before it, the kernel includes generated.cuh with Scores and Output, Inside where IS_BANDED, Weights where
// HAS_WEIGHTS.
// Macros: TYPE (f16, bf16) TILE_Q TILE_KV WARP_Q (of rows, keys, rows) PACK HEAD_V; IS_BANDED: whether there is an `Inside`; LENGTH_TYPE,
// HAS_LENGTHS; HAS_WEIGHTS; STATS MAX SUM_EXP: the outputs that there are.

#pragma once

#include "include/attention.cuh"
#include "include/division.cuh"

typedef TYPE T;
constexpr int PARTS = WARP_Q / 16, SCORE_BLOCKS = TILE_KV / 8, OUTPUT_BLOCKS = HEAD_V / 8;
typedef f32 ScoreTile[PARTS][SCORE_BLOCKS][4];
typedef f32 OutputTile[PARTS][OUTPUT_BLOCKS][4];

// One number for each query.
struct RowOutput {
  f32* first;
  i64 strides[3];

  __device__ __forceinline__ void store(const i64 (&coordinate)[4], f32 value) const {
    first[coordinate[0] * strides[0] + coordinate[1] * strides[1] + coordinate[2] * strides[2]] = value;
  }
};

// The parameters beside the operands.
struct Forward {
  Divider tiles, packs;  // of rows of PACK heads; of PACK heads of a batch
  i32 queries, keys, size_qk, size_v;
  i32 left, right;  // query r sees the keys from r - left to r + right
#if HAS_LENGTHS
  const LENGTH_TYPE* lengths;
  i64 length_stride;
#endif
#if STATS
  RowOutput stats;
#endif
#if MAX
  RowOutput max;
#endif
#if SUM_EXP
  RowOutput sum_exp;
#endif
  Scores::Args scores;
#if IS_BANDED
  Inside::Args inside;
#endif
#if HAS_WEIGHTS
  Weights::Args weights;
#endif
  Output::Args output;
};

// Where a warp's rows are, and the keys that any of the block's see.
struct Place {
  i32 batch, head;  // the first of PACK
  i32 block_row, warp_row;
  Band band;
  i32 begin, end;  // tiles of keys

  __device__ __forceinline__ Place(const Forward& p) {
    const u32 packs_before = p.tiles.divide(blockIdx.x), tile = blockIdx.x - packs_before * p.tiles.divisor;
    batch = i32(p.packs.divide(packs_before));
    head = i32(packs_before - batch * p.packs.divisor) * PACK;
    block_row = i32(p.tiles.divisor - 1 - tile) * TILE_Q;
    warp_row = block_row + threadIdx.x / WARP_SIZE * WARP_Q;
    band = {p.left, p.right, p.queries, p.keys};
#if HAS_LENGTHS
    band.keys = i32(clamped<i64>(i64(p.lengths[batch * p.length_stride]), 0, p.keys));
#endif
    begin = band.keys_begin(first_query()) / TILE_KV;
    end = (band.keys_end(first_query(), query_count()) + TILE_KV - 1) / TILE_KV;
  }

  // Whether each of the block's queries sees every key of the tile.
  __device__ __forceinline__ bool sees_all(i32 tile) const {
    return band.sees_all(first_query(), query_count(), tile * TILE_KV, TILE_KV);
  }

 private:
  __device__ __forceinline__ i32 first_query() const { return block_row / PACK; }
  __device__ __forceinline__ i32 query_count() const { return (block_row + TILE_Q - 1) / PACK - first_query() + 1; }
};

// The rows of this thread, half of a part each: lanes of four share one.
struct Rows {
  i32 first;  // of the warp

  __device__ __forceinline__ i32 at(int part, int half) const {
    return first + part * 16 + half * 8 + threadIdx.x % WARP_SIZE / 4;
  }

  __device__ __forceinline__ void coordinate(const Forward& p, const Place& place, int part, int half,
                                             i64 (&coordinate)[4]) const {
    coordinate[0] = place.batch;
    coordinate[1] = place.head + at(part, half) % PACK;
    coordinate[2] = min(at(part, half) / PACK, p.queries - 1);
    coordinate[3] = 0;
  }
};

// What the softmax is of, from products of queries and keys; minus infinity for keys that do not exist, unless
// ALL_EXIST.
template <class Functor, bool ALL_EXIST>
__device__ __forceinline__ void apply_scores(const typename Functor::Args& args, const Forward& p, const Place& place,
                                             const Rows& rows, i32 tile, ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const typename Functor::Cursor cursor = Functor::cursor(args, coordinate);
#pragma unroll
      for (int block = 0; block < SCORE_BLOCKS; ++block) {
        const i32 column = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2;
        const i32 existing = ALL_EXIST ? 2 : p.keys - column;
        f32* const pair = scores[part][block] + half * 2;
        const f32 products[2] = {pair[0], pair[1]};
        f32 results[2];
        Functor::template apply<2>(args, cursor, column, clamped(existing, 0, 2), products, results);
#pragma unroll
        for (int i = 0; i < 2; ++i) pair[i] = i < existing ? results[i] : -INFINITE;
      }
    }
  }
}

// The same, without masks where the block's queries see the whole tile.
__device__ __forceinline__ void apply_scores(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                             ScoreTile& scores) {
  const bool sees_all = place.sees_all(tile);
#if IS_BANDED
  if (sees_all) apply_scores<Inside, true>(p.inside, p, place, rows, tile, scores);
#else
  if (sees_all) apply_scores<Scores, true>(p.scores, p, place, rows, tile, scores);
#endif
  else apply_scores<Scores, false>(p.scores, p, place, rows, tile, scores);
}

// Of one row, what two sets of keys make of it as what both do: `kept` and `added` make what is relative to the largest
// of either relative to that of both.
__device__ __forceinline__ void join(f32& largest, f32& sum, f32 other_largest, f32 other_sum, f32& kept, f32& added) {
  const f32 both = fmaxf(largest, other_largest);
  const f32 base = both == -INFINITE ? 0 : both * LOG2_E;  // of a query that has seen no key yet, anything
  kept = power_of_two(largest * LOG2_E - base);
  added = power_of_two(other_largest * LOG2_E - base);
  largest = both;
  sum = sum * kept + other_sum * added;
}

// The running softmax of the thread's rows.
struct RunningSoftmax {
  f32 largest[PARTS][2], sum[PARTS][2];  // of sums, this thread's part

  __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[part][half] = -INFINITE;
        sum[part][half] = 0;
      }
  }

  // Turns scores into exponentials relative to the largest so far; `shrinking` makes what was relative to the one
  // before so, too.
  __device__ __forceinline__ void add(ScoreTile& scores, f32 (&shrinking)[PARTS][2]) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const f32 before = largest[part][half];
        f32 here = before;
#pragma unroll
        for (int block = 0; block < SCORE_BLOCKS; ++block) {
          const f32* const pair = scores[part][block] + half * 2;
          here = fmaxf(here, fmaxf(pair[0], pair[1]));
        }
        here = largest_of_row(here);
        largest[part][half] = here;
        const f32 base = here == -INFINITE ? 0 : here * LOG2_E;  // of a query that has seen no key yet, anything
        shrinking[part][half] = power_of_two(before * LOG2_E - base);
        f32 total = 0;
#pragma unroll
        for (int block = 0; block < SCORE_BLOCKS; ++block) {
          f32* const pair = scores[part][block] + half * 2;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            pair[i] = power_of_two(pair[i] * LOG2_E - base);
            total += pair[i];
          }
        }
        sum[part][half] = sum[part][half] * shrinking[part][half] + total;
      }
    }
  }

  __device__ __forceinline__ void end() {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[part][half] = sum_of_row(sum[part][half]);
  }
};

__device__ __forceinline__ void shrink(OutputTile& o, const f32 (&shrinking)[PARTS][2]) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int block = 0; block < OUTPUT_BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[part][block][i] *= shrinking[part][i / 2];
}

// Two neighbouring weights as the operand of the second product.
__device__ __forceinline__ u32 weights_of(const Forward& p, const Place& place, const Rows& rows, i32 tile, int part,
                                          int half, int block, const f32* pair) {
#if HAS_WEIGHTS
  i64 coordinate[4];
  rows.coordinate(p, place, part, half, coordinate);
  const i32 column = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2;
  const f32 values[2] = {pair[0], pair[1]};
  union {
    T results[2];
    u32 word;
  };
  word = 0;
  Weights::apply<2>(p.weights, Weights::cursor(p.weights, coordinate), column, clamped(p.keys - column, 0, 2), values,
                    results);
  return word;
#else
  return packed(Tag<T>(), pair[0], pair[1]);
#endif
}

// One thread of a row: its statistics.
__device__ __forceinline__ void store_statistics(const Forward& p, const i64 (&coordinate)[4], f32 largest, f32 sum) {
#if STATS
  p.stats.store(coordinate, largest + logf(sum));
#endif
#if MAX
  p.max.store(coordinate, largest);
#endif
#if SUM_EXP
  p.sum_exp.store(coordinate, sum);
#endif
}

// Divides by the sums and stores.
__device__ __forceinline__ void store_output(const Forward& p, const Place& place, const Rows& rows,
                                             const RunningSoftmax& softmax, const OutputTile& o) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows.at(part, half) >= p.queries * PACK) continue;
      const f32 sum = softmax.sum[part][half];
      const f32 share = sum == 0 ? 0 : 1 / sum;
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      if (threadIdx.x % 4 == 0) store_statistics(p, coordinate, softmax.largest[part][half], sum);
      const Output::Cursor cursor = Output::cursor(p.output, coordinate);
#pragma unroll
      for (int block = 0; block < OUTPUT_BLOCKS; ++block) {
        const i32 column = block * 8 + threadIdx.x % 4 * 2;
        const f32* const pair = o[part][block] + half * 2;
        const f32 values[2] = {pair[0] * share, pair[1] * share};
        if (column < p.size_v) Output::apply<2>(p.output, cursor, column, 2, values);
      }
    }
  }
}
