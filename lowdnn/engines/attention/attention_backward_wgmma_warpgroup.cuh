// The two multiplying warpgroups of attention's gradients on wgmma: the products that they start, the values that they
// hand on through shared memory, and the gradients of keys that they store.

#pragma once

#include "attention_backward_scaling.cuh"
#include "attention_backward_wgmma_memory.cuh"
#include "include/ptx/ldmatrix.cuh"

typedef f32 Scores[1][PART_QUERIES / 8][4];
typedef f32 QuerySumBlocks[1][QuerySums::BLOCKS][4];
typedef u32 ScoreOperand[PART_QUERIES / 16][4];

DEFINE_WGMMA(multiply_64_columns, 64, 16, f32.TYPE.TYPE)
DEFINE_WGMMA(multiply_head_columns, HEAD_QK, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_own, 64, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_queries, HEAD_QK, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_outputs, HEAD_V, f32.TYPE.TYPE)

// Adds gradients^T k to 64 columns of dq, or to all columns of a smaller head.
template <int NUMBERS>
__device__ __forceinline__ void multiply_by_keys(f32 (&dq)[NUMBERS], u64 gradients, u64 keys, bool accumulate) {
  if constexpr (NUMBERS == 64 / 2) multiply_64_columns<true, true>(dq, gradients, keys, accumulate);
  else multiply_head_columns<true, true>(dq, gradients, keys, accumulate);
}

// Rounds accumulators to 16 bits, as an operand in registers.
template <class To, int BLOCKS>
__device__ __forceinline__ void round(Tag<To>, const f32 (&values)[1][BLOCKS][4], u32 (&words)[BLOCKS / 2][4]) {
#pragma unroll
  for (int step = 0; step < BLOCKS / 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const f32* const pair = values[0][step * 2 + i / 2] + i % 2 * 2;
      words[step][i] = operand_word<To>(pair);
      make_ready(words[step][i]);
    }
  }
}

// Stores those operands as the elements from `element` on of 16 rows from `row` on.
template <class Rows, int STEPS>
__device__ __forceinline__ void store(const Rows& rows, int row, int element, const u32 (&words)[STEPS][4]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    stmatrix_x4(rows.at(row + lane % 16, element + step * 16 + lane / 16 * 8), words[step]);
  }
}

// Loads 16 rows from `row` on as an operand in registers, the inverse of `store`.
template <class Rows, int STEPS>
__device__ __forceinline__ void load(const Rows& rows, int row, u32 (&words)[STEPS][4]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    ldmatrix_x4(words[step], rows.at(row + lane % 16, step * 16 + lane / 16 * 8));
  }
}

// The state that all multiplying warpgroups have. Multiplications are asynchronous: they run from a call of start_...
// to a wgmma_wait.
struct Warpgroup {
  const Params& p;
  const Place& place;
  Memory& memory;
  i32 index;
  const i32 warp_key;  // index of the warp's first key among the block's keys

  // In fp8, keeps the warp's largest gradient of a score so far in shared memory, since no register is left for it.
  __device__ __forceinline__ void count_gradients(const Scores& gradients) const {
#if IS_FP8
    const u32 largest = largest_of_warp(largest_of(gradients)), own = own_largest();
    if (threadIdx.x % WARP_SIZE == 0) store_shared_32(own, ::max(load_shared_32(own), largest));
#endif
  }
  __device__ __forceinline__ void store_largest_gradient() const {
#if IS_FP8
    __syncwarp();
    const f32 factor = 1 / p.problem.fp8.value(SCALE_DP);
    store_largest(p.problem.fp8.largest[LARGEST_DP], load_shared_32(own_largest()), factor);
#endif
  }

