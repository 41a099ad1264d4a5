// The transform of 2 N real values x into N complex ones, and back, by N / 16 threads in shared memory:
//
//     spectrum[u] = sum over j < 2 N of x[j] * u^j,    for the N roots u of u^N = i
//
// The other N roots of u^2N = -1 are conjugates of these. A product of two spectra is that of two polynomials of real
// coefficients modulo u^2N + 1: a circular convolution whose wrapped terms change their signs. As u^N = i, each value
// is also the sum over j < N of (x[j] + i x[j + N]) * u^j, so that no step separates a real sequence's spectrum from
// another's, and no root needs another one's value. A product with a conjugate correlates.
//
// A pass splits polynomials modulo u^(R s) - c into R ones modulo u^s - r w^k, where r^R = c and w = exp(2 pi i / R):
//
//     a_k[o] = sum over m < R of (a[m s + o] * r^m) * w^(k m),    o < s
//
// in place. The first pass has radix 2, 4, 8 or 16 and constant roots, all others radix 16. Roots are computed in
// registers: an angle is a fraction with a power of two below, exact in f32, and sincospif errs by one unit in the last
// place. A power r^m is a product r^(4 a) * r^b, whose factors are applied one after the other and come from two
// angles, since a power errs by m times as much as the root. So no pass waits for a table.
// Error: at most 2^-25 log2(2 N), relative to the norm of the spectrum.
//
// A unit of work is a butterfly: 16 complex values, number b of N / 16. In the first pass and after the last one of the
// way back it has the elements b + k N / 16; in the last pass on the way there it has the values 16 b + k, which the
// spectrum in device memory has at k N / 16 + b, so that neighbouring threads have neighbouring values.
// Shared memory: N + N / 16 + 1 complex values of a line. There is a gap after each 16 values and after each line, so
// that neither neighbouring butterflies nor neighbouring lines have bank conflicts.

#pragma once

#include "complex.cuh"

// The least radix that leaves a power of 16, and at least one more pass.
constexpr int first_radix(int points) { return points > 256 ? first_radix(points / 16) : points / 16; }

