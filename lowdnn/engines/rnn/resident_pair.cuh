// Pairs of neighbouring units of a sequence whose values stay in registers from step to step, of a layer backward
// (backward_layer.cuh).
//
// The inputs of a step are loaded a step ahead, and 16-bit values stay bits of words, as they were loaded: taking them
// apart would wait for the loads. Nothing that a step computes is a branch, so that elements overlap.

#pragma once

#include "backward_layer.cuh"
#include "persistent_exchange.cuh"
#include "short_functions.cuh"

// made: the gradients of the gates of both units, which are 0 where the sequence does not have the step.
struct Pair {
  Sequence sequence;
  u32 gates[CELL::BLOCKS], dy[2], last_state[2], first_cell[2], last_gradient[2], last_cell_gradient[2];
  Value cell[2], last_cell[2], carried[2];
  u32 made[CELL::BLOCKS];

  // Its first unit, `unit`, in the step of time t; the sequence need not be there.
  __device__ __forceinline__ Element at(i32 t, u32 unit, const Layer& p) const {
    const i32 behind = sequence.behind(t);
    return {sequence, t, behind >= 0 && sequence.has(behind), unit, p};
  }

  // Loads the values that a step reads. All loads are under way before any is waited for.
  __device__ __forceinline__ void fetch(const Element& e, bool is_step) {
    const Layer& p = e.p;
    const bool is_first = is_step && e.is_first(), has_last = is_step && !is_first;
    const bool is_last = sequence.exists() && !e.has_next;
    const i32 before = sequence.before(e.t);
#pragma unroll
    for (int block = 0; block < CELL::BLOCKS; ++block) load_where(is_step, p.gates + e.gate_place(block), gates[block]);
#pragma unroll
    for (int i = 0; i < 2; ++i) load_half_where(is_step, p.dy + e.of(p.dy_rows, e.t) + i, dy[i]);
    if constexpr (CELL::CARRIES) {
      const TYPE* const states = is_first ? p.first_states + e.of(p.state_ends) : p.states + e.of(p.state_rows, before);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        last_state[i] = 0;
        load_half_where(has_last || (is_first && p.first_states), states + i, last_state[i]);
      }
    }
    if constexpr (CELL::HAS_CELLS) {
      load_where(is_step, p.cells + e.of(p.cell_rows, e.t), cell);
      load_where(has_last, p.cells + e.of(p.cell_rows, before), last_cell);
    }
    if (is_first || is_last) fetch_ends(e, is_first, is_last);
  }

  // The step, whose products are `sums`. e: the first unit.
  __device__ __forceinline__ void compute(const Element& e, bool is_step, const Value (&sums)[2]);

  // Writes the gradients of first cells and states, behind a sequence's first step or, without any, instead of it.
  __device__ __forceinline__ void finish(const Element& e, bool is_step, i32 step, const Value (&sums)[2]);

 private:
  __device__ __forceinline__ void fetch_ends(const Element& e, bool is_first, bool is_last) {
    const Layer& p = e.p;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_half_where(is_last && p.dlast_states, p.dlast_states + e.of(p.state_ends) + i, last_gradient[i]);
      if constexpr (CELL::HAS_CELLS) {
        load_half_where(is_first && p.first_cells, p.first_cells + e.of(p.cell_ends) + i, first_cell[i]);
        load_half_where(is_last && p.dlast_cells, p.dlast_cells + e.of(p.cell_ends) + i, last_cell_gradient[i]);
      }
    }
  }
};

__device__ __forceinline__ Value value_of(u32 bits) {
  const u16 low = u16(bits);
  return Value(widen(*reinterpret_cast<const TYPE*>(&low)));
}

// A unit, the i-th of a pair.
struct ResidentElement : Element, ShortFunctions {
  Pair& own;
  const int i;
  const bool is_there;  // whether the sequence has the step

  using ShortFunctions::tanh;

  // first: the first unit.
  __device__ __forceinline__ ResidentElement(const Element& first, Pair& pair, int number, bool is_step)
      : Element{first.sequence, first.t, first.has_next, first.unit + number, first.p}, own(pair), i(number),
        is_there(is_step) {}
  __device__ __forceinline__ Value gate(u32 block) const { return value_of(own.gates[block] >> 16 * i); }
  __device__ __forceinline__ Value dy() const { return value_of(own.dy[i]); }
  __device__ __forceinline__ Value cell() const { return own.cell[i]; }
  __device__ __forceinline__ Value last_cell() const {
    return is_first() ? value_of(own.first_cell[i]) : own.last_cell[i];
  }
  __device__ __forceinline__ Value last_state() const { return value_of(own.last_state[i]); }
  __device__ __forceinline__ Value last_gradient() const { return value_of(own.last_gradient[i]); }
  __device__ __forceinline__ Value last_cell_gradient() const { return value_of(own.last_cell_gradient[i]); }
  __device__ __forceinline__ Value carried() const { return own.carried[i]; }
  __device__ __forceinline__ void carry(Value gradient) const { own.carried[i] = is_there ? gradient : own.carried[i]; }
  __device__ __forceinline__ void put_first_cell(Value) const {}  // later, as what is carried
  __device__ __forceinline__ void put_gate(u32 block, Value gradient) const {
    const u32 bits = convert<TYPE>(is_there ? gradient : Value(0)).bits;
    own.made[block] = i == 0 ? bits : own.made[block] | bits << 16;
  }
};

__device__ __forceinline__ void Pair::compute(const Element& e, bool is_step, const Value (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const ResidentElement element(e, *this, i, is_step);
    CELL::step(element, sums[i] + element.dy() + beside_product(element, CELL::CARRIES));
  }
}

__device__ __forceinline__ void Pair::finish(const Element& e, bool is_step, i32 step, const Value (&sums)[2]) {
  const Layer& p = e.p;
  if (!sequence.exists() || (is_step && !e.is_first())) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const ResidentElement element(e, *this, i, is_step);
    if (CELL::HAS_CELLS && is_step) element.Element::put_first_cell(carried[i]);
    if (!is_step) put_end_of_nothing(element);
    if (p.dfirst_states && step == (sequence.d ? sequence.length : p.steps)) {
      write(p.dfirst_states, element.of(p.state_ends), sums[i] + beside_product(element, CELL::CARRIES));
    }
  }
}
