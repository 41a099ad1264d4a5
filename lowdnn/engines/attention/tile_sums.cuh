// Layout in the workspace of the fp32 sums of gradients of a tile of ROWS queries or keys, which
// attention_backward_wgmma.cu writes in the order of its accumulators and attention_backward_sums.cu reads.
//
// A warpgroup has 64 rows and up to MOST_COLUMNS columns; the next one has the next rows, or columns. Blocks of 8
// columns of two warpgroups lie side by side, in each of them four numbers of every thread: two columns of one row and
// of the 8th one after it.

#pragma once

#include "include/ptx/warpgroup.cuh"

template <int ROWS, int HEAD, int MOST_COLUMNS> struct TileSums {
  static constexpr int COLUMNS = HEAD < MOST_COLUMNS ? HEAD : MOST_COLUMNS, BLOCKS = COLUMNS / 8;
  static constexpr int ROW_PARTS = ROWS / 64, COLUMN_PARTS = (HEAD + COLUMNS - 1) / COLUMNS;
  static constexpr int PARTS = ROW_PARTS * COLUMN_PARTS, NUMBERS = PARTS * COLUMNS * 64;
  static constexpr int SIDES = PARTS < 2 ? 1 : 2;
  static constexpr u32 BYTES = NUMBERS * sizeof(f32);
  static constexpr int STEP = SIDES * WARPGROUP_SIZE * 4;  // words from a block of columns to the next one
  static_assert(ROWS % 64 == 0 && PARTS % SIDES == 0, "wgmma has 64 rows, and there are two warpgroups");

  // Index of a thread's first number in block `block`; `part` is its warpgroup's part of the tile.
  static __device__ __forceinline__ u32 at(u32 part, u32 block, u32 thread) {
    return (((part / SIDES * BLOCKS + block) * SIDES + part % SIDES) * WARPGROUP_SIZE + thread) * 4;
  }
};

// A warpgroup has some columns of dq at a time, and all columns of dk and dv.
template <int TILE, int HEAD> using QuerySumsOf = TileSums<TILE, HEAD, 64>;
template <int TILE, int HEAD> using KeySumsOf = TileSums<TILE, HEAD, HEAD>;
