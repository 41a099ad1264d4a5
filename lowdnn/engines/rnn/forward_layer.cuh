// A recurrent layer forward: its tensors, and the cells that make a step of a unit; formulas: ops/rnn.py.
//
// Layouts: rows of tensors over steps have any strides of step, sequence and direction, their elements are contiguous;
// weights, biases and states at the ends are as in ops/rnn_weights.py and ops/rnn_forward.py. `input` has the products
// with the input, each gate `input_gate` elements behind the one before; it may lie where the gates go. Cells that are
// not kept, or gates, have a stride of 0 along steps. Rows past the end of a sequence become 0, those of the output
// `fill`.
// Macros: TYPE; CELL: ReluCell, TanhCell, LstmCell, GruCell; ResetCell and then NewCell make a step of a GRU whose
// reset gate lies before the product; ProjectionCell makes h of an LSTM's output. SAVES: whether gates are stored.
// CLIPS: 0, 1 for a clip that keeps a NaN, 2 for one that makes it the lower limit.

#pragma once

#include "sequences.cuh"

// A layer, and the states that its weights are multiplied with.
struct Layer {
  Weights weights;
  const TYPE* input_bias;      // [GATES][units], null for none
  const TYPE* recurrent_bias;
  i64 bias_direction;
  const TYPE* input;           // [GATES] of a row
  Rows input_rows;
  i64 input_gate;
  const TYPE* source;          // rows that the weights are multiplied with
  Rows source_rows;
  const TYPE* states;          // h of each step
  Rows state_rows;
  const TYPE* first_states;    // before the first step, null for 0
  Ends state_ends;
  TYPE* last_states;           // after each sequence's last step; null where nobody wants them
  TYPE* output;
  Rows output_rows;
  TYPE* gates;
  Rows gate_rows;
  Value* cells;
  Rows cell_rows;
  const TYPE* first_cells;
  Ends cell_ends;
  TYPE* last_cells;
  const i32* lengths;          // null where all have all steps
  Value fill, lower, upper;
  i32 steps, batch, units;
};

// A unit of a sequence in a step.
struct Element {
  const Sequence& sequence;
  i32 t;
  u32 unit;
  const Layer& p;

  __device__ __forceinline__ i64 of(const Rows& rows, i32 step) const {
    return rows.of(step, sequence.b, sequence.d) + unit;
  }
  __device__ __forceinline__ i64 of(const Ends& ends) const { return ends.of(sequence.b, sequence.d) + unit; }

  __device__ __forceinline__ Value bias(const TYPE* of_all, u32 gate) const {
    return read(of_all, sequence.d * p.bias_direction + i64(gate) * p.units + unit);
  }
  // The product with the input and its bias, and the recurrent bias.
  __device__ __forceinline__ Value input(u32 gate) const {
    return read(p.input, of(p.input_rows, t) + gate * p.input_gate) + bias(p.input_bias, gate);
  }
  __device__ __forceinline__ Value recurrent_bias(u32 gate) const { return bias(p.recurrent_bias, gate); }

  __device__ __forceinline__ Value last_state() const {
    if (t == sequence.first()) return read(p.first_states, of(p.state_ends));
    return read(p.states, of(p.state_rows, sequence.before(t)));
  }
  __device__ __forceinline__ Value last_cell() const {
    if (t == sequence.first()) return read(p.first_cells, of(p.cell_ends));
    return p.cells[of(p.cell_rows, sequence.before(t))];
  }

  __device__ __forceinline__ Value gate(u32 block) const { return read(p.gates, gate_place(block)); }
  __device__ __forceinline__ void save(u32 block, Value value) const {
    if constexpr (SAVES) write(p.gates, gate_place(block), value);
  }
  __device__ __forceinline__ void put_cell(Value c) const {
    p.cells[of(p.cell_rows, t)] = c;
    put_last_cell(c);
  }
  __device__ __forceinline__ void put_last_cell(Value c) const {
    if (p.last_cells && t == sequence.last()) write(p.last_cells, of(p.cell_ends), c);
  }
  // h, rounded once for the output and for the last state.
  __device__ __forceinline__ void put_state(Value h) const {
    write(p.output, of(p.output_rows, t), h);
    if (p.last_states && t == sequence.last()) write(p.last_states, of(p.state_ends), h);
  }

  static __device__ __forceinline__ Value sigmoid(Value x) { return ::sigmoid(x); }
  static __device__ __forceinline__ Value tanh(Value x) { return ::tanh(x); }
  __device__ __forceinline__ Value clipped(Value c) const { return ::clipped<CLIPS>(c, p.lower, p.upper); }

 private:
  __device__ __forceinline__ i64 gate_place(u32 block) const {
    return of(p.gate_rows, t) + i64(block) * p.units;
  }
};

