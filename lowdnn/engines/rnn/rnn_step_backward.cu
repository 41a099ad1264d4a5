// rnn_step_backward: a step back of a recurrent layer in all of its directions: the gradient of the states, in which
// the product of the next step's gate gradients with the recurrent weights goes back, and of the gates.
//
// Tensors, cells and their macros: backward_layer.cuh. Block, tile, launch, shared memory and macros: step.cuh. The
// step is the `step`-th of each direction from behind; the one behind all of them computes the gradient of the first
// states.

#include "backward_layer.cuh"
#include "step.cuh"

typedef Layer Params;
typedef StepTile<1> Tile;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, Tile::RESIDENT)
    KERNEL_NAME(const __grid_constant__ Params p, const i32 step) {
  extern __shared__ __align__(16) u8 memory[];
  Value* const shared = reinterpret_cast<Value*>(memory);
  const Tile tile;
  const bool is_beyond = step == p.steps;  // before the first step
  const i32 t = tile.direction ? step : p.steps - 1 - step;
  const auto sequence_at = [&](u32 b) { return sequence_of(p.lengths, b, tile.direction, p.steps, p.batch); };

  // The first weights, before the wait where they are known to be there.
  Tile::Product product = {tile.rank};
  const TYPE* weights[Tile::ROW_BLOCKS];
  tile.find_weights(product, p.weights, 0, p.units, weights);
  if (step > 0) product.begin(weights, p.weights.depth);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (step == 0) product.begin(weights, p.weights.depth);

  // The product. The step behind that before the first one is the first.
  const TYPE* sources[Tile::Product::LINES];
#pragma unroll
  for (int line = 0; line < Tile::Product::LINES; ++line) {
    const Sequence sequence = sequence_at(tile.first_sequence + product.column(line));
    const i32 from = CELL::OWN ? t : is_beyond ? sequence.first() : sequence.behind(t);
    const bool is_there = (is_beyond || sequence.has(t)) && from >= 0 && sequence.has(from);
    sources[line] = is_there ? p.source + p.source_rows.of(from, sequence.b, sequence.d) : nullptr;
  }
  product.add(weights, sources, p.weights.depth);
  if (p.second_depth) {
#pragma unroll
    for (int i = 0; i < Tile::ROW_BLOCKS; ++i) {
      if (weights[i]) weights[i] += p.weights.depth;
    }
#pragma unroll
    for (int line = 0; line < Tile::Product::LINES; ++line) {
      if (sources[line]) sources[line] += p.second_source;
    }
    product.begin(weights, p.second_depth);
    product.add(weights, sources, p.second_depth);
  }
  product.share(shared);

  // The cell.
  tile.for_each(p.units, p.batch, [&](int, u32 unit, u32 b) {
    const Sequence sequence = sequence_at(tile.first_sequence + b);
    const bool has_next = is_beyond ? sequence.length > 0 : sequence.behind(t) >= 0 && sequence.has(sequence.behind(t));
    const Element e = {sequence, t, has_next, tile.first_unit + unit, p};
    const Value product = Tile::Product::total(shared, unit, b);
    if (is_beyond) {
      write(p.dfirst_states, e.of(p.state_ends), product + beside_product(e, CELL::CARRIES));
    } else if (sequence.has(t)) {
      CELL::step(e, CELL::OWN ? product : product + e.dy() + beside_product(e, CELL::CARRIES));
    } else {
      put_nothing(e);
    }
  });
  Tile::Product::finish();
}
