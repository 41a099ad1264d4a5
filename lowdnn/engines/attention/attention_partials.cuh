// Partial results of attention forward in the workspace, where blocks divide the keys. For each part of the keys and
// each query of each head: the largest score, the sum of exponentials relative to it, and the sum of exponentials times
// v, in fp32.

#pragma once

#include "include/numeric.cuh"

struct Partials {
  float2* extremes;  // [part][row]
  f32* outputs;      // [part][row][HEAD_V]
  i64 rows;

  // Index of the row of (batch, head, query), in C order.
  __device__ __forceinline__ static i64 row(const i64 (&coordinate)[4], i64 heads, i64 queries) {
    return (coordinate[0] * heads + coordinate[1]) * queries + coordinate[2];
  }

  __device__ __forceinline__ float2* extreme(i64 part, i64 row) const { return extremes + part * rows + row; }

  __device__ __forceinline__ float2* pair(i64 part, i64 row, int column) const {
    return reinterpret_cast<float2*>(outputs + (part * rows + row) * HEAD_V + column);
  }
};

// The parameters of a kernel that may have partials.
template <bool IS_THERE> struct PartialsOf {
  Partials partials;
};
template <> struct PartialsOf<false> {};
