// Numbers with one element for each row (rows.cuh), such as statistics, scales, biases and gradients, which functors
// over the kept axes read and store.

#pragma once

#include "include/optional.cuh"
#include "include/rows/rows.cuh"

// Loads one number for each row of this thread, or one for each ROWS neighbouring rows.
template <class Source, int ROWS = 1, class Tile, class Value>
__device__ __forceinline__ void load_of_row(const typename Source::Args& args, const RowWalk<Tile>& walk,
                                            Value (&values)[Tile::WIDTH]) {
  if (!walk.exists) return;
  i64 kept[Tile::KEPT_AXES];
  walk.locate_row(kept);
  if constexpr (ROWS == 1) {
    Source::template apply<Tile::WIDTH>(args, Source::cursor(args, kept), walk.kept_column, Tile::WIDTH, values);
  } else {
    Value one[1];
#pragma unroll
    for (int w = 0; w < Tile::WIDTH; ++w) {
      const typename Tile::Index row = walk.kept_column + w;
      if (w == 0 || row % ROWS == 0) Source::template apply<1>(args, Source::cursor(args, kept), row / ROWS, 1, one);
      values[w] = one[0];
    }
  }
}

// Stores one number for each row of this thread, or one for each ROWS neighbouring rows.
template <class Target, int ROWS = 1, class Tile, class Value>
__device__ __forceinline__ void store_of_row(const typename Target::Args& args, const RowWalk<Tile>& walk,
                                             const Value (&values)[Tile::WIDTH]) {
  if (!walk.is_first_member()) return;
  i64 kept[Tile::KEPT_AXES];
  walk.locate_row(kept);
  if constexpr (ROWS == 1) {
    Target::template apply<Tile::WIDTH>(args, Target::cursor(args, kept), walk.kept_column, Tile::WIDTH, values);
  } else {
#pragma unroll
    for (int w = 0; w < Tile::WIDTH; ++w) {
      const typename Tile::Index row = walk.kept_column + w;
      const Value one[1] = {values[w]};
      if (row % ROWS == 0) Target::template apply<1>(args, Target::cursor(args, kept), row / ROWS, 1, one);
    }
  }
}

// Load and store the number of the thread's row `row`, below WIDTH; with ROWS > 1 only the first of ROWS neighbouring
// rows stores.
template <class Source, class Tile, class Value>
__device__ __forceinline__ void load_of_one_row(const typename Source::Args& args, const RowWalk<Tile>& walk, int row,
                                                Value& value) {
  i64 kept[Tile::KEPT_AXES];
  Value one[1];
  walk.locate_row(kept);
  Source::template apply<1>(args, Source::cursor(args, kept), walk.kept_column + row, 1, one);
  value = one[0];
}
template <class Target, int ROWS, class Tile, class Value>
__device__ __forceinline__ void store_of_one_row(const typename Target::Args& args, const RowWalk<Tile>& walk, int row,
                                                 Value value) {
  i64 kept[Tile::KEPT_AXES];
  walk.locate_row(kept);
  const typename Tile::Index number = walk.kept_column + row;
  const Value one[1] = {value};
  if (number % ROWS == 0) Target::template apply<1>(args, Target::cursor(args, kept), number / ROWS, 1, one);
}

// Load and store optional numbers; p: Params that inherit the functor's ArgsOf (include/optional.cuh). Unless IS_THERE,
// nothing is stored, and loads leave `values` unchanged.
template <class Source, bool IS_THERE, int ROWS = 1, class Params, class Tile, class Value>
__device__ __forceinline__ void load_number(const Params& p, const RowWalk<Tile>& walk, Value (&values)[Tile::WIDTH]) {
  if constexpr (IS_THERE) load_of_row<Source, ROWS>(args_of<Source>(p), walk, values);
}
template <class Target, bool IS_THERE, int ROWS = 1, class Params, class Tile, class Value>
__device__ __forceinline__ void store_number(const Params& p, const RowWalk<Tile>& walk,
                                             const Value (&values)[Tile::WIDTH]) {
  if constexpr (IS_THERE) store_of_row<Target, ROWS>(args_of<Target>(p), walk, values);
}

// Load and store the optional number of the thread's row `row`, below WIDTH.
template <class Source, bool IS_THERE, class Params, class Tile, class Value>
__device__ __forceinline__ void load_one_number(const Params& p, const RowWalk<Tile>& walk, int row, Value& value) {
  if constexpr (IS_THERE) load_of_one_row<Source>(args_of<Source>(p), walk, row, value);
}
template <class Target, bool IS_THERE, int ROWS, class Params, class Tile, class Value>
__device__ __forceinline__ void store_one_number(const Params& p, const RowWalk<Tile>& walk, int row, Value value) {
  if constexpr (IS_THERE) store_of_one_row<Target, ROWS>(args_of<Target>(p), walk, row, value);
}
