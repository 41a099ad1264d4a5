// The walk of a block and its product, which the kernels of a recurrent step on wgmma share; for sm_90a.
//
// The DEPTH blocks of a cluster compute 64 units of TILE_COLUMNS sequences in one direction, each the sums over every
// DEPTH-th chunk of 64 of k, and then the cells of every DEPTH-th sequence. blockIdx.x / DEPTH is the tile of units,
// blockIdx.y of sequences, blockIdx.z the direction. Each gate has 64 rows (m) of weights of its own, so that the
// sums of all gates of a unit lie in the same place.
// Roles: a warp copies operands into a ring of STAGES stages; WARPGROUPS warpgroups multiply, each its part of the
// columns.
// Shared memory (dynamic): the ring, each stage 64 rows of 128 bytes for each gate and TILE_COLUMNS rows of states;
// in its place, behind the product, the sums [gate][sequence][PITCH]; two barriers for each stage.
// Launch: THREADS threads, clusters of (DEPTH, 1, 1). It may be a dependent launch behind another kernel of the same
// plan. The first step lets the next one start when all before it has ended, the others at once. All but the first may
// therefore read before the wait what no step writes, and a step's weights arrive while the step before it computes.
// Macros: TYPE (f16 or bf16), WARPGROUPS, WARPGROUP_COLUMNS (a multiple of 8), DEPTH, STAGES, RESIDENT (blocks that a
// multiprocessor is to have registers for), CELL.

#pragma once

#include "include/ptx/cluster_vectors.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/tile/tile_wgmma.cuh"
#include "sequences.cuh"

constexpr int TILE_COLUMNS = WARPGROUPS * WARPGROUP_COLUMNS;
constexpr int CONSUMERS = WARPGROUPS * WARPGROUP_SIZE, THREADS = CONSUMERS + WARP_SIZE;
constexpr int UNITS = 64, CHUNK = 64;

// Each scheduler has 512 registers for a lane of all its warps.
constexpr int WARPS_OF_SCHEDULER = (RESIDENT * THREADS / int(WARP_SIZE) + 3) / 4;
constexpr int REGISTERS = WARPS_OF_SCHEDULER > 2 ? 512 / WARPS_OF_SCHEDULER / 8 * 8 : 255;  // registers of a thread
constexpr int OTHER_REGISTERS = 20;  // registers that the product and the walk take beside the sums

DEFINE_WGMMA(multiply_step, WARPGROUP_COLUMNS, 16, f32.TYPE.TYPE)

