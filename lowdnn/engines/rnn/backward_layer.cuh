// A recurrent layer backward: its tensors, and the cells that make a step back of a unit; formulas: ops/rnn_cells.py.
//
// Layouts: rows of tensors over steps have any strides of step, sequence and direction, their elements are contiguous;
// weights are transposed, a row for each unit. `carried` keeps (direction, sequence, unit) between steps: the gradient
// of an LSTM's cell, or what of a GRU's state goes back around the product. Rows past the end of a sequence become 0.
// Macros: TYPE; CELL: ReluCell, TanhCell, LstmCell, GruCell; NewCell and then ResetCell make a step of a GRU whose
// reset gate lies before the product; ProjectedCell and then UnprojectedCell one of an LSTM with a projection. CLIPS:
// the mode of `clipped`.

#pragma once

#include "sequences.cuh"

// A layer, and the gate gradients that its weights are multiplied with.
struct Layer {
  Weights weights;
  i32 second_depth, second_source;  // a further part of k, and where it begins in a row of the source
  const TYPE* source;               // rows that the weights are multiplied with
  Rows source_rows;
  const TYPE* dy;
  Rows dy_rows;
  const TYPE* dlast_states;         // null for 0
  TYPE* dfirst_states;              // null where nobody wants them
  Ends state_ends;
  const TYPE* dlast_cells;
  TYPE* dfirst_cells;
  const TYPE* first_cells;
  Ends cell_ends;
  const TYPE* gates;
  TYPE* dgates;
  Rows gate_rows;
  const Value* cells;
  Rows cell_rows;
  const TYPE* states;               // h of a GRU
  Rows state_rows;
  const TYPE* first_states;
  TYPE* dprojected;
  Rows projected_rows;
  Value* carried;
  Ends carried_rows;
  const i32* lengths;               // null where all have all steps
  Value lower, upper;
  i32 steps, batch, units;
};

// A unit of a sequence in a step; has_next: whether the sequence has a step behind it.
struct Element {
  const Sequence& sequence;
  i32 t;
  bool has_next;
  u32 unit;
  const Layer& p;

  __device__ __forceinline__ i64 of(const Rows& rows, i32 step) const {
    return rows.of(step, sequence.b, sequence.d) + unit;
  }
  __device__ __forceinline__ i64 of(const Ends& ends) const { return ends.of(sequence.b, sequence.d) + unit; }
  __device__ __forceinline__ bool is_first() const { return t == sequence.first(); }

  __device__ __forceinline__ Value gate(u32 block) const { return read(p.gates, gate_place(block)); }
  __device__ __forceinline__ void put_gate(u32 block, Value gradient) const {
    write(p.dgates, gate_place(block), gradient);
  }

  __device__ __forceinline__ Value dy() const { return read(p.dy, of(p.dy_rows, t)); }
  __device__ __forceinline__ Value cell() const { return p.cells[of(p.cell_rows, t)]; }
  __device__ __forceinline__ Value last_cell() const {
    if (is_first()) return read(p.first_cells, of(p.cell_ends));
    return p.cells[of(p.cell_rows, sequence.before(t))];
  }
  __device__ __forceinline__ Value last_state() const {
    if (is_first()) return read(p.first_states, of(p.state_ends));
    return read(p.states, of(p.state_rows, sequence.before(t)));
  }

  static __device__ __forceinline__ Value tanh(Value x) { return ::tanh(x); }

  // The gradients that reach a sequence's last step from behind.
  __device__ __forceinline__ Value last_gradient() const { return read(p.dlast_states, of(p.state_ends)); }
  __device__ __forceinline__ Value last_cell_gradient() const { return read(p.dlast_cells, of(p.cell_ends)); }

  __device__ __forceinline__ Value carried() const { return p.carried[of(p.carried_rows)]; }
  __device__ __forceinline__ void carry(Value gradient) const { p.carried[of(p.carried_rows)] = gradient; }
  __device__ __forceinline__ void put_first_cell(Value gradient) const {
    if (p.dfirst_cells && is_first()) write(p.dfirst_cells, of(p.cell_ends), gradient);
  }

  __device__ __forceinline__ i64 gate_place(u32 block) const {
    return of(p.gate_rows, t) + i64(block) * p.units;
  }
};

// The gradient of the state beside the product: in the sequence's last step that of the last state, otherwise the part
// that goes around the product.
template <class E> __device__ __forceinline__ Value beside_product(const E& e, bool is_carried) {
  if (!e.has_next) return e.last_gradient();
  return is_carried ? e.carried() : Value(0);
}

// A cell. OWN: whether the weights are multiplied with rows of this step and not with those of the next.
// CARRIES: whether a part of the state's gradient goes around the product.  BLOCKS: blocks of gates that become 0 in a
// row past the end of a sequence.  GATES: blocks that the weights are multiplied with, the first ones and the last one;
// it holds for cells that make a step alone.
// step(element, dh): dh is the product for a cell that is OWN, and the whole gradient of h for others; an element is
// what Element is, or has some of its functions in another way.
struct Alone {
  static constexpr bool OWN = false, CARRIES = false, HAS_CELLS = false, IS_PROJECTED = false;
  static constexpr int BLOCKS = 1;
};

