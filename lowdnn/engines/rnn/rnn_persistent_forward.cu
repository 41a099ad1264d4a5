// rnn_persistent_forward: all steps of a recurrent layer in all of its directions in one launch, with the recurrent
// weights on chip; for sm_90a. Formulas: ops/rnn.py.
//
// Blocks: a group of blocks computes COLUMNS sequences in one direction, each of its blocks UNITS units, whose weights
// it keeps. A block is blockIdx.x = (direction * groups + group) * blocks of a group + block.
// Product: weights of 64 rows (m), the states before the step of the group's sequences (n), k the states' CHUNKS * 64
// elements, on tensor cores with wgmma. Row 16 w + 2 v + e + 8 s is gate 2 s + e of unit 4 w + v; cells with less gates
// have rows of zeros. So lane 4 (2 v + e) + q of warp w has two gates of a unit for columns 2 q and 2 q + 1 of each 8,
// and its neighbour in e the other two: each hands the other what it lacks, and has all gates of one column.
// The first REGISTER_CHUNKS chunks of a warpgroup lie in registers, the others in shared memory.
// Exchange: states go from block to block through `exchange`, [direction][group][2][chunk][column] of 128 bytes in the
// swizzle that wgmma reads. A step uses one half, the next one the other: whoever writes a half has read all states of
// the step before, and their writers had read that half. Writers count in `arrivals`, [direction][group][32], at their
// chunk; a copy waits for its own chunk alone.
// Roles: WARPGROUPS warpgroups multiply every WARPGROUPS-th chunk each, share their sums through shared memory, and
// compute the cells of a part of the columns each; a warp of one more warpgroup copies states. The others of that
// warpgroup hand over registers.
// Shared memory (dynamic): weights [chunk] and states [chunk] in swizzled rows of 128 bytes, sums, new states [column],
// barriers: one for each chunk that arrives, and one for all that have been read.
// Launch: cooperative, (WARPGROUPS + 1) * 128 threads, a block for each multiprocessor at most.
// Macros: TYPE, COLUMNS (a multiple of 8 * WARPGROUPS), CHUNKS, WARPGROUPS, REGISTER_CHUNKS, REGISTERS of a
// consumer's thread, where it takes some over, and KEPT_REGISTERS of the copying warpgroup's; CELL, CLIPS and
// SAVES as in forward_layer.cuh.

#include "include/ptx/grid_barrier.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/ptx/tma.cuh"
#include "include/ptx/warpgroup.cuh"
#include "include/ptx/wgmma.cuh"
#include "persistent_exchange.cuh"
#include "resident_cell.cuh"
#include "resident_weights.cuh"

DEFINE_WGMMA(multiply_shared, COLUMNS, 16, f32.TYPE.TYPE)
DEFINE_WGMMA_A_IN_REGISTERS(multiply_registers, COLUMNS, f32.TYPE.TYPE)

constexpr int UNITS = 16, ROWS = 64;
constexpr int CONSUMERS = WARPGROUPS * WARPGROUP_SIZE, THREADS = CONSUMERS + WARPGROUP_SIZE;
constexpr int BLOCKS_OF_CHUNK = CHUNK / UNITS;
constexpr int ARRIVALS = 32;  // words of a group: a line, which a warp reads at a time
constexpr int OWN_CHUNKS = CHUNKS / WARPGROUPS;
constexpr int SHARED_CHUNKS = OWN_CHUNKS - REGISTER_CHUNKS;
// A thread's elements: one of each 8 columns of its warpgroup's part.
constexpr int ELEMENTS = COLUMNS / 8 / WARPGROUPS;
constexpr int CHUNK_BYTES = COLUMNS * LINE_BYTES;
// Pieces of 16 bytes that a block's states of a sequence are.
constexpr int PIECES = UNITS * int(sizeof(TYPE)) / 16;
// Warps that write the block's states.
constexpr int WRITERS = COLUMNS * PIECES <= int(WARP_SIZE) ? 1 : 2;
constexpr int WRITERS_OF_CHUNK = WRITERS * BLOCKS_OF_CHUNK;
constexpr int STATES_AT = WARPGROUPS * SHARED_CHUNKS * WEIGHT_BYTES;
constexpr int SUMS_AT = STATES_AT + CHUNKS * CHUNK_BYTES;
constexpr int SUMS_BYTES = WARPGROUPS == 1 ? 0 : ROWS * COLUMNS * int(sizeof(f32));
constexpr int OWN_STATES_AT = SUMS_AT + SUMS_BYTES, OWN_STATES_BYTES = COLUMNS * UNITS * int(sizeof(TYPE));
constexpr int BARRIERS_AT = OWN_STATES_AT + OWN_STATES_BYTES;
static_assert(CHUNKS % WARPGROUPS == 0 && CHUNKS <= ARRIVALS, "warpgroups have as many chunks each");
static_assert(WARPGROUPS <= 2 && COLUMNS % (8 * WARPGROUPS) == 0, "halves of columns");

