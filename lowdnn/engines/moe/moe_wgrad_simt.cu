// moe_wgrad_simt: dweight[e, k, n] = epilogue(sum over the rows r of expert e of token[r, k] * doutput[r, n]) in the
// accumulator's type, without tensor cores (token_groups.cuh).
//
// Layouts: any strides. `columns` is the operand that shares dweight's vector axis: doutput with dweight contiguous
// along n, token with dweight contiguous along k; `rows` is the other one.
// Block: blockIdx.x = ((expert * row tiles) + row tile) * column tiles + column tile; it goes through the groups of its
// expert one after the other. Elements outside the group or the matrices count as 0.
// Shared memory (static): the two operand tiles, twice.
// Launch: Tile::THREADS threads.
// Macros: ROWS_TYPE COLUMNS_TYPE OFFSET_TYPE TILE_ROWS TILE_COLUMNS TILE_DEPTH; ROW_AXIS: dweight's axis along the
// rows; ROWS_ALONG_DEPTH, COLUMNS_ALONG_DEPTH: 1 if an operand's strides are smallest along r.

#include "simt_product.cuh"
#include "token_groups.cuh"
#include "generated.cuh"

typedef SimtTile<Functor::Accumulator, TILE_ROWS, TILE_COLUMNS, TILE_DEPTH> Tile;

struct Params {
  const ROWS_TYPE* rows;
  const COLUMNS_TYPE* columns;
  TokenGroups<OFFSET_TYPE> groups;
  i64 rows_strides[2], columns_strides[2];  // strides of the row or column, of r
  i32 row_count, column_count, row_tiles, column_tiles;
  Functor::Args epilogue;
};

extern "C" __global__ void __launch_bounds__(Tile::THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Tile::Shared shared;

  // The block's tile and its expert.
  const int first_column = int(blockIdx.x % p.column_tiles) * TILE_COLUMNS;
  const u32 rest = blockIdx.x / p.column_tiles;
  const int first_row = int(rest % p.row_tiles) * TILE_ROWS;
  const u32 expert = rest / p.row_tiles;
  const int rows = min(p.row_count - first_row, TILE_ROWS), columns = min(p.column_count - first_column, TILE_COLUMNS);

  // Products of its groups.
  Tile tile(threadIdx.x);
  for (u32 group = expert; group < p.groups.count; group += p.groups.experts.divisor) {
    const RowRange range = p.groups.range(group);
    const ROWS_TYPE* left_base = p.rows + range.first * p.rows_strides[1];
    const COLUMNS_TYPE* right_base = p.columns + range.first * p.columns_strides[1];
    const auto row = [&](int i) { return left_base + (first_row + i) * p.rows_strides[0]; };
    const auto column = [&](int i) { return right_base + (first_column + i) * p.columns_strides[0]; };
    SimtOperand<Tile, ROWS_TYPE, TILE_ROWS, TILE_DEPTH, ROWS_ALONG_DEPTH> left(row, p.rows_strides[1], rows);
    SimtOperand<Tile, COLUMNS_TYPE, TILE_COLUMNS, TILE_DEPTH, COLUMNS_ALONG_DEPTH> right(column, p.columns_strides[1],
                                                                                         columns);
    simt_accumulate<TILE_DEPTH>(tile, shared, left, right, int(range.size()));
  }

  simt_store<Functor>(tile, p.epilogue, rows, columns, first_column, [&](int row) {
    i64 coordinate[3] = {i64(expert), 0, 0};
    coordinate[ROW_AXIS] = first_row + row;
    return Functor::cursor(p.epilogue, coordinate);
  });
}
