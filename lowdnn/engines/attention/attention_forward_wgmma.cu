// attention_forward_wgmma: o = output(weights(softmax(scores(q k^T))) v) with TMA and wgmma, for sm_90a, without the
// scores in memory.
//
// Block: persistent and warp-specialised; it takes one tile of TILE_Q queries of one head after the other. The consumer
// warpgroups multiply 64 queries each; in the last warpgroup, one thread of each warp loads. Scores, softmax and
// outputs are those of the headers of attention forward; tiles of keys outside the band are skipped. Tiles of queries
// go through a ring of QUERY_STAGES stages, in the order of attention_order.cuh; tiles of TILE_KV keys and values go
// through rings of STAGES stages. A ring's producer waits until a stage is empty and starts its copies, which arrive at
// its `full` barrier; consumers arrive at `empty` when they have read it. In each step a warpgroup issues two products
// together: q k^T of tile i + 1, which may belong to the next queries, and weights times v of tile i. It computes the
// softmax of tile i + 1 while the second one runs, in fp8 after it. Weights are an operand in registers. With
// TAKES_TURNS the warpgroups alternate (ping-pong): one computes its softmax while another's products run. In fp8 the
// last warpgroup's first warp loads all tiles, and its other warps transpose values from one ring into another.
// Memory: q, k, v as their places say, by tensor maps, 16-bit elements, or fp8 ones with strides. Copies bring whole
// tiles. Rows after the end of a packed sequence arrive as zeros; where values are not packed, consumers zero the rows
// after the length. Shared memory (dynamic): QUERY_STAGES times TILE_Q rows of q, STAGES times TILE_KV rows of k, as
// many of v, in fp8 as many of transposed v; barriers, numbers of rows; with packed sequences their order.
// Launch: TILE_Q / 64 + 1 warpgroups, any number of blocks, as a dependent launch (dependent_launch.cuh).
// Macros: HEAD_QK, those of attention_forward.cuh with WARP_Q = 16 and of attention_mapped_places.cuh, TAKES_TURNS,
// QUERY_STAGES, STAGES, BLOCKS_PER_SM, PRODUCER_REGISTERS, CONSUMER_REGISTERS (0: as launched).
// Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", algorithm 2.

#include "attention_forward.cuh"
#include "attention_forward_scores.cuh"
#include "attention_forward_store.cuh"
#include "attention_mapped_places.cuh"
#include "attention_order.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/warpgroup.cuh"
#if IS_FP8
#include "attention_weights_fp8.cuh"
#else
#include "attention_weights_16.cuh"
#endif

typedef SwizzledRows<TILE_Q, HEAD_QK, sizeof(T)> Queries;
typedef SwizzledRows<TILE_KV, HEAD_QK, sizeof(T)> Keys;

constexpr int CONSUMERS = TILE_Q / 64, CONSUMER_THREADS = CONSUMERS * WARPGROUP_SIZE;
constexpr int CONSUMER_WARPS = CONSUMER_THREADS / WARP_SIZE, THREADS = CONSUMER_THREADS + WARPGROUP_SIZE;
constexpr u32 CLEARING_BARRIER = 1;
constexpr u32 TURN_BARRIER = 2;  // barrier TURN_BARRIER + i is that of warpgroup i
static_assert(PARTS == 1 && TILE_Q % 64 == 0, "wgmma has 16 rows in each warp");

struct Params {
  MappedIn<Q_PLACE, TILE_Q>::Type q;
  MappedIn<K_PLACE, K_BOX>::Type k;
  MappedIn<V_PLACE, V_BOX>::Type v;
  Either<STORES_PACKED, PackedOrder, Order>::Type::Args order;  // the tiles of queries that the block takes
  Forward forward;
};

// Whether batches may have different numbers of queries or keys.
constexpr bool HAS_SEQUENCES = STORES_PACKED || HAS_LENGTHS || HAS_QUERY_LENGTHS;
// Whether consumers must zero values after the end of a sequence: copies bring what lies there, and a weight of 0 times
// NaN is NaN.
constexpr bool CUTS_VALUES = HAS_LENGTHS && V_PLACE != PACKED;

