// attention_backward_wgmma: the gradients of q, k and v in one go with TMA and wgmma, for sm_90a, without anything of
// S_q x S_kv in memory: with w = 2^(q k^T * scale * log2(e) - exponent) in the band, elsewhere 0,
//
//     dv = w^T d_o        dk = scale * ds^T q        dq = scale * ds k        ds = w * (d_o v^T - centre)
//
// dk and dv summed over the heads of q that share one of k and v.
//
// Block: TILE_KV keys of one head; it goes along the queries that see any of them, TILE_Q at a time, the last ones
// first, head after head. Two warpgroups with 64 keys each multiply; of the last warpgroup one warp loads, through a
// ring of STAGES stages, and one adds up gradients of queries. Scores and products are formed transposed, keys along
// the rows: rounded to 16 bits, accumulators then are operands in registers of dv += w^T d_o and dk += ds^T q. For
// dq = ds k the gradients of scores go through shared memory, and each warpgroup has a part of the results (query_sums.cuh).
// The scores of the next queries are multiplied before those results are passed on.
// Sums of dq over the blocks of a head are formed in memory, tile by tile: the block with the first keys that a tile
// sees stores, the others add, IN_ORDER in the order of their keys, otherwise as they come. To wait little for their
// turns, blocks with the same keys of `heads_at_once` heads start together. attention_backward_sums.cu rounds the sums.
// Memory: q, k, v, d_o as their tensor maps say: (elements of a head, rows, heads, batches), 16-bit elements; terms by
// attention_backward_terms.cu, for whole tiles of queries. Keys past their batch's length get zeros.
// Shared memory (dynamic): TILE_KV rows of k and of v; STAGES times TILE_Q rows of q and of d_o and their terms; twice
// TILE_KV x TILE_Q gradients of scores; TILE_Q x HEAD_QK sums; the barriers.
// Launch: TILE_KV / 64 + 1 warpgroups, a block for TILE_KV keys of each head of k.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV HEAD_QK HEAD_V (multiples of 16) STAGES IN_ORDER PRODUCER_REGISTERS
// CONSUMER_REGISTERS.
// Source: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", appendix B.1,
// whose sums of dq are in any order.

#include "include/attention_backward.cuh"
#include "include/attention_wgmma.cuh"
#include "include/dependent_launch.cuh"
#include "include/ldmatrix.cuh"
#include "include/query_sums.cuh"
#include "include/raster.cuh"
#include "include/turns.cuh"
#include "include/warpgroup.cuh"

typedef TYPE T;
typedef SwizzledRows<TILE_Q, HEAD_QK> Queries;
typedef SwizzledRows<TILE_Q, HEAD_V> OutputGradients;
typedef SwizzledRows<TILE_KV, HEAD_QK> Keys;
typedef SwizzledRows<TILE_KV, HEAD_V> Values;
typedef SwizzledRows<TILE_KV, TILE_Q> ScoreGradients;

constexpr int CONSUMERS = TILE_KV / 64, CONSUMER_THREADS = CONSUMERS * WARPGROUP_SIZE;
constexpr int CONSUMER_WARPS = CONSUMER_THREADS / WARP_SIZE, THREADS = CONSUMER_THREADS + WARPGROUP_SIZE;
constexpr int LOADING_WARP = CONSUMER_WARPS, ADDING_WARP = CONSUMER_WARPS + 1;
constexpr u32 GRADIENTS_BARRIER = 1, CLEARING_BARRIER = 2;
static_assert(QuerySums::PARTS == CONSUMERS, "each warpgroup has a part of dq");

constexpr int PART_QUERIES = 64, PARTS = TILE_Q / PART_QUERIES;
typedef f32 Scores[1][PART_QUERIES / 8][4];
typedef u32 ScoreOperand[PART_QUERIES / 16][4];

DEFINE_WGMMA(multiply_scores, 64, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_queries, HEAD_QK, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_by_gradients, HEAD_V, f32.TYPE.TYPE)
#if HEAD_QK < 64
DEFINE_WGMMA(multiply_by_keys, HEAD_QK, 16, f32.TYPE.TYPE)
#else
DEFINE_WGMMA(multiply_by_keys, 64, 16, f32.TYPE.TYPE)
#endif

struct Params {
  TensorMap q, k, v, d_o;
  Backward problem;
  Heads<OUT> dk, dv;
  f32* sums;     // (batch, head, tile of queries)
  u32* turns;    // of the same: how many blocks have added to the sums
  u32* tickets;  // one word
  Divider heads;  // of k in a batch
  i32 query_tiles, key_tiles, key_heads, heads_at_once;  // of a head, of all batches
};

