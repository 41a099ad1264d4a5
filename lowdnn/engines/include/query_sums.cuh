// Sums of gradients of a tile of TILE_Q queries as attention_backward_wgmma.cu leaves them for
// attention_backward_sums.cu: as its warpgroups hold them.
//
// A warpgroup has 64 queries and up to 64 columns; the next one has the next queries, or columns. Blocks of 8 columns
// of the two lie side by side, in each of them four numbers of every thread: two columns of one query and of the 8th
// one after it.
// Macros: TILE_Q, HEAD_QK.

#pragma once

#include "include/warpgroup.cuh"

struct QuerySums {
  static constexpr int COLUMNS = HEAD_QK < 64 ? HEAD_QK : 64, BLOCKS = COLUMNS / 8;
  static constexpr int QUERY_PARTS = TILE_Q / 64, COLUMN_PARTS = (HEAD_QK + COLUMNS - 1) / COLUMNS;
  static constexpr int PARTS = QUERY_PARTS * COLUMN_PARTS, NUMBERS = PARTS * COLUMNS * 64;
  static constexpr u32 BYTES = NUMBERS * sizeof(f32);
  static_assert(TILE_Q % 64 == 0 && PARTS % 2 == 0, "wgmma has 64 rows, and there are two warpgroups");

  // Of a thread of the warpgroup that has `part`: its first number of a block.
  static __device__ __forceinline__ u32 at(u32 part, u32 block, u32 thread) {
    return (((part / 2 * BLOCKS + block) * 2 + part % 2) * WARPGROUP_SIZE + thread) * 4;
  }
};
