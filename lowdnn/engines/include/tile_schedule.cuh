// Which tiles a persistent block (or cluster of blocks) computes, and in which order.
//
// The grid is as large as the device; cluster c takes the work items c, c + clusters, c + 2 clusters, ... An item is
// one tile of one product of a batch, over one part of k. Neighbouring items are neighbouring tiles (raster.cuh), so
// that the tiles in flight share operands in L2.

#pragma once

#include "include/division.cuh"

// One tile of work: its first row and column in the product of `batch`, and its k blocks, part `split` of all.
struct TileWork {
  u32 row, column, batch, split;
  i32 first_block, blocks;
};

// `batches` products of tile_rows x tile_columns tiles of ROWS x COLUMNS elements, each cut into `splits` parts along
// k.
//
// The tiles of a cluster of CLUSTER_ROWS x CLUSTER_COLUMNS blocks are neighbours; tile_rows and tile_columns count
// clusters. With CLUSTER_DEPTH > 1 that many blocks share the k blocks of a tile, none of them without any. group: rows of
// clusters that are walked together, column by column.
template <int ROWS, int COLUMNS, int CLUSTER_ROWS, int CLUSTER_COLUMNS, int CLUSTER_DEPTH = 1> struct TileSchedule {
  static_assert(CLUSTER_DEPTH == 1 || CLUSTER_ROWS * CLUSTER_COLUMNS == 1, "a cluster shares operands or k");
  Divider tiles, group_tiles;  // of one product; of one group of rows
  u32 items, batches;
  u32 tile_rows, group;
  i32 k_blocks, split_blocks;

  __device__ __forceinline__ TileWork work(u32 item, u32 rank) const {
    const u32 slab = tiles.divide(item), tile = item - slab * tiles.divisor;
    const u32 band = group_tiles.divide(tile), within = tile - band * group_tiles.divisor;
    const u32 rows = min(group, tile_rows - band * group);
    const u32 column = within / rows, row = band * group + within % rows;
    const u32 split = slab / batches;
    const i32 first = split * split_blocks, blocks = min(split_blocks, k_blocks - first);
    if constexpr (CLUSTER_DEPTH > 1) {
      const i32 before = blocks * rank / CLUSTER_DEPTH, end = blocks * (rank + 1) / CLUSTER_DEPTH;
      return {row * ROWS, column * COLUMNS, slab % batches, split, first + before, end - before};
    }
    return {(row * CLUSTER_ROWS + rank % CLUSTER_ROWS) * ROWS,
            (column * CLUSTER_COLUMNS + rank / CLUSTER_ROWS) * COLUMNS,
            slab % batches, split, first, blocks};
  }
};
