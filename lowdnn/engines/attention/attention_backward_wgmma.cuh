// Parts of the kernels of attention's gradients on wgmma: the roles of a block's warps (one loads, two add sums of dq,
// two warpgroups multiply). A persistent block takes one tile of TILE_KV keys after the other and walks over the
// queries with each. While the gradients of one tile are stored, the first queries of the next one are copied.
//
// Scores are computed transposed, with keys along the rows. Rounded to 16 bits, their accumulators are operands in
// registers for dv += w^T d_o and dk += ds^T q. For dq = ds k, ds goes through shared memory, and each warpgroup
// computes a part of dq (tile_sums.cuh). Queries and gradients of the output come through rings of stages, the last
// queries of a head first, head after head. dq is summed over the blocks of a head in global memory. For each tile of
// queries, the block with the first keys stores its sum and the others add theirs: with IN_ORDER in the order of their
// keys, otherwise in any order. `heads_at_once` heads are interleaved, so that blocks seldom wait for their turn. Two
// warps add alternate tiles: while one waits until its sums are visible, the other one's are in flight. With IS_SPLIT
// several blocks take the same tile of keys, for all tiles or only the last ones, and divide its queries. Each leaves
// its sums of dk and dv in the workspace, and attention_backward_sums.cu adds them in a fixed order. Shared memory:
// KEY_STAGES times TILE_KV rows of k and of v; STAGES times TILE_Q rows of q and their terms; OUTPUT_STAGES times
// TILE_Q rows of d_o; TILE_KV x TILE_Q gradients of scores; two of the SUM_PIECES pieces of dq of a tile; WEIGHT_BYTES.
// The barriers, the tickets and, in fp8, a word for each multiplying warp follow; they lie after the last stage's terms
// if the stage's padding has room for them.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV HEAD_QK HEAD_V (multiples of 16) KEY_STAGES STAGES OUTPUT_STAGES
// SUM_PIECES WEIGHT_BYTES IN_ORDER IS_SPLIT PRODUCER_REGISTERS CONSUMER_REGISTERS; IS_FP8, WEIGHT_TYPE and
// GRADIENT_TYPE: the types of weights and gradients of scores as operands.

#pragma once

#include "attention_backward_wgmma_warpgroup.cuh"
#include "include/ptx/dependent_launch.cuh"

// Issues all copies of the block, in one thread. The first queries of a tile of keys do not wait until the previous
// tile has been used: with one stage of keys, they are copied before the keys.
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

// Calls `run` with each tile of keys (Place) that the block takes; for the warps that do not load, as whole warps
// (IS_WARP) or in one thread.
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

// Adds dq of every ADDING_WARPS-th step, which the consumers pass through the ring, to the sums of its tile of queries
// in memory. One thread of each adding warp calls it.
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
      // All stages must be free before the next pass: a warpgroup may have to write its whole pass before it reaches
      // the barrier at which the other one waits.
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

// Runs the role of the calling thread, for every thread of the block; the multiplying warpgroups run Consumer::run.
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
      fence_async_shared();  // gradients were staged where keys and values lie
      memory.keys.release();
    });
  }
}
