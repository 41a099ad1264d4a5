// Rows of heads as tensor copies bring them and wgmma reads them.
//
// They lie in boxes of 128 bytes (64 elements of 16 bits, 128 of 8; swizzled) of all ROWS rows, one box behind the
// other; elements and rows that do not exist are zeros. Its bytes serve as a K-major operand, whose rows are its rows
// or columns, and, of 16 bits, as an MN-major one, whose rows run along k.

#pragma once

#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_wgmma.cuh"

// Where a head's rows are in a tensor map of (elements, rows, heads, batches).
struct MappedHead {
  const TensorMap& map;
  i32 head, batch;

  // One thread: `to` gets its rows from `row` on.
  template <class Rows_> __device__ __forceinline__ void copy(const Rows_& to, i32 row, u32 barrier) const {
#pragma unroll
    for (int box = 0; box < Rows_::BOXES; ++box) {
      tma_load<1>(to.address + box * Rows_::BOX_BYTES, map, barrier, 0, box * Rows_::BOX_ELEMENTS, row, head, batch);
    }
  }
};

template <int ROWS_, int SIZE_, int ELEMENT_BYTES = 2> struct SwizzledRows {
  static constexpr int ROWS = ROWS_, SIZE = SIZE_, ROW_BYTES = 128, BOX_ELEMENTS = ROW_BYTES / ELEMENT_BYTES;
  static constexpr int BOXES = (SIZE + BOX_ELEMENTS - 1) / BOX_ELEMENTS, BOX_BYTES = ROWS * ROW_BYTES;
  static constexpr int BYTES = BOXES * BOX_BYTES;
  static_assert(SIZE % 16 == 0 && ROWS % 16 == 0, "whole copies of 8-bit elements, whole swizzle patterns");

  u32 address;

  // One thread: copies the rows of a head from `row` on, and lets the barrier wait for them.
  template <class Head> __device__ __forceinline__ void load(const Head& from, i32 row, u32 barrier) const {
    mbarrier_expect(barrier, BYTES);
    from.copy(*this, row, barrier);
  }

  // Starts the copies where the barrier waits for them already.
  __device__ __forceinline__ void copy(const MappedHead& from, i32 row, u32 barrier) const {
    from.copy(*this, row, barrier);
  }

  // As a K-major operand: its rows from `row` (a multiple of 8) on, 32 bytes of elements from `element` on.
  __device__ __forceinline__ u64 k_major(int row, int element) const {
    const int box = element / BOX_ELEMENTS, inside = element % BOX_ELEMENTS;
    return swizzled_operand(address + row * ROW_BYTES) + (u64(box * BOX_BYTES + inside * ELEMENT_BYTES) >> 4);
  }

  // As an MN-major operand: the elements from those of `box` on, of 16 rows from `row` (a multiple of 16) on.
  __device__ __forceinline__ u64 mn_major(int row, int box = 0) const {
    return swizzled_operand(address + box * BOX_BYTES, BOX_BYTES) + (u64(row * ROW_BYTES) >> 4);
  }

  // Where 16 bytes of a row from `element` (a multiple of as many) on are.
  __device__ __forceinline__ u32 at(int row, int element) const {
    const int box = element / BOX_ELEMENTS, inside = element % BOX_ELEMENTS;
    return address + box * BOX_BYTES + row * ROW_BYTES + (inside * ELEMENT_BYTES ^ row % 8 * 16);
  }

  // `threads` threads, this one the `thread`-th: makes the rows from `row` on zeros, for wgmma instructions behind a
  // barrier of these threads.
  __device__ __forceinline__ void clear(int row, u32 thread, u32 threads) const {
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      for (u32 at = row * ROW_BYTES + thread * 16; at < BOX_BYTES; at += threads * 16) {
        store_shared_16(address + box * BOX_BYTES + at, 0, 0, 0, 0);
      }
    }
    fence_async_shared();
  }
};

// Where a producer or consumer stands in a ring of COUNT stages, in one register: kernels of attention have none to
// spare.
template <int COUNT> struct RingCounter {
  u32 passed = 0;  // stages

  __device__ __forceinline__ u32 stage() const { return passed % COUNT; }
  __device__ __forceinline__ u32 parity() const { return passed / COUNT % 2; }
  __device__ __forceinline__ void advance() { ++passed; }
};

// Tiles on their way from the producer, a thread or WRITERS warps, to the consumers, READERS warps, through COUNT
// stages: a tile has BYTES and, for a thread, load(..., barrier), which expects them.
template <class Rows_, int COUNT, int READERS, int WRITERS = 1> struct TileRing {
  static constexpr int BYTES = COUNT * Rows_::BYTES, BARRIER_BYTES = 2 * COUNT * MBARRIER_BYTES;

  u32 stages, full;
  RingCounter<COUNT> at;

  __device__ __forceinline__ u32 own_full() const { return full + at.stage() * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 own_empty() const { return own_full() + COUNT * MBARRIER_BYTES; }
  __device__ __forceinline__ Rows_ rows() const { return {stages + at.stage() * Rows_::BYTES}; }

  // One thread.
  __device__ __forceinline__ void init() const {
    for (int stage = 0; stage < COUNT; ++stage) {
      mbarrier_init(full + stage * MBARRIER_BYTES, WRITERS);
      mbarrier_init(full + (COUNT + stage) * MBARRIER_BYTES, READERS);
    }
  }

  // The producer: the next stage, when it is empty, until it is loaded, or handed over by the producer's warps.
  __device__ __forceinline__ Rows_ wait_empty() const {
    mbarrier_wait(own_empty(), at.parity() ^ 1);
    return rows();
  }
  template <class... From> __device__ __forceinline__ void fill(const From&... from) {
    rows().load(from..., own_full());
    at.advance();
  }
  template <class... From> __device__ __forceinline__ void load(const From&... from) {
    wait_empty();
    fill(from...);
  }
  __device__ __forceinline__ void hand_over() {
    fence_async_shared();
    __syncwarp();  // every lane has written it
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(own_full());
    at.advance();
  }

  // The consumers: the next stage, when it has arrived, until it is released.
  __device__ __forceinline__ Rows_ wait() const { return wait(at.passed); }
  __device__ __forceinline__ void release() {
    release(at.passed);
    at.advance();
  }
  // Waits for the stage behind so many.
  __device__ __forceinline__ Rows_ wait(u32 passed) const {
    const RingCounter<COUNT> there = {passed};
    mbarrier_wait(full + there.stage() * MBARRIER_BYTES, there.parity());
    return {stages + there.stage() * Rows_::BYTES};
  }
  __device__ __forceinline__ void release(u32 passed) const {
    __syncwarp();  // every lane has read it
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(full + (COUNT + passed % COUNT) * MBARRIER_BYTES);
  }
};

// ---- accumulators of 64 rows, in blocks of 8 columns ----------------------------------------------------------------

// The accumulators of a thread as wgmma numbers them.
template <int BLOCKS> __device__ __forceinline__ f32 (&flat(f32 (&d)[1][BLOCKS][4]))[BLOCKS * 4] {
  return reinterpret_cast<f32(&)[BLOCKS * 4]>(d);
}

template <int BLOCKS> __device__ __forceinline__ void hold_all(f32 (&d)[1][BLOCKS][4]) {
#pragma unroll
  for (int i = 0; i < BLOCKS * 4; ++i) hold(d[0][i / 4][i % 4]);
}

// Keeps the compiler from moving arithmetic on an operand in registers behind the wgmma_fence before its use.
__device__ __forceinline__ void make_ready(u32& word) { asm volatile("" : "+r"(word)); }
