// attention_forward_wgmma: o = output(weights(softmax(scores(q k^T))) v) with TMA and wgmma, for sm_90a, without the
// scores in memory.
//
// Block: tiles of TILE_Q queries of one head, one after the other (`Order`), warps specialised: warpgroups with 64 queries
// each multiply, the last warpgroup's first warp loads, the next tile's operands while this one's outputs are stored.
// What becomes of each query is attention_forward.cuh's; keys outside of the band are passed over.
// Tiles of TILE_KV keys and values go through two rings of STAGES stages: the producer waits until a stage is empty and
// starts its copies, which arrive at its `full` barrier; consumers arrive at `empty` when they have read it. A
// warpgroup multiplies the next tile's keys and this one's values in one go, and computes the softmax of the former
// while the latter runs; the weights go from its accumulators to the operand in registers. Warpgroups may take turns at
// it, so that the multiplications of one run beside the softmax of another.
// Memory: q, k, v as their tensor maps say: (elements of a head, rows, heads, batches), 16-bit elements.
// Shared memory (dynamic): TILE_Q rows of q, STAGES times TILE_KV rows of k, as many of v, the barriers.
// Launch: TILE_Q / 64 + 1 warpgroups, any number of blocks.
// Macros: HEAD_QK, those of attention_forward.cuh with WARP_Q = 16, STAGES, BLOCKS_PER_SM, PRODUCER_REGISTERS,
// CONSUMER_REGISTERS (0: as launched).
// Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", algorithm 2.

#include "generated.cuh"
#include "include/attention_forward.cuh"
#include "include/attention_wgmma.cuh"
#include "include/warpgroup.cuh"

typedef SwizzledRows<TILE_Q, HEAD_QK> Queries;
typedef SwizzledRows<TILE_KV, HEAD_QK> Keys;
typedef SwizzledRows<TILE_KV, HEAD_V> Values;

constexpr int CONSUMERS = TILE_Q / 64, CONSUMER_THREADS = CONSUMERS * WARPGROUP_SIZE;
constexpr int CONSUMER_WARPS = CONSUMER_THREADS / WARP_SIZE, THREADS = CONSUMER_THREADS + WARPGROUP_SIZE;
// Of heads that are not larger, a tile's softmax takes as long as its multiplications.
constexpr bool TAKES_TURNS = CONSUMERS > 1 && HEAD_QK <= 128 && HEAD_V <= 128;
constexpr u32 CLEARING_BARRIER = 1, TURN_BARRIER = 2;  // the latter and those behind it, for each warpgroup
static_assert(PARTS == 1 && TILE_Q % 64 == 0, "wgmma has 16 rows in each warp");

DEFINE_WGMMA(multiply_by_keys, TILE_KV, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_values, HEAD_V, f32.TYPE.TYPE)

// The tiles of all heads, in sections of heads whose keys and values the L2 cache holds: of a section first the last
// tiles of all heads, which have the most keys under a causal mask. Blocks take them in turns, forth and back, so that
// none has only large ones.
struct Order {
  u32 count;        // of tiles
  u32 heads;        // of all batches
  Divider section;  // tiles of one
  u32 section_heads;

  // The `turn`-th one of this block; `count` or more where it has none this turn.
  __device__ __forceinline__ u32 at(u32 turn) const {
    return turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  }

  __device__ __forceinline__ Place place(const Forward& p, u32 index) const {
    const u32 sections = section.divide(index), inside = index - sections * section.divisor;
    const u32 before = sections * section_heads, here = min(section_heads, heads - before);
    return Place(p, before + inside % here, inside / here);
  }
};

struct Params {
  TensorMap q, k, v;
  i32 k_sharing, v_sharing;  // heads of q that share one of k, of v
  i32 k_batches, v_batches;  // 1 where all share one
  Order order;
  Forward forward;
};

template <class Rows_> using Ring = TileRing<Rows_, STAGES, CONSUMER_WARPS>;

struct Memory {
  Queries q;
  Ring<Keys> keys;
  Ring<Values> values;
  u32 q_full, q_empty, q_parity = 0;

  __device__ __forceinline__ Memory(u32 shared)
      : q{shared}, keys{shared + Queries::BYTES}, values{keys.stages + Ring<Keys>::BYTES} {
    q_full = values.stages + Ring<Values>::BYTES;
    q_empty = q_full + MBARRIER_BYTES;
    keys.full = q_empty + MBARRIER_BYTES;
    values.full = keys.full + Ring<Keys>::BARRIER_BYTES;
    if (threadIdx.x == 0) {
      mbarrier_init(q_full, 1);
      mbarrier_init(q_empty, CONSUMER_WARPS);
      keys.init();
      values.init();
      mbarrier_fence_init();
    }
    __syncthreads();
  }
};

// One thread: all copies of a tile of queries.
__device__ __forceinline__ void produce(const Params& p, const Place& place, Memory& memory) {
  if (place.begin >= place.end) return;
  const MappedHead k = {p.k, place.head / p.k_sharing, min(place.batch, p.k_batches - 1)};
  const MappedHead v = {p.v, place.head / p.v_sharing, min(place.batch, p.v_batches - 1)};
  mbarrier_wait(memory.q_empty, memory.q_parity ^ 1);
  memory.q.load({p.q, place.head, place.batch}, place.block_row, memory.q_full);
  memory.q_parity ^= 1;
  for (i32 tile = place.begin; tile < place.end; tile = place.next(p.forward, tile + 1)) {
    memory.keys.load(k, tile * TILE_KV);
    memory.values.load(v, tile * TILE_KV);
  }
}