template <bool IS_RELU> struct PlainCell : Alone {
  static constexpr int GATES = 1;

  template <class E> static __device__ __forceinline__ void step(const E& e, Value dh) {
    const Value h = e.gate(0);
    e.put_gate(0, IS_RELU ? (h > Value(0) ? dh : Value(0)) : dh * tanh_slope_of(h));
  }
};
typedef PlainCell<true> ReluCell;
typedef PlainCell<false> TanhCell;

struct LstmCell : Alone {
  static constexpr bool HAS_CELLS = true;
  static constexpr int BLOCKS = 4, GATES = 4;

  template <class E> static __device__ __forceinline__ void step(const E& e, Value dh) {
    const Layer& p = e.p;
    const Value i = e.gate(0), f = e.gate(1), g = e.gate(2), o = e.gate(3);
    const Value c = clipped(e.cell(), p), before = clipped(e.last_cell(), p), squashed = e.tanh(c);
    Value dc = e.has_next ? e.carried() : e.last_cell_gradient();
    dc += through_clip(dh * o * tanh_slope_of(squashed), c, p);
    e.put_gate(0, dc * g * sigmoid_slope_of(i));
    e.put_gate(1, dc * before * sigmoid_slope_of(f));
    e.put_gate(2, dc * i * tanh_slope_of(g));
    e.put_gate(3, dh * squashed * sigmoid_slope_of(o));
    const Value dbefore = through_clip(dc * f, before, p);
    e.carry(dbefore);
    e.put_first_cell(dbefore);
  }

 private:
  static __device__ __forceinline__ Value clipped(Value c, const Layer& p) {
    return ::clipped<CLIPS>(c, p.lower, p.upper);
  }
  // The gradient of a cell state from that of its clipped value c: 0 where it has been cut.
  static __device__ __forceinline__ Value through_clip(Value gradient, Value c, const Layer& p) {
    return CLIPS && (c <= p.lower || c >= p.upper) ? Value(0) : gradient;
  }
};
struct UnprojectedCell : LstmCell {
  static constexpr bool OWN = true;
};

// The gradient of h behind the projection.
struct ProjectedCell : Alone {
  static constexpr bool IS_PROJECTED = true;
  static constexpr int BLOCKS = 0;

  template <class E> static __device__ __forceinline__ void step(const E& e, Value dh) {
    write(e.p.dprojected, e.of(e.p.projected_rows, e.t), dh);
  }
};

struct GruCell : Alone {
  static constexpr bool CARRIES = true;
  static constexpr int BLOCKS = 4, GATES = 3;

  template <class E> static __device__ __forceinline__ void step(const E& e, Value dh) {
    const Value r = e.gate(0), z = e.gate(1), n = e.gate(2), of_states = e.gate(3);
    const Value dn = dh * (Value(1) - z) * tanh_slope_of(n);
    e.put_gate(0, dn * of_states * sigmoid_slope_of(r));
    e.put_gate(1, dh * (e.last_state() - n) * sigmoid_slope_of(z));
    e.put_gate(2, dn);
    e.put_gate(3, dn * r);
    e.carry(dh * z);
  }
};

// z and n.
struct NewCell : Alone {
  static constexpr bool CARRIES = true;
  static constexpr int BLOCKS = 4;

  template <class E> static __device__ __forceinline__ void step(const E& e, Value dh) {
    const Value z = e.gate(1), n = e.gate(2);
    e.put_gate(1, dh * (e.last_state() - n) * sigmoid_slope_of(z));
    e.put_gate(2, dh * (Value(1) - z) * tanh_slope_of(n));
    e.carry(dh * z);
  }
};

// r, behind NewCell: the product is the gradient of r * h, which lies in the fourth block.
struct ResetCell : Alone {
  static constexpr bool OWN = true;
  static constexpr int BLOCKS = 0;

  template <class E> static __device__ __forceinline__ void step(const E& e, Value dreset) {
    const Value r = e.gate(0);
    e.put_gate(3, e.gate(3));
    e.put_gate(0, dreset * e.last_state() * sigmoid_slope_of(r));
    e.carry(e.carried() + dreset * r);
  }
};

// A sequence without steps ends as it began.
__device__ __forceinline__ void put_end_of_nothing(const Element& e) {
  const Layer& p = e.p;
  if (CELL::HAS_CELLS && p.dfirst_cells && e.sequence.length == 0 && e.t == 0) {
    write(p.dfirst_cells, e.of(p.cell_ends), e.last_cell_gradient());
  }
}

// Fills a row past the end of its sequence with zeros; of a sequence without steps it stores the gradient of the first
// cell, too.
__device__ __forceinline__ void put_nothing(const Element& e) {
  const Layer& p = e.p;
#pragma unroll
  for (int block = 0; block < CELL::BLOCKS; ++block) e.put_gate(block, Value(0));
  if constexpr (CELL::IS_PROJECTED) write(p.dprojected, e.of(p.projected_rows, e.t), Value(0));
  put_end_of_nothing(e);
}
