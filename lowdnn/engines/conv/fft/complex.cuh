// Complex numbers in f32, and discrete Fourier transforms of 2 and 4 of them in registers.

#pragma once

#include "include/numeric.cuh"

struct alignas(8) Complex { f32 x, y; };

__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ Complex operator-(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }
__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
__device__ __forceinline__ Complex conjugate(Complex a) { return {a.x, -a.y}; }

// a + b * conjugate(c).
__device__ __forceinline__ Complex add_correlated(Complex a, Complex b, Complex c) {
  return {fmaf(b.x, c.x, fmaf(b.y, c.y, a.x)), fmaf(b.y, c.x, fmaf(-b.x, c.y, a.y))};
}

// v * exp(2 pi i j / 16) for a j that is known after unrolling; exact where that is 1, i, -1 or -i.
__device__ __forceinline__ Complex rotated(Complex v, int j) {
  constexpr f32 COS = 0.92387953251128675613f, SIN = 0.38268343236508977173f, HALF_ROOT = 0.70710678118654752440f;
  const int sixteenths = j & 3, quarters = j >> 2 & 3;
  if (sixteenths == 1) v = v * Complex{COS, SIN};
  if (sixteenths == 2) v = {(v.x - v.y) * HALF_ROOT, (v.x + v.y) * HALF_ROOT};
  if (sixteenths == 3) v = v * Complex{SIN, COS};
  if (quarters % 2 == 1) v = {-v.y, v.x};
  return quarters / 2 == 1 ? Complex{-v.x, -v.y} : v;
}

// v[k] = sum over m of v[m] * exp(SIGN * 2 pi i k m / R), for R = 1, 2 and 4.
template <int R, int SIGN> __device__ __forceinline__ void transform(Complex (&v)[R]) {
  static_assert(R == 1 || R == 2 || R == 4, "larger ones consist of these");
  if constexpr (R == 2) {
    const Complex sum = v[0] + v[1];
    v[1] = v[0] - v[1];
    v[0] = sum;
  } else if constexpr (R == 4) {
    const Complex even = v[0] + v[2], odd = v[1] + v[3];
    const Complex even_difference = v[0] - v[2], odd_difference = rotated(v[1] - v[3], 4 * SIGN);
    v[0] = even + odd;
    v[1] = even_difference + odd_difference;
    v[2] = even - odd;
    v[3] = even_difference - odd_difference;
  }
}

// v[m] *= root^m.
template <int R> __device__ __forceinline__ void multiply_by_powers(Complex (&v)[R], Complex root) {
  Complex power = root;
#pragma unroll
  for (int m = 1; m < R; ++m) {
    v[m] = v[m] * power;
    if (m + 1 < R) power = power * root;
  }
}