// Zeroes the rows from `existing` on. All of `threads` threads call it, `thread` is the caller's index, and it ends
// with a barrier of these.
template <class Rows_>
__device__ __forceinline__ void clear_from(const Rows_& rows, i32 existing, u32 thread = threadIdx.x,
                                           u32 threads = CONSUMER_THREADS) {
  if (existing >= Rows_::ROWS) return;
  rows.clear(existing, thread, threads);
  named_barrier(CLEARING_BARRIER, threads);
}

// A tile of queries in shared memory, and the Work (head and tile) that it belongs to.
struct QueryTile {
  static constexpr int BYTES = Queries::BYTES + 1024;

  u32 address;

  __device__ __forceinline__ Queries rows() const { return {address}; }
  __device__ __forceinline__ Work work() const { return {load_shared_32(note()), load_shared_32(note() + 4)}; }
  __device__ __forceinline__ Place place(const Forward& p) const {
    const Work own = work();
    if constexpr (!HAS_SEQUENCES) return Place(p, own.head, own.tile);
    return Place(p, own.head, own.tile, {i32(load_shared_32(note() + 8)), i32(load_shared_32(note() + 12))});
  }

  // One thread.
  template <class Head>
  __device__ __forceinline__ void load(const Head& from, const Work& work, const Place& place, u32 barrier) const {
    store(work);
    if constexpr (HAS_SEQUENCES) {
      store_shared_32(note() + 8, place.band.queries);
      store_shared_32(note() + 12, place.band.keys);
    }
    rows().load(from, place.block_row, barrier);
  }
  __device__ __forceinline__ void load(const Work& none, u32 barrier) const {
    store(none);
    mbarrier_expect(barrier, 0);
  }

 private:
  __device__ __forceinline__ u32 note() const { return address + Queries::BYTES; }
  __device__ __forceinline__ void store(const Work& work) const {
    store_shared_32(note(), work.head);
    store_shared_32(note() + 4, work.tile);
  }
};

// The ring of tiles of values as they are loaded; with CUTS_VALUES it also holds the number of existing rows in each
// tile.
struct LoadedRing : TileRing<Values, STAGES, CONSUMER_WARPS> {
  typedef TileRing<Values, STAGES, CONSUMER_WARPS> Tiles;
  static constexpr int BARRIER_BYTES = Tiles::BARRIER_BYTES + (CUTS_VALUES ? STAGES * 8 : 0);

  __device__ __forceinline__ void place_barriers(u32 address) { full = address; }

  // Loads the rows from `row` on; the producer calls it. end: the end of the rows that exist.
  template <class Head> __device__ __forceinline__ void load(const Head& from, i32 row, i32 end) {
    wait_empty();
    if constexpr (CUTS_VALUES) store_shared_32(existing(), max(end - row, 0));
    fill(from, row);
  }

  // Zeroes the next tile's rows after the length. All consumers call it before any of them reads the tile.
  __device__ __forceinline__ void clear() const {
    if constexpr (CUTS_VALUES) {
      const Values rows = wait();
      clear_from(rows, load_shared_32(existing()));
    }
  }

 private:
  __device__ __forceinline__ u32 existing() const { return full + Tiles::BARRIER_BYTES + at.stage() * 8; }
};

// Two rings of tiles of values: `loaded`, as copies bring them, and this one, into which TRANSPOSERS warps transpose
// them. These warps also zero rows after the length.
struct TransposedRing : TileRing<Values, STAGES, CONSUMER_WARPS, TRANSPOSERS> {
  typedef TileRing<Values, STAGES, CONSUMER_WARPS, TRANSPOSERS> Tiles;
  typedef TileRing<LoadedValues, STAGES, TRANSPOSERS> Loaded;
  static constexpr int BYTES = Tiles::BYTES + Loaded::BYTES;
  static constexpr int BARRIER_BYTES = Tiles::BARRIER_BYTES + Loaded::BARRIER_BYTES;

  Loaded loaded;

