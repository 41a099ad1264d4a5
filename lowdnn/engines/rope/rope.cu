// rope: rotates pairs of elements in the rows of x (B, H, S, D) by angles of their positions, and scales everything:
//
//   y[i] = scale * x[i] cos(freqs[s, i]) - sine * x[i + half] sin(freqs[s, i])
//   y[i + half] = scale * x[i + half] cos(freqs[s, i]) + sine * x[i] sin(freqs[s, i])
//
// The pairs are among the last 2 * half elements of a row; the `passed` elements before them are only scaled.
//
// Layouts: any strides; X_WIDTH and Y_WIDTH: elements of an access, 0 if those of a row are strided.
// Block: THREADS threads. A thread has VECTOR neighbouring pairs of one position s, in HEADS heads. It computes their
// sines once for all heads, and loads all heads before it stores any. The `passed` elements, which are only scaled,
// form pairs (i, i + passed / 2) for the same code. Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks; a group's number counts over `axes`: batch, block of HEADS
// heads, position, block of VECTOR pairs.
// Macros: X Y FREQ COMPUTE (types) THREADS HEADS VECTOR X_WIDTH Y_WIDTH FREQ_WIDTH; INDEX: u32 up to 2^31 groups,
// otherwise i64.

#include "include/elements/transform.cuh"

typedef COMPUTE Value;

struct Params {
  const X* x;
  const FREQ* freqs;
  Y* y;
  i64 groups, heads, passed, half;
  i64 x_strides[4], y_strides[4], freq_strides[2];  // along (B, H, S, D), and along (S, R)
  Value scale, sine;
  Divider axes[4];
};

template <class Path, int WIDTH, class T>
__device__ __forceinline__ void load_elements(T (&to)[VECTOR], const T* from, i64 stride) {
  if constexpr (WIDTH == 0) {
    load_strided(to, from, stride, VECTOR);
  } else {
    load<Path, WIDTH>(to, from);
  }
}

__device__ __forceinline__ void store_values(Y* to, const Value (&from)[VECTOR], i64 stride) {
  Y raw[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) raw[i] = convert<Y>(from[i]);
  if constexpr (Y_WIDTH == 0) {
    store_strided(to, raw, stride, VECTOR);
  } else {
    store<Y_WIDTH>(to, raw);
  }
}

__device__ __forceinline__ void sine_and_cosine(f32 x, f32& sine, f32& cosine) { sincosf(x, &sine, &cosine); }
__device__ __forceinline__ void sine_and_cosine(f64 x, f64& sine, f64& cosine) { sincos(x, &sine, &cosine); }

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const INDEX group = INDEX(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;
  i64 coordinate[4];
  digits<4>(p.axes, group, coordinate);
  const i64 first_head = coordinate[1] * HEADS, pair = coordinate[3] * VECTOR;
  const bool is_rotated = pair >= p.passed / 2;
  const i64 angle = pair - p.passed / 2;
  const i64 low = is_rotated ? p.passed + angle : pair, high = low + (is_rotated ? p.half : p.passed / 2);

  const auto x_at = [&](i64 head, i64 element) {
    return p.x + coordinate[0] * p.x_strides[0] + head * p.x_strides[1] + coordinate[2] * p.x_strides[2] +
           element * p.x_strides[3];
  };
  typedef PathOf<X_WIDTH * sizeof(X)>::Type Path;
  X rows[HEADS][2][VECTOR];
#pragma unroll
  for (int i = 0; i < HEADS; ++i) {
    const i64 head = min(first_head + i, p.heads - 1);
    load_elements<Path, X_WIDTH>(rows[i][0], x_at(head, low), p.x_strides[3]);
    load_elements<Path, X_WIDTH>(rows[i][1], x_at(head, high), p.x_strides[3]);
  }

  Value sine[VECTOR], cosine[VECTOR];
  if (is_rotated) {
    FREQ angles[VECTOR];
    const FREQ* const first = p.freqs + coordinate[2] * p.freq_strides[0] + angle * p.freq_strides[1];
    load_elements<Plain, FREQ_WIDTH>(angles, first, p.freq_strides[1]);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
      sine_and_cosine(convert<Value>(angles[i]), sine[i], cosine[i]);
      sine[i] *= p.sine;
      cosine[i] *= p.scale;
    }
  }

#pragma unroll
  for (int i = 0; i < HEADS; ++i) {
    if (first_head + i >= p.heads) break;
    Value lows[VECTOR], highs[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value a = convert<Value>(rows[i][0][v]), b = convert<Value>(rows[i][1][v]);
      lows[v] = is_rotated ? a * cosine[v] - b * sine[v] : a * p.scale;
      highs[v] = is_rotated ? b * cosine[v] + a * sine[v] : b * p.scale;
    }
    Y* const row = p.y + coordinate[0] * p.y_strides[0] + (first_head + i) * p.y_strides[1] +
                   coordinate[2] * p.y_strides[2];
    store_values(row + low * p.y_strides[3], lows, p.y_strides[3]);
    store_values(row + high * p.y_strides[3], highs, p.y_strides[3]);
  }
}