// Where the block's keys are.
struct Place {
  i32 batch, head;  // the first head of q
  i32 key_tile;
  Band band;
  i32 begin, end;  // tiles of queries
  i32 steps;

  __device__ __forceinline__ Place(const Params& p, u32 ticket) {
    const TileIndex index = grouped_tile(ticket, p.key_heads, p.key_tiles, p.heads_at_once);
    batch = i32(p.heads.divide(index.row));
    head = i32(index.row - batch * p.heads.divisor) * p.dk.sharing;
    key_tile = i32(index.column);
    band = p.problem.band(batch);
    begin = band.queries_begin(first_key()) / TILE_Q;
    end = max(begin, (band.queries_end(first_key(), TILE_KV) + TILE_Q - 1) / TILE_Q);
    steps = (end - begin) * p.dk.sharing;
  }

  __device__ __forceinline__ i32 first_key() const { return key_tile * TILE_KV; }

  // How many blocks with other keys come before this one at a tile of queries.
  __device__ __forceinline__ u32 turn(i32 tile) const { return key_tile - band.keys_begin(tile * TILE_Q) / TILE_KV; }
};

// A block's way along the tiles of queries.
struct Walk {
  const Place& place;
  i32 head, tile;

  __device__ __forceinline__ Walk(const Place& place) : place(place), head(place.head), tile(place.end - 1) {}

  __device__ __forceinline__ void advance() {
    if (tile-- == place.begin) {
      tile = place.end - 1;
      ++head;
    }
  }
};

// A tile of queries in shared memory.
struct Stage {
  static constexpr int TERM_BYTES = TILE_Q * sizeof(Term), LOADED = Queries::BYTES + OutputGradients::BYTES + TERM_BYTES;
  static constexpr int BYTES = (LOADED + 1023) / 1024 * 1024;

  u32 address;

  __device__ __forceinline__ Queries q() const { return {address}; }
  __device__ __forceinline__ OutputGradients d_o() const { return {address + Queries::BYTES}; }
  __device__ __forceinline__ TermTile terms(int part) const {
    return {address + Queries::BYTES + OutputGradients::BYTES + part * PART_QUERIES * u32(sizeof(Term))};
  }

  __device__ __forceinline__ void load(const MappedHead& from_q, const MappedHead& from_d_o, const Term* from_terms,
                                       i32 row, u32 barrier) const {
    mbarrier_expect(barrier, LOADED);
    q().copy(from_q, row, barrier);
    d_o().copy(from_d_o, row, barrier);
    bulk_load(terms(0).address, from_terms + row, TERM_BYTES, barrier);
  }
};

struct Memory {
  Keys k;
  Values v;
  TileRing<Stage, STAGES, CONSUMER_WARPS> queries;
  u32 gradients, sums;
  u32 keys_full, sums_full, sums_empty, ticket;

  __device__ __forceinline__ Memory(u32 shared, u32* tickets)
      : k{shared}, v{shared + Keys::BYTES}, queries{v.address + Values::BYTES} {
    gradients = queries.stages + queries.BYTES;
    sums = gradients + 2 * ScoreGradients::BYTES;
    queries.full = sums + QuerySums::BYTES;
    keys_full = queries.full + queries.BARRIER_BYTES;
    sums_full = keys_full + MBARRIER_BYTES;
    sums_empty = sums_full + MBARRIER_BYTES;
    ticket = sums_empty + MBARRIER_BYTES;
    if (threadIdx.x == 0) {
      mbarrier_init(keys_full, 1);
      mbarrier_init(sums_full, CONSUMER_WARPS);
      mbarrier_init(sums_empty, 1);
      queries.init();
      mbarrier_fence_init();
      store_shared_32(ticket, take_ticket(tickets));
    }
    __syncthreads();
  }
};

// One thread: all copies of the block.
__device__ __forceinline__ void produce(const Params& p, const Place& place, Memory& memory) {
  if (place.steps == 0) return;
  const i32 key_head = place.head / p.dk.sharing;
  mbarrier_expect(memory.keys_full, Keys::BYTES + Values::BYTES);
  memory.k.copy({p.k, key_head, place.batch}, place.first_key(), memory.keys_full);
  memory.v.copy({p.v, key_head, place.batch}, place.first_key(), memory.keys_full);
  Walk walk(place);
#pragma unroll 1
  for (i32 step = 0; step < place.steps; ++step, walk.advance()) {
    memory.queries.load(MappedHead{p.q, walk.head, place.batch}, MappedHead{p.d_o, walk.head, place.batch},
                        p.problem.terms_of(place.batch, walk.head), walk.tile * TILE_Q);
  }
}

