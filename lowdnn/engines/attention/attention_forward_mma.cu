// attention_forward_mma: o = output(weights(softmax(scores(q k^T))) v) on mma.sync, without the scores in memory.
//
// Block: TILE_Q queries of one head, WARPS warps with PARTS times 16 of them each; it goes along the keys, TILE_KV at a
// time, and keeps for each query the largest score so far, the sum of exponentials relative to it, and the products
// with v, which shrink when the largest grows. Keys outside of the band (left, right, length) are passed over; tiles
// that lie within it take `Inside`, the scores without masks. Queries that see no key give 0, and minus infinity as
// their log-sum-exp. Copies of v run while scores are computed, those of the next keys while v is multiplied.
// Memory: q, k, v with elements of a head contiguous, rows at multiples of 16 bytes. Sizes of heads are multiples of 8,
// at most HEAD_QK and HEAD_V, multiples of 16.
// Shared memory (dynamic): TILE_Q rows of q, TILE_KV of k and of v.
// Launch: WARPS * 32 threads; the blocks of a head follow each other, those with the most keys under a causal mask first.
// Macros: TYPE (f16, bf16) TILE_Q TILE_KV WARPS PARTS HEAD_QK HEAD_V; IS_BANDED: whether there is an `Inside`;
// LENGTH_TYPE, HAS_LENGTHS; HAS_WEIGHTS; STATS MAX SUM_EXP: the outputs that there are.
// Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 1.

#include "include/attention_mma.cuh"
#include "include/division.cuh"
#include "generated.cuh"

typedef TYPE T;
typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;

constexpr int THREADS = WARPS * WARP_SIZE;
constexpr int SCORE_BLOCKS = TILE_KV / 8, OUTPUT_BLOCKS = HEAD_V / 8;
static_assert(TILE_Q == WARPS * PARTS * 16, "each warp has PARTS times 16 queries");

// One number for each query.
struct RowOutput {
  f32* first;
  i64 strides[3];

  __device__ __forceinline__ void store(i32 batch, i32 head, i64 row, f32 value) const {
    first[batch * strides[0] + head * strides[1] + row * strides[2]] = value;
  }
};

struct Params {
  Heads<const T> q, k, v;
  Divider tiles, heads;  // of queries of a head; of a batch
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

// Where a warp's queries are, and the keys that any of the block's see.
struct Place {
  i32 batch, head, block_row, warp_row;
  Band band;
  i32 begin, end;  // tiles of keys

  __device__ __forceinline__ Place(const Params& p) {
    const u32 heads_before = p.tiles.divide(blockIdx.x), tile = blockIdx.x - heads_before * p.tiles.divisor;
    batch = i32(p.heads.divide(heads_before));
    head = i32(heads_before - batch * p.heads.divisor);
    block_row = i32(p.tiles.divisor - 1 - tile) * TILE_Q;
    warp_row = block_row + threadIdx.x / WARP_SIZE * (PARTS * 16);
    band = {p.left, p.right, p.queries, p.keys};
#if HAS_LENGTHS
    band.keys = i32(clamped<i64>(i64(p.lengths[batch * p.length_stride]), 0, p.keys));
#endif
    begin = band.keys_begin(block_row) / TILE_KV;
    end = (band.keys_end(block_row, TILE_Q) + TILE_KV - 1) / TILE_KV;
  }

  // Whether each of the block's queries sees every key of the tile.
  __device__ __forceinline__ bool sees_all(i32 tile) const {
    return band.sees_all(block_row, TILE_Q, tile * TILE_KV, TILE_KV);
  }
};

// The queries of this thread, half of a part each: lanes of four share one.
struct Rows {
  i32 first;  // of the warp

  __device__ __forceinline__ i32 at(int part, int half) const {
    return first + part * 16 + half * 8 + threadIdx.x % WARP_SIZE / 4;
  }

  __device__ __forceinline__ void coordinate(const Params& p, const Place& place, int part, int half,
                                             i64 (&coordinate)[4]) const {
    coordinate[0] = place.batch;
    coordinate[1] = place.head;
    coordinate[2] = min(at(part, half), p.queries - 1);
    coordinate[3] = 0;
  }
};

// What the softmax is of, from products of queries and keys; minus infinity for keys that do not exist.
template <class Functor>
__device__ __forceinline__ void apply_scores(const typename Functor::Args& args, const Params& p, const Place& place,
                                             const Rows& rows, i32 tile, f32 (&scores)[PARTS][SCORE_BLOCKS][4]) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const typename Functor::Cursor cursor = Functor::cursor(args, coordinate);
#pragma unroll
      for (int block = 0; block < SCORE_BLOCKS; ++block) {
        const i32 column = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2, existing = p.keys - column;
        f32* const pair = scores[part][block] + half * 2;
        const f32 products[2] = {pair[0], pair[1]};
        f32 results[2];
        Functor::template apply<2>(args, cursor, column, clamped(existing, 0, 2), products, results);
#pragma unroll
        for (int i = 0; i < 2; ++i) pair[i] = i < existing ? results[i] : MINUS_INFINITY;
      }
    }
  }
}

