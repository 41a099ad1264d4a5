// From the rows and columns of a matrix product to the coordinates of the output's index space.
//
// The space has AXES axes: the first LEADING make up the rows (a row is a linear index over them, the last one
// innermost), the others the columns. The last axis is the functor's vector axis.

#pragma once

#include "include/division.cuh"

template <int AXES, int LEADING> struct OutputMap {
  Divider extent[AXES];

  // Fills the coordinates and returns the one along the vector axis.
  __device__ __forceinline__ i64 locate(u32 row, u32 column, i64 (&coordinate)[AXES]) const {
    split<0, LEADING>(row, coordinate);
    split<LEADING, AXES>(column, coordinate);
    return coordinate[AXES - 1];
  }

  // The coordinates of a row alone.
  __device__ __forceinline__ void locate_row(u32 row, i64 (&coordinate)[AXES]) const {
    split<0, LEADING>(row, coordinate);
  }

 private:
  template <int BEGIN, int END> __device__ __forceinline__ void split(u32 index, i64 (&coordinate)[AXES]) const {
#pragma unroll
    for (int axis = END - 1; axis > BEGIN; --axis) {
      const u32 rest = extent[axis].divide(index);
      coordinate[axis] = index - rest * extent[axis].divisor;
      index = rest;
    }
    if constexpr (BEGIN < END) coordinate[BEGIN] = index;
  }
};
