// From the rows and columns of a matrix product to the coordinates of the output tensor.
//
// ROW_MASK and COLUMN_MASK are bit masks of the tensor's axes: a row index is a linear index over the axes of ROW_MASK,
// the last one innermost; likewise the columns. The innermost column axis is the functor's vector axis.

#pragma once

#include "include/numeric.cuh"

// Division by an extent that is known when the plan is made: magic = floor(2^32 * (2^shift - divisor) / divisor) + 1 with
// shift = ceil(log2 divisor). Exact for numerators below 2^31.
struct FastDivide {
  u32 divisor, magic, shift;

  __device__ __forceinline__ u32 quotient(u32 x) const { return (__umulhi(x, magic) + x) >> shift; }
};

template <int AXES, u32 ROW_MASK, u32 COLUMN_MASK> struct OutputMap {
  FastDivide extent[AXES];

  // Fills `coordinate` (except where the column lies along the vector axis) and returns the coordinate along that axis.
  __device__ __forceinline__ i64 locate(u32 row, u32 column, i64 (&coordinate)[AXES]) const {
    split<ROW_MASK>(row, coordinate);
    split<COLUMN_MASK>(column, coordinate);
    return coordinate[innermost(COLUMN_MASK)];
  }

  // The coordinates of a row alone.
  __device__ __forceinline__ void locate_row(u32 row, i64 (&coordinate)[AXES]) const { split<ROW_MASK>(row, coordinate); }

 private:
  static constexpr int innermost(u32 axes) {
    int axis = AXES - 1;
    while (!(axes >> axis & 1)) --axis;
    return axis;
  }
  static constexpr int outermost(u32 axes) {
    int axis = 0;
    while (!(axes >> axis & 1)) ++axis;
    return axis;
  }

  template <u32 MASK> __device__ __forceinline__ void split(u32 index, i64 (&coordinate)[AXES]) const {
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      if (!(MASK >> axis & 1)) continue;
      if (axis == outermost(MASK)) {
        coordinate[axis] = index;
      } else {
        const u32 rest = extent[axis].quotient(index);
        coordinate[axis] = index - rest * extent[axis].divisor;
        index = rest;
      }
    }
  }
};
