// Arithmetic of the pointwise modes that need more than one expression. T is f32, f64, i32 or i64.

#pragma once

#include "include/exponential.cuh"
#include "include/numeric.cuh"

// The minimum and maximum, which are NaN if either operand is; in f32 one instruction.
template <class T> __device__ __forceinline__ T minimum(T x, T b) { return x < b || x != x ? x : b; }
template <class T> __device__ __forceinline__ T maximum(T x, T b) { return x > b || x != x ? x : b; }
__device__ __forceinline__ f32 minimum(f32 x, f32 b) {
  f32 result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(b));
  return result;
}
__device__ __forceinline__ f32 maximum(f32 x, f32 b) {
  f32 result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(b));
  return result;
}

// The integer quotient, rounded towards zero; 0 if b is 0. Division by -1 is a negation, which wraps at the lowest
// value.
template <class T> __device__ __forceinline__ T divide(T x, T b) {
  return b == 0 ? T(0) : b == -1 ? T(0) - x : x / b;
}

// x - b * trunc(x / b) in integers; 0 if b is 0.
template <class T> __device__ __forceinline__ T modulo(T x, T b) { return b == 0 || b == -1 ? T(0) : x % b; }

__device__ __forceinline__ f32 modulo(f32 x, f32 b) { return fmod(x, b); }
__device__ __forceinline__ f64 modulo(f64 x, f64 b) { return fmod(x, b); }

// x - b * floor(x / b): the result has b's sign.
template <class T> __device__ __forceinline__ T floor_modulo(T x, T b) {
  const T rest = modulo(x, b);
  return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
}

// x if x > 0, otherwise 0; NaN stays NaN.
__device__ __forceinline__ f32 relu(f32 x) { return maximum(x, 0.0f); }
template <class T> __device__ __forceinline__ T relu(T x) { return x != x || x > T(0) ? x : T(0); }

// min(x, upper) if x > lower, otherwise lower + slope * (x - lower); NaN stays NaN. A slope of 0 gives `lower` for
// minus infinity too.
template <class T> __device__ __forceinline__ T clipped_relu(T x, T lower, T upper, T slope) {
  const T below = slope == T(0) ? lower : lower + slope * (x - lower);
  return x != x ? x : x > lower ? (x < upper ? x : upper) : below;
}

// The gradient of clipped_relu: dy if lower < x < upper, 0 if x >= upper, otherwise slope * dy; a slope of 0 gives 0
// for every dy.
template <class T> __device__ __forceinline__ T clipped_relu_gradient(T dy, T x, T lower, T upper, T slope) {
  return x >= upper ? T(0) : x > lower ? dy : slope == T(0) ? T(0) : slope * dy;
}

// 1 / sqrt(x); in f64 by two correctly rounded operations, since the instruction's accuracy is not specified.
__device__ __forceinline__ f32 inverse_sqrt(f32 x) { return rsqrt(x); }
__device__ __forceinline__ f64 inverse_sqrt(f64 x) { return 1.0 / sqrt(x); }

// The normal distribution function (1 + erf(x / sqrt 2)) / 2. In f32 its error is at most 5e-8, and relatively 6e-6
// down to x = -6. It needs half the instructions of erf, without cancellation in the negative tail. For z >= 0, 1 -
// cdf(z) = 2^p(z), with a polynomial p of degree 10 that minimises the greatest error of the distribution over [0, 6];
// beyond 6 it keeps falling.
__device__ __forceinline__ f32 normal_cdf(f32 x) {
  const f32 z = fabs(x);
  f32 p = -0x1.a2d916p-26f;
  p = fmaf(p, z, 0x1.934722p-21f);
  p = fmaf(p, z, -0x1.4ba818p-17f);
  p = fmaf(p, z, 0x1.27f21cp-14f);
  p = fmaf(p, z, -0x1.115fb4p-12f);
  p = fmaf(p, z, -0x1.3478e2p-15f);
  p = fmaf(p, z, 0x1.ca0aa2p-8f);
  p = fmaf(p, z, -0x1.add214p-5f);
  p = fmaf(p, z, -0x1.d63bc2p-2f);
  p = fmaf(p, z, -0x1.26aed4p+0f);
  p = fmaf(p, z, -1.0f);
  const f32 tail = power_of_two(p);
  return x < 0.0f ? tail : 1.0f - tail;
}
__device__ __forceinline__ f64 normal_cdf(f64 x) { return 0.5 * erfc(x * -0.70710678118654752440); }

// The derivative of gelu: cdf(x) + x * density(x).
template <class T> __device__ __forceinline__ T gelu_slope(T x) {
  return normal_cdf(x) + x * T(0.39894228040143267794) * exp(T(-0.5) * x * x);
}

// 1 / x; in f32 within one unit in the last place.
__device__ __forceinline__ f32 reciprocal(f32 x) {
  f32 result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ f64 reciprocal(f64 x) { return 1.0 / x; }

// 1 / (1 + exp(-x)).
template <class T> __device__ __forceinline__ T sigmoid(T x) { return reciprocal(T(1) + exp(-x)); }

// sigmoid(x) * (1 - sigmoid(x)), without cancellation.
template <class T> __device__ __forceinline__ T sigmoid_slope(T x) {
  const T e = exp(-fabs(x));
  const T r = reciprocal(T(1) + e);
  return e * r * r;
}

// 1 - tanh(x)^2.
template <class T> __device__ __forceinline__ T tanh_slope(T x) { return T(4) * sigmoid_slope(T(2) * x); }

// x * sigmoid(beta * x), and its derivative.
template <class T> __device__ __forceinline__ T swish(T x, T beta) { return x * sigmoid(beta * x); }
template <class T> __device__ __forceinline__ T swish_slope(T x, T beta) {
  return sigmoid(beta * x) + beta * x * sigmoid_slope(beta * x);
}

// log(1 + exp(beta * x)) / beta.
template <class T> __device__ __forceinline__ T softplus(T x, T beta) {
  const T z = beta * x;
  return (maximum(z, T(0)) + log1p(exp(-fabs(z)))) / beta;
}

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u) with u = sqrt(2 / pi) * (x + 0.044715 x^3), and its derivative. The function
// uses the fast exponential, which adds no more to the error than the roundings of its argument.
template <class T> __device__ __forceinline__ T gelu_tanh_argument(T x) {
  constexpr f64 SCALE = 2 * 0.79788456080286535588;
  return x * (T(SCALE) + T(SCALE * 0.044715) * (x * x));
}
template <class T> __device__ __forceinline__ T gelu_tanh(T x) {
  return x * reciprocal(T(1) + exponential(-gelu_tanh_argument(x)));
}
template <class T> __device__ __forceinline__ T gelu_tanh_slope(T x) {
  const T inner = T(2 * 0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
  return sigmoid(gelu_tanh_argument(x)) + x * sigmoid_slope(gelu_tanh_argument(x)) * inner;
}
