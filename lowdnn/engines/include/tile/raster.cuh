// The order in which blocks take tiles: groups of rows of tiles, down the rows first, so that the tiles in flight share
// operands in L2.

#pragma once

#include "include/numeric.cuh"

struct TileIndex {
  u32 row, column;
};

// Position of tile number `index`; a group has `size` rows of tiles.
__device__ __forceinline__ TileIndex grouped_tile(u32 index, u32 tile_rows, u32 tile_columns, u32 size) {
  const u32 group = index / (size * tile_columns), within = index % (size * tile_columns);
  const u32 rows = min(size, tile_rows - group * size);
  return {group * size + within % rows, within / rows};
}
