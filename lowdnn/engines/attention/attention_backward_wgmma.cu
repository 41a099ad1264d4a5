// attention_backward_wgmma: the gradients of q, k and v in one kernel with TMA and wgmma, for sm_90a, without anything
// of S_q x S_kv in memory: with w = 2^(q k^T * scale * log2(e) - exponent) in the band, elsewhere 0,
//
//     dv = w^T d_o        dk = scale * ds^T q        dq = scale * ds k        ds = w * (d_o v^T - centre)
//
// dk and dv summed over the heads of q that share one of k and v, for heads of up to 128 elements.
//
// Block: 128 keys of one head at a time, 64 for each multiplying warpgroup. It walks over the queries that attend to
// some of them (attention_backward_wgmma.cuh). Products overlap with arithmetic: v d_o^T runs while a warpgroup
// computes weights, dv while it computes gradients of the scores, and the next scores while it passes on dq. Keys and
// values of small heads are operands in registers. attention_backward_sums.cu rounds the sums of dq.
// Memory: q, k, v, d_o as their tensor maps say: (elements of a head, rows, heads, batches), 16-bit elements; terms by
// attention_backward_terms.cu, for whole tiles of queries. Keys past their batch's length get zeros.
// Launch: 3 warpgroups; any number of blocks.
// Macros: as in attention_backward_wgmma.cuh with TILE_KV = 128, SUM_PIECES = 1, WEIGHT_BYTES = 0.
// Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", appendix B.1,
// whose sums of dq are in any order.

#include "attention_backward_wgmma.cuh"

static_assert(TILE_KV == 128 && PASSES == 1, "64 keys and one part of dq for each warpgroup");

// Whether a thread has registers for products in addition to dq, for its own keys, and for its own values.
constexpr bool HAS_ROOM = HEAD_QK + HEAD_V <= 128;
constexpr bool KEYS_IN_REGISTERS = HEAD_QK <= 64 && HEAD_V <= 64;
constexpr bool VALUES_IN_REGISTERS = HEAD_QK <= 96 && HEAD_V <= 96;

typedef u32 OwnKeys[KEYS_IN_REGISTERS ? HEAD_QK / 16 : 1][4];
typedef u32 OwnValues[VALUES_IN_REGISTERS ? HEAD_V / 16 : 1][4];

// The warpgroup's part of dq. It reuses the registers of `products` where there are too few for both.
template <bool HAS_OWN> struct QuerySumRegisters {
  QuerySumBlocks dq;

  template <class Products> __device__ __forceinline__ QuerySumBlocks& sums(Products&) { return dq; }
};
template <> struct QuerySumRegisters<false> {
  template <class Products> __device__ __forceinline__ Products& sums(Products& products) { return products; }
};

// A multiplying warpgroup with 64 keys, which it multiplies with one tile of queries after the other.
struct Consumer : Warpgroup, QuerySumRegisters<HAS_ROOM> {
  const Scaling scaling;
  const f32 factor;         // from scores to exponents
  Scores scores, products;  // scores, then weights; products, then gradients
  ScoreOperand weights, gradients;
  OwnKeys own_keys;
  OwnValues own_values;
  f32 dk[1][HEAD_QK / 8][4], dv[1][HEAD_V / 8][4];

  static __device__ __forceinline__ void run(const Params& p, const Place& place, Memory& memory) {
    const i32 index = uniform(threadIdx.x / WARPGROUP_SIZE), warp_key = threadIdx.x / WARP_SIZE * 16;
    const Scaling scaling(p.problem);
    Consumer own = {{p, place, memory, index, warp_key}, {}, scaling, scaling.scores * LOG2_E};
    set_zero(own.dk);
    set_zero(own.dv);
    if (place.steps > 0) own.add_queries();
    named_barrier(STORING_BARRIER, CONSUMER_THREADS);
    const KeyShare share = memory.own_share(p.keys);  // computed again: no registers are free to keep it
    store_keys(p, p.dk, place, share, warp_key, memory.k, p.problem.size_qk, OF_K, own.dk);
    store_keys(p, p.dv, place, share, warp_key, memory.v, p.problem.size_v, OF_V, own.dv);
  }

 private:
  __device__ __forceinline__ QuerySumBlocks& sums() { return QuerySumRegisters::sums(products); }

