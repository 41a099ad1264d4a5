// Stores a warpgroup's accumulators to device memory: through the functor, or as a slice of a split sum.
//
// An epilogue's `begin` is called before a tile's multiplications, its `end` with the accumulators; `first_row` is the
// warpgroup's first row in the tile. Rows and columns of a TileWork are those of one product of the batch; `rows` and
// `columns` are the product's extents. The output's rows are numbered through all batches. Columns maps a product's
// columns to the output's, 64 of them at a time:
//     ColumnRange range(u32 column)     the range from a column on, which is a multiple of 64

#pragma once

#include "include/epilogue/staged_reductions.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/tile/tile_schedule.cuh"
#include "include/vector.cuh"
#include "include/epilogue/warp_staging.cuh"

// The output's column for a column of the product, and the end of the columns that follow it contiguously.
struct ColumnRange {
  u32 first, end;
};

// The product's columns are the output's.
struct PlainColumns {
  u32 count;
  __device__ __forceinline__ ColumnRange range(u32 column) const { return {column, count}; }
};

// Position of a group of accumulators in a product's output: its row, its first column, the end of the columns.
struct GroupPlace {
  u32 row, column, end;
};

// Hands ROWS x GROUPS groups of WIDTH neighbours to the functor, a warp's lanes along the rows. get(values, row, group)
// fetches a group's values, which belong at place(row, group). The functor's loads for BATCH groups of a lane are in
// flight together.
// REDUCES: take(values, row, group, valid) receives the values that the functor hands back to be reduced.
template <class Functor, int WIDTH, u32 ROWS, u32 GROUPS, class Accumulator, bool REDUCES, class Output, class Place,
          class Get, class Take>
__device__ __forceinline__ void store_groups(const Output& output, u32 batch, const Place& place, const Get& get,
                                             const Take& take) {
  // All lanes of a warp share a row that has at least WARP_SIZE groups, so that each row is located once.
  constexpr bool IS_LONG = GROUPS >= WARP_SIZE;
  constexpr u32 PASSES = (GROUPS + WARP_SIZE - 1) / WARP_SIZE;  // passes of the warp over a long row
  constexpr u32 STEPS = IS_LONG ? ROWS * PASSES : (ROWS * GROUPS + WARP_SIZE - 1) / WARP_SIZE;
  constexpr u32 BATCH = STEPS < 4 ? STEPS : 4;
  static_assert(!IS_LONG || BATCH % PASSES == 0, "whole rows at once");
  // Whether lanes without a group go on, and store under a predicate: a branch around each single element would be
  // followed by a wait for its value.
  constexpr bool GOES_ON = WIDTH == 1 && !REDUCES;
  const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll 1
  for (u32 turn = 0; turn < (STEPS + BATCH - 1) / BATCH; ++turn) {
    typename Functor::Cursor cursor[BATCH];
    typename Functor::template Loaded<WIDTH> loaded[BATCH];
    i64 along[BATCH];
    i32 valid[BATCH];
    u32 row[BATCH], group[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const u32 item = (turn * BATCH + i) * WARP_SIZE + lane;
      row[i] = IS_LONG ? turn * (BATCH / PASSES) + i / PASSES : item / GROUPS;
      group[i] = IS_LONG ? i % PASSES * WARP_SIZE + lane : item % GROUPS;
      const GroupPlace here = place(row[i], group[i]);
      i64 coordinate[decltype(output.map)::RANK];
      along[i] = output.map.locate(batch * output.rows + here.row, here.column, coordinate);
      const bool is_own = row[i] < ROWS && group[i] < GROUPS;
      const bool exists = is_own && here.row < output.rows && output.map.exists(coordinate);
      valid[i] = exists ? min(i32(here.end) - i32(here.column), WIDTH) : 0;
      cursor[i] = Functor::cursor(output.arguments, coordinate);
      if (valid[i] > 0) {
        Functor::template load<WIDTH>(output.arguments, cursor[i], along[i], valid[i], loaded[i]);
      } else if (GOES_ON) {
        loaded[i] = {};
      }
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (!GOES_ON && valid[i] <= 0) continue;
      Accumulator values[WIDTH];
      get(values, row[i], group[i]);
      if constexpr (REDUCES) {
        f32 reductions[WIDTH];
        Functor::template finish<WIDTH>(output.arguments, cursor[i], along[i], valid[i], loaded[i], values, reductions);
        take(reductions, row[i], group[i], valid[i]);
      } else {
        Functor::template finish<WIDTH>(output.arguments, cursor[i], along[i], valid[i], loaded[i], values);
      }
    }
  }
}

