// Threads of roles that work on rows (rows.cuh) at the same time: some copy rows to shared memory, some have the first
// pass over a row, some the second pass over a row before it; between these two, some tell the other blocks that share a
// row what this one has of it, and some hear what all have (row_exchange.cuh). `threadIdx.y` says which, but for those
// that tell: they are the first warp of those that hear. Each role has the threads of a block; thread x of those that
// have elements has the same ones.
//
// So none waits for another in a row's midst: a number takes its time from block to block, behind all that the memory
// system has to store, and meanwhile other rows are read and stored. On an H200 a group norm of 16 x 256 x 128 x 128
// bf16 channels-last took 98 us with two roles, and 83 us so; its gradient 142 us, and 138 us.

#pragma once

#include "include/cp_async.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/rows/rows.cuh"
#include "include/ptx/warpgroup.cuh"

enum Role { COPYING, FIRST_PASS, HEARING, SECOND_PASS, TELLING };
constexpr int ROLES = 4;  // that have threads of a block each
constexpr int TELLERS = WARP_SIZE;

__device__ __forceinline__ Role role() {
  return threadIdx.y == HEARING && threadIdx.x < TELLERS ? TELLING : Role(threadIdx.y);
}

// A place in a ring, and the phase of the barriers there.
struct RingPlace {
  int place = 0;
  u32 phase = 0;

  __device__ __forceinline__ void step(int count) {
    if (++place < count) return;
    place = 0;
    phase ^= 1;
  }
};

// Each warp of a role arrives, behind what its threads did before.
__device__ __forceinline__ void arrive_by_warps(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(barrier);
}

// Rows that slots have room for, at most: the first pass is no more than so many rows before the second.
constexpr int MOST_ROWS = 6;

// Slots in a ring that chunks of one row after the other go through between the roles: a chunk is copied when the second
// pass has read what was in its slot, and used when it is there. At least a row has room.
//
// GROUP_BYTES: what is copied of a thread's group. Only ON_THEIR_WAY chunks are at a time, however many slots are free:
// more reads would get in the way of the writes in memory. On an H200 a copy by 64 of 512 bytes at a time took 91 us with
// 192 KB of each multiprocessor on their way, and 76 us with 32 KB.
template <class Tile, int GROUP_BYTES> struct RowStages {
  static constexpr int MOST = 32, WARPS = Tile::BLOCK_SIZE / WARP_SIZE;
  static constexpr int CHUNK_BYTES = Tile::HELD * Tile::BLOCK_SIZE * GROUP_BYTES;
  static constexpr int BYTES_ON_THEIR_WAY = 40960, ON_THEIR_WAY = (BYTES_ON_THEIR_WAY + CHUNK_BYTES - 1) / CHUNK_BYTES;

  const int chunks, count;
  u32 filled, freed;  // barriers of the slots: the chunk is there, the second pass has read it
  RingPlace slot;     // of the chunk that this role is at

  __device__ __forceinline__ RowStages(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)) {
    __shared__ u64 barriers[2][MOST];
    filled = shared_address(barriers[0]);
    freed = shared_address(barriers[1]);
  }

  // Before the threads of the block meet. A thread arrives when its copies are there, and a warp for what is no copy.
  template <class Elements> __device__ __forceinline__ void begin(Elements&) {
    if (role() == COPYING && threadIdx.x < u32(count)) {
      mbarrier_init(filled + threadIdx.x * MBARRIER_BYTES, Tile::BLOCK_SIZE + WARPS);
      mbarrier_init(freed + threadIdx.x * MBARRIER_BYTES, WARPS);
    }
  }

  // `copy(chunk, slot)` for each chunk of a row.
  template <class Copy> __device__ __forceinline__ void copy_row(Copy copy) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      mbarrier_wait(of(freed), slot.phase ^ 1);
      copy(chunk, slot.place);
      cp_async_arrive(of(filled));
      arrive_by_warps(of(filled));
      cp_async_commit();
      cp_async_wait<ON_THEIR_WAY - 1>();
      slot.step(count);
    }
  }

  // Until the first chunk of the next row is there.
  __device__ __forceinline__ void wait_for_row() {
    mbarrier_wait(of(filled), slot.phase);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) slot.step(count);
  }

  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, const Held& held, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Held one = held;
      mbarrier_wait(of(filled), slot.phase);
      elements.load(walk, chunk, slot.place, one);
      slot.step(count);
      use(chunk, one);
    }
  }

  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, const Held& held, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Held one = held;
      mbarrier_wait(of(filled), slot.phase);
      elements.load_again(walk, chunk, slot.place, one);
      arrive_by_warps(of(freed));
      slot.step(count);
      use(chunk, one);
    }
  }

 private:
  __device__ __forceinline__ u32 of(u32 barriers) const { return barriers + slot.place * MBARRIER_BYTES; }
};
