// The epilogue of a reduction: one functor over the outputs; with MOMENTS two, of the sums and of the sums of squares.

#pragma once

#include "include/math/reduction_operators.cuh"

#if MOMENTS
struct After {
  Epilogue::Args sums;
  SquaresEpilogue::Args squares;
};

template <int V>
__device__ __forceinline__ void finish_outputs(const After& after, const i64 (&kept)[Epilogue::RANK], i64 column,
                                               int valid, const Moments<Epilogue::Accumulator> (&totals)[V]) {
  Epilogue::Accumulator sums[V], squares[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    sums[v] = totals[v].sum;
    squares[v] = totals[v].squares;
  }
  Epilogue::apply<V>(after.sums, Epilogue::cursor(after.sums, kept), column, valid, sums);
  SquaresEpilogue::apply<V>(after.squares, SquaresEpilogue::cursor(after.squares, kept), column, valid, squares);
}
#else
typedef Epilogue::Args After;

template <int V>
__device__ __forceinline__ void finish_outputs(const After& after, const i64 (&kept)[Epilogue::RANK], i64 column,
                                               int valid, const Epilogue::Accumulator (&totals)[V]) {
  Epilogue::apply<V>(after, Epilogue::cursor(after, kept), column, valid, totals);
}
#endif
