// attention_forward_mma: o = output(weights(softmax(scores(q k^T))) v) on mma.sync, without the scores in memory.
//
// Block: TILE_Q queries of one head, warps with WARP_Q of them each; it walks over the keys, TILE_KV at a time, and
// keeps for each query the largest score so far, the sum of exponentials relative to it, and the sum of exponentials
// times v; both sums are rescaled when the largest score grows. Tiles of keys outside the band (left, right, length)
// are skipped; tiles inside it are not masked. Queries that attend to no key have output 0 and log-sum-exp minus
// infinity. Copies of v run while scores are computed, those of the next keys while v is multiplied.
// Memory: q, k, v as their places say, with elements of a head contiguous, rows at multiples of 16 bytes. Sizes of
// heads are multiples of 8, at most HEAD_QK and HEAD_V, multiples of 16.
// Shared memory (dynamic): TILE_Q rows of q, TILE_KV of k and of v.
// Launch: 32 threads for each warp; the blocks of a head follow each other, those with the most keys under a causal
// mask first.
// Macros: HEAD_QK, and those of attention_forward.cuh and attention_places.cuh.
// Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 1.

#include "attention_forward.cuh"
#include "attention_forward_scores.cuh"
#include "attention_forward_store.cuh"
#include "attention_forward_weights.cuh"
#include "attention_mma.cuh"
#include "attention_places.cuh"

typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;

constexpr int THREADS = TILE_Q / WARP_Q * WARP_SIZE;

struct Params {
  QueryHeads q;
  KeyHeads k;
  ValueHeads v;
  Forward forward;
};

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
    KERNEL_NAME(const __grid_constant__ Params params) {
  const Forward& p = params.forward;
  extern __shared__ __align__(128) u8 memory[];
  const Queries q = {shared_address(memory)};
  const Keys k = {q.address + Queries::BYTES};
  const Values v = {k.address + Keys::BYTES};
  const Place place(p);
  const Rows rows = {place.warp_row};

  const i32 existing_keys = existing_rows(params.k, place.batch, place.band.keys);
  const i32 existing_values = existing_rows(params.v, place.batch, place.band.keys);
  const auto copy_keys = [&](i32 tile) {
    const i32 first = tile * TILE_KV, rows = existing_keys - first;
    k.copy_each<THREADS>(rows_from(params.k, place.batch, place.head, first, rows), rows, p.size_qk);
    cp_async_commit();
  };
  const auto copy_values = [&](i32 tile) {
    const i32 first = tile * TILE_KV, rows = existing_values - first;
    v.copy_each<THREADS>(rows_from(params.v, place.batch, place.head, first, rows), rows, p.size_v);
    cp_async_commit();
  };

  OutputTile o = {};
  RunningSoftmax softmax(p.score_scale());
  softmax.add_sink(p, place, rows);
  if (place.begin < place.end) {
    const i32 queries = existing_rows(params.q, place.batch, p.queries) - place.block_row;
    q.copy_each<THREADS>(rows_from(params.q, place.batch, place.head, place.block_row, queries), queries, p.size_qk);
    copy_keys(place.begin);
  }
  i32 following;
#pragma unroll 1
  for (i32 tile = place.begin; tile < place.end; tile = following) {
    following = place.next(p, tile + 1);
    cp_async_wait<0>();
    __syncthreads();  // the keys have arrived; all warps have read the previous tile's values
    copy_values(tile);
    ScoreTile scores;
    multiply_rows(q, place.warp_row - place.block_row, k, scores);
    make_scores(p, place, rows, tile, scores);
    cp_async_wait<0>();
    __syncthreads();  // the values have arrived; all warps have read the keys
    if (following < place.end) copy_keys(following);
    f32 shrinking[PARTS][2];
    if (softmax.add(scores, shrinking)) scale_rows(o, shrinking);
    const auto weight = [&](int part, int block, int half) {
      return weights_of<Weights>(p, place, rows, tile, part, half, block, scores[part][block] + half * 2);
    };
    multiply_columns(weight, v, 0, o);
  }
  softmax.end();
  store_rows_and_output(p, place, rows, softmax, o);
}
