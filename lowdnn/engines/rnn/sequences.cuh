// Where the rows of a recurrent layer lie, and which of them there are.
//
// Rows of a tensor over steps are (step t, sequence b, direction d); t of direction 1 runs backwards. A sequence has
// its first `length` steps. Macros: TYPE.

#pragma once

#include "include/numeric.cuh"
#include "include/optional.cuh"
#include "include/pointwise.cuh"

typedef Compute<TYPE>::Type Value;

// Elements from one step, sequence and direction to the next.
struct Rows {
  i64 step, sequence, direction;

  __device__ __forceinline__ i64 of(i32 t, u32 b, u32 d) const {
    return t * step + b * sequence + d * direction;
  }
};

// States before the first step of a sequence or behind its last one: rows of a sequence and direction.
struct Ends {
  i64 sequence, direction;

  __device__ __forceinline__ i64 of(u32 b, u32 d) const { return b * sequence + d * direction; }
};

// A sequence of the tile in one direction.
struct Sequence {
  u32 b, d;
  i32 length;  // 0 to the number of steps; -1 where there is no such sequence

  __device__ __forceinline__ bool exists() const { return length >= 0; }
  __device__ __forceinline__ bool has(i32 t) const { return t < length; }
  // The step that t follows; its neighbour in the other direction follows t.
  __device__ __forceinline__ i32 before(i32 t) const { return d ? t + 1 : t - 1; }
  __device__ __forceinline__ i32 behind(i32 t) const { return d ? t - 1 : t + 1; }
  __device__ __forceinline__ i32 first() const { return d ? length - 1 : 0; }
  __device__ __forceinline__ i32 last() const { return d ? 0 : length - 1; }
};

__device__ __forceinline__ Sequence sequence_of(const i32* lengths, u32 b, u32 d, i32 steps, u32 batch) {
  if (b >= batch) return {b, d, -1};
  return {b, d, lengths ? min(max(lengths[b], 0), steps) : steps};
}

template <class T> __device__ __forceinline__ Value read(const T* from, i64 place) {
  return from ? Value(widen(from[place])) : Value(0);
}

template <class T> __device__ __forceinline__ void write(T* to, i64 place, Value value) {
  to[place] = convert<T>(value);
}

// A cell state as its readers see it. MODE: 0 for no clip, 1 for one that keeps a NaN, 2 for one that makes it `lower`.
template <int MODE> __device__ __forceinline__ Value clipped(Value c, Value lower, Value upper) {
  if constexpr (MODE == 0) return c;
  if (c != c) return MODE == 1 ? c : lower;
  return c < lower ? lower : c > upper ? upper : c;
}

// 1 - tanh^2 and s (1 - s) of what a function has given.
__device__ __forceinline__ Value tanh_slope_of(Value y) { return Value(1) - y * y; }
__device__ __forceinline__ Value sigmoid_slope_of(Value y) { return y * (Value(1) - y); }

// The weights of a step: rows of `depth` elements, `pitch` apart.
struct Weights {
  const TYPE* at;
  i64 direction;
  i32 pitch, depth;
};
