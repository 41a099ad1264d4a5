// attention_forward_wgmma: o = output(weights(softmax(scores(q k^T))) v) with TMA and wgmma, for sm_90a, without the
// scores in memory.
//
// Block: tiles of TILE_Q queries of one head, one after the other, warps specialised: warpgroups with 64 queries each
// multiply, the last warpgroup's first warp loads. What becomes of each query is attention_forward.cuh's; keys outside
// of the band are passed over.
// Tiles of queries go through a ring of QUERY_STAGES stages (`Order` says which ones), those of TILE_KV keys and values
// through rings of STAGES: the producer waits until a stage is empty and starts its copies, which arrive at its `full`
// barrier; consumers arrive at `empty` when they have read it. A warpgroup multiplies the next tile's keys and this
// one's values in one go, be the former those of the next queries or not, and computes the softmax of the former while
// the latter runs; the weights go from its accumulators to the operand in registers. Warpgroups may take turns at it, so
// that the multiplications of one run beside the softmax of another. Of fp8, the last warpgroup's other warps transpose
// values from one ring into another.
// Memory: q, k, v as their tensor maps say: (elements of a head, rows, heads, batches), 16-bit or fp8 elements.
// Shared memory (dynamic): QUERY_STAGES times TILE_Q rows of q, STAGES times TILE_KV rows of k, as many of v, of fp8
// those transposed too, the barriers.
// Launch: TILE_Q / 64 + 1 warpgroups, any number of blocks.
// Macros: HEAD_QK, those of attention_forward.cuh with WARP_Q = 16, TAKES_TURNS, QUERY_STAGES, STAGES, BLOCKS_PER_SM,
// PRODUCER_REGISTERS, CONSUMER_REGISTERS (0: as launched).
// Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", algorithm 2.

#include "generated.cuh"
#include "include/attention_forward.cuh"
#include "include/attention_wgmma.cuh"
#include "include/dependent_launch.cuh"
#include "include/warpgroup.cuh"
#if IS_FP8
#include "include/attention_weights_fp8.cuh"
#else
#include "include/attention_weights_16.cuh"
#endif

typedef SwizzledRows<TILE_Q, HEAD_QK, sizeof(T)> Queries;
typedef SwizzledRows<TILE_KV, HEAD_QK, sizeof(T)> Keys;

constexpr int CONSUMERS = TILE_Q / 64, CONSUMER_THREADS = CONSUMERS * WARPGROUP_SIZE;
constexpr int CONSUMER_WARPS = CONSUMER_THREADS / WARP_SIZE, THREADS = CONSUMER_THREADS + WARPGROUP_SIZE;
constexpr u32 CLEARING_BARRIER = 1, TURN_BARRIER = 2;  // the latter and those behind it, for each warpgroup
static_assert(PARTS == 1 && TILE_Q % 64 == 0, "wgmma has 16 rows in each warp");

// A tile of queries of a head; the number of tiles or more: none.
struct Work {
  u32 head, tile;
};

// Which ones this block has, one each turn. In sections of heads the last tiles, which have the most keys under a causal
// mask, come first, and blocks take them in turns, forth and back. In pairs, one tile from either end of a head, they
// come head by head.
struct Order {
  u32 turns;          // of a block
  u32 tiles, heads;   // of a head, of all batches
  u32 section_heads;  // 0: in pairs
  Divider section;    // tiles of one, or pairs of a head

