// What the resampling kernels share: the taps of windows along an axis, sums and maxima over them.
//
// Output o of an axis has the taps first(o) .. end(o) - 1, positions of the image:
//
//     first(o) = floor((o * step - offset) / unit)     end(o) = floor((o * step - offset + reach) / unit)
//
// Positions outside the image are left out, hold 0, or stand for the nearest one inside: SKIP, ZERO, CLAMP.

#pragma once

#include "include/division.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

enum Padding : int { SKIP, ZERO, CLAMP };
enum Divisor : int { NONE, ALL, TAPS, INSIDE };  // of a sum: the same for all outputs, each output's own taps

struct Range {
  i32 begin, end;
  __device__ __forceinline__ i32 count() const { return end > begin ? end - begin : 0; }
};

__device__ __forceinline__ i32 clamp(i32 position, i32 extent) { return min(max(position, 0), extent - 1); }

struct TapAxis {
  i32 inputs, outputs;      // extents of image and outputs
  i32 span;                 // taps of the largest window
  i32 start, bias, reach;   // start = bias * unit - offset >= 0
  i32 low, high, low_bias;  // of `readers`: numerators for position 0, shifted by low_bias * step to be >= 0
  Divider unit, step;
  f64 fraction;             // 1 / unit

  __device__ __forceinline__ i32 first(i32 output) const {
    return i32(unit.divide(u32(output * i32(step.divisor) + start))) - bias;
  }
  __device__ __forceinline__ i32 end(i32 output) const {
    return i32(unit.divide(u32(output * i32(step.divisor) + start + reach))) - bias;
  }
  __device__ __forceinline__ Range taps(i32 output) const { return {first(output), end(output)}; }

  // The taps inside the image.
  __device__ __forceinline__ Range inside(i32 output) const {
    return {max(first(output), 0), min(end(output), inputs)};
  }

  // The taps that a kernel walks over.
  template <int OUTSIDE> __device__ __forceinline__ Range walked(i32 output) const {
    return OUTSIDE == SKIP ? inside(output) : taps(output);
  }

  // The share of the second of two taps.
  template <class T> __device__ __forceinline__ T share(i32 output) const {
    const i32 rest = output * i32(step.divisor) + start - (first(output) + bias) * i32(unit.divisor);
    return T(rest) * T(fraction);
  }

  // The outputs that have `position` among their taps.
  template <int OUTSIDE> __device__ __forceinline__ Range readers(i32 position) const {
    const i32 numerator = position * i32(unit.divisor);
    Range range = {i32(step.divide(u32(numerator + low))) - low_bias,
                   i32(step.divide(u32(numerator + high))) - low_bias + 1};
    if (OUTSIDE == CLAMP && position == 0) range.begin = 0;
    if (OUTSIDE == CLAMP && position == inputs - 1) range.end = outputs;
    return {max(range.begin, 0), min(range.end, outputs)};
  }

  // Of an output's taps, counted from its first one, those that read `position`.
  template <int OUTSIDE> __device__ __forceinline__ Range reading(i32 output, i32 position) const {
    const i32 tap = position - first(output);
    if (OUTSIDE != CLAMP) return {tap, tap + 1};
    const i32 count = taps(output).count();
    return {position == 0 ? 0 : max(tap, 0), position == inputs - 1 ? count : min(tap + 1, count)};
  }

  // The weight of `position` in an interpolated output: 1 less its distance from where that samples the image.
  template <class T> __device__ __forceinline__ T closeness(i32 output, i32 position) const {
    const i32 one = i32(unit.divisor), sample = output * i32(step.divisor) + start - bias * one;
    const i32 distance = min(max(sample, 0), (inputs - 1) * one) - position * one;
    return maximum(T(1) - T(abs(distance)) * T(fraction), T(0));
  }

  // What the axis adds to the divisor of an output, as a factor.
  template <int DIVIDES> __device__ __forceinline__ i32 divisor(i32 output) const {
    return DIVIDES == INSIDE ? inside(output).count() : taps(output).count();
  }
};

// Adds where `place` is `wanted`: two instructions.
__device__ __forceinline__ void add_where(i32 place, i32 wanted, f32 term, f32& sum) {
  asm("{ .reg .pred p; setp.eq.s32 p, %1, %2; @p add.f32 %0, %0, %3; }"
      : "+f"(sum) : "r"(place), "r"(wanted), "f"(term));
}
__device__ __forceinline__ void add_where(i32 place, i32 wanted, f64 term, f64& sum) {
  asm("{ .reg .pred p; setp.eq.s32 p, %1, %2; @p add.f64 %0, %0, %3; }"
      : "+d"(sum) : "r"(place), "r"(wanted), "d"(term));
}

// A place in a window, row-major over the spans.
__device__ __forceinline__ i32 place_of(const TapAxis (&axes)[3], i32 plane, i32 row, i32 column) {
  return (plane * axes[1].span + row) * axes[2].span + column;
}

