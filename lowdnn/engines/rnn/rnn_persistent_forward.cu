// rnn_persistent_forward: all steps of a recurrent layer in all of its directions in one launch, with the recurrent
// weights on chip; for sm_90a. Formulas: ops/rnn.py.
//
// Blocks: a group of blocks computes COLUMNS sequences in one direction, each of its blocks UNITS units, whose weights
// it keeps. A block is blockIdx.x = (direction * groups + group) * blocks of a group + block.
// Product: weights of 64 rows (m), the states before the step of the group's sequences (n), k the states' CHUNKS * 64
// elements, on tensor cores with wgmma. Sums begin with the products with the input and the biases. Cells of one gate
// have a row for each unit. Otherwise row 16 w + 2 v + e + 8 s is gate 2 s + e of unit 4 w + v: so lane
// 4 (2 v + e) + q of warp w has two gates of a unit for columns 2 q and 2 q + 1 of each 8, and its neighbour in e the
// other two; each hands the other what it lacks, and has all gates of one column.
// Two warpgroups multiply every other chunk each. The first REGISTER_CHUNKS of a warpgroup's chunks of weights lie in
// registers, the others in shared memory.
// Exchange: states go from block to block through `exchange`, [direction][group][2][chunk][column] of 128 bytes in the
// swizzle that wgmma reads. A step uses one half, the next one the other: whoever writes a half has read all states of
// the step before, and their writers had read that half. COPIED chunks are copied at a time, when they and all before
// them are there: writers count in `arrivals`, [direction][group][32], at the copy of their chunk.
// Roles: the multiplying warpgroups add up their sums, each for half of the columns, whose cells it computes. A third
// warpgroup has a warp that copies states to a ring of SLOTS chunks, one that publishes the block's new states, and two
// that keep the rows that a warpgroup each has computed and fetch its products with the input. The slot of a
// warpgroup's last chunk is its workspace behind the product: it receives the other one's sums and then the results.
// Shared memory (dynamic): weights [warpgroup][chunk] and ring [slot] in swizzled rows of 128 bytes, products with the
// input [column] of 128 bytes, two barriers for each slot, lengths [column].
// Launch: cooperative, 384 threads, a block for each multiprocessor at most.
// Macros: TYPE, COLUMNS (a multiple of 16), CHUNKS (at least 2), COPIED, WARPGROUPS (2), REGISTER_CHUNKS, SLOTS,
// REGISTERS of a multiplying thread, KEPT_REGISTERS of the others; CELL, CLIPS and SAVES as in forward_layer.cuh.

#include "include/ptx/grid_barrier.cuh"
#include "include/ptx/tma.cuh"
#include "persistent_exchange.cuh"
#include "persistent_forward_block.cuh"
#include "persistent_forward_consumer.cuh"
#include "persistent_forward_rows.cuh"

// The copying warp: a lane for each copy of a step makes it when its chunks and all before them are there, and their
// slots are free.
__device__ __forceinline__ void copy_states(const Place& place, const Memory& memory) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  const u32* const arrivals = place.arrivals() + lane;
#pragma unroll 1
  for (i32 step = 0; step < place.p.layer.steps; ++step) {
    const u32 number = number_of(step, lane * COPIED);
    bool is_there = false;
#pragma unroll 1
    for (u32 next = 0; next < COPIES;) {
      if (lane < COPIES && !is_there) is_there = arrived(arrivals) >= u32(BLOCKS_OF_CHUNK * COPIED * (step + 1));
      const bool is_ready = is_there && lane - next < SLOTS / COPIED && memory.are_free(number);
      const u32 ready = __ballot_sync(~0u, is_ready) >> next, missing = __ffs(~ready);
      const u32 count = missing ? missing - 1 : 32;
      if (lane - next < count) {
        fence_async_global();
        const u32 full = memory.full_of(number);
        mbarrier_expect(full, COPIED_BYTES);
        bulk_load(memory.states_of(number), place.exchange(step % 2, lane * COPIED), COPIED_BYTES, full);
      }
      next += count;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 bytes[];
  const Place place(p);
  const Memory memory(shared_address(bytes));
  if (threadIdx.x == 0) memory.begin();
  for (u32 column = threadIdx.x; column < COLUMNS; column += THREADS) {
    const Layer& layer = p.layer;
    const u32 b = place.first_sequence() + column;
    const Sequence sequence = sequence_of(layer.lengths, b, place.direction, layer.steps, layer.batch);
    store_shared_32(memory.lengths + column * 4, u32(sequence.length));
  }
  if (place.block == 0 && threadIdx.x < ARRIVALS) place.arrivals()[threadIdx.x] = 0;
  for (u32 word = threadIdx.x; word < COLUMNS * LINE_BYTES / 4; word += THREADS) {
    store_shared_32(memory.inputs + word * 4, 0);  // columns without sequences have products with the input, too
  }
  if constexpr (SHARED_CHUNKS > 0) {
    const auto from = [&](u32 g, u32 chunk, u32 row, u32 k) { return weights_of(place, g, chunk, Row(row), k); };
    stage_weights<SHARED_CHUNKS, THREADS>(memory.weights, from);
  }
  fence_async_shared();
  grid_sync();  // counts are 0 everywhere
  if (threadIdx.x < CONSUMERS) {
    take_registers<REGISTERS>();
    Consumer(place, memory).run();
  } else {
    release_registers<KEPT_REGISTERS>();
    const u32 warp = uniform(threadIdx.x / WARP_SIZE) - CONSUMERS / WARP_SIZE;
    if (warp == 0) copy_states(place, memory);
    else if (warp == 1) publish_states(place, memory);
    else Keeper{place, memory, warp - 2, threadIdx.x % WARP_SIZE}.run();
  }
}