  __device__ __forceinline__ Work at(u32 turn) const {
    const bool is_second = turn % 2;
    if (section_heads == 0) {
      const u32 unit = turn / 2 * gridDim.x + blockIdx.x, head = section.divide(unit);
      const u32 first = unit - head * section.divisor, second = tiles - 1 - first;
      const bool exists = head < heads && !(is_second && first == second);
      return {head, !exists ? tiles : is_second ? second : first};
    }
    const u32 index = turn * gridDim.x + (is_second ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const u32 before = section.divide(index) * section_heads, inside = index - before * tiles;
    if (before >= heads) return {0, tiles};
    const u32 here = min(section_heads, heads - before);
    return {before + inside % here, inside / here};
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

// Queries in shared memory, and whose they are.
struct QueryTile {
  static constexpr int BYTES = Queries::BYTES + 1024;

  u32 address;

  __device__ __forceinline__ Queries rows() const { return {address}; }
  __device__ __forceinline__ Work work() const {
    return {load_shared_32(address + Queries::BYTES), load_shared_32(address + Queries::BYTES + 4)};
  }

  // One thread.
  __device__ __forceinline__ void load(const Params& p, const Work& work, const Place& place, u32 barrier) const {
    store(work);
    mbarrier_expect(barrier, Queries::BYTES);
    rows().copy({p.q, place.head, place.batch}, place.block_row, barrier);
  }
  __device__ __forceinline__ void load(const Work& none, u32 barrier) const {
    store(none);
    mbarrier_expect(barrier, 0);
  }

 private:
  __device__ __forceinline__ void store(const Work& work) const {
    store_shared_32(address + Queries::BYTES, work.head);
    store_shared_32(address + Queries::BYTES + 4, work.tile);
  }
};

struct Memory {
  Ring<QueryTile, QUERY_STAGES> queries;
  Ring<Keys, STAGES> keys;
#if IS_FP8
  TileRing<Values, STAGES, CONSUMER_WARPS, TRANSPOSERS> values;
  TileRing<LoadedValues, STAGES, TRANSPOSERS> loaded_values;
#else
  Ring<Values, STAGES> values;
#endif

  __device__ __forceinline__ explicit Memory(u32 shared)
      : queries{shared}, keys{shared + queries.BYTES}, values{keys.stages + keys.BYTES} {
    queries.full = values.stages + values.BYTES;
#if IS_FP8
    loaded_values.stages = queries.full;
    queries.full += loaded_values.BYTES;
#endif
    keys.full = queries.full + queries.BARRIER_BYTES;
    values.full = keys.full + keys.BARRIER_BYTES;
#if IS_FP8
    loaded_values.full = values.full + values.BARRIER_BYTES;
#endif
    if (threadIdx.x == 0) {
      queries.init();
      keys.init();
      values.init();
#if IS_FP8
      loaded_values.init();
#endif
      mbarrier_fence_init();
    }
    __syncthreads();
  }
};

// f(work, place) of each of the block's tiles of queries, one after the other.
template <class F>
__device__ __forceinline__ void for_each_tile_of_queries(const Order& order, const Forward& p, const F& f) {
#pragma unroll 1
  for (u32 turn = 0; turn < order.turns; ++turn) {
    const Work work = order.at(turn);
    if (work.tile < order.tiles) f(work, Place(p, work.head, work.tile));
  }
}

// One thread: all copies of the block, then how many tiles of queries saw no key.
__device__ __forceinline__ void produce(const Params& p, Memory& memory) {
#if IS_FP8
  auto& values = memory.loaded_values;
#else
  auto& values = memory.values;
#endif
  u32 passed_over = 0;
  for_each_tile_of_queries(p.order, p.forward, [&](const Work& work, const Place& place) {
    if (place.begin >= place.end) {
      ++passed_over;
      return;
    }
    memory.queries.load(p, work, place);
    const MappedHead k = {p.k, place.head / p.k_sharing, min(place.batch, p.k_batches - 1)};
    const MappedHead v = {p.v, place.head / p.v_sharing, min(place.batch, p.v_batches - 1)};
#pragma unroll 1
    for (i32 tile = place.begin; tile < place.end; tile = place.next(p.forward, tile + 1)) {
      memory.keys.load(k, tile * TILE_KV);
      values.load(v, tile * TILE_KV);
    }
  });
  memory.queries.load(Work{passed_over, p.order.tiles});
}

// By `threads` threads, this one the `thread`-th. Values beyond a batch's length have weights of 0, but may be
// anything: NaN, too.
__device__ __forceinline__ void clear_beyond_length(const Place& place, const LoadedValues& values, i32 tile,
                                                    u32 thread, u32 threads) {
#if HAS_LENGTHS
  const i32 existing = place.band.keys - tile * TILE_KV;
  if (existing >= TILE_KV) return;
  values.clear(existing, thread, threads);
  named_barrier(CLEARING_BARRIER, threads);
#endif
}

#if IS_FP8
// The warps of TRANSPOSERS: all values of the block.
__device__ __forceinline__ void transpose_all(const Params& p, Memory& memory) {
  const u32 thread = threadIdx.x - (THREADS - TRANSPOSERS * WARP_SIZE);
  for_each_tile_of_queries(p.order, p.forward, [&](const Work&, const Place& place) {
#pragma unroll 1
    for (i32 tile = place.begin; tile < place.end; tile = place.next(p.forward, tile + 1)) {
      const LoadedValues loaded = memory.loaded_values.wait();
      clear_beyond_length(place, loaded, tile, thread, TRANSPOSERS * WARP_SIZE);
      transpose(loaded, memory.values.wait_empty(), thread / WARP_SIZE, TRANSPOSERS);
      memory.loaded_values.release();
      memory.values.hand_over();
    }
  });
}
#endif

// A warpgroup's queries on their way along the keys. Its multiplications run beside the program between `start` and
// `end` of each.
struct Consumer {
  const Forward& p;
  Memory& memory;
  const Order& order;
  const u32 warpgroup;
  Place place;
  ScoreTile scores;
  WeightTile weights;
  OutputTile o;
  RunningSoftmax softmax;

  __device__ __forceinline__ Consumer(const Params& params, Memory& memory)
      : p(params.forward),
        memory(memory),
        order(params.order),
        warpgroup(threadIdx.x / WARPGROUP_SIZE),
        softmax(params.forward.score_scale()) {}

  __device__ __forceinline__ void run() {
    if (has_queries()) add_all();
    if (memory.queries.wait().work().head > 0) store_passed_over();
  }

 private:
  // The queries that see a key, one tile of them after the other.
  __device__ __forceinline__ void add_all() {
    f32 shrinking[PARTS][2];
    start_keys();
    end_keys<0>();
    if (warpgroup == CONSUMERS - 1) pass_turn();
#pragma unroll 1
    for (;;) {
      begin_rows();
      add_scores(place.begin, shrinking);  // nothing is there to shrink yet
      make_weights(p, place, rows(), place.begin, scores, weights);
      i32 before = place.begin;
#pragma unroll 1
      for (i32 tile = place.next(p, before + 1); tile < place.end; tile = place.next(p, before + 1)) {
        await_turn();
        start_keys();
        start_values(before);
        pass_turn();
        end_keys<1>();
        release_queries(tile);
        const bool shrinks = add_scores(tile, shrinking);
        end_softmax();
        end_values();
        if (shrinks) shrink(o, shrinking);
        make_weights(p, place, rows(), tile, scores, weights);
        before = tile;
      }
      if (!has_queries()) break;
      await_turn();
      start_keys();
      start_values(place.end - 1);
      pass_turn();
      end_keys<1>();
      end_values();
      store();
    }
    start_values(place.end - 1);
    end_values();
    store();
    if (warpgroup == 0) await_turn();
  }

  // The others have outputs, too.
  __device__ __forceinline__ void store_passed_over() {
    for_each_tile_of_queries(order, p, [&](const Work&, const Place& other) {
      if (other.begin < other.end) return;
      begin_rows(other);
      store();
    });
  }

  __device__ __forceinline__ void await_turn() const {
    if constexpr (TAKES_TURNS) named_barrier(TURN_BARRIER + warpgroup, 2 * WARPGROUP_SIZE);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (TAKES_TURNS) named_barrier_arrive(TURN_BARRIER + (warpgroup + 1) % CONSUMERS, 2 * WARPGROUP_SIZE);
  }

  // Whether there are queries still; waits for them.
  __device__ __forceinline__ bool has_queries() const { return memory.queries.wait().work().tile < order.tiles; }

  __device__ __forceinline__ Rows rows() const { return {place.warp_row}; }

  // From here on those that have been multiplied last.
  __device__ __forceinline__ void begin_rows() {
    const Work work = memory.queries.wait().work();
    begin_rows(Place(p, work.head, work.tile));
    release_queries(place.begin);
  }
  __device__ __forceinline__ void begin_rows(const Place& next) {
    place = next;
    softmax = RunningSoftmax(p.score_scale());
    softmax.add_sink(p, place, rows());
#pragma unroll
    for (int i = 0; i < OUTPUT_BLOCKS * 4; ++i) flat(o)[i] = 0;
  }

  __device__ __forceinline__ void store() {
    softmax.end();
    store_output(p, place, rows(), softmax, o);
  }

  // scores = q k^T of the next tile of keys.
  __device__ __forceinline__ void start_keys() {
    const Keys keys = memory.keys.wait();
    const Queries queries = memory.queries.rows().rows();
    const int row = warpgroup * 64;
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < HEAD_QK; element += 32 / sizeof(T)) {
      multiply_by_keys(scores, queries.k_major(row, element), keys.k_major(0, element), element > 0);
    }
    wgmma_commit();
  }
  template <int PENDING> __device__ __forceinline__ void end_keys() {
    wgmma_wait<PENDING>();
    hold_all(scores);
    memory.keys.release();
  }
  // When they have been multiplied by their last tile of keys.
  __device__ __forceinline__ void release_queries(i32 tile) {
    if (tile + 1 == place.end) memory.queries.release();
  }

  // o += weights v of the next tile of values, which is `tile`.
  __device__ __forceinline__ void start_values(i32 tile) {
    const Values values = memory.values.wait();
#if !IS_FP8
    clear_beyond_length(place, values, tile, threadIdx.x, CONSUMER_THREADS);
#endif
    wgmma_fence();
    multiply_by_values(o, weights, values);
    wgmma_commit();
  }
  // Before the product with values has ended: ptxas 13.0 puts half of the softmax behind that, unless something before
  // it needs the sums. The values have arrived, and sums are not negative.
  __device__ __forceinline__ void end_softmax() const {
    const bool is_negative = softmax.sum[0][0] < 0 || softmax.sum[0][1] < 0;
    mbarrier_wait(memory.values.own_full(), memory.values.at.parity ^ is_negative);
  }
  __device__ __forceinline__ void end_values() {
    wgmma_wait<0>();
    hold_all(o);
    hold_all(scores);  // the weights are not overwritten earlier
    memory.values.release();
  }

  __device__ __forceinline__ bool add_scores(i32 tile, f32 (&shrinking)[PARTS][2]) {
    make_scores(p, place, rows(), tile, scores);
    return softmax.add(scores, shrinking);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  Memory memory(shared_address(shared));
  if constexpr (AMAX_S || AMAX_O) wait_for_previous_kernel();  // until they are 0
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  if (warp >= CONSUMER_WARPS) {
    if constexpr (CONSUMER_REGISTERS > 0) release_registers<PRODUCER_REGISTERS>();
    if (warp == CONSUMER_WARPS && elect_one()) produce(p, memory);
#if IS_FP8
    if (warp > CONSUMER_WARPS) transpose_all(p, memory);
#endif
  } else {
    if constexpr (CONSUMER_REGISTERS > 0) take_registers<CONSUMER_REGISTERS>();
    Consumer(p, memory).run();
  }
}
