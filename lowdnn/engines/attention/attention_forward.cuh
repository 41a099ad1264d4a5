// What kernels of attention forward have in common, whichever instruction multiplies: which keys a block's queries see,
// the scores, the running softmax over tiles of keys, the weights, and what is stored for each query.
//
// Warps have WARP_Q rows each, in parts of 16. Accumulators are [parts][blocks of 8 columns][4], as mma.sync and wgmma
// have them: this thread's columns are 2 * (lane % 4) and the next, elements 0 and 1 of row lane / 4, 2 and 3 of the
// row 8 further down. A row is one query of one head: of PACK neighbouring heads, which share those of k and v, the
// rows of a query follow each other.
// Scores are what Scores makes of the products of queries and keys, times score_scale(), for the keys that a query
// sees.
// Before it, the kernel includes generated.cuh with Output, Scores where HAS_SCORES, Weights where HAS_WEIGHTS.
// Macros: TYPE (f16, bf16, e4m3, e5m2) TILE_Q TILE_KV WARP_Q (of rows, keys, rows) PACK HEAD_V; LENGTH_TYPE,
// HAS_LENGTHS (of keys); QUERY_LENGTH_TYPE, HAS_QUERY_LENGTHS; HAS_SCORES HAS_WEIGHTS HAS_BLOCKS (a mask of tiles)
// HAS_SINK, CUTS_SINK (queries behind their length have none); STATS MAX SUM_EXP: the outputs that there are; STORES_PACKED: whether some are ragged tensors; IS_FP8:
// whether numbers scale scores and outputs, SCORE_FACTORS and VALUE_FACTORS of which lie in memory; AMAX_S, AMAX_O:
// whether the largest magnitudes of the softmax and of what Output is of are stored.

#pragma once

#include "attention.cuh"
#include "include/math/division.cuh"
#if STORES_PACKED
#include "ragged.cuh"
#endif

typedef TYPE T;
constexpr int PARTS = WARP_Q / 16, SCORE_BLOCKS = TILE_KV / 8, OUTPUT_BLOCKS = HEAD_V / 8;
typedef f32 ScoreTile[PARTS][SCORE_BLOCKS][4];
typedef f32 OutputTile[PARTS][OUTPUT_BLOCKS][4];

// One number for each query.
template <class Number> struct RowValues {
  Number* first;
  i64 strides[3];

  __device__ __forceinline__ Number& at(const i64 (&coordinate)[4]) const {
    return first[coordinate[0] * strides[0] + coordinate[1] * strides[1] + coordinate[2] * strides[2]];
  }
};

#if HAS_BLOCKS
// A bit for each 128 queries and 128 keys of a head: whether they see each other.
struct BlockMask {
  static constexpr i32 SIDE = 128;

  const u8* first;
  i64 strides[4];

  __device__ __forceinline__ bool sees(i64 batch, i64 head, i32 query, i32 key) const {
    const i32 tile = key / SIDE;
    const i64 row = batch * strides[0] + head * strides[1] + query / SIDE * strides[2];
    return __ldg(first + row + tile / 8 * strides[3]) >> tile % 8 & 1;
  }
};
#endif

// The parameters beside the operands.
struct Forward {
  Divider tiles, packs;  // of rows of PACK heads; of PACK heads of a batch
  i32 queries, keys, size_qk, size_v;
  i32 left, right;  // query r sees the keys from r - left to r + right
  f32 scale;        // positive
#if HAS_LENGTHS
  const LENGTH_TYPE* lengths;
  i64 length_stride;
#endif
#if HAS_QUERY_LENGTHS
  const QUERY_LENGTH_TYPE* query_lengths;
  i64 query_length_stride;
#endif
#if HAS_BLOCKS
  BlockMask blocks;
#endif
#if HAS_SINK
  RowValues<const f32> sink;
#endif
#if STATS
  f32 stats_factor;
  RowValues<f32> stats;
#endif
#if MAX
  RowValues<f32> max;
#endif
#if SUM_EXP
  RowValues<f32> sum_exp;
#endif
#if STORES_PACKED
  Offsets output_offsets, row_offsets;  // of the output, of the numbers for each query
#endif
#if SCORE_FACTORS
  const f32* score_factors[SCORE_FACTORS];  // positive
#endif
#if IS_FP8
  f32 scale_of_values;
#endif
#if VALUE_FACTORS
  const f32* value_factors[VALUE_FACTORS];
#endif
#if AMAX_S
  u32* amax_s;  // bits of f32, as below
#endif
#if AMAX_O
  u32* amax_o;
#endif
#if HAS_SCORES
  Scores::Args scores;
#endif
#if HAS_WEIGHTS
  Weights::Args weights;
#endif
  Output::Args output;

