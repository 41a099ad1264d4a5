// Rows of heads as tensor copies bring them and wgmma reads them.
//
// They lie in boxes of 64 elements (128 bytes, swizzled) of all ROWS rows, one box behind the other; elements and rows
// that do not exist are zeros. The same bytes serve as a K-major operand, whose rows are its rows or columns, and as an
// MN-major one, whose rows run along k.

#pragma once

#include "include/mbarrier.cuh"
#include "include/shared_memory.cuh"
#include "include/tma.cuh"
#include "include/wgmma.cuh"

// Where a head's rows are in a tensor map of (elements, rows, heads, batches).
struct MappedHead {
  const TensorMap& map;
  i32 head, batch;
};

template <int ROWS_, int SIZE> struct SwizzledRows {
  static constexpr int ROWS = ROWS_, BOX_ELEMENTS = 64, ROW_BYTES = 128;
  static constexpr int BOXES = (SIZE + BOX_ELEMENTS - 1) / BOX_ELEMENTS, BOX_BYTES = ROWS * ROW_BYTES;
  static constexpr int BYTES = BOXES * BOX_BYTES;
  static_assert(SIZE % 16 == 0 && ROWS % 16 == 0, "whole steps of 16-bit operands, whole swizzle patterns");

  u32 address;

  // One thread: copies the rows from `row` on, and lets the barrier wait for them.
  __device__ __forceinline__ void load(const MappedHead& from, i32 row, u32 barrier) const {
    mbarrier_expect(barrier, BYTES);
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
      tma_load<1>(address + box * BOX_BYTES, from.map, barrier, 0, box * BOX_ELEMENTS, row, from.head, from.batch);
    }
  }

  // As a K-major operand: its rows from `row` (a multiple of 8) on, 16 elements from `element` on.
  __device__ __forceinline__ u64 k_major(int row, int element) const {
    const int box = element / BOX_ELEMENTS, inside = element % BOX_ELEMENTS;
    return swizzled_operand(address + row * ROW_BYTES) + (u64(box * BOX_BYTES + inside * 2) >> 4);
  }

  // As an MN-major operand: all elements of 16 rows from `row` (a multiple of 16) on.
  __device__ __forceinline__ u64 mn_major(int row) const {
    return swizzled_operand(address, BOX_BYTES) + (u64(row * ROW_BYTES) >> 4);
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
