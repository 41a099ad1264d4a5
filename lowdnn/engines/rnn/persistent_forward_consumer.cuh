// A multiplying warpgroup of rnn_persistent_forward, which computes the cells of half of the columns, too. Macros: as
// there.

#pragma once

#include "include/ptx/tma.cuh"
#include "include/ptx/wgmma.cuh"
#include "persistent_forward_block.cuh"
#include "short_functions.cuh"

DEFINE_WGMMA(multiply_shared, COLUMNS, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_registers, COLUMNS, f32.TYPE.TYPE)

constexpr int OWN_SUMS = HALF / 2;               // sums of a thread in its warpgroup's columns
constexpr int OF_TILE = GATE_ROWS == 1 ? 4 : 1;  // elements of a thread in 8 columns
constexpr int ELEMENTS = HALF / 8 * OF_TILE;     // elements of a thread

// The states of a unit of a sequence.
struct Resident {
  Value h, c;
};

// An element whose results go to the workspace of its warpgroup.
struct ResidentElement : Element, ShortFunctions {
  Resident& own;
  const Workspace workspace;
  const u32 tile, column, of_block;  // place in the workspace: column of a tile, unit of the block

  using ShortFunctions::sigmoid;
  using ShortFunctions::tanh;

  __device__ __forceinline__ ResidentElement(const Element& element, Resident& resident, const Workspace& to,
                                             u32 of_half, u32 of_tile, u32 unit_of_block)
      : Element(element), own(resident), workspace(to), tile(of_half), column(of_tile), of_block(unit_of_block) {}
  __device__ __forceinline__ Value last_state() const { return own.h; }
  __device__ __forceinline__ Value last_cell() const { return own.c; }
  __device__ __forceinline__ void save(u32 block, Value value) const {
    if constexpr (SAVES_GATES) store_shared(workspace.gates().of(tile, column, block, of_block), convert<TYPE>(value));
  }
  __device__ __forceinline__ void put_cell(Value c) const {
    own.c = c;
    if constexpr (SAVES_CELLS) store_shared(workspace.cell(tile, column, of_block), c);
  }
  __device__ __forceinline__ void put_state(Value h) const { own.h = Value(widen(convert<TYPE>(h))); }

  __device__ __forceinline__ void compute(const Value (&input)[CELL::GATES], const Value (&of_states)[CELL::GATES]) {
    const Value h = own.h, c = own.c;
    CELL::step(*this, input, of_states);
    if (!sequence.has(t)) own.h = h, own.c = c;
  }
  __device__ __forceinline__ void pass_state() const {
    store_shared(workspace.state(tile, column, of_block), convert<TYPE>(own.h));
  }
  // Stores the states of a sequence that ends with this step, or that has no step.
  __device__ __forceinline__ void store_last() const {
    if (t != (sequence.length > 0 ? sequence.last() : 0)) return;
    if (p.last_states) write(p.last_states, of(p.state_ends), own.h);
    if (CELL::HAS_CELLS && p.last_cells) write(p.last_cells, of(p.cell_ends), own.c);
  }
};

// A word that the compiler takes for another one at each call: what is computed from it takes no registers in between.
__device__ __forceinline__ u32 anew(u32 word) {
  asm volatile("" : "+r"(word));
  return word;
}

struct Consumer {
  const Place& place;
  const Memory& memory;
  const u32 g, warp;
  u32 lane;
  Value biases[2];  // one for each of this thread's rows
  Value cells[CELL::HAS_CELLS ? ELEMENTS : 1];
  u32 states[(ELEMENTS + 1) / 2];  // two in a word