  __device__ __forceinline__ f32 score_scale() const {
    f32 product = scale;
#if SCORE_FACTORS
#pragma unroll
    for (int i = 0; i < SCORE_FACTORS; ++i) product *= __ldg(score_factors[i]);
#endif
    return product;
  }

  // What the output is multiplied by.
  __device__ __forceinline__ f32 value_scale() const {
    f32 product = 1;
#if IS_FP8
    product = scale_of_values;
#endif
#if VALUE_FACTORS
#pragma unroll
    for (int i = 0; i < VALUE_FACTORS; ++i) product *= __ldg(value_factors[i]);
#endif
    return product;
  }

  // Of a batch, those of which anything is stored: there may be more than exist.
  __device__ __forceinline__ i32 stored_queries(i32 batch) const {
#if STORES_PACKED && (STATS || MAX || SUM_EXP)
    return ::max(output_offsets.rows(batch, queries), row_offsets.rows(batch, queries));
#elif STORES_PACKED
    return output_offsets.rows(batch, queries);
#else
    return queries;
#endif
  }
};

// Of a batch, the queries and keys that count.
struct Sequence {
  i32 queries, keys;

  __device__ __forceinline__ Sequence(i32 queries, i32 keys) : queries(queries), keys(keys) {}
  __device__ __forceinline__ Sequence(const Forward& p, i32 batch) : queries(p.stored_queries(batch)), keys(p.keys) {
#if HAS_LENGTHS
    keys = i32(clamped<i64>(i64(p.lengths[batch * p.length_stride]), 0, p.keys));
#endif
#if HAS_QUERY_LENGTHS
    queries = i32(clamped<i64>(i64(p.query_lengths[batch * p.query_length_stride]), 0, queries));
#endif
  }
};

// Where a warp's rows are, and the keys that any of the block's see.
struct Place {
  i32 batch, head;  // the first of PACK
  i32 block_row, warp_row;
  Band band;
  i32 begin, end;  // tiles of keys

  Place() = default;

  // The tiles of a head follow each other.
  __device__ __forceinline__ explicit Place(const Forward& p)
      : Place(p, p.tiles.divide(blockIdx.x), blockIdx.x % p.tiles.divisor) {}

  // tile: from the last one on, which has the most keys under a causal mask.
  __device__ __forceinline__ Place(const Forward& p, u32 packs_before, u32 tile)
      : Place(p, packs_before, tile, Sequence(p, i32(p.packs.divide(packs_before)))) {}
  __device__ __forceinline__ Place(const Forward& p, u32 packs_before, u32 tile, const Sequence& sequence) {
    batch = i32(p.packs.divide(packs_before));
    head = i32(packs_before - batch * p.packs.divisor) * PACK;
    block_row = i32(p.tiles.divisor - 1 - tile) * TILE_Q;
    warp_row = block_row + threadIdx.x / WARP_SIZE * WARP_Q;
    band = {p.left, p.right, sequence.queries, sequence.keys};
    begin = band.keys_begin(first_query()) / TILE_KV;
    end = (band.keys_end(first_query(), query_count()) + TILE_KV - 1) / TILE_KV;
#if HAS_BLOCKS
    while (begin < end && !sees_any(p, end - 1)) --end;
#endif
    begin = next(p, begin);
  }

