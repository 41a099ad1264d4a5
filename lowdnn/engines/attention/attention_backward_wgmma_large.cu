// attention_backward_wgmma_large: the gradients of attention_backward_wgmma.cu for heads of up to 256 elements.
//
// Block: 64 keys of one head at a time. One multiplying warpgroup accumulates dv and the other one dk; these
// accumulators take half of the registers. The first computes weights and passes them through shared memory to the
// second, which computes gradients of scores. Each computes a part of dq, which goes to the adding warps in two passes.
// Memory, order of the sums: as for attention_backward_wgmma.cu.
// Launch: 3 warpgroups; any number of blocks.
// Macros: as in attention_backward_wgmma.cuh with TILE_KV = TILE_Q = 64, SUM_PIECES = 4, WEIGHT_BYTES of fp32 weights.

#include "attention_backward_wgmma.cuh"

static_assert(TILE_KV == 64 && PARTS == 1, "64 keys and 64 queries at a time");

// Weights in shared memory, which thread i of ValueWarpgroup hands to thread i of KeyWarpgroup.
struct Weights {
  u32 address;

  static_assert(WEIGHT_BYTES == sizeof(Scores) * WARPGROUP_SIZE, "all that a warpgroup has");

  __device__ __forceinline__ void put(const Scores& weights) const {
#pragma unroll
    for (int block = 0; block < PART_QUERIES / 8; ++block) {
      const f32(&four)[4] = weights[0][block];
      store_shared_16(at(block), __float_as_uint(four[0]), __float_as_uint(four[1]), __float_as_uint(four[2]),
                      __float_as_uint(four[3]));
    }
  }

  __device__ __forceinline__ void get(Scores& weights) const {
#pragma unroll
    for (int block = 0; block < PART_QUERIES / 8; ++block) {
      const uint4 words = load_shared_128(at(block));
      f32(&four)[4] = weights[0][block];
      four[0] = __uint_as_float(words.x);
      four[1] = __uint_as_float(words.y);
      four[2] = __uint_as_float(words.z);
      four[3] = __uint_as_float(words.w);
    }
  }

 private:
  __device__ __forceinline__ u32 at(int block) const {
    return address + (block * WARPGROUP_SIZE + threadIdx.x % WARPGROUP_SIZE) * 16;
  }
};

// The warpgroup that computes the weights and dv.
struct ValueWarpgroup : Warpgroup {
  Scores scores;  // scores, then weights
  ScoreOperand weights;
  QuerySumBlocks dq;
  f32 dv[1][HEAD_V / 8][4];

  __device__ __forceinline__ void add_queries(f32 factor) {
    const ScoreGradients gradients = {memory.gradients};
    Walk walk(place);
    clear_missing_keys();
    QueryStage stage = await_queries(walk.tile);
    start_scores(scores, memory.k, 0, stage.q(), 0);
    wgmma_wait<0>();
#pragma unroll 1
    for (i32 step = 0; step < place.steps; ++step) {
      hold_all(scores);
      stage.terms(0).make_weights(factor, scores);
      memory.queries.release();
      mask(place.band, walk.tile * TILE_Q, place.first_key() + warp_key, scores);
      Weights{memory.weights}.put(scores);
      named_barrier_arrive(WEIGHTS_BARRIER, CONSUMER_THREADS);
      round(Tag<WEIGHT_TYPE>(), scores, weights);
      start_values(dv, weights, await_outputs(walk.tile), 0);
      share_gradients();
      start_queries(dq, gradients, 0);
      wgmma_wait<0>();
      hold_all(dq);
      memory.outputs.release();
      pass_sums(dq, place.first_step + step, 0);
      start_queries(dq, gradients, 1);
      wgmma_wait<0>();
      hold_all(dq);
      if (step + 1 < place.steps) {
        walk.advance();
        stage = await_queries(walk.tile);
      } else {
        stage = idle_queries();
      }
      // After the last tile this product is not used: with a condition ptxas would serialise the multiplications.
      start_scores(scores, memory.k, 0, stage.q(), 0);
      pass_sums(dq, place.first_step + step, 1);
      wgmma_wait<0>();
    }
    hold_all(dv);
  }
};

// The warpgroup that computes the gradients of the scores and dk.
struct KeyWarpgroup : Warpgroup {
  Scores weights, products;  // d_o v^T, then gradients of the scores
  ScoreOperand gradients;
  QuerySumBlocks dq;
  f32 dk[1][HEAD_QK / 8][4];

  __device__ __forceinline__ void add_queries(const Scaling& scaling) {
    const ScoreGradients shared_gradients = {memory.gradients};
    Walk walk(place);
    clear_missing_keys();
#pragma unroll 1
    for (i32 step = 0; step < place.steps; ++step, walk.advance()) {
      const QueryStage stage = await_queries(walk.tile);
      start_scores(products, memory.v, 0, await_outputs(walk.tile), 0);
      named_barrier(WEIGHTS_BARRIER, CONSUMER_THREADS);
      Weights{memory.weights}.get(weights);
      wgmma_wait<0>();
      hold_all(products);
      memory.outputs.release();
      multiply_all(products, scaling.of_d_weights());
      stage.terms(0).make_gradients(weights, products);
      // Products of keys that do not exist may be NaN.
      mask(place.band, walk.tile * TILE_Q, place.first_key() + warp_key, products);
      count_gradients(products);
      round(Tag<GRADIENT_TYPE>(), products, gradients);
      store(shared_gradients, warp_key, 0, gradients);
      start_keys(dk, gradients, stage.q(), 0);
      share_gradients();
      start_queries(dq, shared_gradients, 0);
      wgmma_wait<0>();
      hold_all(dq);
      memory.queries.release();
      pass_sums(dq, place.first_step + step, 0);
      start_queries(dq, shared_gradients, 1);
      wgmma_wait<0>();
      hold_all(dq);
      pass_sums(dq, place.first_step + step, 1);
    }
    hold_all(dk);
    store_largest_gradient();
  }
};

struct Consumer {
  static __device__ __forceinline__ void run(const Params& p, const Place& place, Memory& memory) {
    const i32 warp_key = threadIdx.x % WARPGROUP_SIZE / WARP_SIZE * 16;
    const Scaling scaling(p.problem);
    const KeyShare share = memory.own_share(p.keys);
    if (threadIdx.x < WARPGROUP_SIZE) {
      ValueWarpgroup own = {{p, place, memory, 0, warp_key}};
      set_zero(own.dv);
      if (place.steps > 0) own.add_queries(scaling.scores * LOG2_E);
      named_barrier(STORING_BARRIER, CONSUMER_THREADS);
      store_keys(p, p.dv, place, share, warp_key, memory.v, p.problem.size_v, OF_V, own.dv);
    } else {
      KeyWarpgroup own = {{p, place, memory, 1, warp_key}};
      set_zero(own.dk);
      if (place.steps > 0) own.add_queries(scaling);
      named_barrier(STORING_BARRIER, CONSUMER_THREADS);
      store_keys(p, p.dk, place, share, warp_key, memory.k, p.problem.size_qk, OF_K, own.dk);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  run_block<Consumer>(p, shared);
}
