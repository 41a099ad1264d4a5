// The transform of 2 N real values x into N complex ones, and back, in registers and shared memory:
//
//     spectrum[u] = sum over j < 2 N of x[j] * u^j,    for the N roots u of u^N = i
//
// The other N roots of u^2N = -1 are conjugates of these. A product of two spectra is that of two polynomials of real
// coefficients modulo u^2N + 1: a circular convolution whose wrapped terms change their signs. As u^N = i, each value
// is also the sum over j < N of (x[j] + i x[j + N]) * u^j, so that no step separates a real sequence's spectrum from
// another's, and no root needs another one's value. A product with a conjugate correlates.
//
// A step splits a polynomial modulo u^2s - c^2 into those modulo u^s - c and u^s + c, whose coefficients are a + c b and
// a - c b: six multiply-adds for two values, whatever c is. A pass of radix R takes log2 R steps in registers, from
// u^(R s) - r^R on; the root of each step is a power of r times a root of unity that is known at compile time. The way
// back is a transform with known roots alone, after which coefficient m of R is divided by r^m, without the factor 1 / R.
// The first pass has the radix that is left, and a constant r. In others, r and r^4 come from a series, for an angle that
// is exact in f32; squares give r^2, r^8 and r^16, since a power errs by m times as much as the root. So no pass waits
// for a table.
// Error: at most 2^-25 log2(2 N), relative to the norm of the spectrum.
//
// A unit of work is a butterfly: VALUES complex values, number b of N / VALUES. In the first pass and after the last one
// of the way back it has the elements b + k N / VALUES. In the last pass on the way there it has the values VALUES b + k,
// which the spectrum in device memory has at k N / VALUES + b, so that neighbouring threads have neighbouring values.
// Value p belongs to the root exp(2 pi i (f + 1/4) / N) where f has the bits of p in reverse order.
// Shared memory: N + N / VALUES + 1 complex values of a line. There is a gap after each VALUES values and after each
// line, so that neither neighbouring butterflies nor neighbouring lines have bank conflicts.

#pragma once

#include "complex.cuh"

constexpr int log2_of(int power) { return power > 1 ? 1 + log2_of(power / 2) : 0; }

// The last `bits` bits of a number in reverse order.
__device__ __forceinline__ int bit_reversed(int number, int bits) {
  return bits == 0 ? 0 : int(__brev(u32(number)) >> (32 - bits));
}

// The least radix that leaves a power of `values`, and at least one more pass.
constexpr int first_radix(int points, int values) {
  return points > values * values ? first_radix(points / values, values) : points / values;
}

