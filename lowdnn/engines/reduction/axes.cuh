// Coordinates from linear indices.

#pragma once

#include "include/division.cuh"

// The digits of n over the radices `axes`, the last axis fastest; the first radix is not used.
template <int COUNT, class Index>
__device__ __forceinline__ void digits(const Divider* axes, Index n, i64* coordinate) {
#pragma unroll
  for (int axis = COUNT - 1; axis > 0; --axis) {
    const Index quotient = axes[axis].divide(n);
    coordinate[axis] = n - quotient * Index(axes[axis].divisor);
    n = quotient;
  }
  coordinate[0] = n;
}
