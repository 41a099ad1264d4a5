// Tiles of rows of heads in shared memory, as TMA writes them and wgmma reads them, and rings of such tiles.
//
// A tile is a sequence of boxes, each of all ROWS rows and 128 bytes of their elements (64 of 16 bits or 128 of 8
// bits), swizzled. Elements and rows that do not exist are zeros. The tile is a K-major operand whose m or n runs along
// the rows, or, with 16-bit elements, an MN-major operand whose k runs along the rows.

#pragma once

#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_wgmma.cuh"

// One head in a tensor map of (elements, rows, heads, batches).
struct MappedHead {
  const TensorMap& map;
  i32 head, batch;

  // Starts the copies of the head's rows from `row` on to `to`; one thread calls it.
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

  // Starts the copies of a head's rows from `row` on, whose bytes the barrier then expects; one thread calls it.
  template <class Head> __device__ __forceinline__ void load(const Head& from, i32 row, u32 barrier) const {
    mbarrier_expect(barrier, BYTES);
    from.copy(*this, row, barrier);
  }

  // Starts the copies; the barrier already expects their bytes.
  __device__ __forceinline__ void copy(const MappedHead& from, i32 row, u32 barrier) const {
    from.copy(*this, row, barrier);
  }

  // Descriptor of a K-major operand: the rows from `row` on, a multiple of 8; k is 32 bytes of elements from `element`
  // on.
  __device__ __forceinline__ u64 k_major(int row, int element) const {
    const int box = element / BOX_ELEMENTS, inside = element % BOX_ELEMENTS;
    return swizzled_operand(address + row * ROW_BYTES) + (u64(box * BOX_BYTES + inside * ELEMENT_BYTES) >> 4);
  }

  // Descriptor of an MN-major operand: k is 16 rows from `row` on, a multiple of 16; elements from those of `box` on.
  __device__ __forceinline__ u64 mn_major(int row, int box = 0) const {
    return swizzled_operand(address + box * BOX_BYTES, BOX_BYTES) + (u64(row * ROW_BYTES) >> 4);
  }

  // Address of 16 bytes of a row, from `element` on, which is aligned to 16 bytes.
  __device__ __forceinline__ u32 at(int row, int element) const {
    const int box = element / BOX_ELEMENTS, inside = element % BOX_ELEMENTS;
    return address + box * BOX_BYTES + row * ROW_BYTES + (inside * ELEMENT_BYTES ^ row % 8 * 16);
  }

  // Zeroes the rows from `row` on. All of `threads` threads call it, `thread` is the caller's index; wgmma may read the
  // rows after a barrier of these threads.
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

// The position of a producer or consumer in a ring of COUNT stages, in one register, since kernels of attention use all
// of theirs.
template <int COUNT> struct RingCounter {
  u32 passed = 0;  // stages passed so far

  __device__ __forceinline__ u32 stage() const { return passed % COUNT; }
  __device__ __forceinline__ u32 parity() const { return passed / COUNT % 2; }
  __device__ __forceinline__ void advance() { ++passed; }
};

// A ring of COUNT stages between a producer (one thread, or WRITERS warps) and READERS consumer warps. A tile type has
// BYTES and, if one thread produces, load(..., barrier), which also lets the barrier expect the bytes.
template <class Rows_, int COUNT, int READERS, int WRITERS = 1> struct TileRing {
  static constexpr int BYTES = COUNT * Rows_::BYTES, BARRIER_BYTES = 2 * COUNT * MBARRIER_BYTES;

  u32 stages, full;
  RingCounter<COUNT> at;

  __device__ __forceinline__ u32 own_full() const { return full + at.stage() * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 own_empty() const { return own_full() + COUNT * MBARRIER_BYTES; }
  __device__ __forceinline__ Rows_ rows() const { return {stages + at.stage() * Rows_::BYTES}; }

  // Initialises the barriers; one thread calls it.
  __device__ __forceinline__ void init() const {
    for (int stage = 0; stage < COUNT; ++stage) {
      mbarrier_init(full + stage * MBARRIER_BYTES, WRITERS);
      mbarrier_init(full + (COUNT + stage) * MBARRIER_BYTES, READERS);
    }
  }

  // Waits until the next stage is empty, and returns it; the producer calls it.
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

  // Waits until the next stage is full, and returns it; consumers call it, and `release` when they have read it.
  __device__ __forceinline__ Rows_ wait() const { return wait(at.passed); }
  __device__ __forceinline__ void release() {
    release(at.passed);
    at.advance();
  }
  // Waits for stage number `passed`, counted over all rounds of the ring.
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

// A thread's accumulators as one array, in wgmma's order.
template <int BLOCKS> __device__ __forceinline__ f32 (&flat(f32 (&d)[1][BLOCKS][4]))[BLOCKS * 4] {
  return reinterpret_cast<f32(&)[BLOCKS * 4]>(d);
}

template <int BLOCKS> __device__ __forceinline__ void hold_all(f32 (&d)[1][BLOCKS][4]) {
#pragma unroll
  for (int i = 0; i < BLOCKS * 4; ++i) hold(d[0][i / 4][i % 4]);
}

// Keeps the compiler from moving arithmetic on an operand in registers behind the wgmma_fence before its use.
__device__ __forceinline__ void make_ready(u32& word) { asm volatile("" : "+r"(word)); }
