// Reductions of one value of a functor that stores: over each column and each row of the output, and over all elements.
//
// A warp has 16 rows of a tile; the values lie where it staged the accumulators, some columns at a time. So it computes
// two kinds of totals: one for each of its 16 rows along a whole tile (Along), and one for each of the tile's columns
// down its 16 rows (Down). These are totals of the output's rows and of its columns or, in transposed tiles, the other
// way round. Each total is written to the workspace once; reduction/reduction_combine.cu combines them as slices. So
// the order of summation depends only on the plan.
// Operators, computed in f32: include/math/reduction_operators.cuh.

#pragma once

#include "include/epilogue/epilogue_reductions.cuh"
#include "include/optional.cuh"

// Totals of the output's columns, or of its rows (IS_ROW).
template <class Operator, bool IS_ROW> struct StagedTotals {
  typedef Operator Of;
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* line_totals;  // [slices][lines]
    i64 lines;           // columns, or rows of all batches
  };
};
template <bool IS_ROW> struct StagedTotals<NoOperator, IS_ROW> {
  typedef Add Of;  // never computed
  typedef f32 Total;
  static constexpr bool EXISTS = false;

  struct Output {};
};

// Position of a warp's totals: slice, first line, end of the lines that exist.
struct ReductionPlace {
  u32 slice, first, end;
};

template <class Tile, class ColumnOperator, class RowOperator, class WholeOperator, bool IS_TRANSPOSED>
struct StagedReductions {
  typedef StagedTotals<ColumnOperator, false> Columns;
  typedef StagedTotals<RowOperator, true> Rows;
  typedef WholeReduction<Tile, WholeOperator> Whole;
  typedef typename Either<IS_TRANSPOSED, Columns, Rows>::Type Along;
  typedef typename Either<IS_TRANSPOSED, Rows, Columns>::Type Down;
  static constexpr bool EXIST = Columns::EXISTS || Rows::EXISTS || Whole::EXISTS;

  struct Output : Columns::Output, Rows::Output, Whole::Output {};

  typename Along::Total along;  // total of row l % 16 over every second column from l / 16 on
  Whole whole;

  __device__ __forceinline__ StagedReductions(const Output& output) : whole(output) {}

  // Called before the first chunk of 16 rows.
  __device__ __forceinline__ void begin() { along = Along::Of::template neutral<f32>(); }

  // Takes one group of the functor's values, of which the first `valid` exist.
  template <int WIDTH> __device__ __forceinline__ void take(const f32 (&values)[WIDTH], i32 valid) {
    if constexpr (Whole::EXISTS) {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        if (v < valid) whole.add(values[v]);
      }
    }
  }

  // Reduces a chunk of COLUMNS columns, of which `columns` exist, and `rows` rows; at(row, column) is the value. down:
  // position of its columns' totals.
  template <int COLUMNS, class At>
  __device__ __forceinline__ void reduce(const Output& output, const At& at, u32 rows, u32 columns,
                                         ReductionPlace down) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    __syncwarp();
    if constexpr (Along::EXISTS) {
      const u32 row = lane % STAGING_ROWS;
      for (u32 column = lane / STAGING_ROWS; column < COLUMNS && column < columns && row < rows; column += 2) {
        along = Along::Of::combine(along, Along::Of::prepare(at(row, column)));
      }
    }
    if constexpr (Down::EXISTS) {
      for (u32 column = lane; column < COLUMNS && column < columns; column += WARP_SIZE) {
        auto total = Down::Of::template neutral<f32>();
        for (u32 row = 0; row < STAGING_ROWS && row < rows; ++row) {
          total = Down::Of::combine(total, Down::Of::prepare(at(row, column)));
        }
        store<Down>(output, down, column, total);
      }
    }
  }

  // Called after the last chunk. place: position of the rows' totals.
  __device__ __forceinline__ void end(const Output& output, ReductionPlace place) {
    if constexpr (Along::EXISTS) {
      along = Along::Of::combine(along, shuffle_down(along, STAGING_ROWS));
      const u32 lane = threadIdx.x % WARP_SIZE;
      if (lane < STAGING_ROWS) store<Along>(output, place, lane, along);
    }
  }

 private:
  template <class Totals>
  static __device__ __forceinline__ void store(const typename Totals::Output& output, ReductionPlace place, u32 line,
                                               typename Totals::Total total) {
    if (place.first + line < place.end) output.line_totals[place.slice * output.lines + place.first + line] = total;
  }
};
