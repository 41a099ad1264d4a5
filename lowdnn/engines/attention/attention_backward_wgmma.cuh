// What the kernels of attention's gradients on wgmma share: the way of a block with TILE_KV keys along the queries, all
// that its loading and its adding warps do, and the parts of what its two multiplying warpgroups do. A block takes tile
// after tile of keys; while the gradients of one are stored and its last sums passed on, the first queries of the next
// one come.
//
// Scores and products are formed transposed, keys along the rows: rounded to 16 bits, accumulators then are operands in
// registers of dv += w^T d_o and dk += ds^T q. For dq = ds k the gradients of scores go through shared memory, and each
// warpgroup has parts of the results (tile_sums.cuh).
// Queries and gradients of the output come through rings of stages, the last queries of a head first, head after head.
// Sums of dq over the blocks of a head are formed in memory, tile by tile: the block with the first keys that a tile
// sees stores, the others add, IN_ORDER in the order of their keys, otherwise as they come. To wait little for their
// turns, blocks with the same keys of `heads_at_once` heads start together, and two warps add in turns: until the sums
// of one tile are seen by others, those of the next are on their way.
// With IS_SPLIT several blocks have the same keys, of all tiles or only of the last ones, and share the way; each leaves
// its sums of dk and dv in memory, which attention_backward_sums.cu adds in a fixed order.
// Shared memory: KEY_STAGES times TILE_KV rows of k and of v; STAGES times TILE_Q rows of q and their terms;
// OUTPUT_STAGES times TILE_Q rows of d_o; TILE_KV x TILE_Q gradients of scores; two of the SUM_PIECES in which the sums
// of a tile are passed on; WEIGHT_BYTES; and, behind the last terms if there is room up to the next stage, the barriers,
// the tickets, of fp8 a word for each multiplying warp.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV HEAD_QK HEAD_V (multiples of 16) KEY_STAGES STAGES OUTPUT_STAGES
// SUM_PIECES WEIGHT_BYTES IN_ORDER IS_SPLIT PRODUCER_REGISTERS CONSUMER_REGISTERS; IS_FP8, WEIGHT_TYPE and
// GRADIENT_TYPE: what weights and gradients of scores are rounded to before they are operands.

#pragma once

#include "attention_backward_scaling.cuh"
#include "attention_key_order.cuh"
#include "attention_wgmma.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "tile_sums.cuh"
#include "tickets.cuh"
#include "include/ptx/warpgroup.cuh"

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

// Of a warpgroup: 64 keys and so many queries at a time.
constexpr int PART_QUERIES = 64, PARTS = TILE_Q / PART_QUERIES;
typedef f32 Scores[1][PART_QUERIES / 8][4];
typedef f32 QuerySumBlocks[1][QuerySums::BLOCKS][4];
typedef u32 ScoreOperand[PART_QUERIES / 16][4];

DEFINE_WGMMA(multiply_scores, 64, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_own, 64, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_queries, HEAD_QK, f32.TYPE.TYPE)
DEFINE_WGMMA(multiply_shared_by_queries, HEAD_QK, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_outputs, HEAD_V, f32.TYPE.TYPE)
#if HEAD_QK < 64
DEFINE_WGMMA(multiply_by_keys, HEAD_QK, 16, f32.TYPE.TYPE)
#else
DEFINE_WGMMA(multiply_by_keys, 64, 16, f32.TYPE.TYPE)
#endif

struct Params {
  TensorMap q, k, v, d_o;
  Backward problem;
  Heads<OUT> dk, dv;
  f32* sums;      // (batch, head, tile of queries)
  u32* turns;     // of the same: 0 until sums are there; then IN_ORDER which block is next, otherwise 1
  u32* tickets;   // one word
  KeyOrder keys;
  Divider heads;    // of k in a batch
  i32 query_tiles;  // of a head
#if IS_SPLIT
  f32 *key_sums, *value_sums;  // (split, tile of keys that has splits)
#endif
};

// Where the block's keys are, and what it has of their way along the queries.
struct Place {
  i32 batch, head;  // the first head of q
  i32 key_tile;
  Band band;
  i32 begin, end;  // tiles of queries
  i32 steps;
  u32 first_step;  // of all that the block has
#if IS_SPLIT
  i32 steps_before;  // that other splits have
#endif

  __device__ __forceinline__ Place(const Params& p, u32 ticket, u32 first_step) : first_step(first_step) {
    const KeyShare share = p.keys.share<IS_SPLIT>(ticket);
    const TileIndex index = p.keys.tile(share.tile);
    batch = i32(p.heads.divide(index.row));
    head = i32(index.row - batch * p.heads.divisor) * p.dk.sharing;
    key_tile = i32(index.column);
    band = p.problem.band(batch);
    begin = band.queries_begin(first_key()) / TILE_Q;
    end = max(begin, (band.queries_end(first_key(), TILE_KV) + TILE_Q - 1) / TILE_Q);
    steps = (end - begin) * p.dk.sharing;
#if IS_SPLIT
    const u32 fewest = steps / share.splits, with_more = steps % share.splits;
    steps_before = share.split * fewest + min(share.split, with_more);
    steps = fewest + (share.split < with_more);
#endif
  }

