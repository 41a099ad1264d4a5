// A multiplying warpgroup of rnn_persistent_backward, which computes a share of the block's cells too.
// Macros: as there.

#pragma once

#include "include/ptx/cluster.cuh"
#include "include/ptx/wgmma.cuh"
#include "persistent_backward_block.cuh"

DEFINE_WGMMA(multiply_shared, COLUMNS, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_registers, COLUMNS, f32.TYPE.TYPE)

// A multiplying warpgroup.
struct Consumer {
  const Place& place;
  const Memory& memory;
  const u32 warp, lane;
  u32 slot = 0, slot_parity = 0, sums_parity = 0;
  Pair pairs[PARTS][PAIRS] = {};

  __device__ __forceinline__ Consumer(const Place& of, const Memory& shared)
      : place(of), memory(shared), warp(uniform(threadIdx.x / WARP_SIZE)), lane(threadIdx.x % WARP_SIZE) {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const u32 b = has(pair) ? place.first_sequence(part) + column(pair) : u32(p.batch);
        pairs[part][pair].sequence = sequence_of(p.lengths, b, place.direction, p.steps, p.batch);
      }
    }
  }

  // A thread has pairs of units of a column; a warp 16 units of four columns.
  __device__ __forceinline__ u32 quad(int pair) const { return warp + pair * WARPS; }
  __device__ __forceinline__ bool has(int pair) const { return QUADS % WARPS == 0 || quad(pair) < u32(QUADS); }
  __device__ __forceinline__ u32 unit(int pair) const { return quad(pair) / (COLUMNS / 4) * 16 + lane % 8 * 2; }
  __device__ __forceinline__ u32 column(int pair) const { return quad(pair) % (COLUMNS / 4) * 4 + lane / 8; }

  // Calls visit(pair, its first element, whether its sequence has the step) for the pairs of a part, whose sequences
  // need not be there.
  template <class Visit> __device__ __forceinline__ void for_each(int part, i32 step, const Visit& visit) const {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
      if (!has(pair)) continue;
      const Element e = pairs[part][pair].at(place.time(step), place.first_unit() + unit(pair), p);
      visit(pair, e, step < p.steps && e.sequence.has(e.t));
    }
  }
  __device__ __forceinline__ void fetch(int part, i32 step) {
    for_each(part, step, [&](int pair, const Element& e, bool is_step) { pairs[part][pair].fetch(e, is_step); });
  }

  // This block's part of the product.
  __device__ __forceinline__ void multiply(const OwnWeights& weights, f32 (&sums)[COLUMNS / 2]) {
    const u32 own = memory.weights + warp / 4 * (SHARED_CHUNKS * WEIGHT_BYTES);
    u32 last = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
    const auto release = [&] {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(memory.free_of(last));
    };
    // Multiplies a chunk, by multiply(gradients, step) for each 16 of k.
    const auto take = [&](int chunk, auto multiply) {
      mbarrier_wait(memory.full_of(slot), slot_parity);
      const u64 gradients = swizzled_operand(memory.slot_at(slot));
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < CHUNK / 16; ++step) multiply(gradients + (step * 32 >> 4), step);
      wgmma_commit();
      if (chunk > 0) {
        wgmma_wait<1>();
        release();
      }
      last = slot;
      slot = slot + 1 == SLOTS ? 0 : slot + 1;
      slot_parity ^= slot == 0;
    };
#pragma unroll
    for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk) {
      take(chunk, [&](u64 b, int step) { multiply_registers<false>(sums, weights.words[chunk][step], b, true); });
    }
#pragma unroll
    for (int chunk = 0; chunk < SHARED_CHUNKS; ++chunk) {
      const u64 a = swizzled_operand(own + chunk * WEIGHT_BYTES);
      take(REGISTER_CHUNKS + chunk,
           [&](u64 b, int step) { multiply_shared<false, false>(sums, a + (step * 32 >> 4), b, true); });
    }
    wgmma_wait<0>();
    release();
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) hold(sums[i]);
  }

  // Each warp's sums to the block that finishes its rows.
  __device__ __forceinline__ void send(const f32 (&sums)[COLUMNS / 2]) const {
    if (threadIdx.x == 0) mbarrier_expect(memory.sums_full, CLUSTER * SENT_BYTES);
    const u32 rank = warp / SHARE, barrier = cluster_address(memory.sums_full, rank);
    const u32 own = (lane ^ lane / 8 * 2) * 16;
    const u32 to = cluster_address(memory.sums_of(place.rank, warp % SHARE, 0) + own, rank);
    mbarrier_wait_cluster(memory.sums_free, sums_parity ^ 1);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const auto bits = [&](int j) { return __float_as_uint(sums[i * 4 + j]); };
      store_async_16(to + i * TILE_BYTES, barrier, bits(0), bits(1), bits(2), bits(3));
    }
  }

  // The sums of all blocks, for this thread's elements.
  __device__ __forceinline__ void receive(Value (&sums)[PAIRS][2]) {
    mbarrier_wait_cluster(memory.sums_full, sums_parity);
    sums_parity ^= 1;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
      if (!has(pair)) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 row = unit(pair) % 16 + i, of_tile = column(pair) % 8, sender = row % 8 * 4 + of_tile / 2;
        const u32 own = (sender ^ sender / 8 * 2) * 16 + row / 8 * 8 + of_tile % 2 * 4;
#pragma unroll
        for (u32 rank = 0; rank < CLUSTER; ++rank) {
          const u32 from = memory.sums_of(rank, unit(pair) / 16, column(pair) / 8) + own;
          sums[pair][i] += __uint_as_float(load_shared_32(from));
        }
      }
    }
  }

  // Computes the cells of the sequences of `part`, and writes their gate gradients to shared memory, [block of
  // gates][column][unit].
  __device__ __forceinline__ void compute(int part, i32 step, const Value (&sums)[PAIRS][2]) {
    for_each(part, step, [&](int pair, const Element& e, bool is_step) {
      Pair& own = pairs[part][pair];
      own.compute(e, is_step, sums[pair]);
      const u32 to = memory.own + (column(pair) * UNITS + unit(pair)) * sizeof(TYPE);
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        store_shared_32(to + block * (COLUMNS * UNITS * int(sizeof(TYPE))), own.made[block]);
      }
    });
  }

  __device__ __forceinline__ void finish(int part, i32 step, const Value (&sums)[PAIRS][2]) {
    for_each(part, step, [&](int pair, const Element& e, bool is_step) {
      pairs[part][pair].finish(e, is_step, step, sums[pair]);
    });
  }

  __device__ __forceinline__ void run() {
    const OwnWeights weights([&](int chunk, u32 row, u32 k) { return weights_of(place, warp / 4, chunk, row, k); });
#pragma unroll
    for (int part = 0; part < PARTS; ++part) fetch(part, 0);
#pragma unroll 1
    for (i32 step = 0; step <= place.products(); ++step) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        Value sums[PAIRS][2] = {};
        if (step > 0) {
          f32 own[COLUMNS / 2];
          multiply(weights, own);
          send(own);
          receive(sums);
        }
        if (step > 0 || part > 0) named_barrier(READ, WRITTEN_THREADS);
        compute(part, step, sums);
        named_barrier(WRITTEN, WRITTEN_THREADS);  // the writers are there: both have met at READ
        finish(part, step, sums);
        if (step < place.p.layer.steps) fetch(part, step + 1);
      }
    }
  }
};