  // The first tile from this one on of which any of the block's rows sees a key, at most the end: there is none beyond
  // the last.
  __device__ __forceinline__ i32 next(const Forward& p, i32 tile) const {
#if HAS_BLOCKS
    while (tile < end && !sees_any(p, tile)) ++tile;
#endif
    return tile;
  }

  // From which tile on no key lies before the band of any of the block's queries, and from which on some lie behind it:
  // between these, each query sees every key of the band.
  __device__ __forceinline__ i32 whole_begin() const {
    return (band.keys_begin(first_query() + query_count() - 1) + TILE_KV - 1) / TILE_KV;
  }
  __device__ __forceinline__ i32 whole_end() const {
    if (HAS_QUERY_LENGTHS && first_query() + query_count() > band.queries) return 0;
    return band.keys_end_of(first_query()) / TILE_KV;
  }

 private:
  __device__ __forceinline__ i32 first_query() const { return block_row / PACK; }
  __device__ __forceinline__ i32 query_count() const { return (block_row + TILE_Q - 1) / PACK - first_query() + 1; }

#if HAS_BLOCKS
  __device__ __forceinline__ bool sees_any(const Forward& p, i32 tile) const {
    const i32 last_query = min(first_query() + query_count(), p.queries) - 1;
    const i32 last_key = min((tile + 1) * TILE_KV, p.keys) - 1;
    for (i32 key = tile * TILE_KV; key <= last_key; key = key / BlockMask::SIDE * BlockMask::SIDE + BlockMask::SIDE)
      for (i32 query = first_query(); query <= last_query;
           query = query / BlockMask::SIDE * BlockMask::SIDE + BlockMask::SIDE)
        for (i32 i = 0; i < PACK; ++i)
          if (p.blocks.sees(batch, head + i, query, key)) return true;
    return false;
  }
#endif
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

#if HAS_SCORES
// From products of queries and keys; what it makes of keys that do not exist does not count.
__device__ __forceinline__ void apply_scores(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                             ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const Scores::Cursor cursor = Scores::cursor(p.scores, coordinate);
#pragma unroll
      for (int block = 0; block < SCORE_BLOCKS; ++block) {
        const i32 column = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2;
        f32* const pair = scores[part][block] + half * 2;
        const f32 products[2] = {pair[0], pair[1]};
        f32 results[2] = {};
        Scores::apply<2>(p.scores, cursor, column, count_among<2>(p.keys - column), products, results);
        pair[0] = results[0];
        pair[1] = results[1];
      }
    }
  }
}
#endif

// Of 16 blocks, bits 2 b and 2 b + 1 stand for columns 8 b and 8 b + 1: those of columns before `end`. As bits of a
// word they become predicates eight at a time.
__device__ __forceinline__ u32 bits_before(i32 end) {
  const i32 count = max((end >> 3) * 2 + min(end & 7, 2), 0);
  return __funnelshift_lc(~0u, 0, count);
}

// Minus infinity for keys that a query does not see, where HAS_LEFT also of those before the band.
template <bool HAS_LEFT>
__device__ __forceinline__ void mask_scores(const Place& place, const Rows& rows, i32 tile, ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 query = rows.at(part, half) / PACK, first = tile * TILE_KV + threadIdx.x % 4 * 2;
      const bool exists = !HAS_QUERY_LENGTHS || query < place.band.queries;
      const i32 begin = HAS_LEFT ? place.band.keys_begin(query) - first : 0;
      const i32 end = exists ? place.band.keys_end_of(query) - first : -TILE_KV;
#pragma unroll
      for (int first_block = 0; first_block < SCORE_BLOCKS; first_block += 16) {
        u32 seen = bits_before(end - first_block * 8);
        if (HAS_LEFT) seen &= ~bits_before(begin - first_block * 8);
#pragma unroll
        for (int bit = 0; bit < 32 && first_block + bit / 2 < SCORE_BLOCKS; ++bit) {
          f32& score = scores[part][first_block + bit / 2][half * 2 + bit % 2];
          score = seen >> bit & 1 ? score : -INFINITE;
        }
      }
    }
  }
}