// The consumers' barrier where all of them meet.
constexpr u32 ALL = 1;
// The consumers' barrier behind which the writers have read the states in shared memory.
constexpr u32 STATES_READ = 2;

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
  __device__ __forceinline__ u32* arrivals() const { return p.arrivals + team() * ARRIVALS; }
  __device__ __forceinline__ u32 first_unit() const { return block * UNITS; }
  __device__ __forceinline__ u32 own_chunk() const { return block / BLOCKS_OF_CHUNK; }
};

// The weights of row `row` of the block, of chunk `chunk` of warpgroup `g`, from `k` of it on; null for a row of zeros.
__device__ __forceinline__ const TYPE* weights_of(const Place& place, u32 g, u32 chunk, u32 row, u32 k) {
  const u32 gate = row / 8 % 2 * 2 + row % 2, unit = row / 16 * 4 + row % 8 / 2;
  const Weights& weights = place.p.layer.weights;
  if (gate >= CELL::GATES) return nullptr;
  const i64 line = i64(gate) * place.p.layer.units + place.first_unit() + unit;
  return weights.at + place.direction * weights.direction + line * weights.pitch + (chunk * WARPGROUPS + g) * CHUNK + k;
}

// Where the states of a step arrive.
struct Arrival {
  u32 states, full, free;  // addresses of the chunks, their barriers and the barrier of all of them

  __device__ __forceinline__ explicit Arrival(u32 memory)
      : states(memory + STATES_AT), full(memory + BARRIERS_AT), free(full + CHUNKS * MBARRIER_BYTES) {}
  __device__ __forceinline__ void begin() const {
    for (u32 chunk = 0; chunk < CHUNKS; ++chunk) mbarrier_init(full_of(chunk), 1);
    mbarrier_init(free, CONSUMERS / WARP_SIZE);
    mbarrier_fence_init();
  }
  __device__ __forceinline__ u32 full_of(u32 chunk) const { return full + chunk * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 states_of(u32 chunk) const { return states + chunk * CHUNK_BYTES; }
};

// The copying warp: a lane for each chunk copies it as soon as it is there.
__device__ __forceinline__ void copy_states(const Place& place, const Arrival& arrival) {
  const u32 chunk = threadIdx.x % WARP_SIZE;
  const u32* const arrivals = place.arrivals() + chunk;
#pragma unroll 1
  for (i32 step = 0; step < place.p.layer.steps; ++step) {
    bool is_missing = chunk < CHUNKS;
    mbarrier_wait(arrival.free, step % 2 ^ 1);
    while (__any_sync(~0u, is_missing)) {
      if (is_missing && arrived(arrivals) >= WRITERS_OF_CHUNK * (step + 1)) {
        fence_async();
        mbarrier_expect(arrival.full_of(chunk), CHUNK_BYTES);
        bulk_load(arrival.states_of(chunk), place.exchange(step % 2, chunk), CHUNK_BYTES, arrival.full_of(chunk));
        is_missing = false;
      }
    }
  }
}

// A multiplying warpgroup.
struct Consumer {
  const Place& place;
  const u32 memory, g, warp, lane;
  const Biases biases;
  Sequence sequences[ELEMENTS];
  Resident elements[ELEMENTS];

