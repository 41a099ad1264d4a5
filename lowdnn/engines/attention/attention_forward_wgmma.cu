// attention_forward_wgmma: o = output(weights(softmax(scores(q k^T))) v) with TMA and wgmma, for sm_90a, without the
// scores in memory.
//
// Block: tiles of TILE_Q queries of one head, one after the other (`Order`), warps specialised: warpgroups with 64 queries
// each multiply, the last warpgroup's first warp loads. What becomes of each query is attention_forward.cuh's; keys
// outside of the band are passed over.
// Tiles of queries go through a ring of QUERY_STAGES stages, those of TILE_KV keys and values through rings of STAGES:
// the producer waits until a stage is empty and starts its copies, which arrive at its `full` barrier; consumers arrive
// at `empty` when they have read it. A warpgroup multiplies the next tile's keys and this one's values in one go, be
// they those of the next queries or not, and computes the softmax of the former while the latter runs; the weights go
// from its accumulators to the operand in registers. Warpgroups may take turns at
// it, so that the multiplications of one run beside the softmax of another.
// Memory: q, k, v as their tensor maps say: (elements of a head, rows, heads, batches), 16-bit elements.
// Shared memory (dynamic): QUERY_STAGES times TILE_Q rows of q, STAGES times TILE_KV rows of k, as many of v, the
// barriers.
// Launch: TILE_Q / 64 + 1 warpgroups, any number of blocks.
// Macros: HEAD_QK, those of attention_forward.cuh with WARP_Q = 16, QUERY_STAGES, STAGES, BLOCKS_PER_SM, PRODUCER_REGISTERS,
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

// The tiles of all heads, in sections of heads that blocks work on at a time, so that they share keys and values in the
// L2 cache: of a section first the last tiles of all heads, which have the most keys under a causal mask. Blocks take
// them in turns, forth and back, so that none has only large ones.
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

template <class Rows_, int COUNT> using Ring = TileRing<Rows_, COUNT, CONSUMER_WARPS>;

struct Memory {
  Ring<Queries, QUERY_STAGES> queries;
  Ring<Keys, STAGES> keys;
  Ring<Values, STAGES> values;

  __device__ __forceinline__ explicit Memory(u32 shared)
      : queries{shared}, keys{shared + queries.BYTES}, values{keys.stages + keys.BYTES} {
    queries.full = values.stages + values.BYTES;
    keys.full = queries.full + queries.BARRIER_BYTES;
    values.full = keys.full + keys.BARRIER_BYTES;
    if (threadIdx.x == 0) {
      queries.init();
      keys.init();
      values.init();
      mbarrier_fence_init();
    }
    __syncthreads();
  }
};

// The tiles of queries of this block.
struct Walk {
  const Params& p;
  u32 turn = 0;

  // Moves to the next one that sees a key, if there is any; those before it are given to `skipped`.
  template <class Skipped> __device__ __forceinline__ bool next(Place& place, const Skipped& skipped) {
#pragma unroll 1
    for (; turn * gridDim.x < p.order.count; ++turn) {
      const u32 index = p.order.at(turn);
      if (index >= p.order.count) continue;
      const Place here = p.order.place(p.forward, index);
      if (here.begin < here.end) {
        place = here;
        ++turn;
        return true;
      }
      skipped(here);
    }
    return false;
  }
};

// One thread: all copies of the block.
__device__ __forceinline__ void produce(const Params& p, Memory& memory) {
  Walk walk{p};
  Place place;
#pragma unroll 1
  while (walk.next(place, [](const Place&) {})) {
    const MappedHead k = {p.k, place.head / p.k_sharing, min(place.batch, p.k_batches - 1)};
    const MappedHead v = {p.v, place.head / p.v_sharing, min(place.batch, p.v_batches - 1)};
    memory.queries.load(MappedHead{p.q, place.head, place.batch}, place.block_row);
#pragma unroll 1
    for (i32 tile = place.begin; tile < place.end; tile = place.next(p.forward, tile + 1)) {
      memory.keys.load(k, tile * TILE_KV);
      memory.values.load(v, tile * TILE_KV);
    }
  }
}

// A warpgroup's queries on their way along the keys. Its multiplications run beside the program between `start` and
// `end` of each.
struct Consumer {
  const Forward& p;
  Memory& memory;
  Walk walk;
  const u32 warpgroup;
  Place place;  // of the queries whose scores are next
  Queries queries;
  ScoreTile scores;
  u32 weights[SCORE_BLOCKS / 2][4];
  OutputTile o;
  RunningSoftmax softmax;

  __device__ __forceinline__ Consumer(const Params& params, Memory& memory)
      : p(params.forward),
        memory(memory),
        walk{params},
        warpgroup(threadIdx.x / WARPGROUP_SIZE),
        softmax(params.forward.scale) {}