  __device__ __forceinline__ explicit TransposedRing(u32 address) : Tiles{address}, loaded{address + Tiles::BYTES} {}

  __device__ __forceinline__ void place_barriers(u32 address) {
    full = address;
    loaded.full = address + Tiles::BARRIER_BYTES;
  }
  __device__ __forceinline__ void init() const {
    Tiles::init();
    loaded.init();
  }

  // The producer calls it.
  template <class Head> __device__ __forceinline__ void load(const Head& from, i32 row, i32) { loaded.load(from, row); }

  __device__ __forceinline__ void clear() const {}
};
typedef Either<IS_FP8, TransposedRing, LoadedRing>::Type ValueRing;

struct Memory {
  TileRing<QueryTile, QUERY_STAGES, CONSUMER_WARPS> queries;
  TileRing<Keys, STAGES, CONSUMER_WARPS> keys;
  ValueRing values;

  __device__ __forceinline__ explicit Memory(u32 shared)
      : queries{shared}, keys{shared + queries.BYTES}, values{keys.stages + keys.BYTES} {
    queries.full = values.stages + values.BYTES;
    keys.full = queries.full + queries.BARRIER_BYTES;
    values.place_barriers(keys.full + keys.BARRIER_BYTES);
    if (threadIdx.x == 0) {
      queries.init();
      keys.init();
      values.init();
      mbarrier_fence_init();
    }
    __syncthreads();
  }

  __device__ __forceinline__ u32 end() const { return values.full + values.BARRIER_BYTES; }
};

// Calls f(work, place) for each tile of queries that the block takes.
template <class F>
__device__ __forceinline__ void for_each_tile_of_queries(const Params& p, const Memory& memory, const F& f) {
  const auto& order = order_of(p.forward, p.order, memory.end());
#pragma unroll 1
  for (u32 turn = 0; turn < order.turns; ++turn) {
    const Work work = order.at(turn);
    if (work.tile < order.tiles) f(work, Place(p.forward, work.head, work.tile));
  }
}

// Issues all of the block's copies to the chosen rings, in one thread. After the last tile of queries it passes an end
// mark: the number of tiles of queries that attend to no key, with a tile index past the end.
__device__ __forceinline__ void produce(const Params& p, Memory& memory, bool loads_queries, bool loads_keys,
                                        bool loads_values) {
  u32 passed_over = 0;
  for_each_tile_of_queries(p, memory, [&](const Work& work, const Place& place) {
    if (place.begin >= place.end) {
      ++passed_over;
      return;
    }
    if (loads_queries) {
      const i32 queries = p.q.existing_rows(place.batch, place.band.queries);
      memory.queries.load(p.q.at(place.batch, place.head, queries), work, place);
    }
    if (!loads_keys && !loads_values) return;
    const i32 keys = p.k.existing_rows(place.batch, place.band.keys);
    const i32 values = p.v.existing_rows(place.batch, place.band.keys);
    const auto k = p.k.at(place.batch, place.head, keys);
    const auto v = p.v.at(place.batch, place.head, values);
#pragma unroll 1
    for (i32 tile = place.begin; tile < place.end; tile = place.next(p.forward, tile + 1)) {
      if (loads_keys) memory.keys.load(k, tile * TILE_KV);
      if (loads_values) memory.values.load(v, tile * TILE_KV, values);
    }
  });
  if (loads_queries) memory.queries.load(Work{passed_over, p.forward.tiles.divisor});
}

// Transposes all tiles of values of the block, with TRANSPOSERS warps. Memory_: Memory, whose ring of values is a
// TransposedRing.
template <class Memory_> __device__ __forceinline__ void transpose_all(const Params& p, Memory_& memory) {
  constexpr u32 BESIDE = TRANSPOSERS * WARP_SIZE;
  const u32 thread = threadIdx.x - (THREADS - BESIDE);
  for_each_tile_of_queries(p, memory, [&](const Work&, const Place& place) {
#pragma unroll 1
    for (i32 tile = place.begin; tile < place.end; tile = place.next(p.forward, tile + 1)) {
      const LoadedValues loaded = memory.values.loaded.wait();
      if (HAS_LENGTHS) clear_from(loaded, place.band.keys - tile * TILE_KV, thread, BESIDE);
      transpose(loaded, memory.values.wait_empty(), thread / WARP_SIZE);
      memory.values.loaded.release();
      memory.values.hand_over();
    }
  });
}

