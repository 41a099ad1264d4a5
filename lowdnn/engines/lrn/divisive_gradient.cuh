// The common part of the kernels of divisive normalisation's gradient; the formulas are in
// ops/divisive_normalization.py.
// Macros: DX DM (types of the gradients); HAS_DMEANS: whether that of the means is stored; and those of divisive.cuh.

#pragma once

#include "divisive.cuh"

// The tensors of the gradients.
struct Gradients {
  DX* dx;
  DM* dmeans;
  Strides dx_strides, dmeans_strides;
  Value slope;  // 2 alpha beta / n^SPATIAL

  // scaled: dy s^-beta.  sum: the sum of dy x s^(-beta - 1) over the positions whose windows contain this one.
  __device__ __forceinline__ void store(const Source& source, const Position& at, Value scaled, Value sum) const {
    const Value share = slope * source.difference(at) * sum;
    dx[dx_strides.of(at)] = convert<DX>(scaled - share);
    if constexpr (HAS_DMEANS) dmeans[dmeans_strides.of(at)] = convert<DM>(share);
  }
};

// The terms of one position: dy s^-beta, and dy x s^(-beta - 1).
struct Terms {
  Value scaled, term;

  template <class T> static __device__ __forceinline__ Terms of(const Divisive& p, Value x, Value dy, Value sum) {
    const Value scale = p.k + p.scale * sum, scaled = dy * power<T>(scale, p.exponent);
    return {scaled, scaled * x / scale};
  }
};
