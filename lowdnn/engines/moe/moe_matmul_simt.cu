// moe_matmul_simt: output[to(r), n] = epilogue(sum over k of token[from(r), k] * weight[expert(r), k, n]) in the
// accumulator's type, without tensor cores (token_groups.cuh, routing.cuh).
//
// Layouts: any strides.
// Block: blockIdx.x = row tile * column tiles + column tile. A row tile is TILE_ROWS rows of one group; row tiles are
// numbered group by group, and blocks past the last one end at once. Operands are converted to the accumulator's type
// before they enter shared memory (simt_product.cuh). Elements outside the group or the matrices count as 0.
// Shared memory: two buffers of both operand tiles (static); groups + 1 words for GroupTiles (dynamic).
// Launch: Tile::THREADS threads.
// Macros: TOKEN_TYPE WEIGHT_TYPE OFFSET_TYPE ROUTING TILE_ROWS TILE_COLUMNS TILE_DEPTH; TOKEN_ALONG_DEPTH,
// WEIGHT_ALONG_DEPTH: 1 if an operand's strides are smallest along k.

#include "routing.cuh"
#include "simt_product.cuh"
#include "token_groups.cuh"
#include "generated.cuh"

typedef SimtTile<Functor::Accumulator, TILE_ROWS, TILE_COLUMNS, TILE_DEPTH> Tile;

struct Params {
  const TOKEN_TYPE* token;
  const WEIGHT_TYPE* weight;
  Routing routing;
  TokenGroups<OFFSET_TYPE> groups;
  i64 token_strides[2];  // strides of r, of k
  i64 weight_strides[3];  // strides of the expert, of n, of k
  i32 columns, depth, column_tiles;
  Functor::Args epilogue;
};

extern "C" __global__ void __launch_bounds__(Tile::THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Tile::Shared shared;
  extern __shared__ u32 tiles_before[];
  const GroupTiles tiles = GroupTiles::of<TILE_ROWS>(tiles_before, p.groups);

  // The block's rows and their group.
  const u32 row_tile = blockIdx.x / p.column_tiles;
  if (row_tile >= tiles.all()) return;
  const u32 group = tiles.group_of(row_tile);
  const RowRange range = p.groups.range(group);
  const u32 first_row = range.first + (row_tile - tiles.before[group]) * TILE_ROWS;
  const int first_column = int(blockIdx.x % p.column_tiles) * TILE_COLUMNS;
  const int rows = min(range.end - first_row, TILE_ROWS), columns = min(p.columns - first_column, TILE_COLUMNS);

  const auto token = [&](int row) { return p.token + p.routing.source(first_row + row) * p.token_strides[0]; };
  const WEIGHT_TYPE* expert = p.weight + p.groups.expert(group) * p.weight_strides[0];
  const auto weight = [&](int column) { return expert + (first_column + column) * p.weight_strides[1]; };
  SimtOperand<Tile, TOKEN_TYPE, TILE_ROWS, TILE_DEPTH, TOKEN_ALONG_DEPTH> left(token, p.token_strides[1], rows);
  SimtOperand<Tile, WEIGHT_TYPE, TILE_COLUMNS, TILE_DEPTH, WEIGHT_ALONG_DEPTH> right(weight, p.weight_strides[2],
                                                                                     columns);
  Tile tile(threadIdx.x);
  simt_accumulate<TILE_DEPTH>(tile, shared, left, right, p.depth);

  simt_store<Functor>(tile, p.epilogue, rows, columns, first_column, [&](int row) {
    const i64 coordinate[3] = {0, i64(p.routing.target(first_row + row)), 0};
    return Functor::cursor(p.epilogue, coordinate);
  });
}
