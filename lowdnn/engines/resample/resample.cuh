// The taps of windows along an axis.
//
// Output o of an axis has the taps first(o) .. end(o) - 1, which are positions of the image:
//
//     first(o) = floor((o * step - offset) / unit)     end(o) = floor((o * step - offset + reach) / unit)
//
// Positions outside the image are skipped, hold 0, or take the value of the nearest one inside: SKIP, ZERO, CLAMP.

#pragma once

#include "include/math/division.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

enum Padding : int { SKIP, ZERO, CLAMP };
// The divisor of a sum: none, the same for all outputs, an output's taps, its taps inside the image.
enum Divisor : int { NONE, ALL, TAPS, INSIDE };

struct Range {
  i32 begin, end;
  __device__ __forceinline__ i32 count() const { return end > begin ? end - begin : 0; }
};

__device__ __forceinline__ i32 clamp(i32 position, i32 extent) { return min(max(position, 0), extent - 1); }

struct TapAxis {
  i32 inputs, outputs;      // extents of image and outputs
  i32 span;                 // taps of the largest window
  i32 start, bias, reach;   // start = bias * unit - offset >= 0
  i32 low, high, low_bias;  // numerators of `readers` for position 0, plus low_bias * step to be >= 0
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

  // The taps that a kernel loops over.
  template <int OUTSIDE> __device__ __forceinline__ Range walked(i32 output) const {
    return OUTSIDE == SKIP ? inside(output) : taps(output);
  }

  // The weight of `tap`, one of the two taps between which the output lies.
  template <class T> __device__ __forceinline__ T weight(i32 output, i32 tap) const {
    const i32 begin = first(output), rest = output * i32(step.divisor) + start - (begin + bias) * i32(unit.divisor);
    const T share = T(rest) * T(fraction);
    return tap == begin ? T(1) - share : share;
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

  // The taps of an output, counted from its first one, that read `position`.
  template <int OUTSIDE> __device__ __forceinline__ Range reading(i32 output, i32 position) const {
    const i32 tap = position - first(output);
    if (OUTSIDE != CLAMP) return {tap, tap + 1};
    const i32 count = taps(output).count();
    return {position == 0 ? 0 : max(tap, 0), position == inputs - 1 ? count : min(tap + 1, count)};
  }

  // The weight of `position` in an interpolated output: 1 minus its distance from the point that the output samples.
  template <class T> __device__ __forceinline__ T closeness(i32 output, i32 position) const {
    const i32 one = i32(unit.divisor), sample = output * i32(step.divisor) + start - bias * one;
    const i32 distance = min(max(sample, 0), (inputs - 1) * one) - position * one;
    return maximum(T(1) - T(abs(distance)) * T(fraction), T(0));
  }

  // The factor of an output's divisor along this axis.
  template <int DIVIDES> __device__ __forceinline__ i32 divisor(i32 output) const {
    return DIVIDES == INSIDE ? inside(output).count() : taps(output).count();
  }
};

// Divides sums by a whole number; in f32 rounded correctly for numbers up to 2^18. The reciprocal is the sum of two
// numbers, both positive so that an infinite sum stays infinite.
template <class T> struct Quotient {
  T divisor;
  __device__ __forceinline__ explicit Quotient(T divisor) : divisor(divisor) {}
  __device__ __forceinline__ T of(T sum) const { return sum / divisor; }
};
template <> struct Quotient<f32> {
  f32 high, low;
  __device__ __forceinline__ explicit Quotient(f32 divisor) : high(reciprocal(divisor) * (1.0f - 0x1p-22f)) {
    low = fmaf(-divisor, high, 1.0f) * high;
  }
  __device__ __forceinline__ f32 of(f32 sum) const { return fmaf(sum, high, sum * low); }
};

// The index of a tap in its window, row-major over the spans.
__device__ __forceinline__ i32 window_index(const TapAxis (&axes)[3], i32 plane, i32 row, i32 column) {
  return (plane * axes[1].span + row) * axes[2].span + column;
}

// The argmax of a window in which no value exceeds the lowest: its first tap that counts.
template <int OUTSIDE> __device__ __forceinline__ i32 first_index(const TapAxis (&axes)[3], const i32 (&output)[3]) {
  if constexpr (OUTSIDE != SKIP) {
    return 0;
  } else {
    i32 taps[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const Range inside = axes[i].inside(output[i]);
      if (inside.begin >= inside.end) return 0;
      taps[i] = inside.begin - axes[i].first(output[i]);
    }
    return window_index(axes, taps[0], taps[1], taps[2]);
  }
}
