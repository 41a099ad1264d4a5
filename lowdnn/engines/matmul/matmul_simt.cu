// matmul_simt: c[b, r, s] = epilogue(sum over k of rows[b, r, k] * columns[b, k, s]) in the accumulator's type, without
// tensor cores.
//
// Layouts: any strides. `columns` is the operand that shares c's vector axis: with c contiguous along N, rows and
// columns are a and b; with c contiguous along M, they are b and a (c transposed is b transposed times a transposed).
// Block: blockIdx.x = ((batch * row tiles) + row tile) * column tiles + column tile; it computes TILE_ROWS x
// TILE_COLUMNS elements of one batch entry. Operands are converted to the accumulator's type before they enter shared
// memory; while one buffer is multiplied, the next one's elements are loaded to registers. Elements outside the
// matrices count as 0.
// Shared memory (static): the two operand tiles, twice (SimtTile::Shared).
// Launch: Tile::THREADS threads.
// Macros: ROWS_TYPE COLUMNS_TYPE TILE_ROWS TILE_COLUMNS TILE_DEPTH; ROW_AXIS: c's axis along the rows (the functor's
// vector axis is the other one of the last two); ROWS_ALONG_DEPTH, COLUMNS_ALONG_DEPTH: 1 if an operand's strides are
// smallest along k, so that neighbouring threads read along k.

#include "include/numeric.cuh"
#include "include/tile/tile_simt.cuh"
#include "generated.cuh"

constexpr int RANK = Functor::RANK;
constexpr int COLUMN_AXIS = 2 * RANK - 3 - ROW_AXIS;

typedef Functor::Accumulator Accumulator;
typedef SimtTile<Accumulator, TILE_ROWS, TILE_COLUMNS, TILE_DEPTH> Tile;

struct Params {
  const ROWS_TYPE* rows;
  const COLUMNS_TYPE* columns;
  i64 rows_strides[RANK];  // strides of the batch axes, of r, of k
  i64 columns_strides[RANK];  // strides of the batch axes, of s, of k
  i32 extents[RANK];  // extents of the batch axes, of r, of s
  i32 depth;                  // extent of k
  i32 row_tiles;
  i32 column_tiles;
  Functor::Args epilogue;
};

// A thread's share of one operand: COUNT elements of every EXTENT x TILE_DEPTH tile.
template <class T, int EXTENT, bool ALONG_DEPTH> struct Operand {
  static constexpr int COUNT = EXTENT * TILE_DEPTH / Tile::THREADS;
  static constexpr int ACROSS = ALONG_DEPTH ? TILE_DEPTH : EXTENT;  // threads along the axis of small stride
  static constexpr int STEP = Tile::THREADS / ACROSS;  // distance of a thread's elements along the other axis
  static_assert(COUNT * Tile::THREADS == EXTENT * TILE_DEPTH && STEP * ACROSS == Tile::THREADS, "even shares");

  const T* next;
  i64 element_stride;
  i64 tile_stride;
  int position;  // the thread's first element along the rows or columns, in the tile
  int level;  // the thread's first element along k, in the tile
  int valid;     // rows or columns of the tile that exist
  T staged[COUNT];

  __device__ __forceinline__ Operand(const T* base, i64 stride, i64 depth_stride, int first, int extent, int thread) {
    position = ALONG_DEPTH ? thread / ACROSS : thread % ACROSS;
    level = ALONG_DEPTH ? thread % ACROSS : thread / ACROSS;
    valid = extent - first;
    next = base + (first + position) * stride + level * depth_stride;
    element_stride = STEP * (ALONG_DEPTH ? stride : depth_stride);
    tile_stride = TILE_DEPTH * depth_stride;
  }

  // Reads the next tile, of which `levels` exist along k, into registers.
  __device__ __forceinline__ void fetch(int levels) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const bool exists = ALONG_DEPTH ? position + i * STEP < valid && level < levels
                      : position < valid && level + i * STEP < levels;
      staged[i] = exists ? next[i * element_stride] : T{};
    }
    next += tile_stride;
  }

  // Writes the fetched tile into shared memory, converted.
  __device__ __forceinline__ void put(Accumulator (&tile)[TILE_DEPTH][EXTENT + Tile::GROUP]) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int d = ALONG_DEPTH ? level : level + i * STEP;
      const int p = ALONG_DEPTH ? position + i * STEP : position;
      tile[d][p] = convert<Accumulator>(staged[i]);
    }
  }
};

