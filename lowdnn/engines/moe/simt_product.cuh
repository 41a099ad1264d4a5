// Products of tile_simt.cuh for operands whose rows have any addresses: loaders, the double-buffered loop, the store.

#pragma once

#include "include/tile/tile_simt.cuh"

// A thread's share of one operand: COUNT elements of every EXTENT x DEPTH tile, converted to T's accumulators.
// ALONG_DEPTH: strides are smallest along k, so neighbouring threads read along k.
template <class Tile, class T, int EXTENT, int DEPTH, bool ALONG_DEPTH> struct SimtOperand {
  static constexpr int COUNT = EXTENT * DEPTH / Tile::THREADS;
  static constexpr int ACROSS = ALONG_DEPTH ? DEPTH : EXTENT;  // threads along the axis of small stride
  static constexpr int STEP = Tile::THREADS / ACROSS;  // distance of a thread's elements along the other axis
  static constexpr int LINES = ALONG_DEPTH ? COUNT : 1;        // rows or columns that the thread reads
  static_assert(COUNT * Tile::THREADS == EXTENT * DEPTH && STEP * ACROSS == Tile::THREADS, "even shares");

  const T* next[LINES];
  i64 depth_stride;
  int position, level;  // the thread's first element in the tile: along the rows or columns, along k
  int lines;  // rows or columns of the tile that exist
  T staged[COUNT];

  // line(p): address of row or column p of the tile at the first k, if it exists.
  template <class Line>
  __device__ __forceinline__ SimtOperand(const Line& line, i64 depth_stride, int lines)
      : depth_stride(depth_stride), lines(lines) {
    position = ALONG_DEPTH ? threadIdx.x / ACROSS : threadIdx.x % ACROSS;
    level = ALONG_DEPTH ? threadIdx.x % ACROSS : threadIdx.x / ACROSS;
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      const int here = position + i * STEP;
      next[i] = here < lines ? line(here) + level * depth_stride : nullptr;
    }
  }

  // Reads the next tile, of which `levels` exist along k, into registers.
  __device__ __forceinline__ void fetch(int levels) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int line = ALONG_DEPTH ? i : 0, deep = ALONG_DEPTH ? 0 : i * STEP;
      const bool exists = position + line * STEP < lines && level + deep < levels;
      staged[i] = exists ? next[line][deep * depth_stride] : T{};
    }
#pragma unroll
    for (int i = 0; i < LINES; ++i) next[i] += DEPTH * depth_stride;
  }

  template <class Accumulator>
  __device__ __forceinline__ void put(Accumulator (&tile)[DEPTH][EXTENT + Tile::GROUP]) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int d = ALONG_DEPTH ? level : level + i * STEP;
      const int p = ALONG_DEPTH ? position + i * STEP : position;
      tile[d][p] = convert<Accumulator>(staged[i]);
    }
  }
};

// Adds products along `depth` elements of k: fetches tile t + 1, multiplies tile t, puts tile t + 1 into the other
// buffer.
template <int DEPTH, class Tile, class Rows, class Columns>
__device__ __forceinline__ void simt_accumulate(Tile& tile, typename Tile::Shared& shared, Rows& rows,
                                                Columns& columns, int depth) {
  if (depth <= 0) return;
  rows.fetch(depth);
  columns.fetch(depth);
  rows.put(shared.rows[0]);
  columns.put(shared.columns[0]);
  __syncthreads();
  int buffer = 0;
  for (int left = depth - DEPTH; left > -DEPTH; left -= DEPTH, buffer ^= 1) {
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
  }
}

// Hands the accumulators of the first `rows` rows and `columns` columns of the tile to the functor, GROUP columns at a
// time. cursor(row): the functor's cursor of a row. first_column: the tile's first column on the functor's vector axis.
template <class Functor, class Tile, class RowCursor>
__device__ __forceinline__ void simt_store(Tile& tile, const typename Functor::Args& arguments, int rows, int columns,
                                           i64 first_column, const RowCursor& cursor) {
  typedef typename Functor::Accumulator Accumulator;
  tile.for_each_row([&](int row, const Accumulator(&values)[Tile::THREAD_COLUMNS]) {
    if (row >= rows) return;
    const typename Functor::Cursor at = cursor(row);
#pragma unroll
    for (int run = 0; run < Tile::RUNS; ++run) {
      const int column = tile.column(run), valid = min(columns - column, Tile::GROUP);
      Accumulator group[Tile::GROUP];
#pragma unroll
      for (int j = 0; j < Tile::GROUP; ++j) group[j] = values[run * Tile::GROUP + j];
      if (valid > 0) {
        Functor::template apply<Tile::GROUP>(arguments, at, first_column + column, valid, group);
      }
    }
  });
}
