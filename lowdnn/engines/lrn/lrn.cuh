// The common part of the kernels of local response normalisation: a thread has RUN neighbouring channels of one
// position in registers, with the channels around them that their windows reach.
//
// Block: THREADS threads.
// Launch: ceil(groups / THREADS) blocks; the digits of a group over `axes` are the coordinates along the tensors' axes,
// outermost in memory first, channels in runs.
// Macros: COMPUTE (type) WINDOW (channels) RUN THREADS; CHANNEL_AXIS: the digit of the channels; INDEX: u32 up to 2^31
// groups, otherwise i64.

#pragma once

#include "include/math/division.cuh"
#include "include/vector.cuh"

typedef COMPUTE Value;

// Channels of a window before its centre.
constexpr int BEFORE = (WINDOW - 1) / 2;
// Channels of a window after its centre.
constexpr int AFTER = WINDOW - 1 - BEFORE;

struct Lrn {
  i64 groups, channels;
  Value scale, exponent, k;  // alpha / n, -beta
  Divider axes[5];
};

// A tensor's strides in elements: those of the digits, and that of one channel.
struct AxisStrides {
  i64 digits[5], channel;

  __device__ __forceinline__ i64 of(const i64 (&coordinate)[5]) const {
    i64 offset = 0;
#pragma unroll
    for (int axis = 0; axis < 5; ++axis) offset += coordinate[axis] * digits[axis];
    return offset;
  }
};

// Elements of an access to T along the channels, which are contiguous unless WIDTH is 0.
template <class T, int WIDTH> constexpr int STEP = WIDTH == 0 ? 1 : access_width(WIDTH, RUN, sizeof(T));

// A run of channels that begins with the channel `first`, with LOW before and HIGH after it; 0 where there are none.
template <class T, int WIDTH, int LOW, int HIGH> struct Run {
  static constexpr int COUNT = LOW + RUN + HIGH, S = STEP<T, WIDTH>;
  Value values[COUNT];

  __device__ __forceinline__ Run(const T* run, i64 stride, i64 first, i64 channels) {
    constexpr int FROM = -((LOW + S - 1) / S * S), TO = RUN + HIGH;
#pragma unroll
    for (int i = FROM; i < TO; i += S) {
      T raw[S] = {};
      load_where<S>(u64(first + i) < u64(channels), raw, run + i * (WIDTH == 0 ? stride : 1));
#pragma unroll
      for (int j = 0; j < S; ++j) {
        if (LOW + i + j >= 0 && LOW + i + j < COUNT) values[LOW + i + j] = convert<Value>(raw[j]);
      }
    }
  }
};

template <int WIDTH, class T>
__device__ __forceinline__ void store_run(T* run, i64 stride, i64 first, i64 channels, const Value (&values)[RUN]) {
  constexpr int S = STEP<T, WIDTH>;
#pragma unroll
  for (int i = 0; i < RUN; i += S) {
    T raw[S];
#pragma unroll
    for (int j = 0; j < S; ++j) raw[j] = convert<T>(values[i + j]);
    if (first + i < channels) store<S>(run + i * (WIDTH == 0 ? stride : 1), raw);
  }
}

// base^exponent for a base above 0, by the special function unit if T has few bits.
template <class T> __device__ __forceinline__ f32 power(f32 base, f32 exponent) {
  if constexpr (sizeof(T) < sizeof(f32)) return __powf(base, exponent);
  return powf(base, exponent);
}
template <class T> __device__ __forceinline__ f64 power(f64 base, f64 exponent) { return pow(base, exponent); }

// k + scale * (sum of the squares of the WINDOW values from `first` on)
template <int COUNT> __device__ __forceinline__ Value scale_of(const Lrn& p, const Value (&values)[COUNT], int first) {
  Value sum = 0;
#pragma unroll
  for (int i = 0; i < WINDOW; ++i) sum += values[first + i] * values[first + i];
  return p.k + p.scale * sum;
}

// Gives the coordinates of the thread's run; false if it has none.
__device__ __forceinline__ bool find_run(const Lrn& p, i64 (&coordinate)[5]) {
  const INDEX group = INDEX(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return false;
  digits<5>(p.axes, group, coordinate);
  return true;
}
