// A multiplying warpgroup of rnn_persistent_backward, which computes the cells of a part of the block's units, too.
// Macros: as there.

#pragma once

#include "include/ptx/cluster.cuh"
#include "include/ptx/wgmma.cuh"
#include "persistent_backward_block.cuh"
#include "persistent_exchange.cuh"

DEFINE_WGMMA(multiply_shared, COLUMNS, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_registers, COLUMNS, f32.TYPE.TYPE)

// The chunks in registers of a thread of warpgroup `g`.
struct OwnWeights {
  u32 words[REGISTER_CHUNKS ? REGISTER_CHUNKS : 1][CHUNK / 16][4];

  __device__ __forceinline__ OwnWeights(const Place& place, u32 g) {
    const u32 lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
#pragma unroll
    for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk) {
#pragma unroll
      for (int step = 0; step < CHUNK / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32 row = g * 64 + warp * 16 + i % 2 * 8 + lane / 4, k = step * 16 + i / 2 * 8 + lane % 4 * 2;
          words[chunk][step][i] = *reinterpret_cast<const u32*>(weights_of(place, row, chunk, k));
        }
      }
    }
  }
};

// The values of two units of a sequence that stay in registers: those that their next step reads, and those that go
// back around the product. 16-bit values are bits of words, as they were loaded: taking them apart would wait for the
// loads.
struct Resident {
  i32 length;  // the sequence's number of steps; -1 where there is no sequence
  u32 gates[BLOCKS], dy[2], last_state[2], first_cell[2], last_gradient[2], last_cell_gradient[2];
  Value cell[2], last_cell[2], carried[2];
};

__device__ __forceinline__ Value value_of(u32 bits) {
  const u16 low = u16(bits);
  return Value(widen(*reinterpret_cast<const TYPE*>(&low)));
}

// An element, the i-th of two whose values stay, and whose gradients go to shared memory, [block of gates][column][unit].
// They are 0 where the sequence does not have the step. Nothing here is a branch, so that elements overlap.
struct ResidentElement : Element {
  Resident& own;
  const int i;
  const bool is_there;
  TYPE* gradients;

  __device__ __forceinline__ ResidentElement(const Element& element, Resident& resident, int number, bool has_step,
                                             TYPE* shared)
      : Element(element), own(resident), i(number), is_there(has_step), gradients(shared) {}
  __device__ __forceinline__ Value gate(u32 block) const { return value_of(own.gates[block] >> 16 * i); }
  __device__ __forceinline__ Value dy() const { return value_of(own.dy[i]); }
  __device__ __forceinline__ Value cell() const { return own.cell[i]; }
  __device__ __forceinline__ Value last_cell() const { return is_first() ? value_of(own.first_cell[i]) : own.last_cell[i]; }
  __device__ __forceinline__ Value last_state() const { return value_of(own.last_state[i]); }
  __device__ __forceinline__ Value last_gradient() const { return value_of(own.last_gradient[i]); }
  __device__ __forceinline__ Value last_cell_gradient() const { return value_of(own.last_cell_gradient[i]); }
  __device__ __forceinline__ Value carried() const { return own.carried[i]; }
  __device__ __forceinline__ void carry(Value gradient) const { own.carried[i] = is_there ? gradient : own.carried[i]; }
  __device__ __forceinline__ void put_first_cell(Value) const {}  // later, as what is carried
  __device__ __forceinline__ void put_gate(u32 block, Value gradient) const {
    gradients[block * (COLUMNS * UNITS)] = convert<TYPE>(is_there ? gradient : Value(0));
  }
};

// A multiplying warpgroup.
struct Consumer {
  const Place& place;
  const Memory& memory;
  const u32 warp, lane;
  u32 slot = 0, slot_parity = 0, sums_parity = 0;
  Resident pairs[PARTS][PAIRS] = {};

