// A block of rnn_persistent_forward: its place in the grid, its extents, its shared memory. Macros: as there.

#pragma once

#include "include/ptx/mbarrier.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/ptx/warpgroup.cuh"
#include "forward_layer.cuh"
#include "resident_weights.cuh"

constexpr int ROWS = 64;
constexpr int GATE_ROWS = CELL::GATES == 1 ? 1 : 4;  // rows of weights of a unit
constexpr int UNITS = ROWS / GATE_ROWS;              // units of a block
constexpr int CONSUMERS = WARPGROUPS * WARPGROUP_SIZE, THREADS = CONSUMERS + WARPGROUP_SIZE;
constexpr int HALF = COLUMNS / WARPGROUPS;  // columns whose cells a warpgroup computes
constexpr int BLOCKS_OF_CHUNK = CHUNK / UNITS;
constexpr int ARRIVALS = 32;                          // words of a group: a line, which a warp reads at a time
constexpr int OWN_CHUNKS = (CHUNKS + 1) / WARPGROUPS;  // chunks of a warpgroup; the second one may lack the last
constexpr int SHARED_CHUNKS = OWN_CHUNKS - REGISTER_CHUNKS;
constexpr int CHUNK_BYTES = COLUMNS * LINE_BYTES;
constexpr int COPIES = CHUNKS / COPIED;  // copies of a step
constexpr int COPIED_BYTES = COPIED * CHUNK_BYTES;
constexpr int FIRST_NUMBER = COPIED < WARPGROUPS ? WARPGROUPS : COPIED;       // the number of the first chunk
constexpr int PIECES = UNITS * int(sizeof(TYPE)) / 16;  // pieces of 16 bytes in a gate or in the states of a column
constexpr bool SAVES_GATES = SAVES && GATE_ROWS > 1;    // a cell of one gate saves its state
constexpr bool SAVES_CELLS = SAVES && CELL::HAS_CELLS;
constexpr int RING_AT = WARPGROUPS * SHARED_CHUNKS * WEIGHT_BYTES;
constexpr int INPUTS_AT = RING_AT + SLOTS * CHUNK_BYTES;
constexpr int BARRIERS_AT = INPUTS_AT + COLUMNS * LINE_BYTES;
constexpr int LENGTHS_AT = BARRIERS_AT + 2 * SLOTS * MBARRIER_BYTES;
static_assert(WARPGROUPS == 2 && CHUNKS >= WARPGROUPS && CHUNKS <= ARRIVALS, "each warpgroup has a chunk");
static_assert(COLUMNS % (8 * WARPGROUPS) == 0, "whole tiles of columns for each warpgroup");
static_assert(CHUNKS % COPIED == 0 && SLOTS % COPIED == 0, "whole copies of a step and in the ring");
// A slot that comes again within a step is of the same warpgroup then: that one has waited for the phase before.
static_assert(SLOTS == CHUNKS || (SLOTS % WARPGROUPS == 0 && SLOTS >= 2 * WARPGROUPS), "slots of one warpgroup");
// Whether a warpgroup waits for its products before it goes on, so that it holds one slot instead of two.
constexpr bool IS_EAGER = SLOTS < 4 * WARPGROUPS && SLOTS < CHUNKS;

// Named barriers.
constexpr u32 ALL = 1;      // all multiplying warpgroups
constexpr u32 OWN = 2;      // + g: warpgroup g
constexpr u32 RESULTS = 4;  // + g: its workspace has the results of a step
constexpr u32 INPUTS = 6;   // + g: its products with the input are there
constexpr u32 TAKEN = 8;    // + g: it has taken them
constexpr u32 RESULTS_THREADS = WARPGROUP_SIZE + 2 * WARP_SIZE, INPUTS_THREADS = WARPGROUP_SIZE + WARP_SIZE;
constexpr u32 READERS = 4;  // arrivals for a slot that has been read: by the warps of a warpgroup, or for a workspace

__device__ __forceinline__ void store_shared(u32 address, TYPE value) {
  asm volatile("st.shared.b16 [%0], %1;" :: "r"(address), "h"(value.bits));
}
__device__ __forceinline__ void store_shared(u32 address, f32 value) {
  store_shared_32(address, __float_as_uint(value));
}