// One thread: adds what the consumers pass on to the sums of each tile.
__device__ __forceinline__ void add_sums(const Params& p, const Place& place, const Memory& memory) {
  Walk walk(place);
#pragma unroll 1
  for (i32 step = 0; step < place.steps; ++step, walk.advance()) {
    const i64 tile = i64(place.batch * p.problem.heads + walk.head) * p.query_tiles + walk.tile;
    const u32 turn = place.turn(walk.tile);
    f32* const sums = p.sums + tile * QuerySums::NUMBERS;
    mbarrier_wait(memory.sums_full, step % 2);
    if (turn == 0) {
      bulk_store(sums, memory.sums, QuerySums::BYTES);
    } else {
      await_turn(p.turns + tile, IN_ORDER ? turn : 1);
      fence_async();
      bulk_add(sums, memory.sums, QuerySums::BYTES);
    }
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(memory.sums_empty);
    if (IN_ORDER || turn == 0) {
      bulk_wait<0>();
      fence_async();
      pass_turn(p.turns + tile, turn + 1);
    }
  }
  bulk_wait<0>();
}

// A warpgroup's keys on their way along the queries. Its multiplications run beside the program.
struct Consumer {
  const Params& p;
  const Place& place;
  Memory& memory;
  const i32 warpgroup, warp_key;  // of the block's keys
  Scores scores, products;        // then weights, then their gradients
  ScoreOperand weights, gradients;
  f32 dq[1][QuerySums::BLOCKS][4], dk[1][HEAD_QK / 8][4] = {}, dv[1][HEAD_V / 8][4] = {};

  __device__ __forceinline__ Consumer(const Params& p, const Place& place, Memory& memory)
      : p(p), place(place), memory(memory), warpgroup(threadIdx.x / WARPGROUP_SIZE),
        warp_key(threadIdx.x / WARP_SIZE * 16) {}

  __device__ __forceinline__ void run() {
    const f32 scale = p.problem.scale.value();
    if (place.steps > 0) add_queries(scale * LOG2_E);
    const i32 key_head = place.head, row = place.first_key() + warp_key;
    store_gradients(p.dk.at(place.batch, key_head, 0), p.dk.strides[2], row, p.problem.keys, 0, p.problem.size_qk,
                    scale, dk);
    store_gradients(p.dv.at(place.batch, key_head, 0), p.dv.strides[2], row, p.problem.keys, 0, p.problem.size_v, 1.0f,
                    dv);
  }