  // A warp: keeps it in registers of the warp.
  __device__ __forceinline__ void make_uniform() {
    u32* const words = reinterpret_cast<u32*>(this);
#pragma unroll
    for (int i = 0; i < sizeof(Place) / sizeof(u32); ++i) words[i] = uniform(words[i]);
  }

  __device__ __forceinline__ i32 first_key() const { return key_tile * TILE_KV; }

  // How many blocks with other keys come before this one at a tile of queries.
  __device__ __forceinline__ u32 turn(i32 tile) const { return key_tile - band.keys_begin(tile * TILE_Q) / TILE_KV; }
};

// A block's way along the tiles of queries.
struct Walk {
  const Place& place;
  i32 head, tile;

  __device__ __forceinline__ Walk(const Place& place) : place(place), head(place.head), tile(place.end - 1) {
#if IS_SPLIT
    const i32 tiles = max(1, place.end - place.begin);
    head += place.steps_before / tiles;
    tile -= place.steps_before % tiles;
#endif
  }

  __device__ __forceinline__ void advance() {
    if (tile-- == place.begin) {
      tile = place.end - 1;
      ++head;
    }
  }
};

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

// Pieces of sums on their way from the multiplying warps to the adding ones, through SUM_STAGES stages. Which adding
// warp takes a piece depends on its step, so each piece of ADDING_WARPS steps has a barrier for its coming.
struct SumRing {
  static constexpr u32 BYTES = SUM_STAGES * PIECE_BYTES, PIECES = ADDING_WARPS * SUM_PIECES;
  static constexpr u32 BARRIER_BYTES = (PIECES + SUM_STAGES) * MBARRIER_BYTES;

  u32 stages, barriers;