// Hands the accumulators to the functor, WIDTH neighbours along the output's contiguous axis at a time, at the
// coordinates that an OutputMap gives.
//
// A warp transposes 16 rows of up to 64 columns at a time in its staging area. Then a lane has one group of WIDTH
// columns in every few rows; its loads for BATCH groups are in flight together.
// Reductions: StagedReductions, only with PlainColumns.
template <class Tile, class Functor, int WIDTH, class Map, class Columns = PlainColumns,
          class Reductions = StagedReductions<Tile, NoOperator, NoOperator, NoOperator, false>>
struct FunctorEpilogue {
  typedef typename Tile::Accumulator Accumulator;
  typedef WarpStaging<Accumulator> Staging;
  static constexpr int STAGING_BYTES = Staging::BYTES, BARRIER_BYTES = 0;

  struct Output : Reductions::Output {
    u32 rows;
    Columns columns;
    Map map;
    typename Functor::Args arguments;
  };

  const Output* output;  // parameters of the tile's part of the output
  const Staging staged;
  Reductions reductions;

  __device__ __forceinline__ FunctorEpilogue(const Output& output, u8* staging, u32)
      : output(&output), staged{reinterpret_cast<Accumulator*>(staging)}, reductions(output) {}

  __device__ __forceinline__ void begin(const TileWork&, u32) const {}

  __device__ __forceinline__ void end(const Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const TileWork& work,
                                      u32 first_row) {
    const u32 warp = threadIdx.x / WARP_SIZE % 4;
#pragma unroll
    for (int part = 0; part < Tile::PARTS; ++part) {
      const u32 row = work.row + first_row + part * 64 + warp * STAGING_ROWS;
      if (row >= output->rows) continue;
      reductions.begin();
      chunks<0>(d[part], row, work);
      if constexpr (Reductions::EXIST) {
        const u32 first = work.batch * output->rows;
        if (work.column < output->columns.count) {
          reductions.end(*output, {work.column / Tile::COLUMNS, first + row, first + output->rows});
        }
      }
    }
  }

  __device__ __forceinline__ void finish() { reductions.whole.finish(); }

 private:
  // Stores the chunk of columns from FIRST on, and the chunks after it.
  template <int FIRST>
  __device__ __forceinline__ void chunks(const Accumulator (&d)[Tile::COLUMNS / 2], u32 row, const TileWork& work) {
    if constexpr (FIRST < Tile::COLUMNS) {
      constexpr int LEFT = Tile::COLUMNS - FIRST, COLUMNS = LEFT < STAGING_COLUMNS ? LEFT : STAGING_COLUMNS;
      const u32 lane = threadIdx.x % WARP_SIZE;
      __syncwarp();  // the last chunk has been read
#pragma unroll
      for (int column = 0; column < COLUMNS; column += 8) {
        const int i = (FIRST + column) / 2;
        staged.put(lane / 4, column + lane % 4 * 2, d[i], d[i + 1]);
        staged.put(lane / 4 + 8, column + lane % 4 * 2, d[i + 2], d[i + 3]);
      }
      __syncwarp();
      store<COLUMNS>(row, output->columns.range(work.column + FIRST), work.batch);
      if constexpr (Reductions::EXIST) reduce<COLUMNS>(row, work.column + FIRST, work.batch);
      chunks<FIRST + STAGING_COLUMNS>(d, row, work);
    }
  }