  __device__ __forceinline__ Consumer(const Place& of, const Memory& shared)
      : place(of), memory(shared), warp(uniform(threadIdx.x / WARP_SIZE)), lane(threadIdx.x % WARP_SIZE) {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        const u32 b = place.first_sequence(part) + column(pair);
        const Sequence sequence = sequence_of(p.lengths, b, place.direction, p.steps, p.batch);
        pairs[part][pair].length = has(pair) ? sequence.length : -1;
      }
    }
  }

  // A thread has pairs of units of a column; a warp 16 units of four columns.
  __device__ __forceinline__ u32 quad(int pair) const { return warp + pair * WARPS; }
  __device__ __forceinline__ bool has(int pair) const { return QUADS % WARPS == 0 || quad(pair) < u32(QUADS); }
  __device__ __forceinline__ u32 unit(int pair) const { return quad(pair) / (COLUMNS / 4) * 16 + lane % 8 * 2; }
  __device__ __forceinline__ u32 column(int pair) const { return quad(pair) % (COLUMNS / 4) * 4 + lane / 8; }
  __device__ __forceinline__ TYPE* gradients(int pair) const {
    return reinterpret_cast<TYPE*>(__cvta_shared_to_generic(memory.own)) + column(pair) * UNITS + unit(pair);
  }

  // Calls visit(pair, its first element) for the pairs of a part, whose sequences need not be there.
  template <class Visit> __device__ __forceinline__ void for_each_pair(int part, i32 step, const Visit& visit) const {
    const Layer& p = place.p.layer;
    const i32 t = place.time(step);
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
      const u32 b = place.first_sequence(part) + column(pair);
      const Sequence sequence = {b, place.direction, pairs[part][pair].length};
      const i32 behind = sequence.behind(t);
      if (!has(pair)) continue;
      visit(pair, Element{sequence, t, behind >= 0 && sequence.has(behind), place.first_unit() + unit(pair), p});
    }
  }
  // Calls visit(element, its number).
  template <class Visit> __device__ __forceinline__ void for_each(int part, i32 step, const Visit& visit) {
    for_each_pair(part, step, [&](int pair, const Element& first) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Element element = {first.sequence, first.t, first.has_next, first.unit + i, first.p};
        visit(ResidentElement(element, pairs[part][pair], i, is_step(first, step), gradients(pair) + i), pair * 2 + i);
      }
    });
  }
  __device__ __forceinline__ bool is_step(const Element& e, i32 step) const {
    return step < place.p.layer.steps && e.sequence.has(e.t);
  }

  // Loads the values that a step reads. All loads are under way before any is waited for.
  __device__ __forceinline__ void fetch(int part, i32 step) {
    const Layer& p = place.p.layer;
    for_each_pair(part, step, [&](int pair, const Element& e) {
      Resident& own = pairs[part][pair];
      const bool is_there = is_step(e, step), is_first = is_there && e.is_first(), has_last = is_there && !is_first;
      const bool is_last = e.sequence.exists() && !e.has_next;
      const i32 before = e.sequence.before(e.t);
      const TYPE* const states = is_first ? p.first_states + e.of(p.state_ends) : p.states + e.of(p.state_rows, before);
      const bool has_states = has_last || (is_first && p.first_states);
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) load_where(is_there, p.gates + e.gate_place(block), own.gates[block]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_half_where(is_there, p.dy + e.of(p.dy_rows, e.t) + i, own.dy[i]);
        load_half_where(is_last && p.dlast_states, p.dlast_states + e.of(p.state_ends) + i, own.last_gradient[i]);
        if constexpr (CELL::CARRIES) {
          own.last_state[i] = 0;
          load_half_where(has_states, states + i, own.last_state[i]);
        }
        if constexpr (CELL::HAS_CELLS) {
          load_half_where(is_first && p.first_cells, p.first_cells + e.of(p.cell_ends) + i, own.first_cell[i]);
          load_half_where(is_last && p.dlast_cells, p.dlast_cells + e.of(p.cell_ends) + i, own.last_cell_gradient[i]);
        }
      }
      if constexpr (CELL::HAS_CELLS) {
        load_where(is_there, p.cells + e.of(p.cell_rows, e.t), own.cell);
        load_where(has_last, p.cells + e.of(p.cell_rows, before), own.last_cell);
      }
    });
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
  __device__ __forceinline__ void receive(Value (&sums)[PAIRS * 2]) {
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
          sums[pair * 2 + i] += __uint_as_float(load_shared_32(from));
        }
      }
    }
  }

  __device__ __forceinline__ void compute(int part, i32 step, const Value (&sums)[PAIRS * 2]) {
    for_each(part, step, [&](const ResidentElement& e, int i) {
      CELL::step(e, sums[i] + e.dy() + beside_product(e, CELL::CARRIES));
    });
  }

  // Writes the gradients of first cells and states, behind a sequence's first step or, without any, instead of it.
  __device__ __forceinline__ void finish(int part, i32 step, const Value (&sums)[PAIRS * 2]) {
    const Layer& p = place.p.layer;
    for_each(part, step, [&](const ResidentElement& e, int i) {
      if (!e.sequence.exists()) return;
      if (CELL::HAS_CELLS && e.is_there) e.Element::put_first_cell(e.carried());
      if (!e.is_there) put_end_of_nothing(e);
      if (p.dfirst_states && step == (place.direction ? e.sequence.length : p.steps)) {
        write(p.dfirst_states, e.of(p.state_ends), sums[i] + beside_product(e, CELL::CARRIES));
      }
    });
  }

  __device__ __forceinline__ void run() {
    const OwnWeights weights(place, warp / 4);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) fetch(part, 0);
#pragma unroll 1
    for (i32 step = 0; step <= place.products(); ++step) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        Value sums[PAIRS * 2] = {};
        if (step > 0) {
          f32 own[COLUMNS / 2];
          multiply(weights, own);
          send(own);
          receive(sums);
        }
        if (step > 0 || part > 0) named_barrier(READ, WRITTEN_THREADS);
        compute(part, step, sums);
        named_barrier_arrive(WRITTEN, WRITTEN_THREADS);
        finish(part, step, sums);
        if (step < place.p.layer.steps) fetch(part, step + 1);
      }
    }
  }
};
