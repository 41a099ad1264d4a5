// silu(z) = z * sigmoid(z) and its derivative, by the fast exponential: it adds no more to the error than the rounding of
// z, which is a sum, does.

#pragma once

#include "include/pointwise.cuh"

template <class T> __device__ __forceinline__ T fast_sigmoid(T z) { return reciprocal(T(1) + exponential(-z)); }
template <class T> __device__ __forceinline__ T silu(T z) { return z * fast_sigmoid(z); }
template <class T> __device__ __forceinline__ T silu_slope(T z) {
  const T s = fast_sigmoid(z);
  return s * (T(1) + z * (T(1) - s));
}
