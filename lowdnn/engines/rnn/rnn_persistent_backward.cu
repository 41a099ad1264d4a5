// rnn_persistent_backward: all steps back of a recurrent layer in all of its directions in one launch, with the
// recurrent weights on chip; for sm_90a. Formulas: ops/rnn_cells.py.
//
// Blocks: a group of blocks computes PARTS * COLUMNS sequences in one direction. The CLUSTER blocks of a cluster
// compute ROWS units, a part of k each, and then the cells of UNITS units each. A block is blockIdx.x = ((direction *
// groups + group) * clusters of a group + cluster) * CLUSTER + rank.
// Parts: a step takes the sequences of a group in PARTS turns. While the gate gradients of one part are under way,
// those of the others are multiplied.
// Product: wgmma multiplies the transposed weights of ROWS units (m) with the gate gradients of the next step of
// COLUMNS sequences (n) over CHUNKS * 64 elements of k. Chunk c of k is gate c % GATES of units c / GATES * 64 on;
// block `rank` has those from rank * CHUNKS on. Each warpgroup multiplies 64 rows, of whose chunks of weights the first
// REGISTER_CHUNKS lie in registers, the others in shared memory.
// Sum: a warp has 16 rows, which one block of the cluster finishes. It sends its accumulators there, and that block
// adds up those of all blocks in the order of their ranks.
// Exchange: gate gradients go from block to block through `exchange`, [direction][group][part][HISTORY][chunk][column]
// of 128 bytes in the swizzle that wgmma reads. Step s takes the place of step s - HISTORY: before a block writes
// there, the barriers of its cluster have told it that all blocks have read that step. Writers count in `arrivals`,
// [direction][group][part][32], at their 64 units.
// Roles: WARPGROUPS warpgroups multiply and compute cells. In one more warpgroup a warp copies gradients to a ring of
// SLOTS chunks, and WRITERS warps write the block's own to `exchange` and to the layer, so that the others need not
// wait for stores.
// Shared memory (dynamic): weights [warpgroup][chunk] and ring [slot] in swizzled rows of 128 bytes, sums
// [rank][warp][8 columns][lane], new gradients [block of gates][column][unit], barriers.
// Alignment: gates, their gradients and cells begin at multiples of 16 bytes.
// Launch: cooperative, clusters of (CLUSTER, 1, 1), (WARPGROUPS + 1) * 128 threads, a block for each multiprocessor at
// most.
// Macros: TYPE, COLUMNS (a multiple of 8), PARTS, CHUNKS, CLUSTER, WARPGROUPS, REGISTER_CHUNKS, SLOTS, REGISTERS of a
// consumer's thread, where it takes some over, and KEPT_REGISTERS of the last warpgroup's; CELL and CLIPS as in
// backward_layer.cuh.

#include "include/ptx/cluster.cuh"
#include "include/ptx/grid_barrier.cuh"
#include "include/ptx/tma.cuh"
#include "persistent_backward_block.cuh"
#include "persistent_backward_consumer.cuh"
#include "persistent_exchange.cuh"

// The copying warp: a lane for each chunk copies it when it and all before it are there. At most SLOTS
// chunks are copied at a time, so that their slots wait for earlier chunks alone.
__device__ __forceinline__ void copy_gradients(const Place& place, const Memory& memory) {
  const u32 lane = threadIdx.x % WARP_SIZE, chunk = place.rank * CHUNKS + lane;
  u32 number = lane;  // number of the lane's chunk among all that the block takes
#pragma unroll 1
  for (i32 step = 1; step <= place.products(); ++step) {
#pragma unroll 1
    for (u32 part = 0; part < PARTS; ++part) {
      const u32* const arrivals = place.arrivals(part) + chunk / GATES;
      bool is_there = false;
      for (u32 next = 0; next < CHUNKS;) {
        if (lane < CHUNKS && !is_there) is_there = arrived(arrivals) >= u32(WRITERS_OF_CHUNK * step);
        const u32 there = __ballot_sync(~0u, is_there) >> next, missing = __ffs(~there);
        const u32 count = min(missing ? missing - 1 : 32u, u32(SLOTS));
        if (lane - next < count) {
          const u32 slot = number % SLOTS;
          mbarrier_wait(memory.free_of(slot), number / SLOTS % 2 ^ 1);
          fence_async_global();
          mbarrier_expect(memory.full_of(slot), CHUNK_BYTES);
          bulk_load(memory.slot_at(slot), place.exchange(part, step - 1, chunk), CHUNK_BYTES,
                    memory.full_of(slot));
        }
        next += count;
      }
      number += CHUNKS;
    }
  }
}

