// Numbers of rows (include/rows/rows.cuh) that a norm may be without: statistics, scales, biases and their gradients. Each has
// a functor over the kept axes where it is there; p: Params that inherit its ArgsOf.

#pragma once

#include "include/optional.cuh"
#include "include/rows/rows.cuh"

// One number of each row of this thread, or of ROWS joined ones together. Values stay as they are where none is there.
template <class Source, bool IS_THERE, int ROWS = 1, class Params, class Tile, class Value>
__device__ __forceinline__ void load_number(const Params& p, const RowWalk<Tile>& walk, Value (&values)[Tile::WIDTH]) {
  if constexpr (IS_THERE) load_of_row<Source, ROWS>(args_of<Source>(p), walk, values);
}
template <class Target, bool IS_THERE, int ROWS = 1, class Params, class Tile, class Value>
__device__ __forceinline__ void store_number(const Params& p, const RowWalk<Tile>& walk,
                                             const Value (&values)[Tile::WIDTH]) {
  if constexpr (IS_THERE) store_of_row<Target, ROWS>(args_of<Target>(p), walk, values);
}

// The number of one of the thread's WIDTH rows.
template <class Source, bool IS_THERE, class Params, class Tile, class Value>
__device__ __forceinline__ void load_one_number(const Params& p, const RowWalk<Tile>& walk, int row, Value& value) {
  if constexpr (IS_THERE) load_of_one_row<Source>(args_of<Source>(p), walk, row, value);
}
template <class Target, bool IS_THERE, int ROWS, class Params, class Tile, class Value>
__device__ __forceinline__ void store_one_number(const Params& p, const RowWalk<Tile>& walk, int row, Value value) {
  if constexpr (IS_THERE) store_of_one_row<Target, ROWS>(args_of<Target>(p), walk, row, value);
}
