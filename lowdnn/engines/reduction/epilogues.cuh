// The destinations of a reduction's totals: partial totals, or outputs.

#pragma once

#include "include/math/reduction_operators.cuh"
#include "include/optional.cuh"

// Optional functors: generated.cuh defines those that the kernel has.
struct Epilogue;
struct SquaresEpilogue;

// Partial totals, [slices][outputs], for reduction_combine.cu.
template <class Total> struct Partials {
  Total* partials;
};

// Outputs, stored by a functor over the kept axes; with HAS_MOMENTS by one for the sums and one for their squares.
template <bool HAS_MOMENTS, class Sums = Epilogue, class Squares = SquaresEpilogue> struct Outputs {
  typename Sums::Args sums;

  template <int V, class Total>
  __device__ __forceinline__ void store(const i64 (&kept)[Sums::RANK], i64 column, int valid,
                                        const Total (&totals)[V]) const {
    Sums::template apply<V>(sums, Sums::cursor(sums, kept), column, valid, totals);
  }
};
template <class Sums, class Squares> struct Outputs<true, Sums, Squares> {
  typename Sums::Args sums;
  typename Squares::Args squares;

  template <int V, class Total>
  __device__ __forceinline__ void store(const i64 (&kept)[Sums::RANK], i64 column, int valid,
                                        const Total (&totals)[V]) const {
    typename Sums::Accumulator sum[V], square[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sum[v] = totals[v].sum;
      square[v] = totals[v].squares;
    }
    Sums::template apply<V>(sums, Sums::cursor(sums, kept), column, valid, sum);
    Squares::template apply<V>(squares, Squares::cursor(squares, kept), column, valid, square);
  }
};
