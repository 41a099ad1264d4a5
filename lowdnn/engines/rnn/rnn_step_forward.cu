// rnn_step_forward: a step of a recurrent layer in all of its directions: the product of the last states with the
// recurrent weights, the gates, the new states.
//
// Tensors, cells and their macros: forward_layer.cuh. Block, tile, launch, shared memory and macros: step.cuh. The step
// is the `step`-th of each direction.

#include "forward_layer.cuh"
#include "step.cuh"

typedef Layer Params;

// The row that the weights are multiplied with; null for 0.
__device__ __forceinline__ const TYPE* source(const Params& p, const Sequence& sequence, i32 t) {
  if (!sequence.has(t)) return nullptr;
  if (CELL::OWN) return p.source + p.source_rows.of(t, sequence.b, sequence.d);
  if (t != sequence.first()) return p.source + p.source_rows.of(sequence.before(t), sequence.b, sequence.d);
  return p.first_states ? p.first_states + p.state_ends.of(sequence.b, sequence.d) : nullptr;
}

typedef StepTile<CELL::GATES> Tile;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Tile::RESIDENT)
    KERNEL_NAME(const __grid_constant__ Params p, const i32 step) {
  extern __shared__ __align__(16) u8 memory[];
  Value* const shared = reinterpret_cast<Value*>(memory);
  const Tile tile;
  const i32 t = tile.direction ? p.steps - 1 - step : step;

  // The first weights, before the wait where they are known to be there.
  Tile::Product product = {tile.rank};
  const TYPE* weights[Tile::ROW_BLOCKS];
  tile.find_weights(product, p.weights, CELL::FIRST, p.units, weights);
  if (step > 0) product.begin(weights, p.weights.depth);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (step == 0) product.begin(weights, p.weights.depth);

  // The inputs of this thread's elements: few enough for registers come while the product is under way.
  constexpr bool IS_EARLY = Tile::ELEMENTS * CELL::GATES <= 8;
  const auto sequence_at = [&](u32 b) { return sequence_of(p.lengths, b, tile.direction, p.steps, p.batch); };
  Value input[Tile::ELEMENTS][CELL::GATES];
  const auto read_input = [&](const Element& e, Value (&values)[CELL::GATES]) {
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) values[gate] = e.input(CELL::FIRST + gate);
  };
  tile.for_each(p.units, p.batch, [&](int i, u32 unit, u32 b) {
    const Sequence sequence = sequence_at(tile.first_sequence + b);
    if (CELL::HAS_INPUT && IS_EARLY && sequence.has(t)) {
      read_input({sequence, t, tile.first_unit + unit, p}, input[i]);
    }
  });

  // The product.
  const TYPE* states[Tile::Product::LINES];
#pragma unroll
  for (int line = 0; line < Tile::Product::LINES; ++line) {
    states[line] = source(p, sequence_at(tile.first_sequence + product.column(line)), t);
  }
  product.add(weights, states, p.weights.depth);
  product.share(shared);

  // The cell.
  tile.for_each(p.units, p.batch, [&](int i, u32 unit, u32 b) {
    const Sequence sequence = sequence_at(tile.first_sequence + b);
    const Element e = {sequence, t, tile.first_unit + unit, p};
    if (!sequence.has(t)) {
      put_nothing(e);
      return;
    }
    if (CELL::HAS_INPUT && !IS_EARLY) read_input(e, input[i]);
    Value of_states[CELL::GATES];
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) {
      of_states[gate] = Tile::Product::total(shared, gate * UNITS + unit, b);
      if constexpr (CELL::HAS_INPUT) of_states[gate] += e.recurrent_bias(CELL::FIRST + gate);
    }
    CELL::step(e, input[i], of_states);
  });
  Tile::Product::finish();
}