  __device__ __forceinline__ Consumer(const Place& of, u32 shared)
      : place(of),
        memory(shared),
        g(uniform(threadIdx.x / WARPGROUP_SIZE)),
        warp(uniform(threadIdx.x / WARP_SIZE % 4)),
        lane(threadIdx.x % WARP_SIZE),
        biases(of.p.layer, of.direction, of.first_unit() + unit()) {
    const Layer& p = place.p.layer;
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      sequences[i] = sequence_of(p.lengths, place.group * COLUMNS + column(i), place.direction, p.steps, p.batch);
    }
  }

  // Elements are numbered by blocks of 8 columns of the warpgroup's part.
  __device__ __forceinline__ u32 column(int i) const {
    return (g * ELEMENTS + i) * 8 + lane % 4 * 2 + lane / 4 % 2;
  }
  __device__ __forceinline__ u32 unit() const { return warp * 4 + lane / 8; }
  __device__ __forceinline__ i32 time(i32 step) const {
    return place.direction ? place.p.layer.steps - 1 - step : step;
  }
  __device__ __forceinline__ void meet() const { named_barrier(ALL, CONSUMERS); }

  // Calls visit(i, element) for the elements whose sequences there are.
  template <class Visit> __device__ __forceinline__ void for_each(i32 t, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      if (!sequences[i].exists()) continue;
      visit(i, ResidentElement(Element{sequences[i], t, place.first_unit() + unit(), place.p.layer}, elements[i]));
    }
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) elements[i].begin();
    for_each(0, [&](int i, const ResidentElement& e) { elements[i].begin(e); });
    publish(0);
  }

  // The inputs of a step.
  __device__ __forceinline__ void fetch(i32 step) {
    for_each(time(step), [&](int i, const ResidentElement& e) { elements[i].fetch(e); });
  }

  // This warpgroup's part of the product.
  __device__ __forceinline__ void multiply(const OwnWeights& weights, const Arrival& arrival, u32 parity,
                                           f32 (&sums)[COLUMNS / 2]) const {
    const u32 own = memory + g * (SHARED_CHUNKS * WEIGHT_BYTES);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0;
    // Multiplies a chunk, by multiply(states, step) for each 16 of k.
    const auto take = [&](int chunk, auto multiply) {
      mbarrier_wait(arrival.full_of(chunk * WARPGROUPS + g), parity);
      const u64 states = swizzled_operand(arrival.states_of(chunk * WARPGROUPS + g));
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < CHUNK / 16; ++step) multiply(states + (step * 32 >> 4), step);
    };
#pragma unroll
    for (int chunk = 0; chunk < REGISTER_CHUNKS; ++chunk) {
      take(chunk, [&](u64 b, int step) { multiply_registers<false>(sums, weights.words[chunk][step], b, true); });
    }
#pragma unroll
    for (int chunk = 0; chunk < SHARED_CHUNKS; ++chunk) {
      const u64 a = swizzled_operand(own + chunk * WEIGHT_BYTES);
      take(REGISTER_CHUNKS + chunk,
           [&](u64 b, int step) { multiply_shared<false, false>(sums, a + (step * 32 >> 4), b, true); });
    }
    wgmma_commit();
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(arrival.free);
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) hold(sums[i]);
  }

  // Adds the other warpgroup's sums of this one's columns.
  __device__ __forceinline__ void share(f32 (&sums)[COLUMNS / 2], f32 (&own)[ELEMENTS * 4]) const {
    if constexpr (WARPGROUPS == 1) {
#pragma unroll
      for (int i = 0; i < ELEMENTS * 4; ++i) own[i] = sums[i];
    } else {
      const u32 thread = threadIdx.x % WARPGROUP_SIZE;
      f32* const shared = reinterpret_cast<f32*>(__cvta_shared_to_generic(memory + SUMS_AT));
#pragma unroll
      for (int i = 0; i < ELEMENTS * 4; ++i) {
        own[i] = g == 0 ? sums[i] : sums[ELEMENTS * 4 + i];
        shared[((g ^ 1) * ELEMENTS * 4 + i) * WARPGROUP_SIZE + thread] = g == 0 ? sums[ELEMENTS * 4 + i] : sums[i];
      }
      meet();
#pragma unroll
      for (int i = 0; i < ELEMENTS * 4; ++i) own[i] += shared[(g * ELEMENTS * 4 + i) * WARPGROUP_SIZE + thread];
    }
  }

  __device__ __forceinline__ void compute(i32 t, const f32 (&sums)[ELEMENTS * 4]) {
    const bool is_odd = lane / 4 % 2;
    f32 gates[ELEMENTS][4];
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      const f32* own = sums + i * 4;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const f32 other = __shfl_xor_sync(~0u, is_odd ? own[2 * half] : own[2 * half + 1], 4);
        gates[i][2 * half] = is_odd ? other : own[2 * half];
        gates[i][2 * half + 1] = is_odd ? own[2 * half + 1] : other;
      }
    }
    for_each(t, [&](int i, const ResidentElement& e) {
      Value of_gates[CELL::GATES];
#pragma unroll
      for (int gate = 0; gate < CELL::GATES; ++gate) of_gates[gate] = gates[i][gate];
      e.compute(biases, of_gates);
    });
  }

  // The block's states to the others, as those before step `step`. Two warpgroups have met since the states before were
  // read from shared memory; a single one meets here.
  __device__ __forceinline__ void publish(i32 step) const {
    TYPE* const shared = reinterpret_cast<TYPE*>(__cvta_shared_to_generic(memory + OWN_STATES_AT));
    const bool is_writer = threadIdx.x < WRITERS * WARP_SIZE;
    if (WARPGROUPS == 1 && step > 0 && !is_writer) named_barrier(STATES_READ, CONSUMERS);
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) shared[column(i) * UNITS + unit()] = convert<TYPE>(elements[i].h);
    meet();
    if (!is_writer) return;
    u8* const chunk = place.exchange(step % 2, place.own_chunk());
