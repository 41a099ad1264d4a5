// rnn_step_backward_wgmma: a step back of a recurrent layer in all of its directions: the gradient of the states, in
// which the product of the next step's gate gradients with the recurrent weights goes back, and of the gates; for
// sm_90a.
//
// Tensors, cells and their macros: backward_layer.cuh. Block, product, launch, shared memory and macros:
// step_wgmma.cuh. The weights are as they are, rows of k, of which the second part belongs to columns `second_source`
// of the gate gradients. The step is the `step`-th of each direction from behind; the one behind all of them computes
// the gradient of the first states. Maps: weights (unit, k, direction), gate gradients (k, sequence, step,
// direction).

#include "backward_layer.cuh"
#include "short_functions.cuh"
#include "step_wgmma.cuh"

struct Params {
  TensorMap weights, dgates;
  Layer layer;
};

typedef WgmmaStep<1, true> Step;

// A unit of a sequence in registers: what its cell reads and what it makes. beside: the gradient that reaches the state
// beside the product. carried: the gradient of an LSTM's cell behind the step.
struct Known {
  static constexpr bool HAS_CARRIED = CELL::CARRIES || CELL::HAS_CELLS;
  static constexpr int VALUES = CELL::BLOCKS + 2 * CELL::HAS_CELLS + CELL::CARRIES + HAS_CARRIED + 2;
  static constexpr bool IS_EARLY = Step::has_room(VALUES);  // before the product

  TYPE gates[CELL::BLOCKS], dy;
  Value cell, last, beside, carried, dgates[CELL::BLOCKS];

  // Loads the values that the step before this one did not write. is_first: whether there is no step before this one in
  // time.
  __device__ __forceinline__ void fetch(const Element& e, bool is_first) {
    const TYPE* const row = e.p.gates + e.of(e.p.gate_rows, e.t);
#pragma unroll
    for (int block = 0; block < CELL::BLOCKS; ++block) gates[block] = row[i64(block) * e.p.units];
    dy = e.p.dy[e.of(e.p.dy_rows, e.t)];
    if constexpr (CELL::HAS_CELLS) {
      const i64 before = e.of(e.p.cell_rows, e.sequence.before(e.t));
      cell = e.cell();
      last = is_first ? read(e.p.first_cells, e.of(e.p.cell_ends)) : e.p.cells[before];
    }
    if constexpr (CELL::CARRIES) {
      const i64 before = e.of(e.p.state_rows, e.sequence.before(e.t));
      last = is_first ? read(e.p.first_states, e.of(e.p.state_ends)) : Value(widen(e.p.states[before]));
    }
  }
  // Both load the gradients that reach the state and the cell from behind: `fetch_carried` those of a sequence with a
  // next step, `fetch_end` those of one that ends here.
  __device__ __forceinline__ void fetch_carried(const Element& e) {
    if constexpr (HAS_CARRIED) carried = e.carried();
    beside = CELL::CARRIES ? carried : Value(0);
  }
  __device__ __forceinline__ void fetch_end(const Element& e) {
    beside = read(e.p.dlast_states, e.of(e.p.state_ends));
    if constexpr (CELL::HAS_CELLS) carried = read(e.p.dlast_cells, e.of(e.p.cell_ends));
  }
};

// An element that takes what is carried as it comes.
struct KnownElement : Element, ShortFunctions {
  Known& own;

  __device__ __forceinline__ KnownElement(const Element& element, Known& known) : Element(element), own(known) {
    has_next = true;
  }
  using ShortFunctions::tanh;
  __device__ __forceinline__ Value gate(u32 block) const { return Value(widen(own.gates[block])); }
  __device__ __forceinline__ Value cell() const { return own.cell; }
  __device__ __forceinline__ Value last_cell() const { return own.last; }
  __device__ __forceinline__ Value last_state() const { return own.last; }
  __device__ __forceinline__ Value carried() const { return own.carried; }
  __device__ __forceinline__ void put_gate(u32 block, Value gradient) const { own.dgates[block] = gradient; }
  __device__ __forceinline__ void carry(Value gradient) const { own.carried = gradient; }
  __device__ __forceinline__ void put_first_cell(Value) const {}

  // To memory.
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int block = 0; block < CELL::BLOCKS; ++block) Element::put_gate(block, own.dgates[block]);
    if constexpr (Known::HAS_CARRIED) Element::carry(own.carried);
    if constexpr (CELL::HAS_CELLS) Element::put_first_cell(own.carried);
  }
};

