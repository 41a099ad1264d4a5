// Which tiles a persistent block (or cluster of blocks) computes, and in which order.
//
// The grid is as large as the device; cluster c takes the work items c, c + clusters, c + 2 clusters, ... An item is
// one tile of one product of a batch, over one part of k. Neighbouring items are neighbouring tiles (raster.cuh), so
// that the tiles in flight share operands in L2.

#pragma once

#include "include/math/division.cuh"

// One tile of work: its first row and column in the product of `batch`, and its k blocks, part `split` of all.
// is_shared: the other blocks of the cluster compute the other k blocks of that part.
struct TileWork {
  u32 row, column, batch, split;
  i32 first_block, blocks;
  bool is_shared;
};

// `batches` products of tile_rows x tile_columns tiles of ROWS x COLUMNS elements, each cut into `splits` parts along
// k.
//
// The tiles of a cluster of CLUSTER_ROWS x CLUSTER_COLUMNS blocks are neighbours; tile_rows and tile_columns count
// clusters. group: rows of clusters that are walked together, column by column.
//
// With CLUSTER_DEPTH > 1 a cluster has that many blocks, which do not share operands. Each of the first `whole` items
// is one tile for every block; each later item is one tile whose k blocks they share, at least one block each. So whole
// tiles fill the waves that have one for every block of the device; the remaining tiles are spread over all blocks.
template <int ROWS, int COLUMNS, int CLUSTER_ROWS, int CLUSTER_COLUMNS, int CLUSTER_DEPTH = 1> struct TileSchedule {
  static_assert(CLUSTER_DEPTH == 1 || CLUSTER_ROWS * CLUSTER_COLUMNS == 1, "a cluster shares operands or k");
  Divider tiles, group_tiles;  // tiles of one product; tiles of one group of rows
  u32 items, batches;
  u32 tile_rows, group;
  i32 k_blocks, split_blocks;
  u32 whole;

  __device__ __forceinline__ TileWork work(u32 item, u32 rank) const {
    const bool is_shared = CLUSTER_DEPTH > 1 && item >= whole;
    const u32 index = CLUSTER_DEPTH == 1 ? item : is_shared ? item + whole * (CLUSTER_DEPTH - 1)
                                                            : item * CLUSTER_DEPTH + rank;
    const u32 slab = tiles.divide(index), tile = index - slab * tiles.divisor;
    const u32 band = group_tiles.divide(tile), within = tile - band * group_tiles.divisor;
    const u32 rows = min(group, tile_rows - band * group);
    const u32 column = within / rows, row = band * group + within % rows;
    const u32 split = slab / batches;
    i32 first = split * split_blocks, blocks = min(split_blocks, k_blocks - first);
    if (is_shared) {
      const i32 before = blocks * rank / CLUSTER_DEPTH;
      blocks = blocks * (rank + 1) / CLUSTER_DEPTH - before;
      first += before;
    }
    const u32 sharer = CLUSTER_DEPTH == 1 ? rank : 0;
    return {(row * CLUSTER_ROWS + sharer % CLUSTER_ROWS) * ROWS,
            (column * CLUSTER_COLUMNS + sharer / CLUSTER_ROWS) * COLUMNS,
            slab % batches, split, first, blocks, is_shared};
  }
};

// One tile of work, and its class of products.
struct ClassWork : TileWork {
  u32 product_class;
};

// The schedules of CLASSES classes of products, the one with the longest items first. Clusters take items in serpentine
// order, counted back from the last wave: a cluster that has had a long item gets a short one.
template <class One, int CLASSES> struct ClassSchedule {
  One classes[CLASSES];
  u32 first[CLASSES];  // first item of each class
  u32 items;
  Divider clusters;  // clusters of the grid
  u32 last_turn;

  __device__ __forceinline__ ClassWork work(u32 item, u32 rank) const {
    if constexpr (CLASSES > 1) {
      const u32 turn = clusters.divide(item);
      if ((last_turn - turn) % 2) item = (2 * turn + 1) * clusters.divisor - 1 - item;
    }
    u32 found = 0;
    for (u32 i = 1; i < CLASSES; ++i) found = item >= first[i] ? i : found;
    return {classes[found].work(item - first[found], rank), found};
  }
};
