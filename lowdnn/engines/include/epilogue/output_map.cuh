// Maps the rows and columns of a matrix product to coordinates of the output's index space.
//
// The space has AXES axes: the first LEADING make up the rows (a row is a linear index over them, the last one
// innermost), the others the columns. The last axis is the functor's vector axis.

#pragma once

#include "include/math/division.cuh"

template <int AXES, int LEADING> struct OutputMap {
  static_assert(LEADING > 0 && LEADING < AXES, "rows and columns have axes of their own");
  static constexpr int RANK = AXES;

  Divider extent[AXES];

  // Fills the coordinates and returns the one along the vector axis.
  __device__ __forceinline__ i64 locate(u32 row, u32 column, i64 (&coordinate)[AXES]) const {
    digits<LEADING>(extent, row, coordinate);
    digits<AXES - LEADING>(extent + LEADING, column, coordinate + LEADING);
    return coordinate[AXES - 1];
  }

  __device__ __forceinline__ bool exists(const i64 (&)[AXES]) const { return true; }

  // Fills the coordinates of a row alone.
  __device__ __forceinline__ void locate_row(u32 row, i64 (&coordinate)[AXES]) const {
    digits<LEADING>(extent, row, coordinate);
  }
};

// An OutputMap whose rows have more positions along their last axis than the output: only the first `line` of them
// exist.
template <int AXES, int LEADING> struct LineMap : OutputMap<AXES, LEADING> {
  u32 line;

  __device__ __forceinline__ bool exists(const i64 (&coordinate)[AXES]) const { return coordinate[LEADING - 1] < line; }
};

// Position of a block's tile in the product: its first row and column, and the ends of rows and columns.
struct TilePlace {
  u32 row, column, row_end, column_end;
};