// Runs the last warpgroup's warps. Each ring has its own producer warp, so that none waits for a free stage of another
// ring.
__device__ __forceinline__ void produce(const Params& p, Memory& memory, u32 warp) {
  if constexpr (IS_FP8) {
    if (warp > 0) transpose_all(p, memory);
    else if (elect_one()) produce(p, memory, true, true, true);
  } else {
    if (warp < 3 && elect_one()) produce(p, memory, warp == 0, warp == 1, warp == 2);
  }
}

// A consumer warpgroup. Its multiplications are asynchronous: each runs from its `start_` to its `end_`.
struct Consumer {
  const Params& params;
  const Forward& p;
  Memory& memory;
  const u32 warpgroup;
  Place place;
  ScoreTile scores;
  WeightTile weights;
  OutputTile o;
  RunningSoftmax softmax;

  __device__ __forceinline__ Consumer(const Params& params, Memory& memory)
      : params(params),
        p(params.forward),
        memory(memory),
        warpgroup(uniform(threadIdx.x / WARPGROUP_SIZE)),
        softmax(params.forward.score_scale()) {}

  __device__ __forceinline__ void run() {
    clear_output();
    if (has_queries()) add_all();
    if (memory.queries.wait().work().head > 0) store_passed_over();
  }

 private:
  // Queries whose keys are finished; `shares` are the factors of their outputs.
  struct EndedRows {
    Place place;
    Destination to;
    f32 shares[PARTS][2];
  };

  // Computes all tiles of queries that attend to some key.
  __device__ __forceinline__ void add_all() {
    f32 shrinking[PARTS][2];
    start_keys();
    begin_rows();
    end_keys<0>();
    if (warpgroup == CONSUMERS - 1) pass_turn();
    release_queries(place.begin);
    add_scores(place.begin, shrinking);  // no outputs have been computed yet
    make_weights(p, place, rows(), place.begin, scores, weights);
#pragma unroll 1
    for (;;) {
      add_tiles(place.next(p, place.begin + 1), shrinking);
      if (!has_queries()) break;
      start_next();
      const EndedRows ended = end_rows();
      begin_rows();
      end_keys<1>();
      release_queries(place.begin);
      add_scores(place.begin, shrinking);
      end_values();
      store(ended);
      make_weights(p, place, rows(), place.begin, scores, weights);
    }
    memory.values.clear();
    start_values();
    const EndedRows ended = end_rows();
    end_values();
    store(ended);
    if (warpgroup == 0) await_turn();
  }

  // Adds the tiles of keys from `tile` on. Tiles without a mask have their own loop: with a mask's instructions in it,
  // the compiler overlaps less.
  __device__ __forceinline__ void add_tiles(i32 tile, f32 (&shrinking)[PARTS][2]) {
    const i32 whole_begin = place.whole_begin(), whole_end = place.whole_end();
#pragma unroll 1
    while (tile < place.end) {
      if (!HAS_SCORES && !HAS_BLOCKS && tile >= whole_begin && tile < whole_end) {
#pragma unroll 1
        do {
          add_tile<true>(tile, shrinking);
        } while (++tile < whole_end);
      } else {
        add_tile<false>(tile, shrinking);
        tile = place.next(p, tile + 1);
      }
    }
  }
  template <bool IS_WHOLE> __device__ __forceinline__ void add_tile(i32 tile, f32 (&shrinking)[PARTS][2]) {
    start_next();
    end_keys<1>();
    release_queries(tile);
    const bool shrinks = add_scores<IS_WHOLE>(tile, shrinking);
    end_values();
    if (shrinks) scale_rows(o, shrinking);
    make_weights(p, place, rows(), tile, scores, weights);
  }

