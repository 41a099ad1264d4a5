// Threads of two roles that work on rows (rows.cuh) at the same time: `threadIdx.y` 0 has the first pass over one row,
// 1 the second pass over a row before it. Each role has the threads of a block; thread x of both has the same elements.

#pragma once

#include "include/cp_async.cuh"
#include "include/mbarrier.cuh"
#include "include/rows.cuh"
#include "include/warpgroup.cuh"

constexpr int ROLES = 2;
enum Role { FIRST_PASS, SECOND_PASS };

__device__ __forceinline__ Role role() { return Role(threadIdx.y); }

// Slots in a ring that chunks of one row after the other go through, as RowRing's, between the roles: the first asks for
// the chunk that is AHEAD of the one that it uses, when the second has used what was in that slot; the second uses a
// chunk when the first knows that it is there. With slots for two rows and AHEAD, at least, neither waits for the other
// in a row's midst; with those for three rows and AHEAD, at most, the first is no more than three rows before the second.
template <class Tile> struct RowStages {
  static constexpr int AHEAD = 4, MOST = 32, WARPS = Tile::BLOCK_SIZE / WARP_SIZE;

  const int chunks, count;
  u32 filled, freed;    // barriers of the slots: the chunk is there, the second role has used it
  RowWalk<Tile> ahead;  // the row with the chunk that is asked for next
  int next = 0;         // this chunk
  int asked = 0, used = 0;  // slots of what is asked for next, and used next
  u32 asked_phase = 1, used_phase = 0;

  __device__ __forceinline__ RowStages(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)), ahead(sizes) {
    __shared__ u64 barriers[2][MOST];
    filled = shared_address(barriers[0]);
    freed = shared_address(barriers[1]);
  }

  // Before the threads of the block meet.
  template <class Elements> __device__ __forceinline__ void begin(Elements& elements) {
    if (role() != FIRST_PASS) return;
    if (threadIdx.x < u32(count)) {
      mbarrier_init(filled + threadIdx.x * MBARRIER_BYTES, WARPS);
      mbarrier_init(freed + threadIdx.x * MBARRIER_BYTES, WARPS);
    }
    ahead.begin();
#pragma unroll 1
    for (int chunk = 0; chunk < AHEAD; ++chunk) ask(elements);
  }

  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, const Held& held, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Held one = held;
      mbarrier_wait(freed + asked * MBARRIER_BYTES, asked_phase);
      ask(elements);
      cp_async_wait<AHEAD>();
      pass_on(filled);
      elements.load(walk, chunk, used, one);
      step(used, used_phase);
      use(chunk, one);
    }
  }

  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, const Held& held, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Held one = held;
      mbarrier_wait(filled + used * MBARRIER_BYTES, used_phase);
      elements.load_again(walk, chunk, used, one);
      pass_on(freed);
      step(used, used_phase);
      use(chunk, one);
    }
  }

 private:
  // The slot that is used, to the other role.
  __device__ __forceinline__ void pass_on(u32 barriers) const {
    __syncwarp();
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(barriers + used * MBARRIER_BYTES);
  }

  __device__ __forceinline__ void step(int& slot, u32& phase) const {
    if (++slot < count) return;
    slot = 0;
    phase ^= 1;
  }

  template <class Elements> __device__ __forceinline__ void ask(Elements& elements) {
    elements.copy(ahead, next, asked);
    cp_async_commit();
    step(asked, asked_phase);
    if (++next < chunks) return;
    next = 0;
    ahead.next();
  }
};