// GATES: rows of weights of a unit. IS_M_MAJOR: whether units lie contiguous in a row of k, otherwise k does.
template <int GATES, bool IS_M_MAJOR> struct WgmmaStep {
  typedef OperandStage<TYPE, UNITS * GATES, IS_M_MAJOR> Weights;
  typedef OperandStage<TYPE, TILE_COLUMNS, false> States;
  typedef RingPosition<STAGES> Position;
  static constexpr int STAGE_BYTES = Weights::BYTES + States::BYTES, GATE_BYTES = UNITS * STAGE_ROW_BYTES;
  // Elements from one sequence to the next: pairs of them lie 8 banks apart, since a warp stores 8 units of 4 at a
  // time.
  static constexpr int PITCH = UNITS + 4;
  static constexpr int SUMS_BYTES = GATES * TILE_COLUMNS * PITCH * int(sizeof(f32));
  static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
  static constexpr int BARRIERS_AT = RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES;
  static constexpr int OWN_SEQUENCES = (TILE_COLUMNS + DEPTH - 1) / DEPTH;  // sequences whose cells a block computes
  static constexpr int STRIDE = CONSUMERS / UNITS;                          // own sequences between a thread's cells
  static constexpr int ELEMENTS = (OWN_SEQUENCES + STRIDE - 1) / STRIDE;    // cells of a thread, all of one unit
  static constexpr int LINE_QUADS = UNITS / 4;                           // quads of units in a gate and sequence
  static constexpr int ALL_QUADS = GATES * OWN_SEQUENCES * LINE_QUADS;   // quads whose sums a block adds up
  static constexpr int QUADS = (ALL_QUADS + CONSUMERS - 1) / CONSUMERS;  // quads of a thread
  static constexpr int AT_ONCE = 12 / DEPTH;                             // quads that a thread reads at once
  // Whether there are registers for so many values of each of a thread's cells during the product.
  static constexpr bool has_room(int values) {
    return GATES * WARPGROUP_COLUMNS / 2 + ELEMENTS * values + OTHER_REGISTERS <= REGISTERS;
  }
  static constexpr u32 MEETING = 1;  // number of the consumers' barrier
  static_assert(CONSUMERS % UNITS == 0, "a thread has one unit");

  const u32 memory, full, empty;
  f32* const sums;
  const u32 rank = blockIdx.x % DEPTH;
  const u32 first_unit = blockIdx.x / DEPTH * UNITS, first_sequence = blockIdx.y * TILE_COLUMNS, direction = blockIdx.z;

  // All threads.
  __device__ __forceinline__ explicit WgmmaStep(u8* shared)
      : memory(shared_address(shared)), full(memory + BARRIERS_AT), empty(full + STAGES * MBARRIER_BYTES),
        sums(reinterpret_cast<f32*>(shared)) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(full + stage * MBARRIER_BYTES, 1);
        mbarrier_init(empty + stage * MBARRIER_BYTES, CONSUMERS / WARP_SIZE);
      }
      mbarrier_fence_init();
    }
    __syncthreads();
  }

  static __device__ __forceinline__ bool is_producer() {
    return uniform(threadIdx.x / WARP_SIZE) == CONSUMERS / WARP_SIZE;
  }

  // The consumers: wait for the step before this one. `fetch` reads what no step writes: before the wait but in the
  // first step, which reads the results of other kernels.
  template <class Fetch> static __device__ __forceinline__ void wait_for_last_step(bool is_first, const Fetch& fetch) {
    if (!is_first) {
      allow_next_kernel();
      fetch();
    }
    wait_for_previous_kernel();
    if (is_first) {
      allow_next_kernel();
      fetch();
    }
  }

  // Chunks of this block, the `rank`-th, the one DEPTH further on, and so on, of all `chunks`.
  __device__ __forceinline__ i32 own_chunks(i32 chunks) const { return max(chunks - i32(rank) + DEPTH - 1, 0) / DEPTH; }

  // One thread: load_weights(gate, chunk, address, barrier) and load_states(chunk, address, barrier) copy a stage.
  // is_early: whether the weights may be read before the kernel before this one has ended.
  template <class LoadWeights, class LoadStates>
  __device__ __forceinline__ void produce(i32 chunks, bool is_early, const LoadWeights& load_weights,
                                          const LoadStates& load_states) const {
    const i32 count = own_chunks(chunks), early = is_early ? min(count, STAGES) : 0;
    const auto begin = [&](i32 i, u32 stage) {
      mbarrier_expect(full + stage * MBARRIER_BYTES, STAGE_BYTES);
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        load_weights(gate, rank + i * DEPTH, memory + stage * STAGE_BYTES + gate * GATE_BYTES,
                     full + stage * MBARRIER_BYTES);
      }
    };
#pragma unroll 1
    for (i32 i = 0; i < early; ++i) begin(i, i);
    wait_for_previous_kernel();
    Position at;