// A cell. GATES: rows of weights of a unit, the first of them of gate FIRST.  OWN: whether the weights are multiplied
// with rows of this step and not with the states before it.  BLOCKS: blocks of gates that it saves.  HAS_INPUT: whether
// there are products with the input, and biases.  HAS_CELLS, HAS_STATE: whether it makes cells, and rows of the output.
// step(element, input, recurrent): the products with the input and with the states, biases included; an element is what
// Element is, or has some of its functions in another way.
struct Alone {
  static constexpr int FIRST = 0;
  static constexpr bool HAS_INPUT = true, OWN = false, HAS_CELLS = false, HAS_STATE = true;
};

template <bool IS_RELU> struct PlainCell : Alone {
  static constexpr int GATES = 1, BLOCKS = 1;

  template <class E>
  static __device__ __forceinline__ void step(const E& e, const Value (&in)[1], const Value (&of_states)[1]) {
    const Value v = in[0] + of_states[0], h = IS_RELU ? relu(v) : e.tanh(v);
    e.save(0, h);
    e.put_state(h);
  }
};
typedef PlainCell<true> ReluCell;
typedef PlainCell<false> TanhCell;

struct LstmCell : Alone {
  static constexpr int GATES = 4, BLOCKS = 4;
  static constexpr bool HAS_CELLS = true;

  template <class E>
  static __device__ __forceinline__ void step(const E& e, const Value (&in)[4], const Value (&of_states)[4]) {
    const Value i = e.sigmoid(in[0] + of_states[0]), f = e.sigmoid(in[1] + of_states[1]);
    const Value g = e.tanh(in[2] + of_states[2]), o = e.sigmoid(in[3] + of_states[3]);
    const Value c = f * e.clipped(e.last_cell()) + i * g;
    const Value gates[4] = {i, f, g, o};
#pragma unroll
    for (int block = 0; block < 4; ++block) e.save(block, gates[block]);
    e.put_cell(c);
    e.put_state(o * e.tanh(e.clipped(c)));
  }
};

struct GruCell : Alone {
  static constexpr int GATES = 3, BLOCKS = 4;

  template <class E>
  static __device__ __forceinline__ void step(const E& e, const Value (&in)[3], const Value (&of_states)[3]) {
    const Value r = e.sigmoid(in[0] + of_states[0]), z = e.sigmoid(in[1] + of_states[1]);
    const Value n = e.tanh(in[2] + r * of_states[2]), last = e.last_state();
    const Value gates[4] = {r, z, n, of_states[2]};
#pragma unroll
    for (int block = 0; block < 4; ++block) e.save(block, gates[block]);
    e.put_state((Value(1) - z) * n + z * last);
  }
};

// r and z; its fourth block is r * h.
struct ResetCell : Alone {
  static constexpr int GATES = 2, BLOCKS = 4;
  static constexpr bool HAS_STATE = false;

  template <class E>
  static __device__ __forceinline__ void step(const E& e, const Value (&in)[2], const Value (&of_states)[2]) {
    const Value r = e.sigmoid(in[0] + of_states[0]);
    e.save(0, r);
    e.save(1, e.sigmoid(in[1] + of_states[1]));
    e.save(3, r * e.last_state());
  }
};

// n and h, behind ResetCell: the weights are multiplied with r * h.
struct NewCell : Alone {
  static constexpr int GATES = 1, BLOCKS = 0, FIRST = 2;
  static constexpr bool OWN = true;

  template <class E>
  static __device__ __forceinline__ void step(const E& e, const Value (&in)[1], const Value (&of_states)[1]) {
    const Value n = e.tanh(in[0] + of_states[0]), z = e.gate(1);
    e.save(2, n);
    e.put_state((Value(1) - z) * n + z * e.last_state());
  }
};

struct ProjectionCell : Alone {
  static constexpr int GATES = 1, BLOCKS = 0;
  static constexpr bool OWN = true, HAS_INPUT = false;

  template <class E>
  static __device__ __forceinline__ void step(const E& e, const Value (&)[1], const Value (&of_states)[1]) {
    e.put_state(of_states[0]);
  }
};

// Fills a row past the end of its sequence; a sequence without steps ends as it began.
__device__ __forceinline__ void put_nothing(const Element& e) {
  const Layer& p = e.p;
#pragma unroll
  for (int block = 0; block < CELL::BLOCKS; ++block) e.save(block, Value(0));
  if constexpr (CELL::HAS_CELLS) p.cells[e.of(p.cell_rows, e.t)] = Value(0);
  if constexpr (CELL::HAS_STATE) write(p.output, e.of(p.output_rows, e.t), p.fill);
  if (e.sequence.length > 0 || e.t > 0) return;
  if (CELL::HAS_CELLS && p.last_cells) write(p.last_cells, e.of(p.cell_ends), read(p.first_cells, e.of(p.cell_ends)));
  if (CELL::HAS_STATE && p.last_states) {
    write(p.last_states, e.of(p.state_ends), read(p.first_states, e.of(p.state_ends)));
  }
}
