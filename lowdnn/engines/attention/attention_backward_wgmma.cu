// attention_backward_wgmma: the gradients of q, k and v in one go with TMA and wgmma, for sm_90a, without anything of
// S_q x S_kv in memory: with w = 2^(q k^T * scale * log2(e) - exponent) in the band, elsewhere 0,
//
//     dv = w^T d_o        dk = scale * ds^T q        dq = scale * ds k        ds = w * (d_o v^T - centre)
//
// dk and dv summed over the heads of q that share one of k and v, for heads of up to 128 elements.
//
// Block: 128 keys of one head at a time, 64 of them for each multiplying warpgroup; with them it goes along the queries
// that see any of them (include/attention_backward_wgmma.cuh). While a warpgroup forms weights, v d_o^T runs; while it
// forms gradients of the scores, dv does; and while it passes dq on, the scores of the next queries do.
// attention_backward_sums.cu rounds the sums of dq.
// Memory: q, k, v, d_o as their tensor maps say: (elements of a head, rows, heads, batches), 16-bit elements; terms by
// attention_backward_terms.cu, for whole tiles of queries. Keys past their batch's length get zeros.
// Launch: 3 warpgroups; any number of blocks.
// Macros: those of include/attention_backward_wgmma.cuh with TILE_KV = 128, GRADIENT_TILES = 2, SUM_PIECES = 1,
// WEIGHT_BYTES = 0.
// Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", appendix B.1,
// whose sums of dq are in any order.

#include "include/attention_backward_wgmma.cuh"

static_assert(TILE_KV == 128 && PASSES == 1, "64 keys and one part of dq for each warpgroup");

// 64 keys on their way along the queries.
struct Consumer : Warpgroup {
  Scores scores, products;  // then weights, then their gradients
  ScoreOperand weights, gradients;
  f32 dk[1][HEAD_QK / 8][4], dv[1][HEAD_V / 8][4];

  static __device__ __forceinline__ void run(const Params& p, const Place& place, Memory& memory) {
    const i32 index = threadIdx.x / WARPGROUP_SIZE, warp_key = threadIdx.x / WARP_SIZE * 16;
    const Scaling scaling(p.problem);
    Consumer own = {{p, place, memory, index, warp_key}};
    set_zero(own.dk);
    set_zero(own.dv);
    if (place.steps > 0) own.add_queries(scaling.scores * LOG2_E, scaling);
    named_barrier(STORING_BARRIER, CONSUMER_THREADS);
    store_keys(p, p.dk, place, warp_key, memory.k, p.problem.size_qk, OF_K, own.dk);
    store_keys(p, p.dv, place, warp_key, memory.v, p.problem.size_v, OF_V, own.dv);
  }

 private:
  __device__ __forceinline__ void add_queries(f32 factor, const Scaling& scaling) {
    Walk walk(place);
    clear_missing_keys();
    QueryStage stage = await_queries(walk.tile);
    start_scores(scores, memory.k, index * 64, stage.q(), 0);
    wgmma_wait<0>();
#pragma unroll 1
    for (i32 step = 0; step < place.steps; ++step) {
      const OutputGradients d_o = await_outputs(walk.tile);
      const ScoreGradients shared_gradients = {memory.gradients + step % 2 * ScoreGradients::BYTES};
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        add_part(stage, d_o, part, walk.tile * TILE_Q + part * PART_QUERIES, factor, scaling,
                 shared_gradients);
        if (part + 1 < PARTS) start_scores(scores, memory.k, index * 64, stage.q(), part + 1);
      }
      share_gradients();
      start_queries(shared_gradients, 0);
      walk.advance();
      // Behind the last tile for nothing: ptxas would not let a condition run beside the program.
      const bool is_last = step + 1 == place.steps;
      stage = await_next_queries(is_last, walk.tile);
      wgmma_wait<1>();  // the registers of the gradients are free
      start_scores(scores, memory.k, index * 64, stage.q(), 0);
      wgmma_wait<1>();
      hold_all(dq);
      memory.queries.release();
      memory.outputs.release();
      pass_sums(place.first_step + step, 0);
      wgmma_wait<0>();
    }
    hold_all(dk);
    hold_all(dv);
    store_largest_gradient();
  }

  // What 64 of the queries give, whose scores are on their way.
  __device__ __forceinline__ void add_part(const QueryStage& stage, const OutputGradients& d_o, int part,
                                           i32 first_query, f32 factor, const Scaling& scaling,
                                           const ScoreGradients& shared_gradients) {
    const i32 first_key = place.first_key() + warp_key;
    const TermTile terms = stage.terms(part);
    start_scores(products, memory.v, index * 64, d_o, part);
    wgmma_wait<1>();
    hold_all(scores);
    terms.make_weights(factor, scores);
    mask(place.band, first_query, first_key, scores);
    round(Tag<WEIGHT_TYPE>(), scores, weights);
    start_values(dv, weights, d_o, part);
    wgmma_wait<1>();
    hold_all(products);
    multiply_all(products, scaling.of_d_weights());
    terms.make_gradients(scores, products);
    mask(place.band, first_query, first_key, products);  // what is beyond the keys may be NaN
    count_gradients(products);
    round(Tag<GRADIENT_TYPE>(), products, gradients);
    store(shared_gradients, warp_key, part * PART_QUERIES, gradients);
    start_keys(dk, gradients, stage.q(), part);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  run_block<Consumer>(p, shared);
}
