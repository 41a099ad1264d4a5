// The shared memory of attention's gradients on wgmma: the tiles, stages and rings that the map in
// attention_backward_wgmma.cuh names.

#pragma once

#include "attention_backward_wgmma_walk.cuh"
#include "attention_wgmma.cuh"
#include "tickets.cuh"
#include "tile_sums.cuh"

typedef TYPE T;
typedef SwizzledRows<TILE_Q, HEAD_QK> Queries;
typedef SwizzledRows<TILE_Q, HEAD_V> OutputGradients;
typedef SwizzledRows<TILE_KV, HEAD_QK> Keys;
typedef SwizzledRows<TILE_KV, HEAD_V> Values;
typedef SwizzledRows<TILE_KV, TILE_Q> ScoreGradients;
typedef QuerySumsOf<TILE_Q, HEAD_QK> QuerySums;

constexpr int CONSUMERS = 2, CONSUMER_THREADS = CONSUMERS * WARPGROUP_SIZE;
constexpr int CONSUMER_WARPS = CONSUMER_THREADS / WARP_SIZE, THREADS = CONSUMER_THREADS + WARPGROUP_SIZE;
constexpr int LOADING_WARP = CONSUMER_WARPS, FIRST_ADDING_WARP = LOADING_WARP + 1, ADDING_WARPS = 2;
constexpr u32 GRADIENTS_BARRIER = 1, CLEARING_BARRIER = 2, WEIGHTS_BARRIER = 3, STORING_BARRIER = 4;
constexpr u32 FREE_BARRIER = 5;  // and the next one
constexpr int PASSES = QuerySums::PARTS / CONSUMERS, PASS_PIECES = SUM_PIECES / PASSES, SUM_STAGES = 2;
constexpr int PIECE_BLOCKS = QuerySums::BLOCKS / PASS_PIECES, PIECE_BYTES = QuerySums::BYTES / SUM_PIECES;
static_assert(QuerySums::PARTS % CONSUMERS == 0, "each warpgroup has as much of dq");
static_assert(SUM_PIECES % PASSES == 0 && QuerySums::BLOCKS % PASS_PIECES == 0, "whole pieces of a pass");
static_assert(PASS_PIECES <= SUM_STAGES && SUM_STAGES <= ADDING_WARPS * SUM_PIECES,
              "a pass fits, and a barrier comes round after its piece was read");

// Queries that a warpgroup multiplies with its 64 keys in one product.
constexpr int PART_QUERIES = 64;
constexpr int PARTS = TILE_Q / PART_QUERIES;

// A tile of queries in shared memory, and their terms.
struct QueryStage {
  static constexpr int TERM_BYTES = TILE_Q * sizeof(Term), LOADED = Queries::BYTES + TERM_BYTES;
  static constexpr int BYTES = (LOADED + 1023) / 1024 * 1024, SPARE = BYTES - LOADED;

  u32 address;

  __device__ __forceinline__ Queries q() const { return {address}; }
  __device__ __forceinline__ GroupedTermTile terms(int part) const {
    return {address + Queries::BYTES + part * PART_QUERIES * u32(sizeof(Term))};
  }

  __device__ __forceinline__ void load(const MappedHead& from, const Term* from_terms, i32 row, u32 barrier) const {
    mbarrier_expect(barrier, LOADED);
    q().copy(from, row, barrier);
    bulk_load(terms(0).address, from_terms + row, TERM_BYTES, barrier);
  }
};

// Keys and values in shared memory.
struct KeyTile {
  static constexpr u32 BYTES = Keys::BYTES + Values::BYTES;

  u32 address;

  __device__ __forceinline__ Keys k() const { return {address}; }
  __device__ __forceinline__ Values v() const { return {address + Keys::BYTES}; }

  __device__ __forceinline__ void load(const Params& p, const Place& place, u32 barrier) const {
    const i32 head = place.head / p.dk.sharing;
    mbarrier_expect(barrier, BYTES);
    k().copy({p.k, head, place.batch}, place.first_key(), barrier);
    v().copy({p.v, head, place.batch}, place.first_key(), barrier);
  }
};

// The ring of SUM_STAGES stages through which the multiplying warps pass pieces of dq to the adding warps. Step s goes
// to adding warp s % ADDING_WARPS, so each piece of ADDING_WARPS successive steps has its own `full` barrier.
struct SumRing {
  static constexpr u32 BYTES = SUM_STAGES * PIECE_BYTES, PIECES = ADDING_WARPS * SUM_PIECES;
  static constexpr u32 BARRIER_BYTES = (PIECES + SUM_STAGES) * MBARRIER_BYTES;

