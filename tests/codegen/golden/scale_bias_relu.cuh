#pragma once

#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Functor {
  enum : int { RANK = 4 };
  typedef f32 Accumulator;

  struct Args {
    const f32* tensor0;
    f32 scalar2;
    f32 op5_relu_lower_clip;
    f32 op5_relu_upper_clip;
    f32 op5_relu_lower_clip_slope;
    f16* tensor1;
    i64 tensor1_stride0;
    i64 tensor1_stride1;
    i64 tensor1_stride2;
    f16* tensor2;
    i64 tensor2_stride0;
    i64 tensor2_stride1;
    i64 tensor2_stride2;
  };

  struct Cursor {
    i64 tensor0;
    i64 tensor1;
    i64 tensor2;
  };

  template <int V> struct Loaded {
    f32 tensor0[V];
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    Cursor at;
    at.tensor0 = 0;
    at.tensor1 = coordinate[0] * args.tensor1_stride0
      + coordinate[1] * args.tensor1_stride1
      + coordinate[2] * args.tensor1_stride2;
    at.tensor2 = coordinate[0] * args.tensor2_stride0
      + coordinate[1] * args.tensor2_stride1
      + coordinate[2] * args.tensor2_stride2;
    return at;
  }

  template <int V>
  static __device__ __forceinline__ void load(
      const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    load_row<Repeated, 4>(in.tensor0, (args.tensor0 + at.tensor0) + column, valid);
  }

  template <int V>
  static __device__ __forceinline__ void finish(
      const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in,
      const Accumulator (&accumulator)[V]) {
    const f32 value2 = args.scalar2;
    f16 tensor1_out[V];
    f16 tensor2_out[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      // the accumulator, rounded to its tensor's type
      const f16 value0_stored = convert<f16>(accumulator[i]);
      const f32 value0 = convert<f32>(value0_stored);
      const f32 value1 = in.tensor0[i];
      // MUL in FLOAT
      const f32 value3 = value0 * value2;
      // ADD in FLOAT
      const f32 value4 = value3 + value1;
      // RELU_FWD in FLOAT
      const f16 value5_stored = convert<f16>(clipped_relu(value4, args.op5_relu_lower_clip, args.op5_relu_upper_clip, args.op5_relu_lower_clip_slope));
      const f32 value5 = convert<f32>(value5_stored);
      tensor1_out[i] = value0_stored;
      tensor2_out[i] = value5_stored;
    }
    store_row<8>((args.tensor1 + at.tensor1) + column, tensor1_out, valid);
    store_row<8>((args.tensor2 + at.tensor2) + column, tensor2_out, valid);
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
