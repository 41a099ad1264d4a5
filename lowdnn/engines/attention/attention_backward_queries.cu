// attention_backward_queries: the gradient of q on mma.sync; no S_q x S_kv matrix lies in memory. With w = 2^(q k^T *
// scale * log2(e) - exponent) in the band, elsewhere 0,
//
//     dq = scale * ds k        ds = w * (d_o v^T - centre)
//
// and the functors of attention_backward_mma.cuh.
//
// Block: TILE_Q queries of one head, PARTS times 16 of them a warp; it walks over the keys that some of them attend to,
// TILE_KV at a time. The next keys are copied while these are multiplied.
// Memory: as in attention_forward_mma.cu; terms by attention_backward_terms.cu. Queries past their batch's length get
// zeros.
// Shared memory (dynamic): TILE_Q rows of q and of d_o; twice TILE_KV rows of k and of v.
// Launch: TILE_Q / (16 * PARTS) warps; the last queries, which see the most keys under a causal mask, first.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV PARTS HEAD_QK HEAD_V (multiples of 16), and those of
// attention_backward_mma.cuh.
// Source: as for attention_backward_keys.cu.

#include "attention_backward_query_rows.cuh"

typedef TYPE T;
typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_Q, HEAD_V> OutputGradients;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;

constexpr int THREADS = TILE_Q / (16 * PARTS) * WARP_SIZE, BLOCKS = TILE_KV / 8;
typedef f32 QueryGradients[PARTS][HEAD_QK / 8][4];

struct Params {
  Problem problem;
  Rows<OUT> dq;
  Divider tiles, heads;  // tiles of queries of a head; heads of q in a batch
};

// Position of the block's queries and of this warp's queries, and the tiles of keys that they attend to.
struct Place {
  i32 batch, head;
  i32 block_query, warp_query;
  Band band;
  i32 begin, end;  // tiles of keys

  __device__ __forceinline__ Place(const Params& p) {
    const u32 heads_before = p.tiles.divide(blockIdx.x), tile = blockIdx.x - heads_before * p.tiles.divisor;
    batch = i32(p.heads.divide(heads_before));
    head = i32(heads_before - batch * p.heads.divisor);
    block_query = i32(p.tiles.divisor - 1 - tile) * TILE_Q;
    warp_query = threadIdx.x / WARP_SIZE * (PARTS * 16);
    band = p.problem.band(batch);
    begin = band.keys_begin(block_query) / TILE_KV;
    end = max(begin, (band.keys_end(block_query, TILE_Q) + TILE_KV - 1) / TILE_KV);
  }
};

// A tile of keys and their values in shared memory.
struct Stage {
  static constexpr u32 BYTES = Keys::BYTES + Values::BYTES;

  Keys k;
  Values v;

  __device__ __forceinline__ Stage(u32 address) : k{address}, v{address + Keys::BYTES} {}

  __device__ __forceinline__ void copy(const Problem& p, const Place& place, i32 tile) const {
    copy_rows<THREADS>(k, p.k, place.batch, place.head, tile * TILE_KV, place.band.keys, p.size_qk);
    copy_rows<THREADS>(v, p.v, place.batch, place.head, tile * TILE_KV, place.band.keys, p.size_v);
    cp_async_commit();
  }
};

// Adds to dq the contributions of the tile of keys in `stage`.
__device__ __forceinline__ void add_keys(const Problem& p, const Queries& q, const OutputGradients& d_o,
                                         const Stage& stage, const Place& place, i32 tile, const Scaling& scaling,
                                         const RowTerms<PARTS>& terms, QueryGradients& dq, u32& largest) {
  const Corner corner = {place.batch, place.head, place.block_query + place.warp_query, tile * TILE_KV};
  if (!place.band.sees_any(corner.query, PARTS * 16, corner.key, TILE_KV)) return;
  f32 ds[PARTS][BLOCKS][4];
  make_score_gradients(p, place.band, corner, q, d_o, place.warp_query, stage.k, stage.v, terms, scaling, ds);
#if IS_FP8
  largest = ::max(largest, largest_of(ds));
#endif
  multiply_columns(operand_of(ds), stage.k, 0, dq);
}

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const Problem& problem = p.problem;
  const Queries q = {shared_address(memory)};
  const OutputGradients d_o = {q.address + Queries::BYTES};
  const u32 stages = d_o.address + OutputGradients::BYTES;
  const Place place(p);
  const Scaling scaling(problem);

  QueryGradients dq = {};
  u32 largest = 0;  // largest magnitude of a gradient of a score, as bits of f32
  RowTerms<PARTS> terms;
  if (place.begin < place.end) {
    const i32 row = place.block_query, end = place.band.queries;
    copy_rows<THREADS>(q, problem.q, place.batch, place.head, row, end, problem.size_qk);
    copy_rows<THREADS>(d_o, problem.d_o, place.batch, place.head, row, end, problem.size_v);
    Stage(stages).copy(problem, place, place.begin);
    terms.load(problem.terms_of(place.batch, place.head), place.block_query + place.warp_query, problem.queries);
  }
#pragma unroll 1
  for (i32 tile = place.begin; tile < place.end; ++tile) {
    const i32 step = tile - place.begin;
    cp_async_wait<0>();
    __syncthreads();  // this stage has arrived; all warps have read the other one
    if (tile + 1 < place.end) Stage(stages + (step + 1) % 2 * Stage::BYTES).copy(problem, place, tile + 1);
    add_keys(problem, q, d_o, Stage(stages + step % 2 * Stage::BYTES), place, tile, scaling, terms, dq, largest);
  }
#if IS_FP8
  store_largest(problem.fp8.largest[LARGEST_DP], largest, 1 / problem.fp8.value(SCALE_DP));
#endif
  store_results(problem, OF_Q, p.dq, place.batch, place.head, place.block_query + place.warp_query, problem.queries, 0,
                problem.size_qk, dq);
}