// The block's new gradients of a part of a step, by the threads of the writing warps.
struct NewGradients {
  const Place& place;
  const u32 memory, thread;  // memory: an address

  // Calls store(block of gates, column, piece, words) for each 16 bytes.
  template <class Store> __device__ __forceinline__ void for_each(const Store& store) const {
#pragma unroll 4
    for (u32 item = thread; item < u32(ITEMS); item += WRITERS * WARP_SIZE) {
      store(item / PIECES / COLUMNS, item / PIECES % COLUMNS, item % PIECES, load_shared_128(memory + item * 16));
    }
  }

  // Writes to the other blocks the gradients that the weights are multiplied with.
  __device__ __forceinline__ void exchange(u32 part, i32 step) const {
    const u32 first = place.first_unit(), first_piece = first % CHUNK / 8;
    u8* const chunks = place.exchange(part, step, first / CHUNK * GATES);
    for_each([&](u32 block, u32 column, u32 piece, const uint4& words) {
      const bool is_last = block + 1 == BLOCKS;
      if (GATES != BLOCKS && !is_last && block + 1 >= GATES) return;
      u8* const line = chunks + (is_last ? GATES - 1 : block) * CHUNK_BYTES + column * LINE_BYTES;
      *reinterpret_cast<uint4*>(line + ((first_piece + piece) ^ column % 8) * 16) = words;
    });
    __syncwarp();
    if (thread % WARP_SIZE == 0) arrive(place.arrivals(part) + first / CHUNK);
  }

  __device__ __forceinline__ void store(u32 part, i32 t) const {
    const Layer& p = place.p.layer;
    for_each([&](u32 block, u32 column, u32 piece, const uint4& words) {
      const u32 b = place.first_sequence(part) + column;
      const i64 row = p.gate_rows.of(t, b, place.direction) + i64(block) * p.units + place.first_unit();
      if (b < u32(p.batch)) *reinterpret_cast<uint4*>(p.dgates + row + piece * 8) = words;
    });
  }
};

// A writing warp. The last product has no gradients, but sums that have been read: so the cluster may send again.
__device__ __forceinline__ void write_gradients(const Place& place, const Memory& memory) {
  const u32 thread = threadIdx.x - CONSUMERS - WARP_SIZE;
  const NewGradients gradients = {place, memory.own, thread};
#pragma unroll 1
  for (i32 step = 0; step <= place.products(); ++step) {
#pragma unroll 1
    for (u32 part = 0; part < PARTS; ++part) {
      named_barrier(WRITTEN, WRITTEN_THREADS);
      if (step < place.products()) gradients.exchange(part, step);
      if (step > 0 && thread < CLUSTER) mbarrier_release_cluster(cluster_address(memory.sums_free, thread));
      if (step < place.p.layer.steps) gradients.store(part, place.time(step));
      if (step < place.products() || part + 1 < PARTS) named_barrier(READ, WRITTEN_THREADS);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 bytes[];
  const Place place(p);
  const Memory memory(shared_address(bytes));
  if (threadIdx.x == 0) memory.begin();
  if (place.cluster == 0 && place.rank == 0) {
    for (u32 i = threadIdx.x; i < PARTS * ARRIVALS; i += THREADS) place.arrivals(0)[i] = 0;
  }
  if constexpr (SHARED_CHUNKS > 0) {
    const auto from = [&](u32 g, u32 chunk, u32 row, u32 k) { return weights_of(place, g, chunk, row, k); };
    stage_weights<SHARED_CHUNKS, THREADS>(memory.weights, from);
  }
  fence_async_shared();
  cluster_sync();
  grid_sync();  // counts are 0 everywhere
  if (threadIdx.x < CONSUMERS) {
    if constexpr (REGISTERS > 0) take_registers<REGISTERS>();
    Consumer(place, memory).run();
  } else {
    if constexpr (REGISTERS > 0) release_registers<KEPT_REGISTERS>();
    const u32 role = uniform(threadIdx.x / WARP_SIZE) - WARPS;
    if (role == 0) copy_gradients(place, memory);
    if (role > 0 && role <= WRITERS) write_gradients(place, memory);
  }
  __syncwarp();
  cluster_sync();  // no block ends while others send to it
}