// Whether the phase of a barrier has ended, as mbarrier_wait waits for it.
__device__ __forceinline__ bool has_ended(u32 barrier, u32 parity) {
  u32 has;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(has) : "r"(barrier), "r"(parity) : "memory");
  return has;
}

struct Params {
  Layer layer;
  u8* exchange;
  u32* arrivals;
  i32 groups, blocks;  // groups of a direction, blocks of a group
};

// Where the block stands, and what of the arguments is its own.
struct Place {
  const Params& p;
  u32 direction, group, block;

  __device__ __forceinline__ explicit Place(const Params& params) : p(params) {
    const u32 of_all = blockIdx.x / p.blocks;
    block = blockIdx.x % p.blocks, direction = of_all / p.groups, group = of_all % p.groups;
  }
  __device__ __forceinline__ u32 team() const { return direction * p.groups + group; }
  __device__ __forceinline__ u8* exchange(u32 half, u32 chunk) const {
    return p.exchange + (i64(team() * 2 + half) * CHUNKS + chunk) * CHUNK_BYTES;
  }
  // Counters, one for each copy.
  __device__ __forceinline__ u32* arrivals() const { return p.arrivals + team() * ARRIVALS; }
  __device__ __forceinline__ u32 first_unit() const { return block * UNITS; }
  __device__ __forceinline__ u32 own_chunk() const { return block / BLOCKS_OF_CHUNK; }
  __device__ __forceinline__ u32 first_sequence() const { return group * COLUMNS; }
  __device__ __forceinline__ i32 time(i32 step) const { return direction ? p.layer.steps - 1 - step : step; }
};

// A row of a block's weights and sums: of a gate of a unit of the block. A GRU keeps the product of its last gate with
// the input apart from that with the states: its sums have a fourth row, whose weights are 0.
struct Row {
  u32 gate, unit;

  __device__ __forceinline__ explicit Row(u32 row)
      : gate(GATE_ROWS == 1 ? 0 : row / 8 % 2 * 2 + row % 2), unit(GATE_ROWS == 1 ? row : row / 16 * 4 + row % 8 / 2) {}
  __device__ __forceinline__ bool has_weights() const { return gate < u32(CELL::GATES); }
  __device__ __forceinline__ bool has_input() const { return CELL::GATES != 3 || gate != 2; }
  __device__ __forceinline__ u32 own_gate() const { return min(gate, u32(CELL::GATES) - 1); }
};

// The weights of a row of the block, of chunk `chunk` of warpgroup `g`, from `k` of it on; null for zeros.
__device__ __forceinline__ const TYPE* weights_of(const Place& place, u32 g, u32 chunk, const Row& row, u32 k) {
  const Weights& weights = place.p.layer.weights;
  const u32 of_all = chunk * WARPGROUPS + g;
  if (!row.has_weights() || of_all >= CHUNKS) return nullptr;
  const i64 line = i64(row.gate) * place.p.layer.units + place.first_unit() + row.unit;
  return weights.at + place.direction * weights.direction + line * weights.pitch + of_all * CHUNK + k;
}

// Rows of a half of the columns in shared memory, of which a column is the `column`-th of the 8 of tile `tile`. Pieces
// of 16 bytes are in an order in which the columns and gates of a warp lie in different banks.
template <int PIECES_OF_ROW> struct Lines {
  static constexpr u32 BYTES = PIECES_OF_ROW * 16;

  u32 at;  // an address

  __device__ __forceinline__ u32 piece(u32 tile, u32 column, u32 number) const {
    const u32 turn = (column & 4) | (column & 1) << 1 | (column >> 1 & 1);
    return at + (number ^ turn % PIECES_OF_ROW) * 16 + column * BYTES + tile * (8 * BYTES);
  }
};

// Gates of a column in lines of 128 bytes.
struct Gates : Lines<8> {
  __device__ __forceinline__ u32 of(u32 tile, u32 column, u32 gate, u32 unit) const {
    return piece(tile, column, gate * PIECES + unit / 8) + unit % 8 * sizeof(TYPE);
  }
};

