// Division of indices by divisors that are constant in a launch.

#pragma once

#include "include/numeric.cuh"

// n / divisor for n < 2^31 by one multiplication: (umulhi(n, multiplier) + n) >> shift, with shift = ceil(log2 divisor)
// and multiplier = floor(2^32 * (2^shift - divisor) / divisor) + 1. Source: Granlund and Montgomery, "Division by
// invariant integers using multiplication", PLDI 1994.
struct Divider {
  u32 divisor;
  u32 multiplier;
  u32 shift;

  __device__ __forceinline__ u32 divide(u32 n) const { return (__umulhi(n, multiplier) + n) >> shift; }

  // n / divisor for any n, by a subroutine, since the hardware has no 64-bit division.
  __device__ __forceinline__ i64 divide(i64 n) const { return n / i64(divisor); }
};

// The digits of n over the radices `axes`, the last axis fastest; the first radix is not used.
template <int COUNT, class Index, class Coordinate>
__device__ __forceinline__ void digits(const Divider* axes, Index n, Coordinate* coordinate) {
#pragma unroll
  for (int axis = COUNT - 1; axis > 0; --axis) {
    const Index quotient = axes[axis].divide(n);
    coordinate[axis] = n - quotient * Index(axes[axis].divisor);
    n = quotient;
  }
  coordinate[0] = n;
}