  __device__ __forceinline__ u32 stage(u32 piece) const { return stages + piece % SUM_STAGES * PIECE_BYTES; }
  __device__ __forceinline__ u32 full(u32 piece) const { return barriers + piece % PIECES * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 empty(u32 piece) const {
    return barriers + (PIECES + piece % SUM_STAGES) * MBARRIER_BYTES;
  }

  // One thread.
  __device__ __forceinline__ void init() const {
    for (u32 piece = 0; piece < PIECES; ++piece) mbarrier_init(full(piece), CONSUMER_WARPS);
    for (u32 stage = 0; stage < SUM_STAGES; ++stage) mbarrier_init(empty(stage), 1);
  }

  // The writers.
  __device__ __forceinline__ void wait_empty(u32 piece) const {
    mbarrier_wait(empty(piece), piece / SUM_STAGES % 2 ^ 1);
  }
  __device__ __forceinline__ void hand_over(u32 piece) const {
    fence_async_shared();
    __syncwarp();  // every lane has written it
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(full(piece));
  }

  // The reader, one thread.
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
  u32 ticket;   // of keys that are there; behind the last ones too large
  u32 largest;  // of fp8: a word for each multiplying warp

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
      const u32 first_ticket = take_ticket(tickets);  // takes a while, in which the barriers are made
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

// One thread: all copies of the block. Those of the first queries do not wait for the keys before to be done with.
__device__ __forceinline__ void produce(const Params& p, Memory& memory) {
  u32 ticket = load_shared_32(memory.ticket);
#pragma unroll 1
  for (; ticket < p.keys.share_count(); ticket = take_ticket(p.tickets)) {
    const Place place(p, ticket, 0);
    Walk walk(place);
    const auto load_keys = [&] {
      memory.keys.wait_empty();
      store_shared_32(memory.own_ticket(), ticket);
      memory.keys.fill(p, place);
    };
    if (KEY_STAGES > 1) load_keys();
#pragma unroll 1
    for (i32 step = 0; step < max(place.steps, 1); ++step, walk.advance()) {
      const i32 row = walk.tile * TILE_Q;
      if (place.steps > 0) {
        memory.queries.load(MappedHead{p.q, walk.head, place.batch}, p.problem.terms_of(place.batch, walk.head), row);
        memory.outputs.load(MappedHead{p.d_o, walk.head, place.batch}, row);
      }
      if (KEY_STAGES == 1 && step == 0) load_keys();
    }
  }
  memory.keys.wait_empty();
  store_shared_32(memory.own_ticket(), ticket);
  mbarrier_arrive(memory.keys.own_full());
}

// The others, whole warps or a thread of a warp: calls `run` with each place that the block takes.
template <bool IS_WARP, class Run>
__device__ __forceinline__ void for_each_place(const Params& p, Memory& memory, const Run& run) {
  u32 first_step = 0;
#pragma unroll 1
  while (true) {
    memory.keys.wait();
    const u32 ticket = load_shared_32(memory.own_ticket());
    if (ticket >= p.keys.share_count()) return;
    Place place(p, ticket, first_step);
    if constexpr (IS_WARP) {
      place.make_uniform();
      memory.k.address = uniform(memory.keys.rows().k().address);
      memory.v.address = uniform(memory.keys.rows().v().address);
    }
    run(place);
    first_step += place.steps;
  }
}

// One thread of each adding warp: adds what the consumers pass on at every ADDING_WARPS-th step to the sums of its
// tile.
__device__ __forceinline__ void add_sums(const Params& p, const Place& place, const Memory& memory, u32 adding_warp) {
  Walk walk(place);
  const u32 end = place.first_step + place.steps;
#pragma unroll 1
  for (u32 step = place.first_step; step < end; ++step, walk.advance()) {
    if (step % ADDING_WARPS != adding_warp) continue;
    const i64 tile = i64(place.batch * p.problem.heads + walk.head) * p.query_tiles + walk.tile;
    const u32 turn = place.turn(walk.tile);
    f32* sums = p.sums + tile * QuerySums::NUMBERS;
    if (turn > 0) await_turn(p.turns + tile, IN_ORDER ? turn : 1);
    fence_async();
#pragma unroll 1
    for (u32 pass = step * PASSES; pass < (step + 1) * PASSES; ++pass) {
      const u32 first = pass * PASS_PIECES, last = first + PASS_PIECES - 1;
#pragma unroll 1
      for (u32 piece = first; piece <= last; ++piece, sums += PIECE_BYTES / sizeof(f32)) {
        memory.sums.wait(piece);
        if (turn == 0) bulk_store(sums, memory.sums.stage(piece), PIECE_BYTES);
        else bulk_add(sums, memory.sums.stage(piece), PIECE_BYTES);
        bulk_commit();
        if (piece == first) continue;
        bulk_wait_read<1>();
        memory.sums.release(piece - 1);
      }
      // Before any of the next pass: a warpgroup may have to write all of it to come to where the other one waits.
      bulk_wait_read<0>();
      memory.sums.release(last);
    }
    if (IN_ORDER || turn == 0) {
      bulk_wait<0>();
      fence_async();
      pass_turn(p.turns + tile, turn + 1);
    }
  }
}

// Accumulators, rounded, as 16-bit operands in registers.
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

// Those operands as the elements from `element` on of 16 rows from `row` on.
template <class Rows, int STEPS>
__device__ __forceinline__ void store(const Rows& rows, int row, int element, const u32 (&words)[STEPS][4]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    stmatrix_x4(rows.at(row + lane % 16, element + step * 16 + lane / 16 * 8), words[step]);
  }
}

// The other way: 16 rows from `row` on as operands.
template <class Rows, int STEPS>
__device__ __forceinline__ void load(const Rows& rows, int row, u32 (&words)[STEPS][4]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    ldmatrix_x4(words[step], rows.at(row + lane % 16, step * 16 + lane / 16 * 8));
  }
}

// What a multiplying warpgroup has, whatever its share of the work. Multiplications run beside the program, from a
// start_ to a wgmma_wait.
struct Warpgroup {
  const Params& p;
  const Place& place;
  Memory& memory;
  i32 index;
  const i32 warp_key;  // of the block's keys

  // Of fp8: the warp's largest gradient of a score so far, in shared memory, since there is no register for it.
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