 private:
  __device__ __forceinline__ void add_queries(f32 factor) {
    Walk walk(place);
    mbarrier_wait(memory.keys_full, 0);
    clear_beyond(place.band.keys - place.first_key(), p.problem.keys - place.first_key(), memory.k);
    Stage stage = arrived(walk.tile);
    hold_all(dk);  // zeros before the first multiplication
    hold_all(dv);
    start_scores(stage, 0);
    wgmma_wait<0>();
#pragma unroll 1
    for (i32 step = 0; step < place.steps; ++step) {
      const ScoreGradients shared_gradients = {memory.gradients + step % 2 * ScoreGradients::BYTES};
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        add_part(stage, part, walk.tile * TILE_Q + part * 64, factor, shared_gradients);
        if (part + 1 < PARTS) start_scores(stage, part + 1);
      }
      fence_async_shared();
      named_barrier(GRADIENTS_BARRIER, CONSUMER_THREADS);
      start_queries(shared_gradients);
      wgmma_wait<0>();
      hold_all(dq);
      if (step + 1 < place.steps) {
        memory.queries.release();
        walk.advance();
        stage = arrived(walk.tile);
      }
      start_scores(stage, 0);  // of the last tile once more, for nothing: ptxas would make a condition wait
      pass_sums(step);
      wgmma_wait<0>();
    }
    hold_all(dk);
    hold_all(dv);
  }

  // What 64 of the queries give, whose scores are on their way.
  __device__ __forceinline__ void add_part(const Stage& stage, int part, i32 first_query, f32 factor,
                                           const ScoreGradients& shared_gradients) {
    const i32 first_key = place.first_key() + warp_key;
    const TermTile terms = stage.terms(part);
    start_products(stage, part);
    wgmma_wait<1>();
    hold_all(scores);
    terms.make_weights(factor, scores);
    mask(place.band, first_query, first_key, scores);
    round(scores, weights);
    start_values(stage, part);
    wgmma_wait<1>();
    hold_all(products);
    terms.make_gradients(scores, products);
    mask(place.band, first_query, first_key, products);  // what is beyond the keys may be NaN
    round(products, gradients);
    store(shared_gradients, part);
    start_keys(stage, part);
  }

  __device__ __forceinline__ Stage arrived(i32 tile) const {
    const Stage stage = memory.queries.wait();
    const i32 existing = place.band.queries - tile * TILE_Q, stored = p.problem.queries - tile * TILE_Q;
    clear_beyond(existing, stored, stage.q());
    clear_beyond(existing, stored, stage.d_o());
    return stage;
  }

  // Rows beyond a batch's length have weights of 0, but may be anything: NaN, too.
  template <class Rows> __device__ __forceinline__ void clear_beyond(i32 existing, i32 stored, const Rows& rows) const {
    if (existing >= min(stored, Rows::ROWS)) return;
    rows.clear(existing, threadIdx.x, CONSUMER_THREADS);
    named_barrier(CLEARING_BARRIER, CONSUMER_THREADS);
  }

  // scores = k q^T
  __device__ __forceinline__ void start_scores(const Stage& stage, int part) {
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < HEAD_QK; element += 16) {
      multiply_scores<false, false>(flat(scores), memory.k.k_major(warpgroup * 64, element),
                                    stage.q().k_major(part * PART_QUERIES, element), element > 0);
    }
    wgmma_commit();
  }

  // products = v d_o^T
  __device__ __forceinline__ void start_products(const Stage& stage, int part) {
    wgmma_fence();
#pragma unroll
    for (int element = 0; element < HEAD_V; element += 16) {
      multiply_scores<false, false>(flat(products), memory.v.k_major(warpgroup * 64, element),
                                    stage.d_o().k_major(part * PART_QUERIES, element), element > 0);
    }
    wgmma_commit();
  }

  // dv += weights d_o
  __device__ __forceinline__ void start_values(const Stage& stage, int part) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < PART_QUERIES / 16; ++step) {
      multiply_by_gradients<true>(flat(dv), weights[step], stage.d_o().mn_major(part * PART_QUERIES + step * 16), true);
    }
    wgmma_commit();
  }

  // dk += gradients q
  __device__ __forceinline__ void start_keys(const Stage& stage, int part) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < PART_QUERIES / 16; ++step) {
      multiply_by_queries<true>(flat(dk), gradients[step], stage.q().mn_major(part * PART_QUERIES + step * 16), true);
    }
    wgmma_commit();
  }

  // dq = gradients^T k of this warpgroup's queries and columns, and of all keys
  __device__ __forceinline__ void start_queries(const ScoreGradients& shared_gradients) {
    const int queries = QuerySums::QUERY_PARTS > 1 ? warpgroup : 0, columns = QuerySums::COLUMN_PARTS > 1 ? warpgroup : 0;
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < TILE_KV; key += 16) {
      multiply_by_keys<true, true>(flat(dq), shared_gradients.mn_major(key, queries), memory.k.mn_major(key, columns),
                                   key > 0);
    }
    wgmma_commit();
  }

  static __device__ __forceinline__ void round(const Scores& values, ScoreOperand& operand) {
#pragma unroll
    for (int step = 0; step < PART_QUERIES / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const f32* const pair = values[0][step * 2 + i / 2] + i % 2 * 2;
        operand[step][i] = packed(Tag<T>(), pair[0], pair[1]);
        make_ready(operand[step][i]);
      }
    }
  }

  // The gradients of the warp's keys.
  __device__ __forceinline__ void store(const ScoreGradients& shared_gradients, int part) const {
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int step = 0; step < PART_QUERIES / 16; ++step) {
      stmatrix_x4(shared_gradients.at(warp_key + lane % 16, part * PART_QUERIES + step * 16 + lane / 16 * 8), gradients[step]);
    }
  }

  __device__ __forceinline__ void pass_sums(i32 step) const {
    mbarrier_wait(memory.sums_empty, step % 2 ^ 1);
#pragma unroll
    for (int block = 0; block < QuerySums::BLOCKS; ++block) {
      const u32 place = QuerySums::at(warpgroup, block, threadIdx.x % WARPGROUP_SIZE) * sizeof(f32);
      const f32(&four)[4] = dq[0][block];
      store_shared_16(memory.sums + place, __float_as_uint(four[0]), __float_as_uint(four[1]),
                      __float_as_uint(four[2]), __float_as_uint(four[3]));
    }
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(memory.sums_full);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  wait_for_previous_kernel();
  Memory memory(shared_address(shared), p.tickets);
  const Place place(p, load_shared_32(memory.ticket));
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0);
  if (warp >= CONSUMER_WARPS) {
    release_registers<PRODUCER_REGISTERS>();
    if (warp == LOADING_WARP && elect_one()) produce(p, place, memory);
    if (warp == ADDING_WARP && elect_one()) add_sums(p, place, memory);
  } else {
    take_registers<CONSUMER_REGISTERS>();
    Consumer(p, place, memory).run();
  }
}