// The slot that a warpgroup keeps between two products: gates, states and cells of its half of the columns.
struct Workspace {
  u32 at;  // an address

  __device__ __forceinline__ Gates gates() const { return {at}; }
  __device__ __forceinline__ Lines<PIECES> states() const { return {at + HALF * LINE_BYTES}; }
  __device__ __forceinline__ u32 state(u32 tile, u32 column, u32 unit) const {
    return states().piece(tile, column, unit / 8) + unit % 8 * sizeof(TYPE);
  }
  __device__ __forceinline__ u32 cell(u32 tile, u32 column, u32 unit) const {
    constexpr u32 BYTES = UNITS * sizeof(Value);
    return at + column * BYTES + unit * sizeof(Value) + (HALF * (LINE_BYTES + PIECES * 16) + tile * (8 * BYTES));
  }
};

// Shared memory by address. Slots take the chunks of all steps in turn, by their number. The last numbers before the
// first chunk are the workspaces of the two warpgroups before the first product.
struct Memory {
  u32 weights, ring, inputs;
  u32 full, free;  // barriers of slots
  u32 lengths;

  __device__ __forceinline__ explicit Memory(u32 memory)
      : weights(memory), ring(memory + RING_AT), inputs(memory + INPUTS_AT), full(memory + BARRIERS_AT),
        free(full + SLOTS * MBARRIER_BYTES), lengths(memory + LENGTHS_AT) {}
  // The barrier of a free slot counts the warps of a warpgroup that have read it. A workspace counts as many.
  __device__ __forceinline__ void begin() const {
    for (u32 slot = 0; slot < SLOTS; slot += COPIED) mbarrier_init(full_of(slot), 1);
    for (u32 slot = 0; slot < SLOTS; ++slot) mbarrier_init(free_of(slot), READERS);
    mbarrier_fence_init();
    for (u32 number = 0; number < FIRST_NUMBER; number += COPIED) mbarrier_arrive(full_of(number));
    for (u32 number = 0; number < FIRST_NUMBER - WARPGROUPS; ++number) {
      for (u32 i = 0; i < READERS; ++i) mbarrier_arrive(free_of(number));
    }
  }
  // The barrier of the chunks that are copied with one.
  __device__ __forceinline__ u32 full_of(u32 number) const { return full + number % SLOTS / COPIED * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 free_of(u32 number) const { return free + number % SLOTS * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 states_of(u32 number) const { return ring + number % SLOTS * CHUNK_BYTES; }
  __device__ __forceinline__ void wait_full(u32 number) const { mbarrier_wait(full_of(number), number / SLOTS % 2); }
  // Whether the slots are free that a copy takes, from chunk `number` on. The chunks before must have been copied.
  __device__ __forceinline__ bool are_free(u32 number) const {
    bool are = true;
    for (u32 i = number; i < number + COPIED; ++i) are &= has_ended(free_of(i), i / SLOTS % 2 ^ 1);
    return are;
  }
  // One thread: arrives `count` times for a slot that its warp has read.
  __device__ __forceinline__ void release(u32 number, u32 count = 1) const {
    for (u32 i = 0; i < count; ++i) mbarrier_arrive(free_of(number));
  }
  __device__ __forceinline__ Gates inputs_of(u32 g) const { return {inputs + g * (HALF * LINE_BYTES)}; }
  // The number of steps of a sequence of the group, -1 where there is no sequence.
  __device__ __forceinline__ i32 length_of(u32 column) const { return i32(load_shared_32(lengths + column * 4)); }
};

__device__ __forceinline__ u32 number_of(i32 step, u32 chunk) { return FIRST_NUMBER + step * CHUNKS + chunk; }
// The number of the chunk whose slot warpgroup g keeps behind `steps` products: its last one.
__device__ __forceinline__ u32 kept_number(i32 steps, u32 g) { return number_of(steps, 0) - 1 - (CHUNKS + 1 + g) % 2; }
__device__ __forceinline__ Workspace workspace_of(const Memory& memory, i32 steps, u32 g) {
  return {memory.states_of(kept_number(steps, g))};
}