  // Starts the products of 64 rows of `own`, keys or values, from `row` on with a part of a tile of queries.
  template <class Own, class Others>
  static __device__ __forceinline__ void start_scores(Scores& scores, const Own& own, int row, const Others& others,
                                                      int part) {
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < Own::SIZE; element += 16) {
      multiply_64_columns<false, false>(flat(scores), own.k_major(row, element),
                                        others.k_major(part * PART_QUERIES, element), element > 0);
    }
    wgmma_commit();
  }

  // Starts the same products where the own rows are in registers.
  template <int STEPS, class Others>
  static __device__ __forceinline__ void start_own(Scores& scores, const u32 (&own)[STEPS][4], const Others& others,
                                                   int part) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      multiply_own<false>(flat(scores), own[step], others.k_major(part * PART_QUERIES, step * 16), step > 0);
    }
    wgmma_commit();
  }

  // dv += weights d_o
  static __device__ __forceinline__ void start_values(f32 (&dv)[1][HEAD_V / 8][4], const ScoreOperand& weights,
                                                      const OutputGradients& d_o, int part) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < PART_QUERIES / 16; ++step) {
      multiply_by_outputs<true>(flat(dv), weights[step], d_o.mn_major(part * PART_QUERIES + step * 16), true);
    }
    wgmma_commit();
  }

  // dk += gradients q
  static __device__ __forceinline__ void start_keys(f32 (&dk)[1][HEAD_QK / 8][4], const ScoreOperand& gradients,
                                                    const Queries& q, int part) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < PART_QUERIES / 16; ++step) {
      multiply_by_queries<true>(flat(dk), gradients[step], q.mn_major(part * PART_QUERIES + step * 16), true);
    }
    wgmma_commit();
  }

  // dk += gradients q, where the gradients of the warpgroup's keys are in shared memory.
  __device__ __forceinline__ void start_keys(f32 (&dk)[1][HEAD_QK / 8][4], const ScoreGradients& gradients,
                                             const Queries& q, int part) const {
    wgmma_fence();
#pragma unroll
    for (int query = part * PART_QUERIES; query < (part + 1) * PART_QUERIES; query += 16) {
      multiply_head_columns<false, true>(flat(dk), gradients.k_major(index * 64, query), q.mn_major(query), true);
    }
    wgmma_commit();
  }

  // dq = gradients^T k, for the warpgroup's part of a pass
  __device__ __forceinline__ void start_queries(QuerySumBlocks& dq, const ScoreGradients& gradients, int pass) const {
    const int part = pass * CONSUMERS + index;
    const int queries = part / QuerySums::COLUMN_PARTS, columns = part % QuerySums::COLUMN_PARTS;
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < TILE_KV; key += 16) {
      multiply_by_keys(flat(dq), gradients.mn_major(key, queries), memory.k.mn_major(key, columns), key > 0);
    }
    wgmma_commit();
  }

  // A barrier of the multiplying warpgroups: after it each may multiply the gradients of scores that the others have
  // stored.
  static __device__ __forceinline__ void share_gradients() {
    fence_async_shared();
    named_barrier(GRADIENTS_BARRIER, CONSUMER_THREADS);
  }

  // Passes dq of one pass of a step to the adding warps.
  __device__ __forceinline__ void pass_sums(const QuerySumBlocks& dq, u32 step, int pass) const {
    u32 piece = (step * PASSES + pass) * PASS_PIECES;
    static_assert(QuerySums::SIDES == CONSUMERS, "warpgroups lie side by side");
    const u32 at = threadIdx.x * 16;
#pragma unroll
    for (int first = 0; first < QuerySums::BLOCKS; first += PIECE_BLOCKS, ++piece) {
      memory.sums.wait_empty(piece);
      const u32 to = memory.sums.stage(piece) + at;
#pragma unroll
      for (int block = 0; block < PIECE_BLOCKS; ++block) {
        const f32(&four)[4] = dq[0][first + block];
        store_shared_16(to + block * QuerySums::STEP * sizeof(f32), __float_as_uint(four[0]), __float_as_uint(four[1]),
                        __float_as_uint(four[2]), __float_as_uint(four[3]));
      }
      memory.sums.hand_over(piece);
    }
  }

  // Zeroes the rows of keys and values that do not exist, before they are multiplied.
  __device__ __forceinline__ void clear_missing_keys() const {
    clear_beyond(place.band.keys - place.first_key(), p.problem.keys - place.first_key(), memory.k);
  }

  // Waits for the next tile of queries, or of gradients of the output, and returns it.
  __device__ __forceinline__ QueryStage await_queries(i32 tile) const {
    return await_queries(tile, memory.queries.at.passed);
  }
  __device__ __forceinline__ QueryStage await_queries(i32 tile, u32 passed) const {
    const QueryStage stage = memory.queries.wait(passed);
    clear_beyond(place.band.queries - tile * TILE_Q, p.problem.queries - tile * TILE_Q, stage.q());
    return stage;
  }
  // Returns a tile of queries that no copy overwrites, for multiplications whose products are not used.
  __device__ __forceinline__ QueryStage idle_queries() const {
    static_assert(Queries::BYTES <= Keys::BYTES, "enough to read");
    return {memory.k.address};
  }
  __device__ __forceinline__ OutputGradients await_outputs(i32 tile) const {
    return await_outputs(tile, memory.outputs.at.passed);
  }
  __device__ __forceinline__ OutputGradients await_outputs(i32 tile, u32 passed) const {
    const OutputGradients d_o = memory.outputs.wait(passed);
    clear_beyond(place.band.queries - tile * TILE_Q, p.problem.queries - tile * TILE_Q, d_o);
    return d_o;
  }

 private:
  __device__ __forceinline__ u32 own_largest() const {
    return memory.largest + threadIdx.x / WARP_SIZE * u32(sizeof(u32));
  }

  // Rows past a batch's length have weights of 0, but may hold NaN, and 0 * NaN is NaN.
  template <class Rows> __device__ __forceinline__ void clear_beyond(i32 existing, i32 stored, const Rows& rows) const {
    if (existing >= min(stored, Rows::ROWS)) return;
    rows.clear(existing, threadIdx.x, CONSUMER_THREADS);
    named_barrier(CLEARING_BARRIER, CONSUMER_THREADS);
  }
};