  u32 stages, barriers;

  __device__ __forceinline__ u32 stage(u32 piece) const { return stages + piece % SUM_STAGES * PIECE_BYTES; }
  __device__ __forceinline__ u32 full(u32 piece) const { return barriers + piece % PIECES * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 empty(u32 piece) const {
    return barriers + (PIECES + piece % SUM_STAGES) * MBARRIER_BYTES;
  }

  // Initialises the barriers, in one thread.
  __device__ __forceinline__ void init() const {
    for (u32 piece = 0; piece < PIECES; ++piece) mbarrier_init(full(piece), CONSUMER_WARPS);
    for (u32 stage = 0; stage < SUM_STAGES; ++stage) mbarrier_init(empty(stage), 1);
  }

  // Waits until the stage of `piece` may be written; the multiplying warps call it.
  __device__ __forceinline__ void wait_empty(u32 piece) const {
    mbarrier_wait(empty(piece), piece / SUM_STAGES % 2 ^ 1);
  }
  __device__ __forceinline__ void hand_over(u32 piece) const {
    fence_async_shared();
    __syncwarp();  // every lane has written it
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(full(piece));
  }

  // Waits until `piece` has been written; one thread of an adding warp calls it.
  __device__ __forceinline__ void wait(u32 piece) const { mbarrier_wait(full(piece), piece / PIECES % 2); }
  __device__ __forceinline__ void release(u32 piece) const { mbarrier_arrive(empty(piece)); }
};

struct Memory {
  Keys k;
  Values v;
  TileRing<KeyTile, KEY_STAGES, CONSUMER_WARPS + ADDING_WARPS> keys;  // k and v
  TileRing<QueryStage, STAGES, CONSUMER_WARPS> queries;
  TileRing<OutputGradients, OUTPUT_STAGES, CONSUMER_WARPS> outputs;
  SumRing sums;
  u32 gradients, weights;
  u32 ticket;   // ticket of the keys in shared memory; share_count() or more after the last ones
  u32 largest;  // fp8: a word for each multiplying warp, its largest gradient of a score

  static constexpr u32 BARRIER_BYTES = decltype(keys)::BARRIER_BYTES + decltype(queries)::BARRIER_BYTES +
                                       decltype(outputs)::BARRIER_BYTES + SumRing::BARRIER_BYTES;
  static constexpr u32 WORD_BYTES = (KEY_STAGES + IS_FP8 * CONSUMER_WARPS) * sizeof(u32);
  static_assert(QueryStage::SPARE == 0 || BARRIER_BYTES + WORD_BYTES <= QueryStage::SPARE, "they fit in");

  __device__ __forceinline__ u32 own_ticket() const { return ticket + keys.at.stage() * sizeof(u32); }
  __device__ __forceinline__ KeyShare own_share(const KeyOrder& order) const {
    return order.share<IS_SPLIT>(load_shared_32(own_ticket()));
  }

  __device__ __forceinline__ Memory(u32 shared, u32* tickets)
      : k{shared}, v{shared + Keys::BYTES}, keys{shared}, queries{shared + keys.BYTES},
        outputs{queries.stages + queries.BYTES} {
    gradients = outputs.stages + outputs.BYTES;
    sums.stages = gradients + ScoreGradients::BYTES;
    weights = sums.stages + sums.BYTES;
    queries.full = QueryStage::SPARE > 0 ? outputs.stages - QueryStage::SPARE : weights + WEIGHT_BYTES;
    outputs.full = queries.full + queries.BARRIER_BYTES;
    sums.barriers = outputs.full + outputs.BARRIER_BYTES;
    keys.full = sums.barriers + sums.BARRIER_BYTES;
    ticket = keys.full + keys.BARRIER_BYTES;
    largest = ticket + KEY_STAGES * sizeof(u32);
    if (threadIdx.x == 0) {
      const u32 first_ticket = take_ticket(tickets);  // the barriers are initialised while it is on its way
      keys.init();
      queries.init();
      outputs.init();
      sums.init();
      mbarrier_fence_init();
      store_shared_32(ticket, first_ticket);
      for (u32 warp = 0; IS_FP8 && warp < CONSUMER_WARPS; ++warp) store_shared_32(largest + warp * sizeof(u32), 0);
    }
    __syncthreads();
  }
};
