// attention_backward_bias: the gradient of the bias that is added to the scores, on mma.sync. It is ds of
// attention_backward_queries.cu, summed over the batches and heads of q to which the bias is broadcast.
//
// Block: TILE_Q queries and TILE_KV keys of the gradient; each warp has 16 * PARTS of the queries. It adds the batches
// and heads in a fixed order in registers.
// Memory: as in attention_backward_queries.cu; the gradient in any strides.
// Shared memory (dynamic): TILE_Q rows of q and of d_o, TILE_KV of k and of v.
// Launch: TILE_Q / (16 * PARTS) warps; the tiles of keys of the same queries follow each other.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV PARTS HEAD_QK HEAD_V (multiples of 16), and those of
// attention_backward_mma.cuh.

#include "attention_backward_query_rows.cuh"

typedef TYPE T;
typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_Q, HEAD_V> OutputGradients;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;

constexpr int THREADS = TILE_Q / (16 * PARTS) * WARP_SIZE, BLOCKS = TILE_KV / 8;

struct Params {
  Problem problem;
  OUT* dbias;
  i64 strides[4];
  i32 batches, heads;                       // batches and heads to which one element of the bias is broadcast
  Divider key_tiles, query_tiles, results;  // tiles of a head, twice; heads of the gradient in a batch
};

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const Problem& problem = p.problem;
  const Queries q = {shared_address(memory)};
  const OutputGradients d_o = {q.address + Queries::BYTES};
  const Keys k = {d_o.address + OutputGradients::BYTES};
  const Values v = {k.address + Keys::BYTES};

  const u32 rows_before = p.key_tiles.divide(blockIdx.x), results_before = p.query_tiles.divide(rows_before);
  const i32 key = i32(blockIdx.x - rows_before * p.key_tiles.divisor) * TILE_KV;
  const i32 query = i32(rows_before - results_before * p.query_tiles.divisor) * TILE_Q;
  const i32 batch = i32(p.results.divide(results_before)), head = i32(results_before - batch * p.results.divisor);
  const i32 warp_query = threadIdx.x / WARP_SIZE * (PARTS * 16);
  const Scaling scaling(problem);

  f32 sums[PARTS][BLOCKS][4] = {};
#pragma unroll 1
  for (i32 i = 0; i < p.batches * p.heads; ++i) {
    const i32 own_batch = batch + i / p.heads, own_head = head + i % p.heads;
    const Band band = problem.band(own_batch);
    if (!band.sees_any(query, TILE_Q, key, TILE_KV)) continue;
    __syncthreads();  // all warps have read the previous tiles
    copy_rows<THREADS>(q, problem.q, own_batch, own_head, query, band.queries, problem.size_qk);
    copy_rows<THREADS>(d_o, problem.d_o, own_batch, own_head, query, band.queries, problem.size_v);
    copy_rows<THREADS>(k, problem.k, own_batch, own_head, key, band.keys, problem.size_qk);
    copy_rows<THREADS>(v, problem.v, own_batch, own_head, key, band.keys, problem.size_v);
    cp_async_commit();
    RowTerms<PARTS> terms;
    terms.load(problem.terms_of(own_batch, own_head), query + warp_query, problem.queries);
    cp_async_wait<0>();
    __syncthreads();
    f32 ds[PARTS][BLOCKS][4];
    const Corner corner = {own_batch, own_head, query + warp_query, key};
    make_score_gradients(problem, band, corner, q, d_o, warp_query, k, v, terms, scaling, ds);
    for_each<PARTS, BLOCKS>([&](int part, int block, int i) { sums[part][block][i] += ds[part][block][i]; });
  }

  OUT* const result = p.dbias + batch * p.strides[0] + head * p.strides[1];
  for_each<PARTS, BLOCKS>([&](int part, int block, int i) {
    const i32 row = query + warp_query + part * 16 + i / 2 * 8 + threadIdx.x % WARP_SIZE / 4;
    const i32 column = key + block * 8 + threadIdx.x % 4 * 2 + i % 2;
    if (row < problem.queries && column < problem.keys)
      result[row * p.strides[2] + column * p.strides[3]] = convert<OUT>(sums[part][block][i]);
  });
}
