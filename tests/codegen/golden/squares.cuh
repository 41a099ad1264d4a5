#pragma once

#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 2 };
  typedef f64 Result;

  struct Args {
    const e4m3* tensor0;
    i64 tensor0_stride0;
  };

  struct Cursor {
    i64 tensor0;
  };

  template <int V> struct Loaded {
    e4m3 tensor0[V];
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    Cursor at;
    at.tensor0 = coordinate[0] * args.tensor0_stride0;
    return at;
  }

  template <int V>
  static __device__ __forceinline__ void load(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    load_row<Plain, 8>(in.tensor0, (args.tensor0 + at.tensor0) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in,
      Result (&result)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const f32 value0 = convert<f32>(in.tensor0[i]);
      // MUL in FLOAT
      const f32 value1 = value0 * value0;
      result[i] = convert<f64>(value1);
    }
  }

  template <int V>
  static __device__ __forceinline__ void apply(
      const Args& args, const Cursor& at, i64 column, int valid,
      Result (&result)[V]) {
    Loaded<V> in;
    load<V>(args, at, column, valid, in);
    finish<V>(args, at, column, valid, in, result);
  }
};
