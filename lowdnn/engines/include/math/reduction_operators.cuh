// Reduction operators. For elements x of type T (f32, f64, i32 or i64), the result over `count` of them is
// finish(combine(...combine(neutral(), prepare(x0)), ..., prepare(xn)), count). A total is of type T too, except that
// GenStats has two of them.

#pragma once

#include "include/pointwise.cuh"

template <class T> struct Range;
template <> struct Range<f32> {
  static __device__ __forceinline__ f32 lowest() { return -__int_as_float(0x7f800000); }
  static __device__ __forceinline__ f32 highest() { return __int_as_float(0x7f800000); }
};
template <> struct Range<f64> {
  static __device__ __forceinline__ f64 lowest() { return -__longlong_as_double(0x7ff0000000000000ll); }
  static __device__ __forceinline__ f64 highest() { return __longlong_as_double(0x7ff0000000000000ll); }
};
template <> struct Range<i32> {
  static __device__ __forceinline__ i32 lowest() { return -0x7fffffff - 1; }
  static __device__ __forceinline__ i32 highest() { return 0x7fffffff; }
};
template <> struct Range<i64> {
  static __device__ __forceinline__ i64 lowest() { return -0x7fffffffffffffffll - 1; }
  static __device__ __forceinline__ i64 highest() { return 0x7fffffffffffffffll; }
};

template <class T> __device__ __forceinline__ T magnitude(T x) { return x < T(0) ? T(0) - x : x; }
__device__ __forceinline__ f32 magnitude(f32 x) { return fabs(x); }
__device__ __forceinline__ f64 magnitude(f64 x) { return fabs(x); }

// The mean; for integers it is rounded towards zero, and 0 over no elements.
template <class T> __device__ __forceinline__ T mean(T sum, i64 count) { return count ? T(i64(sum) / count) : T(0); }
__device__ __forceinline__ f32 mean(f32 sum, i64 count) { return sum / f32(count); }
__device__ __forceinline__ f64 mean(f64 sum, i64 count) { return sum / f64(count); }

struct Add {
  template <class T> static __device__ __forceinline__ T neutral() { return T(0); }
  template <class T> static __device__ __forceinline__ T prepare(T x) { return x; }
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a + b; }
  template <class T> static __device__ __forceinline__ T finish(T x, i64 count) { return x; }
};
struct Avg : Add {
  template <class T> static __device__ __forceinline__ T finish(T x, i64 count) { return mean(x, count); }
};
struct Norm1 : Add {
  template <class T> static __device__ __forceinline__ T prepare(T x) { return magnitude(x); }
};
struct Norm2 : Add {
  template <class T> static __device__ __forceinline__ T prepare(T x) { return x * x; }
  template <class T> static __device__ __forceinline__ T finish(T x, i64 count) { return sqrt(x); }
};

struct Mul {
  template <class T> static __device__ __forceinline__ T neutral() { return T(1); }
  template <class T> static __device__ __forceinline__ T prepare(T x) { return x; }
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return a * b; }
  template <class T> static __device__ __forceinline__ T finish(T x, i64 count) { return x; }
};
struct MulNoZeros : Mul {
  template <class T> static __device__ __forceinline__ T prepare(T x) { return x == T(0) ? T(1) : x; }
};

struct Min {
  template <class T> static __device__ __forceinline__ T neutral() { return Range<T>::highest(); }
  template <class T> static __device__ __forceinline__ T prepare(T x) { return x; }
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return minimum(a, b); }
  template <class T> static __device__ __forceinline__ T finish(T x, i64 count) { return x; }
};
struct Max {
  template <class T> static __device__ __forceinline__ T neutral() { return Range<T>::lowest(); }
  template <class T> static __device__ __forceinline__ T prepare(T x) { return x; }
  template <class T> static __device__ __forceinline__ T combine(T a, T b) { return maximum(a, b); }
  template <class T> static __device__ __forceinline__ T finish(T x, i64 count) { return x; }
};
struct Amax : Max {
  template <class T> static __device__ __forceinline__ T neutral() { return T(0); }
  template <class T> static __device__ __forceinline__ T prepare(T x) { return magnitude(x); }
};

template <class T> struct Moments {
  T sum, squares;
};
struct GenStats {
  template <class T> static __device__ __forceinline__ Moments<T> neutral() { return {T(0), T(0)}; }
  template <class T> static __device__ __forceinline__ Moments<T> prepare(T x) { return {x, x * x}; }
  template <class T> static __device__ __forceinline__ Moments<T> combine(Moments<T> a, Moments<T> b) {
    return {a.sum + b.sum, a.squares + b.squares};
  }
  template <class T> static __device__ __forceinline__ Moments<T> finish(Moments<T> x, i64 count) { return x; }
};

// The operator of a kernel whose optional reduction is absent.
struct NoOperator {};

// The type of an operator's totals over elements of type T.
template <class Operator, class T> struct TotalOf { typedef T Type; };
template <class T> struct TotalOf<GenStats, T> { typedef Moments<T> Type; };

// The total of the lane that is `offset` lanes further on in the warp.
template <class T> __device__ __forceinline__ T shuffle_down(T total, int offset) {
  return __shfl_down_sync(0xffffffffu, total, offset);
}
template <class T> __device__ __forceinline__ Moments<T> shuffle_down(Moments<T> total, int offset) {
  return {shuffle_down(total.sum, offset), shuffle_down(total.squares, offset)};
}

// V totals of one thread: of neighbouring outputs, or of chains of one output.
template <class Operator, class T, int V> struct TotalVector {
  typedef typename TotalOf<Operator, T>::Type Total;

  Total value[V];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = Operator::template neutral<T>();
  }

  __device__ __forceinline__ void add(const T (&values)[V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = Operator::combine(value[v], Operator::prepare(values[v]));
  }

  __device__ __forceinline__ void join(const TotalVector& other) {
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = Operator::combine(value[v], other.value[v]);
  }

  // Combines all of them as a tree.
  __device__ __forceinline__ Total joined() {
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
      for (int v = 0; v < half; ++v) value[v] = Operator::combine(value[v], value[v + half]);
    }
    return value[0];
  }
};
