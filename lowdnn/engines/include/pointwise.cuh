// Arithmetic of the pointwise modes that is more than one expression. T is f32, f64, i32 or i64.

#pragma once

#include "include/numeric.cuh"

// NaN wins over every number.
template <class T> __device__ __forceinline__ T minimum(T x, T b) { return x < b || x != x ? x : b; }
template <class T> __device__ __forceinline__ T maximum(T x, T b) { return x > b || x != x ? x : b; }

// Integer quotient towards zero; 0 where b is 0. Dividing by -1 is a negation, which wraps at the lowest value.
template <class T> __device__ __forceinline__ T divide(T x, T b) {
  return b == 0 ? T(0) : b == -1 ? T(0) - x : x / b;
}

// x - b * trunc(x / b) in integers; 0 where b is 0.
template <class T> __device__ __forceinline__ T modulo(T x, T b) { return b == 0 || b == -1 ? T(0) : x % b; }

__device__ __forceinline__ f32 modulo(f32 x, f32 b) { return fmod(x, b); }
__device__ __forceinline__ f64 modulo(f64 x, f64 b) { return fmod(x, b); }

// x - b * floor(x / b): the result has b's sign.
template <class T> __device__ __forceinline__ T floor_modulo(T x, T b) {
  const T rest = modulo(x, b);
  return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
}

// min(x, upper) where x > lower, otherwise lower + slope * (x - lower); NaN stays NaN. A slope of 0 gives `lower` for
// minus infinity too.
template <class T> __device__ __forceinline__ T clipped_relu(T x, T lower, T upper, T slope) {
  const T below = slope == T(0) ? lower : lower + slope * (x - lower);
  return x != x ? x : x > lower ? (x < upper ? x : upper) : below;
}

// Its gradient: dy where lower < x < upper, 0 where x >= upper, otherwise slope * dy; a slope of 0 gives 0 for every dy.
template <class T> __device__ __forceinline__ T clipped_relu_gradient(T dy, T x, T lower, T upper, T slope) {
  return x >= upper ? T(0) : x > lower ? dy : slope == T(0) ? T(0) : slope * dy;
}
