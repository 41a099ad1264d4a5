#pragma once

#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 2 };

  struct Args {
    const i32* tensor0;
    const f32* tensor1;
    i64 tensor1_stride0;
    f32 scalar2;
    f32* tensor2;
    i64 tensor2_stride0;
  };

  struct Cursor {
    i64 tensor0;
    i64 tensor1;
    i64 index0;
    i64 tensor2;
  };

  template <int V> struct Loaded {
    i32 tensor0[V];
    f32 tensor1[V];
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    Cursor at;
    at.tensor0 = 0;
    at.tensor1 = coordinate[0] * args.tensor1_stride0;
    at.index0 = coordinate[0];
    at.tensor2 = coordinate[0] * args.tensor2_stride0;
    return at;
  }

  template <int V>
  static __device__ __forceinline__ void load(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    load_row<Repeated, 4>(in.tensor0, (args.tensor0 + at.tensor0) + column, valid);
    load_row<Stream, 4>(in.tensor1, (args.tensor1 + at.tensor1) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in) {
    const f32 value2 = args.scalar2;
    f32 tensor2_out[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const i32 value0 = in.tensor0[i];
      const f32 value1 = in.tensor1[i];
      // GEN_INDEX in INT32
      const i32 value3 = convert<i32>(at.index0);
      // CMP_LT in BOOLEAN
      const b8 value4_stored = convert<b8>(i32(value3 < value0));
      const i32 value4 = convert<i32>(value4_stored);
      // BINARY_SELECT in FLOAT
      const f32 value5 = ((value4 != 0) ? value1 : value2);
      tensor2_out[i] = value5;
    }
    store_row<4>((args.tensor2 + at.tensor2) + column, tensor2_out, valid);
  }

  template <int V>
  static __device__ __forceinline__ void apply(
      const Args& args, const Cursor& at, i64 column, int valid) {
    Loaded<V> in;
    load<V>(args, at, column, valid, in);
    finish<V>(args, at, column, valid, in);
  }
};