#pragma unroll 1
    for (i32 i = 0; i < count; ++i, at.advance()) {
      if (i >= early) {
        mbarrier_wait(empty + at.stage * MBARRIER_BYTES, at.parity ^ 1);
        begin(i, at.stage);
      }
      load_states(rank + i * DEPTH, memory + at.stage * STAGE_BYTES + Weights::BYTES, full + at.stage * MBARRIER_BYTES);
    }
  }

  // The consumers: the products of this block's chunks, in `sums`.
  __device__ __forceinline__ void consume(i32 chunks) const {
    const i32 count = own_chunks(chunks);
    const u32 own_column = uniform(threadIdx.x / WARPGROUP_SIZE) * WARPGROUP_COLUMNS;
    f32 d[GATES][WARPGROUP_COLUMNS / 2];
    if (count == 0) {
#pragma unroll
      for (int i = 0; i < GATES * WARPGROUP_COLUMNS / 2; ++i) d[0][i] = 0;
      store(d, own_column);
      return;
    }
    Position at;
    u32 previous = 0;
    issue<false>(d, at, own_column);
#pragma unroll 1
    for (i32 i = 1; i < count; ++i) {
      const u32 stage = at.stage;
      issue<true>(d, at, own_column);
      wgmma_wait<1>();
      release(previous);
      previous = stage;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < GATES * WARPGROUP_COLUMNS / 2; ++i) hold(d[0][i]);
    meet();  // nobody reads the ring any more
    store(d, own_column);
  }

  // All threads, behind `consume`: adds up the sums of the cluster's blocks, in their order, of this block's sequences.
  __device__ __forceinline__ void share() const {
    if constexpr (DEPTH == 1) {
      if (!is_producer()) meet();
      return;
    }
    cluster_sync();
    if (!is_producer()) {
#pragma unroll
      for (int first = 0; first < QUADS; first += AT_ONCE) add_parts(first);
    }
    cluster_arrive();  // no block may end while others read its sums: `finish`
    if (!is_producer()) meet();
  }
  static __device__ __forceinline__ void finish() {
    if constexpr (DEPTH > 1) cluster_wait();
  }

  __device__ __forceinline__ u32 unit() const { return first_unit + threadIdx.x % UNITS; }

  // The lengths of the sequences of this consumer's elements; -1 of one that is not there, which has the place of the
  // last one, so that loads need no condition: under conditions of their own they would wait for each other.
  __device__ __forceinline__ void find_lengths(const i32* lengths, i32 steps, u32 batch, i32 (&found)[ELEMENTS]) const {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) found[i] = steps;
    if (lengths) {
#pragma unroll
      for (int i = 0; i < ELEMENTS; ++i) found[i] = min(max(lengths[sequence_at(i, batch)], 0), steps);
    }
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      const bool exists = column_of(i) < u32(TILE_COLUMNS) && first_sequence + column_of(i) < batch;
      found[i] = exists ? found[i] : -1;
    }
  }
  __device__ __forceinline__ u32 sequence_at(int i, u32 batch) const {
    return min(first_sequence + column_of(i), batch - 1);
  }

  // The sum of element i.
  __device__ __forceinline__ f32 total(u32 gate, int i) const {
    return place(gate, min(column_of(i), u32(TILE_COLUMNS) - 1))[threadIdx.x % UNITS];
  }

 private:
  __device__ __forceinline__ u32 column_of(int i) const { return rank + (threadIdx.x / UNITS + i * STRIDE) * DEPTH; }

  // The multiplications of the next stage.
  template <bool ACCUMULATES>
  __device__ __forceinline__ void issue(f32 (&d)[GATES][WARPGROUP_COLUMNS / 2], Position& at, u32 own_column) const {
    const u32 stage = memory + at.stage * STAGE_BYTES;
    mbarrier_wait(full + at.stage * MBARRIER_BYTES, at.parity);
    const u64 a = Weights::descriptor(stage);
    const u64 b = States::descriptor(stage + Weights::BYTES + own_column * STAGE_ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Weights::STEPS; ++step) {
#pragma unroll
      for (int gate = 0; gate < GATES; ++gate) {
        multiply_step<IS_M_MAJOR, false>(d[gate], a + Weights::offset(gate * UNITS, step),
                                         b + States::offset(0, step), ACCUMULATES || step > 0);
      }
    }
    wgmma_commit();
    at.advance();
  }

  __device__ __forceinline__ f32* place(u32 gate, u32 sequence) const {
    return sums + (gate * TILE_COLUMNS + sequence) * PITCH;
  }
  // Adds up quads `first` and so on. All parts are read before any sum is written, so that none waits for another.
  __device__ __forceinline__ void add_parts(int first) const {
    float4 parts[AT_ONCE][DEPTH];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int block = 0; block < DEPTH && first + i < QUADS; ++block) {
        parts[i][block] = load_of_block_16(quad(first + i), block, has_quad(first + i));
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i >= QUADS || !has_quad(first + i)) continue;
      float4 total = parts[i][0];
#pragma unroll
      for (int block = 1; block < DEPTH; ++block) {
        const float4 part = parts[i][block];
        total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
      }
      *reinterpret_cast<float4*>(quad(first + i)) = total;
    }
  }
  __device__ __forceinline__ f32* quad(int i) const {
    const u32 item = threadIdx.x + i * CONSUMERS, line = item / LINE_QUADS;
    return place(line / OWN_SEQUENCES, rank + line % OWN_SEQUENCES * DEPTH) + item % LINE_QUADS * 4;
  }
  __device__ __forceinline__ bool has_quad(int i) const {
    const u32 item = threadIdx.x + i * CONSUMERS, line = item / LINE_QUADS;
    return item < u32(ALL_QUADS) && rank + line % OWN_SEQUENCES * DEPTH < u32(TILE_COLUMNS);
  }

  static __device__ __forceinline__ void meet() { named_barrier(MEETING, CONSUMERS); }
  __device__ __forceinline__ void release(u32 stage) const {
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(empty + stage * MBARRIER_BYTES);
  }

  __device__ __forceinline__ void store(const f32 (&d)[GATES][WARPGROUP_COLUMNS / 2], u32 own_column) const {
    const u32 lane = threadIdx.x % WARP_SIZE, row = threadIdx.x / WARP_SIZE % 4 * 16 + lane / 4;
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) {
#pragma unroll
      for (int i = 0; i < WARPGROUP_COLUMNS / 2; ++i) {
        const u32 column = own_column + i / 4 * 8 + lane % 4 * 2 + i % 2;
        place(gate, column)[row + i / 2 % 2 * 8] = d[gate][i];
      }
    }
  }
};