#if HAS_BLOCKS
// The same for keys of tiles that a query does not see.
__device__ __forceinline__ void mask_blocks(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                            ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      bool sees = false;
#pragma unroll
      for (int block = 0; block < SCORE_BLOCKS; ++block) {
        const i32 key = tile * TILE_KV + block * 8;
        if ((block == 0 || key % BlockMask::SIDE == 0) && key < p.keys) {
          sees = p.blocks.sees(coordinate[0], coordinate[1], i32(coordinate[2]), key);
        }
        f32* const pair = scores[part][block] + half * 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) pair[i] = sees ? pair[i] : -INFINITE;
      }
    }
  }
}
#endif

// What the softmax is of, but for the scale.  IS_WHOLE: whether each query is known to see every key of the band.
template <bool IS_WHOLE = false>
__device__ __forceinline__ void make_scores(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                            ScoreTile& scores) {
#if HAS_SCORES
  apply_scores(p, place, rows, tile, scores);
#endif
  if constexpr (!IS_WHOLE) {
    if (tile < place.whole_begin()) {
      mask_scores<true>(place, rows, tile, scores);
    } else if (tile >= place.whole_end()) {
      mask_scores<false>(place, rows, tile, scores);
    }
  }
#if HAS_BLOCKS
  mask_blocks(p, place, rows, tile, scores);
#endif
}

// Of one row, what two sets of keys make of it as what both do: `kept` and `added` make what is relative to the largest
// of either relative to that of both.  unit: the exponent of two that a score of 1 adds, here and below.
__device__ __forceinline__ void join(f32 unit, f32& largest, f32& sum, f32 other_largest, f32 other_sum, f32& kept,
                                     f32& added) {
  const f32 both = fmaxf(largest, other_largest);
  kept = largest == both ? 1 : power_of_two((largest - both) * unit);
  added = other_largest == both ? 1 : power_of_two((other_largest - both) * unit);
  largest = both;
  sum = sum * kept + other_sum * added;
}

// The running softmax of the thread's rows.
struct RunningSoftmax {
  // Exponents by which scores may exceed what they are relative to, before that moves. Statistics of the largest one
  // have it at once, fp8 needs its exponents for small weights: the largest is up to 2^8.
  static constexpr f32 SLACK = MAX || SUM_EXP ? 0 : IS_FP8 ? 2 : 8;
  static constexpr f32 ONE_EXPONENT = IS_FP8 ? 8 - SLACK : 0, ONE = 1 << int(ONE_EXPONENT);  // of a weight that is 1

  f32 unit;
  f32 largest[PARTS][2], sum[PARTS][2];  // of sums, this thread's part
#if AMAX_S
  f32 greatest[PARTS][2];  // score so far
#endif

  __device__ __forceinline__ explicit RunningSoftmax(f32 scale) : unit(scale * LOG2_E) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[part][half] = -INFINITE;
        sum[part][half] = 0;
#if AMAX_S
        greatest[part][half] = -INFINITE;
#endif
      }
  }

  // Before the first scores, of all those that are joined once: the sink, as if it were the score of one more key.
  __device__ __forceinline__ void add_sink(const Forward& p, const Place& place, const Rows& rows) {
#if HAS_SINK
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        i64 coordinate[4];
        rows.coordinate(p, place, part, half, coordinate);
        const bool exists = !CUTS_SINK || rows.at(part, half) / PACK < place.band.queries;
        const f32 sink = exists ? p.sink.at(coordinate) : -INFINITE;
        largest[part][half] = sink / p.score_scale();
        sum[part][half] = sink == -INFINITE || threadIdx.x % 4 > 0 ? 0 : ONE;
      }