template <int N> struct RealTransform {
  static constexpr int BUTTERFLIES = N / 16;
  static constexpr int FIRST = first_radix(N);
  static constexpr int LINE = N + BUTTERFLIES + 1;  // values of a line in shared memory
  static_assert(FIRST >= 2 && FIRST <= 16, "at least 32 points");

  static __device__ __forceinline__ int place(int element) { return element + element / 16; }

  // The number of passes of radix 16.
  static constexpr int passes() {
    int count = 0;
    for (int rest = N; rest > FIRST; rest /= 16) ++count;
    return count;
  }

  // Values of a polynomial before pass PASS; pass 0 is the first.
  static constexpr int group(int pass) { return pass == 0 ? N : pass == 1 ? N / FIRST : group(pass - 1) / 16; }

  // The root r of a group before a pass, and its power `far`, in a pass of radix OUTER * INNER = R.
  struct Roots {
    Complex near;  // r
    Complex far;   // r^INNER
  };

  // The roots of group `number` before pass PASS. The digits of the number, the first one of radix FIRST, say which
  // root was taken in each pass before.
  template <int PASS> static __device__ __forceinline__ Roots roots(int number) {
    constexpr int R = PASS == 0 ? FIRST : 16, INNER = R > 4 ? R / 4 : 1;
    constexpr f32 HALF_TURNS = 2.0f * group(PASS) / N / R;
    int reversed = 0;
#pragma unroll
    for (int pass = 1; pass < PASS; ++pass) {
      reversed = reversed * 16 + number % 16;
      number /= 16;
    }
    const f32 angle = HALF_TURNS * (f32(reversed * FIRST + number) + 0.25f);
    Roots roots;
    sincospif(angle, &roots.near.y, &roots.near.x);
    roots.far = roots.near;
    if (INNER > 1) sincospif(INNER * angle, &roots.far.y, &roots.far.x);
    return roots;
  }

  // A polynomial's coefficients at distance s to its remainders, or back without the factor 1 / R: a transform of OUTER
  // values at distances INNER, and one of INNER.
  template <int R> static __device__ __forceinline__ void split_part(Complex (&v)[R], const Roots& roots) {
    constexpr int OUTER = R < 4 ? R : 4, INNER = R / OUTER;
    Complex rows[OUTER][INNER];
#pragma unroll
    for (int q = 0; q < INNER; ++q) {
      Complex column[OUTER];
#pragma unroll
      for (int m = 0; m < OUTER; ++m) column[m] = v[q + m * INNER];
      multiply_by_powers(column, roots.far);
      transform<OUTER, 1>(column);
#pragma unroll
      for (int k = 0; k < OUTER; ++k) rows[k][q] = rotated(column[k], k * q * (16 / R));
    }
#pragma unroll
    for (int k = 0; k < OUTER; ++k) {
      multiply_by_powers(rows[k], roots.near);
      transform<INNER, 1>(rows[k]);
#pragma unroll
      for (int q = 0; q < INNER; ++q) v[k + OUTER * q] = rows[k][q];
    }
  }
  template <int R> static __device__ __forceinline__ void join_part(Complex (&v)[R], const Roots& roots) {
    constexpr int OUTER = R < 4 ? R : 4, INNER = R / OUTER;
    Complex rows[OUTER][INNER];
#pragma unroll
    for (int k = 0; k < OUTER; ++k) {
#pragma unroll
      for (int q = 0; q < INNER; ++q) rows[k][q] = v[k + OUTER * q];
      transform<INNER, -1>(rows[k]);
      multiply_by_powers(rows[k], conjugate(roots.near));
    }
#pragma unroll
    for (int q = 0; q < INNER; ++q) {
      Complex column[OUTER];
#pragma unroll
      for (int k = 0; k < OUTER; ++k) column[k] = rotated(rows[k][q], -k * q * (16 / R));
      transform<OUTER, -1>(column);
      multiply_by_powers(column, conjugate(roots.far));
#pragma unroll
      for (int m = 0; m < OUTER; ++m) v[q + m * INNER] = column[m];
    }
  }

  // One pass, there or back, of a butterfly of group `number`: 16 / R parts, whose values are 16 / R apart.
  template <int PASS> static __device__ __forceinline__ void split(Complex (&v)[16], int number) {
    const Roots of_group = roots<PASS>(number);
    for_each_part<PASS>(v, [&](auto& part) { split_part(part, of_group); });
  }
  template <int PASS> static __device__ __forceinline__ void join(Complex (&v)[16], int number) {
    const Roots of_group = roots<PASS>(number);
    for_each_part<PASS>(v, [&](auto& part) { join_part(part, of_group); });
  }

  template <int PASS, class Work> static __device__ __forceinline__ void for_each_part(Complex (&v)[16], Work work) {
    constexpr int R = PASS == 0 ? FIRST : 16, PARTS = 16 / R;
#pragma unroll
    for (int q = 0; q < PARTS; ++q) {
      Complex part[R];
#pragma unroll
      for (int m = 0; m < R; ++m) part[m] = v[m * PARTS + q];
      work(part);
#pragma unroll
      for (int m = 0; m < R; ++m) v[m * PARTS + q] = part[m];
    }
  }

  // The first of a butterfly's elements and their distance in pass PASS; `number`: its group.
  template <int PASS> struct Elements {
    static constexpr int STRIDE = PASS == 0 ? BUTTERFLIES : group(PASS) / 16;
    int number, first;
    __device__ __forceinline__ explicit Elements(int butterfly)
        : number(butterfly / STRIDE), first(butterfly % STRIDE + butterfly / STRIDE * (16 * STRIDE)) {}

    __device__ __forceinline__ int place(int k) const { return RealTransform::place(first + k * STRIDE); }
    __device__ __forceinline__ void get(const Complex* line, Complex (&v)[16]) const {
#pragma unroll
      for (int k = 0; k < 16; ++k) v[k] = line[place(k)];
    }
    __device__ __forceinline__ void put(Complex* line, const Complex (&v)[16]) const {
#pragma unroll
      for (int k = 0; k < 16; ++k) line[place(k)] = v[k];
    }
  };
};
