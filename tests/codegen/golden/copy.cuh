#pragma once

#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 2 };

  struct Args {
    const bf16* tensor0;
    i64 tensor0_stride0;
    f32* tensor1;
    i64 tensor1_stride0;
  };

  struct Cursor {
    i64 tensor0;
    i64 tensor1;
  };

  template <int V> struct Loaded {
    bf16 tensor0[V];
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    Cursor at;
    at.tensor0 = coordinate[0] * args.tensor0_stride0;
    at.tensor1 = coordinate[0] * args.tensor1_stride0;
    return at;
  }

  template <int V>
  static __device__ __forceinline__ void load(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    load_row<Stream, 8>(in.tensor0, (args.tensor0 + at.tensor0) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in) {
    f32 tensor1_out[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const f32 value0 = convert<f32>(in.tensor0[i]);
      // IDENTITY in FLOAT
      const f32 value1 = value0;
      tensor1_out[i] = value1;
    }
    store_row<4>((args.tensor1 + at.tensor1) + column, tensor1_out, valid);
  }

  template <int V>
  static __device__ __forceinline__ void apply(
      const Args& args, const Cursor& at, i64 column, int valid) {
    Loaded<V> in;
    load<V>(args, at, column, valid, in);
    finish<V>(args, at, column, valid, in);
  }
};
