// What the kernels of divisive normalisation's gradient share; the formulas are those of ops/divisive_normalization.py.
// Macros: DX DM (types of the gradients); HAS_DMEANS: whether that of the means is stored; and those of divisive.cuh.

#pragma once

#include "divisive.cuh"

// Where the gradients are stored.
struct Gradients {
  DX* dx;
  DM* dmeans;
  Strides dx_strides, dmeans_strides;
  Value slope;  // 2 alpha beta / n^SPATIAL

  // scaled: dy s^-beta.  sum: of dy x s^(-beta - 1) over the places whose windows hold this one.
  __device__ __forceinline__ void store(const Source& source, const Place& at, Value scaled, Value sum) const {
    const Value share = slope * source.difference(at) * sum;
    dx[dx_strides.of(at)] = convert<DX>(scaled - share);
    if constexpr (HAS_DMEANS) dmeans[dmeans_strides.of(at)] = convert<DM>(share);
  }
};

// dy s^-beta, and dy x s^(-beta - 1).
struct Terms {
  Value scaled, term;

  template <class T> static __device__ __forceinline__ Terms of(const Divisive& p, Value x, Value dy, Value sum) {
    const Value scale = p.k + p.scale * sum, scaled = dy * power<T>(scale, p.exponent);
    return {scaled, scaled * x / scale};
  }
};
