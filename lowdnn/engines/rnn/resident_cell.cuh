// Units of sequences whose states stay in registers from step to step, of a layer forward (forward_layer.cuh).
//
// The products with the input are loaded a step ahead and converted when they are needed: so no thread waits for them
// before the states of the others.

#pragma once

#include "forward_layer.cuh"
#include "short_functions.cuh"

// The biases of a unit. A GRU's cell needs the bias of the products with the states by itself; for other cells `input`
// has the sum of both biases, and `recurrent` is 0.
struct Biases {
  static constexpr bool ARE_APART = CELL::GATES == 3;

  Value input[CELL::GATES], recurrent[CELL::GATES];

  __device__ __forceinline__ Biases(const Layer& p, u32 direction, u32 unit) {
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) {
      const i64 place = direction * p.bias_direction + i64(gate) * p.units + unit;
      const Value of_input = read(p.input_bias, place), of_states = read(p.recurrent_bias, place);
      input[gate] = ARE_APART ? of_input : of_input + of_states;
      recurrent[gate] = ARE_APART ? of_states : Value(0);
    }
  }
};

// A unit of a sequence: its states, the products with the input of the next step, and what its cell makes in a step.
struct Resident {
  Value h, c, gates[4];
  TYPE input[CELL::GATES];

  __device__ __forceinline__ void begin() { h = c = Value(0); }
  __device__ __forceinline__ void begin(const Element& e) {
    h = read(e.p.first_states, e.of(e.p.state_ends));
    if constexpr (CELL::HAS_CELLS) c = read(e.p.first_cells, e.of(e.p.cell_ends));
  }
  __device__ __forceinline__ void fetch(const Element& e) {
    const bool has = e.sequence.has(e.t);
    const TYPE* const row = e.p.input + e.of(e.p.input_rows, e.t);
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) input[gate] = has ? row[gate * e.p.input_gate] : TYPE{};
  }
};

struct ResidentElement : Element, ShortFunctions {
  Resident& own;

  using ShortFunctions::sigmoid;
  using ShortFunctions::tanh;

  __device__ __forceinline__ ResidentElement(const Element& element, Resident& resident)
      : Element(element), own(resident) {}
  __device__ __forceinline__ Value last_state() const { return own.h; }
  __device__ __forceinline__ Value last_cell() const { return own.c; }
  __device__ __forceinline__ void save(u32 block, Value value) const { own.gates[block] = value; }
  __device__ __forceinline__ void put_cell(Value c) const { own.c = c; }
  __device__ __forceinline__ void put_state(Value h) const { own.h = Value(widen(convert<TYPE>(h))); }

  // The step of the element, whose products with the states are `sums`.
  __device__ __forceinline__ void compute(const Biases& biases, const Value (&sums)[CELL::GATES]) const {
    Value input[CELL::GATES], of_states[CELL::GATES];
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) {
      input[gate] = widen(own.input[gate]) + biases.input[gate];
      of_states[gate] = Biases::ARE_APART ? sums[gate] + biases.recurrent[gate] : sums[gate];
    }
    const Value h = own.h, c = own.c;
    CELL::step(*this, input, of_states);
    if (!sequence.has(t)) own.h = h, own.c = c;
  }

  // Stores what the step has made.
  __device__ __forceinline__ void store() const {
    if (!sequence.has(t)) return put_nothing(*this);
#pragma unroll
    for (int block = 0; block < CELL::BLOCKS; ++block) Element::save(block, own.gates[block]);
    if constexpr (CELL::HAS_CELLS) {
      if constexpr (SAVES) {
        Element::put_cell(own.c);
      } else {
        put_last_cell(own.c);
      }
    }
    Element::put_state(own.h);
  }
};
