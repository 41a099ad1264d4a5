// rnn_step_forward_wgmma: a step of a recurrent layer in all of its directions: the product of the last states with the
// recurrent weights, the gates, the new states; for sm_90a.
//
// Tensors, cells and their macros: forward_layer.cuh. Block, product, launch, shared memory and macros: step_wgmma.cuh.
// The step is the `step`-th of each direction. Maps: weights (k, unit, gate, direction), states (k, sequence, step,
// direction), the first states (k, sequence, direction).

#include "forward_layer.cuh"
#include "short_functions.cuh"
#include "step_wgmma.cuh"

struct Params {
  TensorMap weights, states, first_states;
  Layer layer;
};

typedef WgmmaStep<CELL::GATES, false> Step;

// A unit of a sequence in registers: what its cell reads and what it makes.
struct Known {
  static constexpr bool IS_EARLY = Step::has_room(CELL::GATES + 1);  // before the product

  TYPE input[CELL::GATES];
  Value last, gates[CELL::BLOCKS], c, h;

  __device__ __forceinline__ void fetch_input(const Element& e) {
    const TYPE* const row = e.p.input + e.of(e.p.input_rows, e.t);
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) input[gate] = row[gate * e.p.input_gate];
  }
  // The cell, or the state of a GRU: what the step before this one wrote, or the first one.
  __device__ __forceinline__ void fetch_last(const Element& e) {
    if constexpr (CELL::HAS_CELLS) last = e.p.cells[e.of(e.p.cell_rows, e.sequence.before(e.t))];
    else if constexpr (CELL::BLOCKS == 4) last = widen(e.p.states[e.of(e.p.state_rows, e.sequence.before(e.t))]);
  }
  __device__ __forceinline__ void fetch_first(const Element& e) {
    last = CELL::HAS_CELLS ? read(e.p.first_cells, e.of(e.p.cell_ends)) : read(e.p.first_states, e.of(e.p.state_ends));
  }
};

struct KnownElement : Element, ShortFunctions {
  Known& own;

  __device__ __forceinline__ KnownElement(const Element& element, Known& known) : Element(element), own(known) {}
  using ShortFunctions::sigmoid;
  using ShortFunctions::tanh;
  __device__ __forceinline__ Value last_cell() const { return own.last; }
  __device__ __forceinline__ Value last_state() const { return own.last; }
  __device__ __forceinline__ void save(u32 block, Value value) const { own.gates[block] = value; }
  __device__ __forceinline__ void put_cell(Value c) const { own.c = c; }
  __device__ __forceinline__ void put_state(Value h) const { own.h = h; }

  // To memory.
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int block = 0; block < CELL::BLOCKS; ++block) Element::save(block, own.gates[block]);
    if constexpr (CELL::HAS_CELLS) Element::put_cell(own.c);
    Element::put_state(own.h);
  }
};

// One thread copies the chunks of weights and of states.
__device__ __forceinline__ void produce(const Params& params, const Step& tile, i32 step, i32 t, i32 chunks) {
  const u32 d = tile.direction;
  const bool is_first = step == 0;
  const TensorMap& states = is_first ? params.first_states : params.states;
  prefetch(states);
  const auto load_weights = [&](int gate, i32 chunk, u32 to, u32 full) {
    tma_load<1>(to, params.weights, full, 0, chunk * CHUNK, tile.first_unit, gate, d);
  };
  const auto load_states = [&](i32 chunk, u32 to, u32 full) {
    const i32 k = chunk * CHUNK, sequence = tile.first_sequence;
    if (is_first) tma_load<1>(to, states, full, 0, k, sequence, d);
    else tma_load<1>(to, states, full, 0, k, sequence, d ? t + 1 : t - 1, d);
  };
  tile.produce(chunks, !is_first, load_weights, load_states);
}

// The biases of the products with the input and with the states.
__device__ __forceinline__ void read_biases(const Layer& p, u32 direction, u32 unit, Value (&biases)[2][CELL::GATES]) {
#pragma unroll
  for (int gate = 0; gate < CELL::GATES; ++gate) {
    const i64 place = direction * p.bias_direction + i64(gate) * p.units + unit;
    biases[0][gate] = read(p.input_bias, place), biases[1][gate] = read(p.recurrent_bias, place);
  }
}

// Computes all cells before any result is stored, so that they are computed at once.
template <class ForEach>
__device__ __forceinline__ void compute(const Step& tile, const Value (&biases)[2][CELL::GATES],
                                        Known (&known)[Step::ELEMENTS], const ForEach& for_each) {
  for_each([&](int i, const Element& e) {
    Value input[CELL::GATES], of_states[CELL::GATES];
#pragma unroll
    for (int gate = 0; gate < CELL::GATES; ++gate) {
      input[gate] = Value(widen(known[i].input[gate])) + biases[0][gate];
      of_states[gate] = tile.total(gate, i) + biases[1][gate];
    }
    CELL::step(KnownElement(e, known[i]), input, of_states);
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    KERNEL_NAME(const __grid_constant__ Params params, const i32 step) {
  extern __shared__ __align__(1024) u8 memory[];
  const Layer& p = params.layer;
  const Step tile(memory);
  const u32 d = tile.direction;
  const i32 t = d ? p.steps - 1 - step : step;
  const bool is_first = step == 0;
  const i32 chunks = is_first && !p.first_states ? 0 : (p.weights.depth + CHUNK - 1) / CHUNK;

  if (Step::is_producer()) {
    if (elect_one()) produce(params, tile, step, t, chunks);
    __syncwarp();
    tile.share();
    Step::finish();
    return;
  }

  // Loads for this thread's elements, before the wait where values are there by then; they depend on the step alone.
  const bool has_unit = tile.unit() < u32(p.units);
  const u32 unit = has_unit ? tile.unit() : 0;
  Known known[Step::ELEMENTS];
  i32 lengths[Step::ELEMENTS];
  tile.find_lengths(p.lengths, p.steps, p.batch, lengths);
  const auto for_each = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < Step::ELEMENTS; ++i) {
      const Sequence sequence = {tile.sequence_at(i, p.batch), d, lengths[i]};
      visit(i, Element{sequence, t, unit, p});
    }
  };
  const auto fetch_inputs = [&] { for_each([&](int i, const Element& e) { known[i].fetch_input(e); }); };
  const auto fetch_last = [&] {
    if (is_first) for_each([&](int i, const Element& e) { known[i].fetch_first(e); });
    else for_each([&](int i, const Element& e) { known[i].fetch_last(e); });
  };
  Step::wait_for_last_step(is_first, [&] {
    if (Known::IS_EARLY) fetch_inputs();
  });
  if (Known::IS_EARLY) fetch_last();
  Value biases[2][CELL::GATES];
  read_biases(p, d, unit, biases);

  tile.consume(chunks);
  if (!Known::IS_EARLY) {
    fetch_inputs();
    fetch_last();
  }
  tile.share();

  compute(tile, biases, known, for_each);
  for_each([&](int i, const Element& e) {
    if (!has_unit || !e.sequence.exists()) return;
    if (e.sequence.has(t)) KnownElement(e, known[i]).store();
    else put_nothing(e);
  });
  Step::finish();
}