  // Reduces the staged chunk, whose first row and column are `row` and `column`.
  template <int COLUMNS> __device__ __forceinline__ void reduce(u32 row, u32 column, u32 batch) {
    if (column >= output->columns.count) return;
    const u32 slices = (output->rows + STAGING_ROWS - 1) / STAGING_ROWS;  // slices of one batch
    const ReductionPlace down = {batch * slices + row / STAGING_ROWS, column, output->columns.count};
    const auto at = [&](u32 row, u32 column) { return reinterpret_cast<const f32&>(staged.at(row, column)); };
    reductions.template reduce<COLUMNS>(*output, at, output->rows - row, output->columns.count - column, down);
  }

  template <int COLUMNS> __device__ __forceinline__ void store(u32 row, ColumnRange columns, u32 batch) {
    store_groups<Functor, WIDTH, STAGING_ROWS, COLUMNS / WIDTH, Accumulator, Reductions::EXIST>(
        *output, batch,
        [&](u32 within, u32 group) {
          return GroupPlace{row + within, columns.first + group * WIDTH, columns.end};
        },
        [&](Accumulator(&values)[WIDTH], u32 within, u32 group) {
          staged.template get<WIDTH>(values, within, group * WIDTH);
        },
        [&](const f32(&values)[WIDTH], u32 within, u32 group, i32 valid) {
          reductions.take(values, valid);
#pragma unroll
          for (int i = 0; i < WIDTH; ++i) reinterpret_cast<f32&>(staged.at(within, group * WIDTH + i)) = values[i];
        });
  }
};

// Writes raw accumulators: element (row, column) of part `split` goes to slice[row * pitch + column]; pitch is even.
// Column ranges that begin or end at an odd column are written element by element.
template <class Tile, class Columns = PlainColumns> struct SliceEpilogue {
  typedef typename Tile::Accumulator Accumulator;
  static constexpr int STAGING_BYTES = 0, BARRIER_BYTES = 0;

  struct Output {
    u32 rows;
    Columns columns;
    Accumulator* slices;  // [splits][rows of the whole batch][pitch]
    i64 pitch, slice_stride;
  };

  const Output& output;

  __device__ __forceinline__ SliceEpilogue(const Output& output, u8*, u32) : output(output) {}

  __device__ __forceinline__ void begin(const TileWork&, u32) const {}

  __device__ __forceinline__ void end(const Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const TileWork& work,
                                      u32 first_row) const {
    Accumulator* slice =
        output.slices + work.split * output.slice_stride + i64(work.batch) * output.rows * output.pitch;
#pragma unroll
    for (int first = 0; first < Tile::COLUMNS; first += 64) {
      const ColumnRange columns = output.columns.range(work.column + first);
#pragma unroll
      for (int part = 0; part < Tile::PARTS; ++part) {
        store(slice, columns, work.row + first_row + part * 64, d[part], first);
      }
    }
  }

  __device__ __forceinline__ void finish() const {}

 private:
  // Stores 64 rows of up to 64 columns.
  __device__ __forceinline__ void store(Accumulator* slice, ColumnRange columns, u32 first_row,
                                        const Accumulator (&d)[Tile::COLUMNS / 2], int first) const {
    struct alignas(8) Pair { Accumulator x, y; };
    const u32 warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
    const u32 column = columns.first + lane % 4 * 2;
    const bool has_pairs = (columns.first | columns.end) % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 row = first_row + warp * 16 + half * 8 + lane / 4;
      if (row >= output.rows) continue;
      Accumulator* to = slice + row * output.pitch + column;
#pragma unroll
      for (int block = 0; block < 64 && first + block < Tile::COLUMNS; block += 8) {
        const Accumulator* from = d + (first + block) / 2 + half * 2;
        if (column + block >= columns.end) continue;
        if (has_pairs) {
          *reinterpret_cast<Pair*>(to + block) = Pair{from[0], from[1]};
        } else {
          to[block] = from[0];
          if (column + block + 1 < columns.end) to[block + 1] = from[1];
        }
      }
    }
  }
};
