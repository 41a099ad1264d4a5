// Tiles of groups of rows for the main loop of tile_wgmma.cuh: which tiles exist is known only on the device.
//
// Tiles are counted group by group. Within a group, neighbouring items are neighbouring tiles: bands of rows of
// clusters are walked column by column, so that the tiles in flight share operands in L2. Rows are counted through all
// groups; rows of a tile past its group's end belong to the next group and are computed but not stored.

#pragma once

#include "include/tile/tile_schedule.cuh"
#include "token_groups.cuh"

// batch, split and first_block are 0. All groups have the same k blocks.
struct GroupWork : TileWork {
  u32 expert, row_end;
};

template <int ROWS, int COLUMNS, int CLUSTER_ROWS, int CLUSTER_COLUMNS, class Groups> struct GroupSchedule {
  struct Arguments {
    Groups groups;
    Divider columns, band_tiles;  // clusters of tiles along a row; clusters in a band, `band` rows of clusters
    u32 band;
    i32 k_blocks;
  };

  // The number of items, recomputed at each use, which saves a register.
  struct Items {
    const Arguments& given;
    const GroupTiles tiles;
    __device__ __forceinline__ operator u32() const { return tiles.all() * given.columns.divisor; }
  };

  const Arguments& given;
  const GroupTiles tiles;
  const Items items;

  // Called by all threads of the block. table: count + 1 words of shared memory.
  __device__ __forceinline__ GroupSchedule(const Arguments& given, u32* table)
      : given(given), tiles(GroupTiles::of<ROWS * CLUSTER_ROWS>(table, given.groups)), items{given, tiles} {}

  __device__ __forceinline__ GroupWork work(u32 item, u32 rank) const {
    const u32 group = tiles.group_of(given.columns.divide(item)), before = tiles.before[group];
    const u32 tile = item - before * given.columns.divisor, group_rows = tiles.before[group + 1] - before;
    const u32 band = given.band_tiles.divide(tile), within = tile - band * given.band_tiles.divisor;
    const u32 rows = min(given.band, group_rows - band * given.band);
    const u32 column = within / rows, row = band * given.band + within % rows;
    const RowRange range = given.groups.range(group);
    return {{range.first + (row * CLUSTER_ROWS + rank % CLUSTER_ROWS) * ROWS,
             (column * CLUSTER_COLUMNS + rank / CLUSTER_ROWS) * COLUMNS, 0, 0, 0, given.k_blocks},
            given.groups.expert(group),
            range.end};
  }
};

// A loader of the experts' weights, which are the batches of its map.
template <class Loader> struct ExpertOperand : Loader {
  using Loader::Loader;

  __device__ __forceinline__ void begin(const GroupWork& work) {
    TileWork here = work;
    here.batch = work.expert;
    Loader::begin(here);
  }
};