#endif
  }

  // Turns scores into exponentials relative to the largest one, within the slack; `shrinking` makes what was relative
  // to the one before so, too. Whether that changes anything for the warp.
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
        // Of a query that has seen no key yet, anything.
        const f32 base = after == -INFINITE ? 0 : after * unit - ONE_EXPONENT;
        shrinking[part][half] = exceeds ? power_of_two((before - after) * unit) : 1;
        largest[part][half] = after;
#if AMAX_S
        greatest[part][half] = fmaxf(greatest[part][half], here);
#endif
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

#if AMAX_S
  // Of a row, behind `end`.
  __device__ __forceinline__ f32 largest_weight(int part, int half) const {
    if (sum[part][half] == 0) return 0;
    return power_of_two((greatest[part][half] - largest[part][half]) * unit) / sum[part][half];
  }
#endif
};

template <int BLOCKS>
__device__ __forceinline__ void scale_rows(f32 (&o)[PARTS][BLOCKS][4], const f32 (&factors)[PARTS][2]) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[part][block][i] *= factors[part][i / 2];
}

#if !IS_FP8
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
  Weights::apply<2>(p.weights, Weights::cursor(p.weights, coordinate), column, count_among<2>(p.keys - column), values,
                    results);
  return word;
#else
  return packed(Tag<T>(), pair[0], pair[1]);
#endif
}
#endif

// Of a batch, how many queries' outputs and numbers are stored, and how far from where padded ones would be.
struct Destination {
  i32 outputs, rows;
  i64 output_shift = 0, row_shift = 0;

  __device__ __forceinline__ Destination(const Forward& p, i32 batch) : outputs(p.queries), rows(p.queries) {
#if STORES_PACKED
    outputs = p.output_offsets.rows(batch, p.queries);
    rows = p.row_offsets.rows(batch, p.queries);
    output_shift = p.output_offsets.shift(batch);
    row_shift = p.row_offsets.shift(batch);
#endif
  }
};

// One thread of a row: its statistics.
__device__ __forceinline__ void store_statistics(const Forward& p, const Destination& to, const i64 (&coordinate)[4],
                                                 f32 largest, f32 sum) {
  if (STORES_PACKED && coordinate[2] >= to.rows) return;
#if STATS
  (&p.stats.at(coordinate))[to.row_shift] = (largest * p.score_scale() + __log2f(sum) * LN_2) * p.stats_factor;
#endif
#if MAX
  (&p.max.at(coordinate))[to.row_shift] = largest * p.score_scale();
#endif
#if SUM_EXP
  (&p.sum_exp.at(coordinate))[to.row_shift] = sum;
#endif
}

// A row on its way to the output; own: the first column of this thread's, which has others at the same distances.
struct OutputRow {
  const Forward& p;
  const Output::Cursor cursor;
  const i32 own;
  const i64 shift;
  const bool exists;

  __device__ __forceinline__ OutputRow(const Forward& p, const Destination& to, const i64 (&coordinate)[4], i32 own,
                                       bool exists)
      : p(p),
        cursor(Output::cursor(p.output, coordinate)),
        own(own),
        shift(to.output_shift + own),
        exists(exists && !(STORES_PACKED && coordinate[2] >= to.outputs)) {}

  // What the columns' outputs follow from beside their values; further: columns.
  template <int V> __device__ __forceinline__ void load(i32 further, Output::Loaded<V>& in) const {
    if (stores(further)) Output::load<V>(p.output, cursor, shift + further, V, in);
  }
  template <int V>
  __device__ __forceinline__ void store(i32 further, const Output::Loaded<V>& in, const f32 (&values)[V]) const {
    if (stores(further)) Output::finish<V>(p.output, cursor, shift + further, V, in, values);
  }

 private:
  __device__ __forceinline__ bool stores(i32 further) const {
    return exists && (own + further < HEAD_V - 16 || own + further < p.size_v);  // sizes are padded to 16
  }
};

