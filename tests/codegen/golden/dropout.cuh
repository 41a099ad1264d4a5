#pragma once

#include "include/numeric.cuh"
#include "include/philox.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 2 };

  struct Args {
    const i64* tensor0;
    const bf16* tensor1;
    i64 tensor1_stride0;
    i64 scalar2;
    i64 random3_threshold;
    i64 random3_stride0;
    f32 random4_mean;
    f32 random4_deviation;
    i64 random4_seed;
    i64 random4_stride0;
    bf16* tensor2;
    i64 tensor2_stride0;
  };

  struct Cursor {
    i64 tensor0;
    i64 tensor1;
    i64 random3;
    i64 random4;
    i64 tensor2;
  };

  template <int V> struct Loaded {
    i64 tensor0;
    bf16 tensor1[V];
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    Cursor at;
    at.tensor0 = 0;
    at.tensor1 = coordinate[0] * args.tensor1_stride0;
    at.random3 = coordinate[0] * args.random3_stride0;
    at.random4 = coordinate[0] * args.random4_stride0;
    at.tensor2 = coordinate[0] * args.tensor2_stride0;
    return at;
  }

  template <int V>
  static __device__ __forceinline__ void load(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    in.tensor0 = (args.tensor0 + at.tensor0)[0];
    load_row<Stream, 8>(in.tensor1, (args.tensor1 + at.tensor1) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in) {
    const i64 value2 = args.scalar2;
    // BERNOULLI numbers
    const Philox philox3 = {u64(in.tensor0), u64(value2)};
    const Bernoulli<f32> distribution3 = {args.random3_threshold};
    f32 random3[V];
    draw_row(random3, distribution3, philox3, at.random3 + column, 1);
    // NORMAL numbers
    const Philox philox4 = {u64(args.random4_seed), u64(0)};
    const Normal<f32> distribution4 = {args.random4_mean, args.random4_deviation};
    f32 random4[1];
    draw_strided(random4, distribution4, philox4, at.random4, 0);
    bf16 tensor2_out[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const i64 value0 = in.tensor0;
      const f32 value1 = convert<f32>(in.tensor1[i]);
      const f32 value3 = random3[i];
      const f32 value4 = random4[0];
      // MUL in FLOAT
      const f32 value5 = value1 * value3;
      // ADD in FLOAT
      const bf16 value6_stored = convert<bf16>(value5 + value4);
      const f32 value6 = convert<f32>(value6_stored);
      tensor2_out[i] = value6_stored;
    }
    store_row<1>((args.tensor2 + at.tensor2) + column, tensor2_out, valid);
  }

  template <int V>
  static __device__ __forceinline__ void apply(
      const Args& args, const Cursor& at, i64 column, int valid) {
    Loaded<V> in;
    load<V>(args, at, column, valid, in);
    finish<V>(args, at, column, valid, in);
  }
};
