// The warps of rnn_persistent_forward that write what the multiplying warpgroups have computed, and that fetch products
// with the input. They move pieces of 16 bytes. Macros: as there.

#pragma once

#include "include/cp_async.cuh"
#include "include/ptx/tma.cuh"
#include "persistent_exchange.cuh"
#include "persistent_forward_block.cuh"

constexpr int AT_ONCE = SAVES_CELLS ? 2 : 4;  // pieces that a lane stores at a time, as far as its registers go

// Whether all rows begin at multiples of 16 bytes.
template <class T> __device__ __forceinline__ bool are_whole(const T* first, const Rows& rows) {
  return (u64(first) | u64(rows.step | rows.sequence | rows.direction) * sizeof(T)) % 16 == 0;
}

// A number that a function takes as a type.
template <int NUMBER> struct Number {
  constexpr operator int() const { return NUMBER; }
};

__device__ __forceinline__ u32 word_of(TYPE value) { return value.bits * 0x10001u; }
__device__ __forceinline__ u32 word_of(f32 value) { return __float_as_uint(value); }

// The i-th element from an address in shared memory on.
template <class T> __device__ __forceinline__ T element(u32 address, int i) {
  if constexpr (sizeof(T) == 2) return T{u16(load_shared_16(address + i * 2))};
  else return __uint_as_float(load_shared_32(address + i * 4));
}

// The publishing warp: the block's states to the other blocks.
__device__ __forceinline__ void publish_states(const Place& place, const Memory& memory) {
  const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll 1
  for (i32 step = 0; step <= place.p.layer.steps; ++step) {  // states before `step`
    for (u32 g = 0; g < WARPGROUPS; ++g) named_barrier(RESULTS + g, RESULTS_THREADS);
    if (step == place.p.layer.steps) return;
    u8* const chunk = place.exchange(step % 2, place.own_chunk());
#pragma unroll 8
    for (u32 item = lane; item < u32(COLUMNS * PIECES); item += WARP_SIZE) {
      const u32 column = item / PIECES, own = item % PIECES, piece = place.block % BLOCKS_OF_CHUNK * PIECES + own;
      const auto states = workspace_of(memory, step, column / HALF).states();
      *reinterpret_cast<uint4*>(chunk + column * LINE_BYTES + (piece ^ column % 8) * 16) =
          load_shared_128(states.piece(column % HALF / 8, column % 8, own));
    }
    fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      for (u32 g = 0; g < WARPGROUPS; ++g) memory.release(kept_number(step, g));
      arrive(place.arrivals() + place.own_chunk() / COPIED);
    }
    __syncwarp();
  }
}

// A keeping warp: writes the rows that warpgroup g has computed to the layer, and fetches its products with the input.
struct Keeper {
  const Place& place;
  const Memory& memory;
  const u32 g, lane;

  __device__ __forceinline__ void run() const {
    const i32 steps = place.p.layer.steps;
    fetch(0);
    named_barrier(RESULTS + g, RESULTS_THREADS);  // the first states, which nobody keeps
    free_workspace(0);
#pragma unroll 1
    for (i32 step = 0; step < steps; ++step) {
      const Workspace workspace = workspace_of(memory, step + 1, g);
      const i32 t = place.time(step);
      named_barrier(TAKEN + g, INPUTS_THREADS);
      if (step + 1 < steps) fetch(step + 1);
      named_barrier(RESULTS + g, RESULTS_THREADS);
      if constexpr (SAVES_GATES) store_gates(workspace, t);
      const Layer& p = place.p.layer;
      store_states(workspace, t, p.output, p.output_rows, convert<TYPE>(p.fill));
      if constexpr (SAVES && !SAVES_GATES) store_states(workspace, t, p.gates, p.gate_rows, TYPE{});
      if constexpr (SAVES_CELLS) store_cells(workspace, t);
      free_workspace(step + 1);
    }
  }

 private:
  // The publishing warp arrives once.
  __device__ __forceinline__ void free_workspace(i32 steps) const {
    fence_async_shared();
    __syncwarp();
    if (lane == 0) memory.release(kept_number(steps, g), READERS - 1);
  }