#pragma unroll
    for (u32 item = threadIdx.x; item < u32(COLUMNS * PIECES); item += WRITERS * WARP_SIZE) {
      const u32 own_column = item / PIECES, piece = place.block % BLOCKS_OF_CHUNK * PIECES + item % PIECES;
      const uint4 words = load_shared_128(memory + OWN_STATES_AT + item * 16);
      *reinterpret_cast<uint4*>(chunk + own_column * LINE_BYTES + (piece ^ own_column % 8) * 16) = words;
    }
    __syncwarp();
    if (lane == 0) arrive(place.arrivals() + place.own_chunk());
    if (WARPGROUPS == 1 && step + 1 < place.p.layer.steps) named_barrier_arrive(STATES_READ, CONSUMERS);
  }

  __device__ __forceinline__ void store(i32 t) {
    for_each(t, [](int, const ResidentElement& e) { e.store(); });
  }

  __device__ __forceinline__ void run(const Arrival& arrival) {
    const OwnWeights weights([&](int chunk, u32 row, u32 k) { return weights_of(place, g, chunk, row, k); });
    begin();
    fetch(0);
#pragma unroll 1
    for (i32 step = 0; step < place.p.layer.steps; ++step) {
      f32 sums[COLUMNS / 2], own[ELEMENTS * 4];
      multiply(weights, arrival, step % 2, sums);
      share(sums, own);
      compute(time(step), own);
      const bool is_last = step + 1 == place.p.layer.steps;
      if (!is_last) publish(step + 1);
      store(time(step));
      if (!is_last) fetch(step + 1);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 memory[];
  const Place place(p);
  const Arrival arrival(shared_address(memory));
  if (threadIdx.x == 0) arrival.begin();
  if (place.block == 0 && threadIdx.x < ARRIVALS) place.arrivals()[threadIdx.x] = 0;
  if constexpr (SHARED_CHUNKS > 0) {
    const auto from = [&](u32 g, u32 chunk, u32 row, u32 k) { return weights_of(place, g, chunk, row, k); };
    stage_weights<SHARED_CHUNKS, THREADS>(shared_address(memory), from);
  }
  fence_async_shared();
  grid_sync();  // counts are 0 everywhere
  if (threadIdx.x < CONSUMERS) {
    if constexpr (REGISTERS > 0) take_registers<REGISTERS>();
    Consumer(place, shared_address(memory)).run(arrival);
  } else {
    if constexpr (REGISTERS > 0) release_registers<KEPT_REGISTERS>();
    if (threadIdx.x < CONSUMERS + WARP_SIZE) copy_states(place, arrival);
  }
}