// Runs the epilogue, one run of GROUP columns at a time. coordinate: that of the batch entry; its last two are set
// here.
__device__ __forceinline__ void finish(const Params& p, Tile& tile, i64 (&coordinate)[RANK], int first_row,
                                       int first_column) {
  const int row_count = p.extents[RANK - 2];
  const int column_count = p.extents[RANK - 1];
  tile.for_each_row([&](int row, const Accumulator(&values)[Tile::THREAD_COLUMNS]) {
    if (first_row + row >= row_count) return;
    coordinate[ROW_AXIS] = first_row + row;
    coordinate[COLUMN_AXIS] = 0;
    const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
#pragma unroll
    for (int run = 0; run < Tile::RUNS; ++run) {
      const int column = first_column + tile.column(run);
      const int valid = min(column_count - column, Tile::GROUP);
      Accumulator group[Tile::GROUP];
#pragma unroll
      for (int j = 0; j < Tile::GROUP; ++j) group[j] = values[run * Tile::GROUP + j];
      if (valid > 0) Functor::apply<Tile::GROUP>(p.epilogue, cursor, column, valid, group);
    }
  });
}

extern "C" __global__ void __launch_bounds__(Tile::THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Tile::Shared shared;
  const int thread = threadIdx.x;

  // The block's tile and its batch entry.
  u32 rest = blockIdx.x;
  const int first_column = int(rest % p.column_tiles) * TILE_COLUMNS;
  rest /= p.column_tiles;
  const int first_row = int(rest % p.row_tiles) * TILE_ROWS;
  rest /= p.row_tiles;
  i64 coordinate[RANK];
  const ROWS_TYPE* rows_base = p.rows;
  const COLUMNS_TYPE* columns_base = p.columns;
#pragma unroll
  for (int axis = RANK - 3; axis >= 0; --axis) {
    const u32 index = rest % p.extents[axis];
    rest /= p.extents[axis];
    coordinate[axis] = index;
    rows_base += index * p.rows_strides[axis];
    columns_base += index * p.columns_strides[axis];
  }

  // While tile t is multiplied from one buffer, tile t + 1 travels to registers; then it goes to the other buffer.
  Tile tile(thread);
  Operand<ROWS_TYPE, TILE_ROWS, ROWS_ALONG_DEPTH> rows(rows_base, p.rows_strides[RANK - 2], p.rows_strides[RANK - 1],
                                                       first_row, p.extents[RANK - 2], thread);
  Operand<COLUMNS_TYPE, TILE_COLUMNS, COLUMNS_ALONG_DEPTH> columns(
    columns_base, p.columns_strides[RANK - 2], p.columns_strides[RANK - 1], first_column, p.extents[RANK - 1],
    thread);
  rows.fetch(p.depth);
  columns.fetch(p.depth);
  rows.put(shared.rows[0]);
  columns.put(shared.columns[0]);
  __syncthreads();
  int buffer = 0;
  for (int done = 0; done < p.depth; done += TILE_DEPTH) {
    const int left = p.depth - done - TILE_DEPTH;
    if (left > 0) {
      rows.fetch(left);
      columns.fetch(left);
    }
    tile.multiply(shared, buffer);
    if (left > 0) {
      rows.put(shared.rows[buffer ^ 1]);
      columns.put(shared.columns[buffer ^ 1]);
    }
    __syncthreads();
    buffer ^= 1;
  }

  finish(p, tile, coordinate, first_row, first_column);
}
