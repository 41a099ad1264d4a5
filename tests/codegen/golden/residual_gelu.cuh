#pragma once

#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 2 };
  typedef f32 Accumulator;

  struct Args {
    const bf16* tensor0;
    i64 tensor0_stride0;
    i64 tensor0_stride1;
    f32 scalar2;
    f32 op3_alpha_x;
    f32 op3_alpha_b;
    bf16* tensor1;
    i64 tensor1_stride0;
    i8* tensor2;
    i64 tensor2_stride0;
  };

  struct Cursor {
    i64 tensor0;
    i64 tensor1;
    i64 tensor2;
  };

  template <int V> struct Loaded {
    bf16 tensor0[V];
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
    load_strided(in.tensor0, (args.tensor0 + at.tensor0) + column * args.tensor0_stride1, args.tensor0_stride1, valid);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in,
      const Accumulator (&accumulator)[V]) {
    const f32 value2 = args.scalar2;
    bf16 tensor1_out[V];
    i8 tensor2_out[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      // the accumulator, rounded to its tensor's type
      const f32 value0 = accumulator[i];
      const f32 value1 = convert<f32>(in.tensor0[i]);
      // ADD in BFLOAT16
      const f32 op3_x = args.op3_alpha_x * rounded<bf16, f32>(value0);
      const f32 op3_b = args.op3_alpha_b * value1;
      const bf16 value3_stored = convert<bf16>(op3_x + op3_b);
      const f32 value3 = convert<f32>(value3_stored);
      // GELU_FWD in FLOAT
      const f32 value4 = value3 * normal_cdf(value3);
      // MUL in FLOAT
      const i8 value5_stored = convert<i8>(value4 * value2);
      const i32 value5 = convert<i32>(value5_stored);
      tensor1_out[i] = value3_stored;
      tensor2_out[i] = value5_stored;
    }
    store_row<8>((args.tensor1 + at.tensor1) + column, tensor1_out, valid);
    store_row<16>((args.tensor2 + at.tensor2) + column, tensor2_out, valid);
  }

  template <int V>
  static __device__ __forceinline__ void apply(
      const Args& args, const Cursor& at, i64 column, int valid,
      const Accumulator (&accumulator)[V]) {
    Loaded<V> in;
    load<V>(args, at, column, valid, in);
    finish<V>(args, at, column, valid, in, accumulator);
  }
};
