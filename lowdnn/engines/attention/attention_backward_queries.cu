// attention_backward_queries: the gradient of q on mma.sync, without anything of S_q x S_kv in memory: with
// w = 2^(q k^T * scale * log2(e) - exponent) in the band, elsewhere 0,
//
//     dq = scale * ds k        ds = w * (d_o v^T - centre)
//
// Block: TILE_Q queries of one head, PARTS times 16 of them a warp; it goes along the keys that any of them sees,
// TILE_KV at a time. The next keys are copied while these are multiplied.
// Memory: as in attention_forward_mma.cu; terms by attention_backward_terms.cu. Queries past their batch's length get
// zeros.
// Shared memory (dynamic): TILE_Q rows of q and of d_o; twice TILE_KV rows of k and of v.
// Launch: TILE_Q / (16 * PARTS) warps; the last queries, which see the most keys under a causal mask, first.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV PARTS HEAD_QK HEAD_V (multiples of 16).
// Source: as for attention_backward_keys.cu.

#include "include/attention_backward_mma.cuh"

typedef TYPE T;
typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_Q, HEAD_V> OutputGradients;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;

constexpr int THREADS = TILE_Q / (16 * PARTS) * WARP_SIZE, BLOCKS = TILE_KV / 8;
typedef f32 Scores[PARTS][BLOCKS][4];
typedef f32 QueryGradients[PARTS][HEAD_QK / 8][4];

struct Params {
  Problem problem;
  Heads<OUT> dq;
  Divider tiles, heads;  // of queries of a head; of q in a batch
};

// Where the block's queries are, and this warp's.
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

  // Of a row of this thread's accumulators.
  __device__ __forceinline__ i32 query(int part, int half) const {
    return block_query + warp_query + part * 16 + half * 8 + threadIdx.x % WARP_SIZE / 4;
  }

  // Zeros where the query of a row does not see the key of a column.
  __device__ __forceinline__ void mask(i32 tile, Scores& values) const {
    if (band.sees_all(block_query + warp_query, PARTS * 16, tile * TILE_KV, TILE_KV)) return;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const i32 key = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2 + i % 2;
          if (!band.sees(query(part, i / 2), key)) values[part][block][i] = 0;
        }
  }
};

// A tile of keys in shared memory.
struct Stage {
  static constexpr u32 BYTES = Keys::BYTES + Values::BYTES;

  Keys k;
  Values v;

  __device__ __forceinline__ Stage(u32 address) : k{address}, v{address + Keys::BYTES} {}

  __device__ __forceinline__ void copy(const Problem& p, const Place& place, i32 tile) const {
    const i32 row = tile * TILE_KV, rows = place.band.keys - row;
    k.copy<THREADS>(p.k.at(place.batch, place.head, row), p.k.strides[2], rows, p.size_qk);
    v.copy<THREADS>(p.v.at(place.batch, place.head, row), p.v.strides[2], rows, p.size_v);
    cp_async_commit();
  }
};

// Adds what the keys of `stage`, a tile, give.
__device__ __forceinline__ void add_keys(const Queries& q, const OutputGradients& d_o, const Stage& stage,
                                         const Place& place, i32 tile, f32 factor, const Term (&terms)[PARTS][2],
                                         QueryGradients& dq) {
  if (!place.band.sees_any(place.block_query + place.warp_query, PARTS * 16, tile * TILE_KV, TILE_KV)) return;
  Scores weights, ds;
  multiply_rows(q, place.warp_query, stage.k, weights);
  multiply_rows(d_o, place.warp_query, stage.v, ds);
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Term& term = terms[part][i / 2];
        const f32 weight = power_of_two(weights[part][block][i] * factor - term.exponent);
        ds[part][block][i] = weight * (ds[part][block][i] - term.centre);
      }
  place.mask(tile, ds);
  const auto operand = [&ds](int part, int block, int half) {
    const f32* const pair = ds[part][block] + half * 2;
    return packed(Tag<T>(), pair[0], pair[1]);
  };
  multiply_columns(operand, stage.k, 0, dq);
}

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const Problem& problem = p.problem;
  const Queries q = {shared_address(memory)};
  const OutputGradients d_o = {q.address + Queries::BYTES};
  const u32 stages = d_o.address + OutputGradients::BYTES;
  const Place place(p);
  const f32 scale = problem.scale.value();

  QueryGradients dq = {};
  Term terms[PARTS][2];
  if (place.begin < place.end) {
    const i32 row = place.block_query, rows = place.band.queries - row;
    q.copy<THREADS>(problem.q.at(place.batch, place.head, row), problem.q.strides[2], rows, problem.size_qk);
    d_o.copy<THREADS>(problem.d_o.at(place.batch, place.head, row), problem.d_o.strides[2], rows, problem.size_v);
    Stage(stages).copy(problem, place, place.begin);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        terms[part][half] =
            problem.terms_of(place.batch, place.head)[min(place.query(part, half), problem.queries - 1)];
  }
#pragma unroll 1
  for (i32 tile = place.begin; tile < place.end; ++tile) {
    const i32 step = tile - place.begin;
    cp_async_wait<0>();
    __syncthreads();  // this stage is there; the other one is no longer read
    if (tile + 1 < place.end) Stage(stages + (step + 1) % 2 * Stage::BYTES).copy(problem, place, tile + 1);
    add_keys(q, d_o, Stage(stages + step % 2 * Stage::BYTES), place, tile, scale * LOG2_E, terms, dq);
  }
  store_gradients(p.dq.at(place.batch, place.head, 0), p.dq.strides[2], place.block_query + place.warp_query,
                  problem.queries, 0, problem.size_qk, scale, dq);
}