// Of neighbouring lanes and two blocks of columns: before, each has two columns of both; afterwards each has four
// neighbours of the block with its parity.
__device__ __forceinline__ void exchange_blocks(f32 (&values)[4]) {
  const bool is_odd = threadIdx.x % 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const f32 other = __shfl_xor_sync(~0u, is_odd ? values[i] : values[2 + i], 1);
    values[i] = is_odd ? other : values[i];
    values[2 + i] = is_odd ? values[2 + i] : other;
  }
}

// The statistics of a part's rows, whose softmax has ended.
__device__ __forceinline__ void store_statistics(const Forward& p, const Destination& to, const Place& place,
                                                 const Rows& rows, const RunningSoftmax& softmax, int part) {
  const int own = threadIdx.x % 4;  // one lane for each half
  if (own >= 2 || rows.at(part, own) >= p.queries * PACK) return;
  const f32 (&largest)[2] = softmax.largest[part], (&sum)[2] = softmax.sum[part];
  i64 coordinate[4];
  rows.coordinate(p, place, part, own, coordinate);
  store_statistics(p, to, coordinate, own ? largest[1] : largest[0], own ? sum[1] : sum[0]);
}

// What outputs are multiplied by, where weights add up to `sum` and what they make is scaled.
__device__ __forceinline__ f32 share_of(f32 scale, f32 sum) { return sum == 0 ? 0 : __fdividef(scale, sum); }

// Of rows whose softmax has ended: stores the statistics. Their outputs are to be multiplied by `shares`.
__device__ __forceinline__ void store_rows(const Forward& p, const Destination& to, const Place& place,
                                           const Rows& rows, const RunningSoftmax& softmax, f32 (&shares)[PARTS][2]) {
  const f32 scale = p.value_scale() / softmax.ONE;
#if AMAX_S
  u32 largest_weight = 0;
#endif
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shares[part][half] = share_of(scale, softmax.sum[part][half]);
#if AMAX_S
      if (rows.at(part, half) < p.queries * PACK) {
        largest_weight = ::max(largest_weight, __float_as_uint(softmax.largest_weight(part, half)));
      }
#endif
    }
    store_statistics(p, to, place, rows, softmax, part);
  }
#if AMAX_S
  join_largest(p.amax_s, largest_weight);
#endif
}

// Stores what has been multiplied by its rows' shares: columns from `first` on.
template <int BLOCKS>
__device__ __forceinline__ void store_output(const Forward& p, const Destination& to, const Place& place,
                                             const Rows& rows, const f32 (&o)[PARTS][BLOCKS][4], int first = 0) {
  static_assert(BLOCKS % 2 == 0, "pairs of blocks");
#if AMAX_O
  u32 largest_output = 0;
#endif
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const OutputRow row(p, to, coordinate, threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4,
                          rows.at(part, half) < p.queries * PACK);
      f32 values[BLOCKS / 2][4];
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[block / 2][i] = o[part][block + i / 2][half * 2 + i % 2];
#if AMAX_O
          if (row.exists) largest_output = ::max(largest_output, __float_as_uint(fabsf(values[block / 2][i])));
#endif
        }
        exchange_blocks(values[block / 2]);
      }
      if (!row.exists) continue;  // a branch for all: of each store, its address would be found again
      Output::Loaded<4> loaded[BLOCKS / 2];  // all at once: each would wait for the store before it
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) row.load(first + block * 8, loaded[block / 2]);
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) {
        row.store(first + block * 8, loaded[block / 2], values[block / 2]);
      }
    }
  }
#if AMAX_O
  join_largest(p.amax_o, largest_output);
#endif
}

// Of rows whose softmax has ended: statistics and outputs.
__device__ __forceinline__ void store_rows_and_output(const Forward& p, const Place& place, const Rows& rows,
                                                      const RunningSoftmax& softmax, OutputTile& o) {
  const Destination to(p, place.batch);
  f32 shares[PARTS][2];
  store_rows(p, to, place, rows, softmax, shares);
  scale_rows(o, shares);
  store_output(p, to, place, rows, o);
}