  __device__ __forceinline__ Consumer(const Place& of, const Memory& shared)
      : place(of),
        memory(shared),
        g(uniform(threadIdx.x / WARPGROUP_SIZE)),
        warp(uniform(threadIdx.x / WARP_SIZE % 4)),
        lane(threadIdx.x % WARP_SIZE) {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const Row row = row_of(upper);
      const i64 at = place.direction * p.bias_direction + i64(row.own_gate()) * p.units + place.first_unit() + row.unit;
      biases[upper] = row.has_input() ? read(p.input_bias, at) : Value(0);
      if (row.has_weights()) biases[upper] += read(p.recurrent_bias, at);
    }
  }

  __device__ __forceinline__ void run() {
    const OwnWeights weights([&](int chunk, u32 row, u32 k) { return weights_of(place, g, chunk, Row(row), k); });
    begin();
#pragma unroll 1
    for (i32 step = 0; step < place.p.layer.steps; ++step) {
      f32 sums[COLUMNS / 2], own[OWN_SUMS];
      lane = anew(lane);
      take_inputs(sums);
      multiply(weights, step, sums);
      share(step, sums, own);
      compute(step, own);
      pass();
    }
  }

 private:
  // The lower or the upper one of this thread's two rows.
  __device__ __forceinline__ Row row_of(int upper) const { return Row(warp * 16 + upper * 8 + lane / 4); }
  // Column of the tile i / OF_TILE. With rows of several gates a lane has one of its two columns, with all gates;
  // otherwise it has both columns of both rows.
  __device__ __forceinline__ u32 column(int i) const {
    return lane % 4 * 2 + (OF_TILE == 1 ? lane / 4 % 2 : i % 2);
  }
  __device__ __forceinline__ u32 unit(int i) const { return row_of(OF_TILE == 1 ? 0 : i / 2 % 2).unit; }
  __device__ __forceinline__ Sequence sequence_of(int i) const {
    const u32 own = g * HALF + i / OF_TILE * 8 + column(i);
    return {anew(place.first_sequence() + own), place.direction, memory.length_of(own)};
  }
  // Element i in step `step`. Its results go to the workspace behind `steps` products.
  __device__ __forceinline__ ResidentElement element(int i, Resident& own, const Sequence& sequence, i32 step,
                                                     i32 steps) const {
    const Element e{sequence, place.time(step), place.first_unit() + unit(i), place.p.layer};
    return ResidentElement(e, own, workspace_of(memory, steps, g), i / OF_TILE, column(i), unit(i));
  }
  __device__ __forceinline__ Value state(int i) const { return widen(TYPE{u16(states[i / 2] >> i % 2 * 16)}); }
  __device__ __forceinline__ void keep(int i, const Resident& own) {
    const u32 bits = convert<TYPE>(own.h).bits;
    states[i / 2] = i % 2 ? __byte_perm(states[i / 2], bits, 0x5410) : __byte_perm(states[i / 2], bits, 0x3254);
    if constexpr (CELL::HAS_CELLS) cells[i] = own.c;
  }
  // The workspace is full.
  __device__ __forceinline__ void pass() const { named_barrier_arrive(RESULTS + g, RESULTS_THREADS); }

  // The first states.
  __device__ __forceinline__ void begin() {
    const Layer& p = place.p.layer;
#pragma unroll
    for (u32& pair : states) pair = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      const Sequence sequence = sequence_of(i);
      Resident own = {};
      const ResidentElement e = element(i, own, sequence, 0, 0);
      if (sequence.exists()) {
        own.h = read(p.first_states, e.of(p.state_ends));
        if constexpr (CELL::HAS_CELLS) own.c = read(p.first_cells, e.of(p.cell_ends));
      }
      keep(i, own);
      e.pass_state();
    }
    pass();
  }

  // Sums begin with the products with the input and the biases in this warpgroup's columns.
  __device__ __forceinline__ void take_inputs(f32 (&sums)[COLUMNS / 2]) const {
    const Gates inputs = memory.inputs_of(g);
    named_barrier(INPUTS + g, INPUTS_THREADS);
#pragma unroll
    for (int i = 0; i < OWN_SUMS; ++i) {
      const Row row = row_of(i / 2 % 2);
      const u32 bits = load_shared_16(inputs.of(i / 4, lane % 4 * 2 + i % 2, row.own_gate(), row.unit));
      const f32 first = (row.has_input() ? widen(TYPE{u16(bits)}) : 0) + biases[i / 2 % 2];
      sums[i] = g == 0 ? first : 0, sums[OWN_SUMS + i] = g == 0 ? 0 : first;
      hold(sums[i]), hold(sums[OWN_SUMS + i]);  // written before the first wgmma_fence
    }
    named_barrier_arrive(TAKEN + g, INPUTS_THREADS);
  }

  // Adds this warpgroup's part of the product of a step. The slot of its last chunk becomes its workspace.
  __device__ __forceinline__ void multiply(const OwnWeights& weights, i32 step, f32 (&sums)[COLUMNS / 2]) const {
    const u32 own = memory.weights + g * (SHARED_CHUNKS * WEIGHT_BYTES);
    // Multiplies a chunk, by multiply(states, step) for each 16 of k.
    const auto take = [&](int chunk, auto multiply) {
      const u32 number = number_of(step, chunk * WARPGROUPS + g);
      memory.wait_full(number);
      const u64 states = swizzled_operand(memory.states_of(number));
      wgmma_fence();
#pragma unroll
      for (int part = 0; part < CHUNK / 16; ++part) multiply(states + (part * 32 >> 4), part);
      wgmma_commit();
      if (!IS_EAGER && chunk == 0) return;
      wgmma_wait<IS_EAGER ? 0 : 1>();
      const bool is_last = chunk * WARPGROUPS + g + WARPGROUPS >= CHUNKS;
      if (lane == 0 && !(IS_EAGER && is_last)) memory.release(IS_EAGER ? number : number - WARPGROUPS);
    };
#pragma unroll
    for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk) {
      take(chunk, [&](u64 b, int part) { multiply_registers<false>(sums, weights.words[chunk][part], b, true); });
    }