template <int N> struct RealTransform {
  static constexpr int VALUES = N >= 512 ? 32 : 16;
  static constexpr int BUTTERFLIES = N / VALUES;
  static constexpr int FIRST = first_radix(N, VALUES);
  static constexpr int LINE = N + BUTTERFLIES + 1;  // values of a line in shared memory
  static_assert(FIRST >= 2 && FIRST <= VALUES, "at least 32 points");

  static __device__ __forceinline__ int place(int element) { return element + element / VALUES; }

  // The number of passes of radix VALUES.
  static constexpr int passes() {
    int count = 0;
    for (int rest = N; rest > FIRST; rest /= VALUES) ++count;
    return count;
  }

  // Values of a polynomial before pass PASS; pass 0 is the first.
  static constexpr int group(int pass) { return pass == 0 ? N : pass == 1 ? N / FIRST : group(pass - 1) / VALUES; }

  // The powers r, r^2, r^4... of a root, as far as a pass of radix R needs them.
  template <class Root, int R> struct Powers { Root of[log2_of(R)]; };

  // The powers of the root of group `number` before pass PASS.
  template <int PASS> static __device__ __forceinline__ auto powers(int number) {
    if constexpr (PASS == 0) {
      Powers<KnownRoot, FIRST> powers;
#pragma unroll
      for (int bit = 0; bit < log2_of(FIRST); ++bit) powers.of[bit] = {KnownRoot::TURN / 4 / FIRST << bit};
      return powers;
    } else {
      constexpr int GROUPS = N / group(PASS), BITS = log2_of(VALUES);
      const f32 angle = 2.0f / GROUPS / VALUES * (f32(bit_reversed(number, log2_of(GROUPS))) + 0.25f);
      Powers<Complex, VALUES> powers;
#pragma unroll
      for (int bit = 0; bit < BITS; ++bit) {
        if (bit == 0 || bit == 2) powers.of[bit] = half_turns(f32(1 << bit) * angle);
        else powers.of[bit] = powers.of[bit - 1] * powers.of[bit - 1];
      }
      return powers;
    }
  }

  // A polynomial's coefficients at distance s to its remainders, by step STEP and those that follow. The remainder of
  // node n of a step belongs to the root whose number has the bits of n in reverse order.
  template <int STEP, class Root, int R>
  static __device__ __forceinline__ void split_part(Complex (&v)[R], const Powers<Root, R>& powers) {
    constexpr int NODES = 1 << STEP, DISTANCE = R / 2 / NODES;
    if constexpr (DISTANCE > 0) {
#pragma unroll
      for (int node = 0; node < NODES; ++node) {
        const KnownRoot turn = {KnownRoot::TURN / 2 / NODES * bit_reversed(node, STEP)};
        const Root root = powers.of[log2_of(DISTANCE)] * turn;
#pragma unroll
        for (int j = 0; j < DISTANCE; ++j) butterfly(v[2 * node * DISTANCE + j], v[(2 * node + 1) * DISTANCE + j], root);
      }
      split_part<STEP + 1>(v, powers);
    }
  }

  // Back, without the factor 1 / R, by the steps of values at DISTANCE and farther.
  template <int DISTANCE, class Root, int R>
  static __device__ __forceinline__ void join_part(Complex (&v)[R], const Powers<Root, R>& powers) {
    if constexpr (DISTANCE < R) {
#pragma unroll
      for (int j = 0; j < DISTANCE; ++j) {
        const KnownRoot root = {-KnownRoot::TURN / 2 / DISTANCE * j};
#pragma unroll
        for (int first = j; first < R; first += 2 * DISTANCE) butterfly(v[first], v[first + DISTANCE], root);
      }
      join_part<2 * DISTANCE>(v, powers);
    } else {
      divide_by_powers<0, log2_of(R)>(v, powers, conjugate(powers.of[0]));
    }
  }

  // Divides v[FIRST_ONE + m] by r^(FIRST_ONE + m), for m < 2^BITS.  inverse: 1 / r^FIRST_ONE, if that is not 1.
  template <int FIRST_ONE, int BITS, class Root, int R>
  static __device__ __forceinline__ void divide_by_powers(Complex (&v)[R], const Powers<Root, R>& powers, Root inverse) {
    if constexpr (BITS > 0) {
      const Root half = conjugate(powers.of[BITS - 1]);
      divide_by_powers<FIRST_ONE, BITS - 1>(v, powers, inverse);
      divide_by_powers<FIRST_ONE + (1 << (BITS - 1)), BITS - 1>(v, powers, FIRST_ONE == 0 ? half : inverse * half);
    } else if constexpr (FIRST_ONE > 0) {
      v[FIRST_ONE] = v[FIRST_ONE] * inverse;
    }
  }

  // One pass, there or back, of a butterfly of group `number`. ARE_REAL: whether all imaginary parts are zero.
  template <int PASS, bool ARE_REAL = false>
  static __device__ __forceinline__ void split(Complex (&v)[VALUES], int number) {
    const auto of_group = powers<PASS>(number);
    for_each_part<PASS>(v, [&](auto& part) {
      if constexpr (ARE_REAL) {
        constexpr int DISTANCE = FIRST / 2;
#pragma unroll
        for (int j = 0; j < DISTANCE; ++j) {
          real_butterfly(part[j], part[j + DISTANCE], of_group.of[log2_of(DISTANCE)]);
        }
      }
      split_part<ARE_REAL>(part, of_group);
    });
  }
  template <int PASS> static __device__ __forceinline__ void join(Complex (&v)[VALUES], int number) {
    const auto of_group = powers<PASS>(number);
    for_each_part<PASS>(v, [&](auto& part) { join_part<1>(part, of_group); });
  }

  // Calls work(part) for the VALUES / R parts of a butterfly in a pass of radix R, whose values are VALUES / R apart.
  template <int PASS, class Work>
  static __device__ __forceinline__ void for_each_part(Complex (&v)[VALUES], Work work) {
    constexpr int R = PASS == 0 ? FIRST : VALUES, PARTS = VALUES / R;
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

  // The elements of a butterfly in pass PASS.  number: its group.  first: the place of the first one.
  template <int PASS> struct Elements {
    static constexpr int STRIDE = PASS == 0 ? BUTTERFLIES : group(PASS) / VALUES;
    int number, first;
    __device__ __forceinline__ explicit Elements(int butterfly)
        : number(butterfly / STRIDE),
          first(RealTransform::place(butterfly % STRIDE + butterfly / STRIDE * (VALUES * STRIDE))) {}

    // No gap lies within the first STRIDE elements, or the stride is that of gaps: distances do not depend on `first`.
    __device__ __forceinline__ int place(int k) const { return first + RealTransform::place(k * STRIDE); }
    __device__ __forceinline__ void get(const Complex* line, Complex (&v)[VALUES]) const {
#pragma unroll
      for (int k = 0; k < VALUES; ++k) v[k] = line[place(k)];
    }
    __device__ __forceinline__ void put(Complex* line, const Complex (&v)[VALUES]) const {
#pragma unroll
      for (int k = 0; k < VALUES; ++k) line[place(k)] = v[k];
    }
  };
};
