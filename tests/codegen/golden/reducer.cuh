#pragma once

#include "include/numeric.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Reducer {
  struct State {
    f32 value0;
    i32 value1;
  };

  struct Args {
    f32 initial0;
    i32 initial1;
  };

  static __device__ __forceinline__ State initial(const Args& args) {
    return {args.initial0, args.initial1};
  }

  static __device__ __forceinline__ State combine(const Args& args, const State& left, const State& right) {
    const f16 value0_stored = convert<f16>(left.value0);
    const f32 value0 = convert<f32>(value0_stored);
    const i32 value1 = left.value1;
    const f16 value2_stored = convert<f16>(right.value0);
    const f32 value2 = convert<f32>(value2_stored);
    const i32 value3 = right.value1;
    // CMP_GE in HALF
    const b8 value4_stored = convert<b8>(rounded<f16, f32>(f32(value0 >= value2)));
    const i32 value4 = convert<i32>(value4_stored);
    // BINARY_SELECT in HALF
    const f16 value5_stored = convert<f16>(((value4 != 0) ? value0 : value2));
    const f32 value5 = convert<f32>(value5_stored);
    // BINARY_SELECT in INT32
    const i32 value6 = ((value4 != 0) ? value1 : value3);
    return {value5, value6};
  }

  static __device__ __forceinline__ State shuffle_down(const State& state, int offset) {
    return {::shuffle_down(state.value0, offset), ::shuffle_down(state.value1, offset)};
  }

};

struct Streams {
  enum : int { RANK = Stream0::RANK };
  struct Args {
    Stream0::Args part0;
    Stream1::Args part1;
  };

  struct Cursor {
    Stream0::Cursor part0;
    Stream1::Cursor part1;
  };

  template <int V>
  struct Loaded {
    Stream0::Loaded<V> part0;
    Stream1::Loaded<V> part1;
  };

  static __device__ __forceinline__ Cursor cursor(const Args& args, const i64 (&coordinate)[RANK]) {
    return {Stream0::cursor(args.part0, coordinate), Stream1::cursor(args.part1, coordinate)};
  }

  template <int V>
  static __device__ __forceinline__ void load(const Args& args, const Cursor& at, i64 column, int valid, Loaded<V>& in) {
    Stream0::load<V>(args.part0, at.part0, column, valid, in.part0);
    Stream1::load<V>(args.part1, at.part1, column, valid, in.part1);
  }

  template <int V>
  static __device__ __forceinline__ void finish(const Args& args, const Cursor& at, i64 column, int valid, const Loaded<V>& in, Reducer::State (&states)[V]) {
    Stream0::Result result0[V];
    Stream0::finish<V>(args.part0, at.part0, column, valid, in.part0, result0);
    Stream1::Result result1[V];
    Stream1::finish<V>(args.part1, at.part1, column, valid, in.part1, result1);
#pragma unroll
    for (int i = 0; i < V; ++i) states[i] = {rounded<f16, f32>(result0[i]), result1[i]};
  }

};

struct Results {
  enum : int { RANK = Result0::RANK };
  struct Args {
    Result0::Args part0;
    Result1::Args part1;
  };

  static __device__ __forceinline__ void store(const Args& args, const i64 (&kept)[RANK], const Reducer::State& state) {
    const f32 value0[1] = {state.value0};
    Result0::apply<1>(args.part0, Result0::cursor(args.part0, kept), kept[RANK - 1], 1, value0);
    const i32 value1[1] = {state.value1};
    Result1::apply<1>(args.part1, Result1::cursor(args.part1, kept), kept[RANK - 1], 1, value1);
  }

};