  // Stores the outputs of the tiles of queries that attend to no key.
  __device__ __forceinline__ void store_passed_over() {
    for_each_tile_of_queries(params, memory, [&](const Work&, const Place& other) {
      if (other.begin < other.end) return;
      begin_rows(other);
      store(end_rows());
    });
  }

  __device__ __forceinline__ void await_turn() const {
    if constexpr (TAKES_TURNS) named_barrier(TURN_BARRIER + warpgroup, 2 * WARPGROUP_SIZE);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (TAKES_TURNS) named_barrier_arrive(TURN_BARRIER + (warpgroup + 1) % CONSUMERS, 2 * WARPGROUP_SIZE);
  }

  // Waits for the next tile of queries; returns whether one has come.
  __device__ __forceinline__ bool has_queries() const {
    return memory.queries.wait().work().tile < p.tiles.divisor;
  }

  __device__ __forceinline__ Rows rows() const { return {place.warp_row}; }

  // Begins the next tile of queries.
  __device__ __forceinline__ void begin_rows() { begin_rows(memory.queries.wait().place(p)); }
  __device__ __forceinline__ void begin_rows(const Place& next) {
    place = next;
    softmax = RunningSoftmax(p.score_scale());
    softmax.add_sink(p, place, rows());
  }
  __device__ __forceinline__ EndedRows end_rows() {
    EndedRows ended = {place, Destination(p, place.batch)};
    softmax.end();
    store_rows(p, ended.to, place, rows(), softmax, ended.shares);
    return ended;
  }

  // Stores the outputs; the next tile's outputs may be accumulated afterwards.
  __device__ __forceinline__ void store(const EndedRows& ended) {
    scale_rows(o, ended.shares);
    store_output(p, ended.to, ended.place, {ended.place.warp_row}, o);
    clear_output();
  }
  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (int i = 0; i < OUTPUT_BLOCKS * 4; ++i) flat(o)[i] = 0;
  }

  // Starts scores = q k^T of the next tile of keys, which end_keys awaits, and o += weights v, which end_values awaits.
  __device__ __forceinline__ void start_next() {
    memory.values.clear();
    await_turn();
    start_keys();
    start_values();
    pass_turn();
  }

  // Starts scores = q k^T of the next tile of keys.
  __device__ __forceinline__ void start_keys() {
    const Keys keys = {uniform(memory.keys.wait().address)};
    const Queries queries = {uniform(memory.queries.rows().address)};
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
  // Releases the queries' stage when `tile` is their last tile of keys.
  __device__ __forceinline__ void release_queries(i32 tile) {
    if (tile + 1 == place.end) memory.queries.release();
  }

  // Starts o += weights v of the next tile of values.
  __device__ __forceinline__ void start_values() {
    const Values values = {uniform(memory.values.wait().address)};
    wgmma_fence();
    multiply_by_values(o, weights, values);
    wgmma_commit();
  }
  __device__ __forceinline__ void end_values() {
    if constexpr (!IS_FP8) {
      // This wait ends at once. Its branch keeps the assembler from moving the next wait before the softmax. In fp8 it
      // may move it, since that was faster on an H200.
      hold_all(scores);
      memory.values.wait();
    }
    wgmma_wait<0>();
    hold_all(o);
    hold_all(scores);  // keeps the compiler from overwriting the weights earlier
    memory.values.release();
  }

  template <bool IS_WHOLE = false>
  __device__ __forceinline__ bool add_scores(i32 tile, f32 (&shrinking)[PARTS][2]) {
    make_scores<IS_WHOLE>(p, place, rows(), tile, scores);
    return softmax.add(scores, shrinking);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  Memory memory(shared_address(shared));
  wait_for_previous_kernel();
  allow_next_kernel();
  make_order(p.forward, p.order, memory.end());
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  if (warp >= CONSUMER_WARPS) {
    if constexpr (CONSUMER_REGISTERS > 0) release_registers<PRODUCER_REGISTERS>();
    produce(p, memory, warp - CONSUMER_WARPS);
  } else {
    if constexpr (CONSUMER_REGISTERS > 0) take_registers<CONSUMER_REGISTERS>();
    Consumer(p, memory).run();
  }
}