// One thread copies the chunks of weights and of gate gradients.
__device__ __forceinline__ void produce(const Params& params, const Step& tile, i32 step, i32 t, i32 chunks) {
  const Layer& p = params.layer;
  const u32 d = tile.direction;
  prefetch(params.dgates);
  const auto load_weights = [&](int, i32 chunk, u32 to, u32 full) {
    tma_load<1>(to, params.weights, full, 0, tile.first_unit, chunk * CHUNK, d);
  };
  const auto load_gradients = [&](i32 chunk, u32 to, u32 full) {
    const i32 k = chunk * CHUNK, column = k < p.weights.depth ? k : k - p.weights.depth + p.second_source;
    tma_load<1>(to, params.dgates, full, 0, column, tile.first_sequence, d ? t - 1 : t + 1, d);
  };
  tile.produce(chunks, step > 0, load_weights, load_gradients);
}

// Reads what no step back writes.  is_first: whether there is no step before this one in time.
template <class ForEach>
__device__ __forceinline__ void fetch_all(bool is_first, Known (&known)[Step::ELEMENTS], const ForEach& for_each) {
  if (is_first) for_each([&](int i, const Element& e) { known[i].fetch(e, true); });
  else for_each([&](int i, const Element& e) { known[i].fetch(e, false); });
}

// Reads the gradients that reach the states and the cells from the next step.  have_next: whether all have one.
template <class ForEach>
__device__ __forceinline__ void fetch_all_carried(bool have_next, Known (&known)[Step::ELEMENTS],
                                                  const ForEach& for_each) {
  if (have_next) {
    for_each([&](int i, const Element& e) { known[i].fetch_carried(e); });
    return;
  }
  for_each([&](int i, const Element& e) {
    if (e.has_next) known[i].fetch_carried(e);
    else known[i].fetch_end(e);
  });
}

// Computes all cells before any result is stored, so that they are computed at once.
template <class ForEach>
__device__ __forceinline__ void compute(const Step& tile, Known (&known)[Step::ELEMENTS], const ForEach& for_each) {
  for_each([&](int i, const Element& e) {
    CELL::step(KnownElement(e, known[i]), tile.total(0, i) + Value(widen(known[i].dy)) + known[i].beside);
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    KERNEL_NAME(const __grid_constant__ Params params, const i32 step) {
  extern __shared__ __align__(1024) u8 memory[];
  const Layer& p = params.layer;
  const Step tile(memory);
  const u32 d = tile.direction;
  const bool is_beyond = step == p.steps;  // before the first step
  const i32 t = d ? step : p.steps - 1 - step;
  const i32 depth = p.weights.depth + p.second_depth, chunks = step == 0 ? 0 : (depth + CHUNK - 1) / CHUNK;

  if (Step::is_producer()) {
    if (elect_one()) produce(params, tile, step, t, chunks);
    __syncwarp();
    tile.share();
    Step::finish();
    return;
  }

  // Loads for this thread's elements, before the wait where values are there by then; they depend on the step alone.
  const bool has_unit = tile.unit() < u32(p.units), is_first = step == 0;
  const u32 unit = has_unit ? tile.unit() : 0;
  Known known[Step::ELEMENTS];
  i32 lengths[Step::ELEMENTS];
  tile.find_lengths(p.lengths, p.steps, p.batch, lengths);
  const auto for_each = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < Step::ELEMENTS; ++i) {
      const Sequence s = {tile.sequence_at(i, p.batch), d, lengths[i]};
      const bool has_next = is_beyond ? s.length > 0 : s.behind(t) >= 0 && s.has(s.behind(t));
      visit(i, Element{s, t, has_next, unit, p});
    }
  };
  const auto fetch = [&] {
    if (!is_beyond) fetch_all(step == p.steps - 1, known, for_each);
  };
  const auto fetch_carried = [&] { fetch_all_carried(!is_first && !p.lengths, known, for_each); };
  Step::wait_for_last_step(is_first, [&] {
    if (Known::IS_EARLY) fetch();
  });
  if (Known::IS_EARLY) fetch_carried();

  tile.consume(chunks);
  if (!Known::IS_EARLY) {
    fetch();
    fetch_carried();
  }
  tile.share();

  if (is_beyond) {
    for_each([&](int i, const Element& e) {
      if (!has_unit || !e.sequence.exists()) return;
      write(p.dfirst_states, e.of(p.state_ends), tile.total(0, i) + known[i].beside);
    });
  } else {
    compute(tile, known, for_each);
    for_each([&](int i, const Element& e) {
      if (!has_unit || !e.sequence.exists()) return;
      if (e.sequence.has(t)) KnownElement(e, known[i]).store();
      else put_nothing(e);
    });
  }
  Step::finish();
}
