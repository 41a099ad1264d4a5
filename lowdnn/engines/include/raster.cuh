// The order in which blocks take tiles: groups of GROUP rows of tiles, down the rows first, so that the tiles in flight
// share operands in L2.

#pragma once

#include "include/numeric.cuh"

struct TileIndex {
  u32 row, column;
};

template <u32 GROUP> __device__ __forceinline__ TileIndex grouped_tile(u32 index, u32 tile_rows, u32 tile_columns) {
  const u32 group = index / (GROUP * tile_columns), within = index % (GROUP * tile_columns);
  const u32 rows = min(GROUP, tile_rows - group * GROUP);
  return {group * GROUP + within % rows, within / rows};
}