  // Calls visit(column, piece, sequence) for the pieces of all columns, a lane COUNT of them at a time.
  template <int OF_COLUMN, int COUNT, class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    constexpr int LANES = OF_COLUMN <= 2 ? 2 : OF_COLUMN <= 4 ? 4 : 8;
    const u32 piece = lane % LANES;
    if (LANES != OF_COLUMN && piece >= OF_COLUMN) return;
#pragma unroll COUNT
    for (u32 column = lane / LANES; column < HALF; column += WARP_SIZE / LANES) {
      const u32 of_group = g * HALF + column;
      visit(column, piece, Sequence{place.first_sequence() + of_group, place.direction, memory.length_of(of_group)});
    }
  }

  // Requests the products of a step with the input, and waits for them. Columns without sequences keep what they have.
  __device__ __forceinline__ void fetch(i32 step) const {
    const Layer& p = place.p.layer;
    const Gates inputs = memory.inputs_of(g);
    const TYPE* const first = p.input + place.first_unit();
    const i32 t = place.time(step);
    const bool are_aligned = are_whole(p.input, p.input_rows) && p.input_gate * sizeof(TYPE) % 16 == 0;
    const auto fetch_all = [&](auto at_once, const auto& copy) {
      for_each<CELL::GATES * PIECES, at_once>([&](u32 column, u32 piece, const Sequence& s) {
        const i64 from = p.input_rows.of(t, s.b, s.d) + piece / PIECES * p.input_gate + piece % PIECES * 8;
        if (s.exists()) copy(inputs.piece(column / 8, column % 8, piece), first + from);
      });
    };
    if (are_aligned) {
      fetch_all(Number<4>(), [](u32 to, const TYPE* from) { cp_async<16>(to, from, true); });
    } else {
      fetch_all(Number<1>(), [](u32 to, const TYPE* from) {
#pragma unroll 1
        for (int i = 0; i < 8; ++i) store_shared(to + i * sizeof(TYPE), from[i]);
      });
    }
    cp_async_commit();
    cp_async_wait<0>();
    named_barrier_arrive(INPUTS + g, INPUTS_THREADS);
  }

  // Writes rows of a step, OF_COLUMN pieces of each column, from address(column, piece) to to(piece, sequence). Rows
  // past the end of a sequence are filled with `fill`.
  template <int OF_COLUMN, class T, class Address, class To>
  __device__ __forceinline__ void store(i32 t, bool are_aligned, T fill, const Address& address, const To& to) const {
    constexpr int COUNT = 16 / sizeof(T);
    if (are_aligned) {
      const u32 word = word_of(fill);
      for_each<OF_COLUMN, AT_ONCE>([&](u32 column, u32 piece, const Sequence& s) {
        const uint4 row = load_shared_128(address(column, piece));
        const bool has = s.has(t);
        const uint4 words = {has ? row.x : word, has ? row.y : word, has ? row.z : word, has ? row.w : word};
        if (s.exists()) *reinterpret_cast<uint4*>(to(piece, s)) = words;
      });
    } else {
      for_each<OF_COLUMN, 1>([&](u32 column, u32 piece, const Sequence& s) {
        if (!s.exists()) return;
#pragma unroll 1
        for (int i = 0; i < COUNT; ++i) to(piece, s)[i] = s.has(t) ? element<T>(address(column, piece), i) : fill;
      });
    }
  }

  __device__ __forceinline__ void store_gates(const Workspace& from, i32 t) const {
    const Layer& p = place.p.layer;
    store<CELL::BLOCKS * PIECES>(
        t, are_whole(p.gates, p.gate_rows), TYPE{},
        [&](u32 column, u32 piece) { return from.gates().piece(column / 8, column % 8, piece); },
        [&](u32 piece, const Sequence& s) {
          const u32 at = place.first_unit() + piece / PIECES * p.units + piece % PIECES * 8;
          return p.gates + p.gate_rows.of(t, s.b, s.d) + at;
        });
  }
  // The states, to rows of the output, or of the gates of a cell that saves them.
  __device__ __forceinline__ void store_states(const Workspace& from, i32 t, TYPE* to, const Rows& rows,
                                               TYPE fill) const {
    store<PIECES>(
        t, are_whole(to, rows), fill,
        [&](u32 column, u32 piece) { return from.states().piece(column / 8, column % 8, piece); },
        [&](u32 piece, const Sequence& s) { return to + rows.of(t, s.b, s.d) + place.first_unit() + piece * 8; });
  }
  __device__ __forceinline__ void store_cells(const Workspace& from, i32 t) const {
    constexpr int COUNT = 16 / sizeof(Value);
    const Layer& p = place.p.layer;
    store<UNITS / COUNT>(
        t, are_whole(p.cells, p.cell_rows), Value(0),
        [&](u32 column, u32 piece) { return from.cell(column / 8, column % 8, piece * COUNT); },
        [&](u32 piece, const Sequence& s) {
          return p.cells + p.cell_rows.of(t, s.b, s.d) + place.first_unit() + piece * COUNT;
        });
  }
};