// The lowest value, which no value is below.
template <class T> __device__ __forceinline__ T lowest();
template <> __device__ __forceinline__ f32 lowest<f32>() { return __uint_as_float(0xff800000); }
template <> __device__ __forceinline__ f64 lowest<f64>() { return __longlong_as_double(0xfff0000000000000ll); }
template <> __device__ __forceinline__ i32 lowest<i32>() { return i32(0x80000000); }

// Two neighbouring 16-bit floats, of which maxima are taken as they are.
template <class X> struct Pair {
  u32 bits;
  __device__ __forceinline__ X half(int i) const { return X{u16(bits >> 16 * i)}; }
};
template <> __device__ __forceinline__ Pair<bf16> lowest<Pair<bf16>>() { return {0xff80ff80}; }
template <> __device__ __forceinline__ Pair<f16> lowest<Pair<f16>>() { return {0xfc00fc00}; }

// The larger one; NaN wins, or loses to every number.
template <bool KEEPS_NAN, class T> __device__ __forceinline__ T larger(T best, T value) {
  return value > best || (KEEPS_NAN && value != value) ? value : best;
}
template <bool KEEPS_NAN> __device__ __forceinline__ f32 larger(f32 best, f32 value) {
  f32 result;
  if (KEEPS_NAN) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(best), "f"(value));
  } else {
    asm("max.f32 %0, %1, %2;" : "=f"(result) : "f"(best), "f"(value));
  }
  return result;
}

template <bool KEEPS_NAN> __device__ __forceinline__ Pair<bf16> larger(Pair<bf16> best, Pair<bf16> value) {
  Pair<bf16> result;
  if (KEEPS_NAN) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result.bits) : "r"(best.bits), "r"(value.bits));
  } else {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(result.bits) : "r"(best.bits), "r"(value.bits));
  }
  return result;
}
template <bool KEEPS_NAN> __device__ __forceinline__ Pair<f16> larger(Pair<f16> best, Pair<f16> value) {
  Pair<f16> result;
  if (KEEPS_NAN) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result.bits) : "r"(best.bits), "r"(value.bits));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(result.bits) : "r"(best.bits), "r"(value.bits));
  }
  return result;
}

// The largest of values that are taken one after the other, for each of LANES, and where it was. Of equal ones the
// first stays; `begin` says where that is if no value is above the lowest.
template <class T, int LANES, bool KEEPS_NAN, bool HAS_PLACE> struct Maximum {
  T value[LANES];
  i32 place[LANES];

  __device__ __forceinline__ void begin(i32 first_place) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) {
      value[v] = lowest<T>();
      place[v] = first_place;
    }
  }
  template <class W> __device__ __forceinline__ void take(const T (&values)[LANES], W, i32 at) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) {
      if constexpr (HAS_PLACE) {
        const bool wins = values[v] > value[v] || (KEEPS_NAN && values[v] != values[v] && value[v] == value[v]);
        value[v] = wins ? values[v] : value[v];
        place[v] = wins ? at : place[v];
      } else {
        value[v] = larger<KEEPS_NAN>(value[v], values[v]);
      }
    }
  }
};

// Their sum, or their weighted sum.
template <class T, int LANES, bool IS_WEIGHTED> struct Sum {
  T value[LANES];

  __device__ __forceinline__ void begin(i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] = T(0);
  }
  __device__ __forceinline__ void take(const T (&values)[LANES], T weight, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] += IS_WEIGHTED ? weight * values[v] : values[v];
  }
};

// What a maximum's place is where no value is above the lowest: that of the first tap that counts.
template <int OUTSIDE> __device__ __forceinline__ i32 first_place(const TapAxis (&axes)[3], const i32 (&output)[3]) {
  if (OUTSIDE != SKIP) return 0;
  i32 taps[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const Range inside = axes[i].inside(output[i]);
    if (inside.begin >= inside.end) return 0;
    taps[i] = inside.begin - axes[i].first(output[i]);
  }
  return place_of(axes, taps[0], taps[1], taps[2]);
}

// LANES elements that lie `stride` apart, side by side where NEIGHBOURS; zero bits where they do not exist.
template <bool NEIGHBOURS, class X, int LANES>
__device__ __forceinline__ void load_lanes(X (&stored)[LANES], const X* at, i64 stride, bool exists) {
  if (!exists) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) stored[v] = X{};
  } else if constexpr (NEIGHBOURS) {
    load<Repeated, LANES>(stored, at);
  } else {
#pragma unroll
    for (int v = 0; v < LANES; ++v) {
      X one[1];
      load<Repeated, 1>(one, at + v * stride);
      stored[v] = one[0];
    }
  }
}

// The same as numbers of the compute type, of elements that exist.
template <bool NEIGHBOURS, class T, class X, int LANES>
__device__ __forceinline__ void read_lanes(T (&values)[LANES], const X* at, i64 stride) {
  X stored[LANES];
  load_lanes<NEIGHBOURS>(stored, at, stride, true);
#pragma unroll
  for (int v = 0; v < LANES; ++v) values[v] = convert<T>(stored[v]);
}