  // Of `own`, keys or values, 64 rows from `row` on, times those of a part of a tile of queries.
  template <class Own, class Others>
  static __device__ __forceinline__ void start_scores(Scores& scores, const Own& own, int row, const Others& others,
                                                      int part) {
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < Own::SIZE; element += 16) {
      multiply_scores<false, false>(flat(scores), own.k_major(row, element),
                                    others.k_major(part * PART_QUERIES, element), element > 0);
    }
    wgmma_commit();
  }

  // The same of own rows that are in registers.
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

  // The same of gradients in shared memory, of the warpgroup's keys.
  __device__ __forceinline__ void start_keys(f32 (&dk)[1][HEAD_QK / 8][4], const ScoreGradients& gradients,
                                             const Queries& q, int part) const {
    wgmma_fence();
#pragma unroll
    for (int query = part * PART_QUERIES; query < (part + 1) * PART_QUERIES; query += 16) {
      multiply_shared_by_queries<false, true>(flat(dk), gradients.k_major(index * 64, query), q.mn_major(query), true);
    }
    wgmma_commit();
  }

  // dq = gradients^T k of the warpgroup's part of a pass
  __device__ __forceinline__ void start_queries(QuerySumBlocks& dq, const ScoreGradients& gradients, int pass) const {
    const int part = pass * CONSUMERS + index;
    const int queries = part / QuerySums::COLUMN_PARTS, columns = part % QuerySums::COLUMN_PARTS;
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < TILE_KV; key += 16) {
      multiply_by_keys<true, true>(flat(dq), gradients.mn_major(key, queries), memory.k.mn_major(key, columns),
                                   key > 0);
    }
    wgmma_commit();
  }

  // What every warpgroup has stored of the gradients of the scores, all may multiply.
  static __device__ __forceinline__ void share_gradients() {
    fence_async_shared();
    named_barrier(GRADIENTS_BARRIER, CONSUMER_THREADS);
  }

  // Hands dq of a pass of the step to the adding warps.
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

  // Before they are multiplied.
  __device__ __forceinline__ void clear_missing_keys() const {
    clear_beyond(place.band.keys - place.first_key(), p.problem.keys - place.first_key(), memory.k);
  }

  // The next tile of queries, or of gradients of the output, when it is there.
  __device__ __forceinline__ QueryStage await_queries(i32 tile) const {
    return await_queries(tile, memory.queries.at.passed);
  }
  __device__ __forceinline__ QueryStage await_queries(i32 tile, u32 passed) const {
    const QueryStage stage = memory.queries.wait(passed);
    clear_beyond(place.band.queries - tile * TILE_Q, p.problem.queries - tile * TILE_Q, stage.q());
    return stage;
  }
  // For multiplications whose products nobody wants: what no copy overwrites meanwhile.
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

  // Rows beyond a batch's length have weights of 0, but may be anything: NaN, too.
  template <class Rows> __device__ __forceinline__ void clear_beyond(i32 existing, i32 stored, const Rows& rows) const {
    if (existing >= min(stored, Rows::ROWS)) return;
    rows.clear(existing, threadIdx.x, CONSUMER_THREADS);
    named_barrier(CLEARING_BARRIER, CONSUMER_THREADS);
  }
};

// Zeros before the first multiplication: not while one runs, where the compiler might put them.
template <int BLOCKS> __device__ __forceinline__ void set_zero(f32 (&d)[1][BLOCKS][4]) {
#pragma unroll
  for (int i = 0; i < BLOCKS * 4; ++i) d[0][i / 4][i % 4] = 0;
  hold_all(d);
}

// Stores the gradients of the warp's keys that the sums of products are: those of 16 bits by way of `rows`, whose place
// in shared memory nobody needs any more, so that neighbouring lanes store neighbouring vectors. Of keys that have
// splits leaves the sums.
template <class Out, class Rows, int BLOCKS>
__device__ __forceinline__ void store_keys(const Params& p, const Heads<Out>& to, const Place& place,
                                           const KeyShare& share, i32 warp_key, const Rows& rows, i32 size,
                                           Result result, f32 (&values)[1][BLOCKS][4]) {
#if IS_SPLIT
  if (share.splits > 1) {
    typedef KeySumsOf<TILE_KV, BLOCKS * 8> Sums;
    const u32 index = share.split * p.keys.split_tiles() + share.tile - p.keys.whole_tiles;
    f32* const sums = (result == OF_K ? p.key_sums : p.value_sums) + i64(index) * Sums::NUMBERS;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
      store<4>(sums + Sums::at(warp_key / 64, block, threadIdx.x % WARPGROUP_SIZE), values[0][block]);
    return;
  }
#endif
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

// Every thread of the block; Consumer::run is what a multiplying one does.
template <class Consumer> __device__ __forceinline__ void run_block(const Params& p, u8* shared) {
  if (threadIdx.x == 0) {
    prefetch(p.q);
    prefetch(p.k);
    prefetch(p.v);
    prefetch(p.d_o);
  }
  wait_for_previous_kernel();
  Memory memory(shared_address(shared), p.tickets);
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  if (warp >= CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == LOADING_WARP) {
      if (elect_one()) produce(p, memory);
    } else if (warp < FIRST_ADDING_WARP + ADDING_WARPS && elect_one()) {
      for_each_place<false>(p, memory, [&](const Place& place) {
        mbarrier_arrive(memory.keys.own_empty());
        memory.keys.at.advance();
        add_sums(p, place, memory, warp - FIRST_ADDING_WARP);
      });
      bulk_wait<0>();
    }
  } else {
    take_registers<CONSUMER_REGISTERS>();
    for_each_place<true>(p, memory, [&](const Place& place) {
      Consumer::run(p, place, memory);
      fence_async_shared();  // gradients lay in the place of keys and values
      memory.keys.release();
    });
  }
}