// The running softmax of the thread's queries.
struct RunningSoftmax {
  f32 largest[PARTS][2], sum[PARTS][2];  // of sums, this thread's part

  __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[part][half] = MINUS_INFINITY;
        sum[part][half] = 0;
      }
  }

  // Turns scores into exponentials relative to the largest so far, and shrinks what was relative to the one before.
  __device__ __forceinline__ void add(f32 (&scores)[PARTS][SCORE_BLOCKS][4], f32 (&o)[PARTS][OUTPUT_BLOCKS][4]) {
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
        const f32 base = here == MINUS_INFINITY ? 0 : here * LOG2_E;  // of a query that has seen no key yet, anything
        const f32 shrinking = power_of_two(before * LOG2_E - base);
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
        sum[part][half] = sum[part][half] * shrinking + total;
#pragma unroll
        for (int block = 0; block < OUTPUT_BLOCKS; ++block) {
          o[part][block][half * 2] *= shrinking;
          o[part][block][half * 2 + 1] *= shrinking;
        }
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

// Two neighbouring weights as the operand of the second product.
__device__ __forceinline__ u32 weights_of(const Params& p, const Place& place, const Rows& rows, i32 tile, int part,
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

// Divides by the sums and stores.
__device__ __forceinline__ void store_output(const Params& p, const Place& place, const Rows& rows,
                                             const RunningSoftmax& softmax,
                                             const f32 (&o)[PARTS][OUTPUT_BLOCKS][4]) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 row = rows.at(part, half);
      if (row >= p.queries) continue;
      const f32 sum = softmax.sum[part][half];
      const f32 share = sum == 0 ? 0 : 1 / sum;
      if (threadIdx.x % 4 == 0) {
#if STATS
        p.stats.store(place.batch, place.head, row, softmax.largest[part][half] + logf(sum));
#endif
#if MAX
        p.max.store(place.batch, place.head, row, softmax.largest[part][half]);
#endif
#if SUM_EXP
        p.sum_exp.store(place.batch, place.head, row, sum);
#endif
      }
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
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

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) u8 memory[];
  const Queries q = {shared_address(memory)};
  const Keys k = {q.address + Queries::BYTES};
  const Values v = {k.address + Keys::BYTES};
  const Place place(p);
  const Rows rows = {place.warp_row};

  const auto copy_keys = [&](i32 tile) {
    const i64 row = i64(tile) * TILE_KV;
    k.copy<THREADS>(p.k.at(place.batch, place.head, row), p.k.strides[2], place.band.keys - i32(row), p.size_qk);
    cp_async_commit();
  };
  const auto copy_values = [&](i32 tile) {
    const i64 row = i64(tile) * TILE_KV;
    v.copy<THREADS>(p.v.at(place.batch, place.head, row), p.v.strides[2], place.band.keys - i32(row), p.size_v);
    cp_async_commit();
  };

  f32 o[PARTS][OUTPUT_BLOCKS][4] = {};
  RunningSoftmax softmax;
  if (place.begin < place.end) {
    q.copy<THREADS>(p.q.at(place.batch, place.head, place.block_row), p.q.strides[2], p.queries - place.block_row,
                    p.size_qk);
    copy_keys(place.begin);
  }
#pragma unroll 1
  for (i32 tile = place.begin; tile < place.end; ++tile) {
    cp_async_wait<0>();
    __syncthreads();  // the keys are there; the values of the tile before are no longer read
    copy_values(tile);
    f32 scores[PARTS][SCORE_BLOCKS][4];
    multiply_rows(q, place.warp_row - place.block_row, k, scores);
#if IS_BANDED
    if (place.sees_all(tile)) apply_scores<Inside>(p.inside, p, place, rows, tile, scores);
    else apply_scores<Scores>(p.scores, p, place, rows, tile, scores);
#else
    apply_scores<Scores>(p.scores, p, place, rows, tile, scores);
#endif
    cp_async_wait<0>();
    __syncthreads();  // the values are there; the keys are no longer read
    if (tile + 1 < place.end) copy_keys(tile + 1);
    softmax.add(scores, o);
    const auto weight = [&](int part, int block, int half) {
      return weights_of(p, place, rows, tile, part, half, block, scores[part][block] + half * 2);
    };
    multiply_columns(weight, v, 0, o);
  }
  softmax.end();
  store_output(p, place, rows, softmax, o);
}