#pragma unroll
    for (int chunk = REGISTER_CHUNKS; chunk < OWN_CHUNKS; ++chunk) {
      if (chunk * WARPGROUPS + 1 == CHUNKS && g == 1) break;
      const u64 a = swizzled_operand(own + (chunk - REGISTER_CHUNKS) * WEIGHT_BYTES);
      take(chunk, [&](u64 b, int part) { multiply_shared<false, false>(sums, a + (part * 32 >> 4), b, true); });
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) hold(sums[i]);
  }

  // Adds the other warpgroup's sums of this one's columns. They come in this one's workspace.
  __device__ __forceinline__ void share(i32 step, const f32 (&sums)[COLUMNS / 2], f32 (&own)[OWN_SUMS]) const {
    constexpr u32 PITCH = WARPGROUP_SIZE * sizeof(f32);
    const u32 thread = threadIdx.x % WARPGROUP_SIZE * sizeof(f32);
    const u32 to = workspace_of(memory, step + 1, g ^ 1).at + thread;
    const u32 from = workspace_of(memory, step + 1, g).at + thread;
    named_barrier(ALL, CONSUMERS);  // both have multiplied their last chunks
#pragma unroll
    for (int i = 0; i < OWN_SUMS; ++i) {
      own[i] = g == 0 ? sums[i] : sums[OWN_SUMS + i];
      store_shared(to + i * PITCH, g == 0 ? sums[OWN_SUMS + i] : sums[i]);
    }
    named_barrier(ALL, CONSUMERS);
#pragma unroll
    for (int i = 0; i < OWN_SUMS; ++i) own[i] += __uint_as_float(load_shared_32(from + i * PITCH));
    named_barrier(OWN + g, WARPGROUP_SIZE);  // results may take their place
  }

  __device__ __forceinline__ void compute(i32 step, const f32 (&sums)[OWN_SUMS]) {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      Value gates[GATE_ROWS], input[CELL::GATES], of_states[CELL::GATES] = {};
      gather(sums, i, gates);
#pragma unroll
      for (int gate = 0; gate < CELL::GATES; ++gate) input[gate] = gates[gate];
      if constexpr (CELL::GATES == 3) input[2] = gates[3], of_states[2] = gates[2];
      const Sequence sequence = sequence_of(i);
      Resident own = {state(i), CELL::HAS_CELLS ? cells[i] : Value(0)};
      ResidentElement e = element(i, own, sequence, step, step + 1);
      e.compute(input, of_states);
      e.pass_state();
      if (sequence.exists()) e.store_last();
      keep(i, own);
    }
  }

  // All sums of an element; by all lanes.
  __device__ __forceinline__ void gather(const f32 (&sums)[OWN_SUMS], int i, Value (&gates)[GATE_ROWS]) const {
    if constexpr (GATE_ROWS == 1) {
      gates[0] = sums[i];
    } else {
      const bool is_odd = lane / 4 % 2;
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const f32 left = sums[i * 4 + upper * 2], right = sums[i * 4 + upper * 2 + 1];
        const f32 other = __shfl_xor_sync(~0u, is_odd ? left : right, 4);
        gates[upper * 2] = is_odd ? other : left;
        gates[upper * 2 + 1] = is_odd ? right : other;
      }
    }
  }
};
