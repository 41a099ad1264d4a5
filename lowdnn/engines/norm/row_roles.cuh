// Roles: groups of a block's threads that work on different rows (rows.cuh) at the same time. One copies rows to shared
// memory, one runs the first pass over a row, one the second pass over an earlier row. Between the two passes one posts
// this block's sums to the other blocks that share the row, and one polls the sums of all blocks (row_exchange.cuh).
// `threadIdx.y` is the role, except that the first warp of the polling threads posts. Thread x of both passes and of
// the copies has the same elements.
//
// So no role waits within a row. A number takes its time from block to block, behind all the stores that the memory
// system has queued, and meanwhile other rows are read and stored. On an H200 a group norm of 16 x 256 x 128 x 128 bf16
// channels-last took 98 us with two roles and takes 83 us with these; its gradient took 142 us and takes 138 us.

#pragma once

#include "include/cp_async.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/rows/rows.cuh"
#include "include/ptx/warpgroup.cuh"

enum Role { COPYING, FIRST_PASS, POLLING, SECOND_PASS, POSTING };
constexpr int ROLES = 4;  // roles with threads of their own; POSTING is a part of POLLING's
constexpr int POSTERS = WARP_SIZE;

__device__ __forceinline__ Role role() {
  return threadIdx.y == POLLING && threadIdx.x < POSTERS ? POSTING : Role(threadIdx.y);
}

// A position in a ring of slots, and the phase of the barriers there.
struct RingPosition {
  int index = 0;
  u32 phase = 0;

  __device__ __forceinline__ void step(int count) {
    if (++index < count) return;
    index = 0;
    phase ^= 1;
  }
};

// Each warp of a role arrives at a barrier, after whatever its threads did before.
__device__ __forceinline__ void arrive_by_warps(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(barrier);
}

// Rows that the slots have room for at most; the first pass is at most so many rows ahead of the second.
constexpr int MOST_ROWS = 6;

// A ring of slots through which the chunks of successive rows pass from role to role. A chunk is copied when the second
// pass has read the last one in its slot, and used when it has arrived. There is room for at least one row.
//
// GROUP_BYTES: bytes copied for a thread's group. Only IN_FLIGHT chunks are in flight at once, however many slots are
// free, as more reads would delay the writes in memory. On an H200 a copy by 64 of 512 bytes at a time took 91 us with
// 192 KB of each multiprocessor in flight, and 76 us with 32 KB.
template <class Tile, int GROUP_BYTES> struct RowStages {
  static constexpr int MOST = 32, WARPS = Tile::BLOCK_SIZE / WARP_SIZE;
  static constexpr int CHUNK_BYTES = Tile::THREAD_GROUPS * Tile::BLOCK_SIZE * GROUP_BYTES;
  static constexpr int BYTES_IN_FLIGHT = 40960, IN_FLIGHT = (BYTES_IN_FLIGHT + CHUNK_BYTES - 1) / CHUNK_BYTES;

  const int chunks, count;
  u32 filled, freed;  // barriers of the slots: the chunk has arrived; the second pass has read it
  RingPosition slot;  // the slot of the chunk that this role is at

  __device__ __forceinline__ RowStages(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)) {
    __shared__ u64 barriers[2][MOST];
    filled = shared_address(barriers[0]);
    freed = shared_address(barriers[1]);
  }

  // To be called before the barrier of the block's threads. For each chunk, a thread arrives when its copies have
  // landed, and a warp after its other stores to the slot.
  template <class Elements> __device__ __forceinline__ void begin(Elements&) {
    if (role() == COPYING && threadIdx.x < u32(count)) {
      mbarrier_init(filled + threadIdx.x * MBARRIER_BYTES, Tile::BLOCK_SIZE + WARPS);
      mbarrier_init(freed + threadIdx.x * MBARRIER_BYTES, WARPS);
    }
  }

  // Calls `copy(chunk, slot)` for each chunk of a row.
  template <class Copy> __device__ __forceinline__ void copy_row(Copy copy) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      mbarrier_wait(of(freed), slot.phase ^ 1);
      copy(chunk, slot.index);
      cp_async_arrive(of(filled));
      arrive_by_warps(of(filled));
      cp_async_commit();
      cp_async_wait<IN_FLIGHT - 1>();
      slot.step(count);
    }
  }

  // Waits for the first chunk of the next row, and passes over the row.
  __device__ __forceinline__ void wait_for_row() {
    mbarrier_wait(of(filled), slot.phase);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) slot.step(count);
  }

  template <class Elements, class Cached, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, const Cached& cached, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Cached one = cached;
      mbarrier_wait(of(filled), slot.phase);
      elements.load(walk, chunk, slot.index, one);
      slot.step(count);
      use(chunk, one);
    }
  }

  template <class Elements, class Cached, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, const Cached& cached, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Cached one = cached;
      mbarrier_wait(of(filled), slot.phase);
      elements.load_again(walk, chunk, slot.index, one);
      arrive_by_warps(of(freed));
      slot.step(count);
      use(chunk, one);
    }
  }

 private:
  __device__ __forceinline__ u32 of(u32 barriers) const { return barriers + slot.index * MBARRIER_BYTES; }
};