  __device__ __forceinline__ void add_queries() {
    Walk walk(place);
    clear_missing_keys();
    if constexpr (KEYS_IN_REGISTERS) load(memory.k, warp_key, own_keys);
    if constexpr (VALUES_IN_REGISTERS) load(memory.v, warp_key, own_values);
    u32 passed = uniform(memory.queries.at.passed);
    release_shared_gradients();
    start_scores(await_queries(walk.tile, passed), 0);
    start_products(await_outputs(walk.tile, passed), 0);
    wgmma_wait<1>();
    make_weights(walk.tile, 0, passed);
#pragma unroll 1
    for (i32 left = place.steps;; --left) {
#pragma unroll
      for (int part = 0; part + 1 < PARTS; ++part) {
        make_gradients(walk.tile, part, passed);
        start_scores(queries(passed), part + 1);
        start_keys(dk, gradients, queries(passed).q(), part);
        if constexpr (HAS_ROOM) start_products(outputs(passed), part + 1);
        wgmma_wait<HAS_ROOM ? 2 : 1>();
        make_weights(walk.tile, part + 1, passed);
        if constexpr (!HAS_ROOM) start_products(outputs(passed), part + 1);
      }
      make_gradients(walk.tile, PARTS - 1, passed);
      if (left == 1) break;
      walk.advance();
      start_scores(await_queries(walk.tile, passed + 1), 0);
      multiply_gradients(passed);
      if constexpr (HAS_ROOM) start_products(await_outputs(walk.tile, passed + 1), 0);
      wgmma_wait<HAS_ROOM ? 3 : 2>();
      memory.outputs.release(passed);
      make_weights(walk.tile, 0, passed + 1);
      wgmma_wait<HAS_ROOM ? 2 : 1>();
      hold_all(sums());
      pass_sums(sums(), passed, 0);
      if constexpr (!HAS_ROOM) start_products(await_outputs(walk.tile, passed + 1), 0);
      wgmma_wait<1>();
      memory.queries.release(passed);
      release_shared_gradients();
      passed = uniform(passed + 1);
      index = uniform(index);  // so that the compiler computes descriptors again: no registers are free to keep them
    }
    multiply_gradients(passed);
    wgmma_wait<1>();
    hold_all(sums());
    memory.outputs.release(passed);
    pass_sums(sums(), passed, 0);
    wgmma_wait<0>();
    memory.queries.release(passed);
    memory.queries.at.passed = memory.outputs.at.passed = passed + 1;
    hold_all(dk);
    hold_all(dv);
    store_largest_gradient();
  }

  __device__ __forceinline__ QueryStage queries(u32 passed) const {
    return {memory.queries.stages + passed % STAGES * QueryStage::BYTES};
  }
  __device__ __forceinline__ OutputGradients outputs(u32 passed) const {
    return {memory.outputs.stages + passed % OUTPUT_STAGES * OutputGradients::BYTES};
  }
  __device__ __forceinline__ ScoreGradients shared_gradients() const { return {memory.gradients}; }

  __device__ __forceinline__ void start_scores(const QueryStage& stage, int part) {
    if constexpr (KEYS_IN_REGISTERS) start_own(scores, own_keys, stage.q(), part);
    else Warpgroup::start_scores(scores, memory.k, index * 64, stage.q(), part);
  }
  __device__ __forceinline__ void start_products(const OutputGradients& d_o, int part) {
    if constexpr (VALUES_IN_REGISTERS) start_own(products, own_values, d_o, part);
    else Warpgroup::start_scores(products, memory.v, index * 64, d_o, part);
  }

  __device__ __forceinline__ void multiply_gradients(u32 passed) {
    share_gradients();
    start_queries(sums(), shared_gradients(), 0);
    // Reads the gradients from shared memory, so that the operand's registers are free for the next weights.
    start_keys(dk, shared_gradients(), queries(passed).q(), PARTS - 1);
  }

  // Waits until the other warpgroup has multiplied the gradients in shared memory, so that they may be overwritten.
  __device__ __forceinline__ void release_shared_gradients() const {
    named_barrier_arrive(FREE_BARRIER + index, CONSUMER_THREADS);
  }
  __device__ __forceinline__ void await_shared_gradients() const {
    named_barrier(FREE_BARRIER + 1 - index, CONSUMER_THREADS);
  }

  // Replaces the scores of 64 queries by weights.
  __device__ __forceinline__ void make_weights(i32 tile, int part, u32 passed) {
    hold_all(scores);
    queries(passed).terms(part).make_weights(factor, scores);
    mask(place.band, tile * TILE_Q + part * PART_QUERIES, place.first_key() + warp_key, scores);
  }

  // Replaces d_o v^T by gradients of the scores, while the multiplication for dv runs.
  __device__ __forceinline__ void make_gradients(i32 tile, int part, u32 passed) {
    round(Tag<WEIGHT_TYPE>(), scores, weights);
    start_values(dv, weights, outputs(passed), part);
    wgmma_wait<1>();
    hold_all(products);
    multiply_all(products, scaling.of_d_weights());
    queries(passed).terms(part).make_gradients(scores, products);
    // Products of keys that do not exist may be NaN.
    mask(place.band, tile * TILE_Q + part * PART_QUERIES, place.first_key() + warp_key, products);
    count_gradients(products);
    round(Tag<GRADIENT_TYPE>(), products, gradients);
    if (part == 0) await_shared_gradients();
    store(shared_gradients(), warp_key, part * PART_QUERIES, gradients);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  run_block<Consumer>(p, shared);
}