// A warpgroup's queries on their way along the keys. Its multiplications run beside the program between `start` and
// `end` of each.
struct Consumer {
  const Forward& p;
  const Place& place;
  const Rows rows;
  const u32 warpgroup;
  Memory& memory;
  ScoreTile scores;
  u32 weights[SCORE_BLOCKS / 2][4];
  OutputTile o = {};
  RunningSoftmax softmax;

  __device__ __forceinline__ Consumer(const Forward& p, const Place& place, Memory& memory)
      : p(p),
        place(place),
        rows{place.warp_row},
        warpgroup(threadIdx.x / WARPGROUP_SIZE),
        memory(memory),
        softmax(p.scale) {}

  __device__ __forceinline__ void run() {
    softmax.add_sink(p, place, rows);
    if (place.begin < place.end) {
      f32 shrinking[PARTS][2];
      mbarrier_wait(memory.q_full, memory.q_parity);
      memory.q_parity ^= 1;
      start_keys();
      end_keys<0>();
      add_scores(place.begin, shrinking);  // nothing is there to shrink yet
      make_weights(place.begin);
      if (warpgroup == CONSUMERS - 1 && place.begin + 1 < place.end) pass_turn();
      i32 before = place.begin;
#pragma unroll 1
      for (i32 tile = place.next(p, before + 1); tile < place.end; tile = place.next(p, before + 1)) {
        await_turn();
        start_keys();
        start_values(before);
        if (warpgroup < CONSUMERS - 1 || tile + 1 < place.end) pass_turn();
        end_keys<1>();
        const bool shrinks = add_scores(tile, shrinking);
        end_values();
        if (shrinks) shrink(o, shrinking);
        make_weights(tile);
        before = tile;
      }
      if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(memory.q_empty);
      start_values(before);
      end_values();
    }
    softmax.end();
    store_output(p, place, rows, softmax, o);
  }

 private:
  __device__ __forceinline__ void await_turn() const {
    if constexpr (TAKES_TURNS) named_barrier(TURN_BARRIER + warpgroup, 2 * WARPGROUP_SIZE);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (TAKES_TURNS) named_barrier_arrive(TURN_BARRIER + (warpgroup + 1) % CONSUMERS, 2 * WARPGROUP_SIZE);
  }

  // scores = q k^T of the next tile of keys.
  __device__ __forceinline__ void start_keys() {
    const Keys keys = memory.keys.wait();
    const int row = warpgroup * 64;
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < HEAD_QK; element += 16) {
      multiply_by_keys<false, false>(flat(scores), memory.q.k_major(row, element), keys.k_major(0, element),
                                     element > 0);
    }
    wgmma_commit();
  }
  template <int PENDING> __device__ __forceinline__ void end_keys() {
    wgmma_wait<PENDING>();
    hold_all(scores);
    memory.keys.release();
  }

  // o += weights v of the next tile of values, which is `tile`.
  __device__ __forceinline__ void start_values(i32 tile) {
    const Values values = memory.values.wait();
#if HAS_LENGTHS
    clear_beyond_length(values, tile);
#endif
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < SCORE_BLOCKS / 2; ++step) {
      multiply_by_values<true>(flat(o), weights[step], values.mn_major(step * 16), true);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void end_values() {
    wgmma_wait<0>();
    hold_all(o);
    hold_all(scores);  // the weights are not overwritten earlier
    memory.values.release();
  }

  // Values beyond a batch's length have weights of 0, but may be anything: NaN, too.
  __device__ __forceinline__ void clear_beyond_length(const Values& values, i32 tile) const {
    const i32 existing = place.band.keys - tile * TILE_KV;
    if (existing >= TILE_KV) return;
    values.clear(existing, threadIdx.x, CONSUMER_THREADS);
    named_barrier(CLEARING_BARRIER, CONSUMER_THREADS);
  }

  __device__ __forceinline__ bool add_scores(i32 tile, f32 (&shrinking)[PARTS][2]) {
    make_scores(p, place, rows, tile, scores);
    return softmax.add(scores, shrinking);
  }

  __device__ __forceinline__ void make_weights(i32 tile) {
#pragma unroll
    for (int step = 0; step < SCORE_BLOCKS / 2; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = step * 2 + i / 2, half = i % 2;
        weights[step][i] = weights_of(p, place, rows, tile, 0, half, block, scores[0][block] + half * 2);
        make_ready(weights[step][i]);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  Memory memory(shared_address(shared));
  const auto for_each_tile = [&](auto&& handle) {
#pragma unroll 1
    for (u32 turn = 0; turn * gridDim.x < p.order.count; ++turn) {
      const u32 index = p.order.at(turn);
      if (index < p.order.count) handle(p.order.place(p.forward, index));
    }
  };
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  if (warp >= CONSUMER_WARPS) {
    if constexpr (CONSUMER_REGISTERS > 0) release_registers<PRODUCER_REGISTERS>();
    if (warp == CONSUMER_WARPS && elect_one()) {
      for_each_tile([&](const Place& place) { produce(p, place, memory); });
    }
  } else {
    if constexpr (CONSUMER_REGISTERS > 0) take_registers<CONSUMER_REGISTERS>();
    for_each_tile([&](const Place& place) { Consumer(p.forward, place, memory).run(); });
  }
}
