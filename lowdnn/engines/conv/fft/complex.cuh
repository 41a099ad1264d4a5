// Complex numbers in f32, roots of unity, and butterflies of two numbers.

#pragma once

#include "include/numeric.cuh"

struct alignas(8) Complex { f32 x, y; };

__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.x + b.x, a.y + b.y}; }
__device__ __forceinline__ Complex operator-(Complex a, Complex b) { return {a.x - b.x, a.y - b.y}; }
__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
__device__ __forceinline__ Complex conjugate(Complex a) { return {a.x, -a.y}; }

// a + b * c.
__device__ __forceinline__ Complex add_product(Complex a, Complex b, Complex c) {
  return {fmaf(-b.y, c.y, fmaf(b.x, c.x, a.x)), fmaf(b.y, c.x, fmaf(b.x, c.y, a.y))};
}

// exp(pi i x) for |x| <= 1/2, by its series; each part errs by at most one unit in the last place of 1.
__device__ __forceinline__ Complex half_turns(f32 x) {
  constexpr f32 COSINES[] = {1.929574309e-3f, -2.580689139e-2f, 0.2353306304f, -1.335262769f, 4.058712126f,
                             -4.934802201f,   1.0f};
  constexpr f32 SINES[] = {4.663028058e-4f, -7.370430946e-3f, 8.214588661e-2f, -0.5992645293f, 2.550164040f,
                           -5.167712780f,   3.141592654f};
  const f32 square = x * x;
  f32 cosine = COSINES[0], sine = SINES[0];
#pragma unroll
  for (int term = 1; term < 7; ++term) {
    cosine = fmaf(square, cosine, COSINES[term]);
    sine = fmaf(square, sine, SINES[term]);
  }
  return {cosine, x * sine};
}

// A root that is known after unrolling: exp(2 pi i turn / 128).
struct KnownRoot {
  static constexpr int TURN = 128;
  int turn;
};

// sin(2 pi k / 128) for k <= 32.
struct Sines {
  f32 of[KnownRoot::TURN / 4 + 1];
  constexpr Sines() : of() {
    for (int k = 0; k <= KnownRoot::TURN / 4; ++k) {
      const f64 x = 6.28318530717958647693 / KnownRoot::TURN * k;
      f64 term = x, sum = 0;
      for (int power = 1; power < 24; power += 2) {
        sum += term;
        term *= -x * x / ((power + 1) * (power + 2));
      }
      of[k] = f32(sum);
    }
  }
};
constexpr Sines SINES;

__device__ __forceinline__ KnownRoot operator*(KnownRoot a, KnownRoot b) { return {a.turn + b.turn}; }
__device__ __forceinline__ KnownRoot conjugate(KnownRoot a) { return {-a.turn}; }

// Exact where the root is 1, i, -1 or -i.
__device__ __forceinline__ Complex operator*(Complex v, KnownRoot root) {
  constexpr int QUARTER = KnownRoot::TURN / 4;
  const int rest = root.turn & (QUARTER - 1), quarters = root.turn / QUARTER - (root.turn % QUARTER < 0);
  if (rest == QUARTER / 2) v = {(v.x - v.y) * SINES.of[rest], (v.x + v.y) * SINES.of[rest]};
  else if (rest) v = v * Complex{SINES.of[QUARTER - rest], SINES.of[rest]};
  if (quarters & 1) v = {-v.y, v.x};
  return quarters & 2 ? Complex{-v.x, -v.y} : v;
}

// a + b * root and a - b * root in place of a and b, in six multiply-adds.
__device__ __forceinline__ void butterfly(Complex& a, Complex& b, Complex root) {
  const Complex sum = add_product(a, b, root);
  b = {fmaf(2.0f, a.x, -sum.x), fmaf(2.0f, a.y, -sum.y)};
  a = sum;
}
__device__ __forceinline__ void butterfly(Complex& a, Complex& b, KnownRoot root) {
  if (root.turn % (KnownRoot::TURN / 4) != 0) return butterfly(a, b, Complex{1.0f, 0.0f} * root);
  const Complex turned = b * root;
  b = a - turned;
  a = a + turned;
}
// A butterfly of numbers whose imaginary parts are zero.
__device__ __forceinline__ void real_butterfly(Complex& a, Complex& b, KnownRoot known) {
  const Complex root = Complex{1.0f, 0.0f} * known;
  const f32 real = a.x, other = b.x;
  a = {fmaf(root.x, other, real), root.y * other};
  b = {fmaf(-root.x, other, real), -a.y};
}