// Zeroes the accumulators here, before the first multiplication; otherwise the compiler might do so while one runs.
template <int BLOCKS> __device__ __forceinline__ void set_zero(f32 (&d)[1][BLOCKS][4]) {
#pragma unroll
  for (int i = 0; i < BLOCKS * 4; ++i) d[0][i / 4][i % 4] = 0;
  hold_all(d);
}

// Stores the gradients of the warp's keys from their sums. Gradients of 16 bits go through `rows`, shared memory that
// is free by now, so that neighbouring lanes store neighbouring vectors. Where several blocks share the keys, the fp32
// sums go to the workspace.
template <class Params, class Out, class Rows, int BLOCKS>
__device__ __forceinline__ void store_keys(const Params& p, const Heads<Out>& to, const Place& place,
                                           const KeyShare& share, i32 warp_key, const Rows& rows, i32 size,
                                           Result result, f32 (&values)[1][BLOCKS][4]) {
  if constexpr (IS_SPLIT) {
    if (share.splits > 1) {
      typedef KeySumsOf<TILE_KV, BLOCKS * 8> Sums;
      const u32 index = share.split * p.keys.split_tiles() + share.tile - p.keys.whole_tiles;
      f32* const sums = (result == OF_K ? p.key_sums : p.value_sums) + i64(index) * Sums::NUMBERS;
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
        store<4>(sums + Sums::at(warp_key / 64, block, threadIdx.x % WARPGROUP_SIZE), values[0][block]);
      return;
    }
  }
  const f32 factor = factor_of(p.problem, result, values);
  Out* const head = to.at(place.batch, place.head, 0);
  const i32 first_key = place.first_key() + warp_key;
  if constexpr (sizeof(Out) == 2) {
    u32 words[BLOCKS / 2][4];
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; ++i) values[0][i / 4][i % 4] *= factor;
    round(Tag<Out>(), values, words);
    store(rows, warp_key, 0, words);
    __syncwarp();
#pragma unroll
    for (int i = threadIdx.x % WARP_SIZE; i < 16 * BLOCKS; i += WARP_SIZE) {
      const int row = i / BLOCKS, element = i % BLOCKS * 8;
      if (first_key + row >= p.problem.keys || element >= size) continue;
      const uint4 eight = load_shared_128(rows.at(warp_key + row, element));
      store_whole(head + (first_key + row) * to.strides[2] + element, eight);
    }
  } else {
    store_gradients(head, to.strides[2], first_key, p.problem.keys, 0, size, factor, values);
  }
}
