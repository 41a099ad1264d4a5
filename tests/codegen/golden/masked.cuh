#pragma once

#include "include/cp_async.cuh"
#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 2 };
  typedef f32 Result;

  struct Args {
    const bf16* tensor0;
    i64 tensor0_stride0;
    const f32* tensor1;
    i64 tensor1_stride0;
    const b8* tensor2;
    i64 tensor2_stride0;
  };

  struct Cursor {
    i64 tensor0;
    i64 tensor1;
    i64 tensor2;
  };

  template <int V> struct Loaded {
    alignas(sizeof(bf16) * V < 16 ? sizeof(bf16) * V : 16) bf16 tensor0[V];
    f32 tensor1;
    alignas(sizeof(b8) * V < 16 ? sizeof(b8) * V : 16) b8 tensor2[V];
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    Cursor at;
    at.tensor0 = coordinate[0] * args.tensor0_stride0;
    at.tensor1 = coordinate[0] * args.tensor1_stride0;
    at.tensor2 = coordinate[0] * args.tensor2_stride0;
    return at;
  }

  template <int V>
  static __device__ __forceinline__ void load(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    load_row<Stream, 8>(in.tensor0, (args.tensor0 + at.tensor0) + column, valid);
    in.tensor1 = (args.tensor1 + at.tensor1)[0];
    load_row<Stream, 16>(in.tensor2, (args.tensor2 + at.tensor2) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void copy(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& copied) {
    copy_row<8>(copied.tensor0, (args.tensor0 + at.tensor0) + column, valid);
    copied.tensor1 = (args.tensor1 + at.tensor1)[0];
    copy_row<16>(copied.tensor2, (args.tensor2 + at.tensor2) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void fetch(const Loaded<V>& copied, Loaded<V>& in) {
    ::load<Plain, V>(in.tensor0, copied.tensor0);
    in.tensor1 = copied.tensor1;
    ::load<Plain, V>(in.tensor2, copied.tensor2);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in,
      Result (&result)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const f32 value0 = convert<f32>(in.tensor0[i]);
      const f32 value1 = in.tensor1;
      const i32 value2 = convert<i32>(in.tensor2[i]);
      // MUL in FLOAT
      const f32 value3 = value0 * value1;
      // MUL in FLOAT
      const f32 op4_b = convert<f32>(value2);
      const f32 value4 = value3 * op4_b;
      result[i] = value4;
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