  __device__ __forceinline__ void run() {
    if (!next_queries()) return;
    f32 shrinking[PARTS][2];
    queries = memory.queries.wait();
    start_keys();
    end_keys<0>(place.begin);
    if (warpgroup == CONSUMERS - 1) pass_turn();
#pragma unroll 1
    for (;;) {
      begin_rows();
      add_scores(place.begin, shrinking);  // nothing is there to shrink yet
      make_weights(place.begin);
      i32 before = place.begin;
#pragma unroll 1
      for (i32 tile = place.next(p, before + 1); tile < place.end; tile = place.next(p, before + 1)) {
        await_turn();
        start_keys();
        start_values(place, before);
        pass_turn();
        end_keys<1>(tile);
        const bool shrinks = add_scores(tile, shrinking);
        end_values();
        if (shrinks) shrink(o, shrinking);
        make_weights(tile);
        before = tile;
      }
      const Place done = place;
      if (!next_queries()) break;
      queries = memory.queries.wait();
      await_turn();
      start_keys();
      start_values(done, done.end - 1);
      pass_turn();
      end_keys<1>(place.begin);
      end_values();
      store(done);
    }
    start_values(place, place.end - 1);
    end_values();
    store(place);
    if (warpgroup == 0) await_turn();
  }

 private:
  __device__ __forceinline__ void await_turn() const {
    if constexpr (TAKES_TURNS) named_barrier(TURN_BARRIER + warpgroup, 2 * WARPGROUP_SIZE);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (TAKES_TURNS) named_barrier_arrive(TURN_BARRIER + (warpgroup + 1) % CONSUMERS, 2 * WARPGROUP_SIZE);
  }

  // Queries that see no key have outputs, too.
  __device__ __forceinline__ bool next_queries() {
    return walk.next(place, [&](const Place& skipped) {
      RunningSoftmax none(p.scale);
      none.add_sink(p, skipped, rows_of(skipped));
      none.end();
      const OutputTile zeros = {};
      store_output(p, skipped, rows_of(skipped), none, zeros);
    });
  }

  __device__ __forceinline__ static Rows rows_of(const Place& place) { return {place.warp_row}; }

  __device__ __forceinline__ void begin_rows() {
    softmax = RunningSoftmax(p.scale);
    softmax.add_sink(p, place, rows_of(place));
#pragma unroll
    for (int i = 0; i < OUTPUT_BLOCKS * 4; ++i) flat(o)[i] = 0;
  }

  __device__ __forceinline__ void store(const Place& place) {
    softmax.end();
    store_output(p, place, rows_of(place), softmax, o);
  }

  // scores = q k^T of the next tile of keys.
  __device__ __forceinline__ void start_keys() {
    const Keys keys = memory.keys.wait();
    const int row = warpgroup * 64;
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < HEAD_QK; element += 16) {
      multiply_by_keys<false, false>(flat(scores), queries.k_major(row, element), keys.k_major(0, element),
                                     element > 0);
    }
    wgmma_commit();
  }
  // Of the tile `tile`.
  template <int PENDING> __device__ __forceinline__ void end_keys(i32 tile) {
    wgmma_wait<PENDING>();
    hold_all(scores);
    memory.keys.release();
    if (tile + 1 == place.end) memory.queries.release();
  }

  // o += weights v of the next tile of values, which is the tile `tile` of the keys of `place`.
  __device__ __forceinline__ void start_values(const Place& place, i32 tile) {
    const Values values = memory.values.wait();
#if HAS_LENGTHS
    clear_beyond_length(values, place.band.keys - tile * TILE_KV);
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
  __device__ __forceinline__ void clear_beyond_length(const Values& values, i32 existing) const {
    if (existing >= TILE_KV) return;
    values.clear(existing, threadIdx.x, CONSUMER_THREADS);
    named_barrier(CLEARING_BARRIER, CONSUMER_THREADS);
  }

  __device__ __forceinline__ bool add_scores(i32 tile, f32 (&shrinking)[PARTS][2]) {
    make_scores(p, place, rows_of(place), tile, scores);
    return softmax.add(scores, shrinking);
  }

  __device__ __forceinline__ void make_weights(i32 tile) {
#pragma unroll
    for (int step = 0; step < SCORE_BLOCKS / 2; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = step * 2 + i / 2, half = i % 2;
        weights[step][i] = weights_of(p, place, rows_of(place), tile, 0, half, block, scores[0][block] + half * 2);
        make_ready(weights[step][i]);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  Memory memory(shared_address(shared));
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  if (warp >= CONSUMER_WARPS) {
    if constexpr (CONSUMER_REGISTERS > 0) release_registers<PRODUCER_REGISTERS>();
    if (warp == CONSUMER_WARPS && elect_one()) produce(p, memory);
  } else {
    if constexpr (CONSUMER_REGISTERS > 0) take_registers<CONSUMER_REGISTERS>();
    Consumer(p, memory).run();
  }
}
