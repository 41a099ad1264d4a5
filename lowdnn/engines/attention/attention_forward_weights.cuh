// Weights as the operand of the second product, in 16 bits.
// Macros: as in attention_forward.cuh.

#pragma once

#include "attention_forward_place.cuh"

// Returns two neighbouring weights as one word of an operand, after the functor Weights if the kernel has one.
template <class Functor>
__device__ __forceinline__ u32 weights_of(const Forward& p, const Place& place, const Rows& rows, i32 tile, int part,
                                          int half, int block, const f32* pair) {
  if constexpr (HAS_WEIGHTS) {
    i64 coordinate[4];
    rows.coordinate(p, place, part, half, coordinate);
    const i32 column = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2;
    const f32 values[2] = {pair[0], pair[1]};
    union {
      T results[2];
      u32 word;
    };
    word = 0;
    const typename Functor::Args& args = args_of<Functor>(p.parts);
    Functor::template apply<2>(args, Functor::cursor(args, coordinate), column, count_among<2>(p.keys - column), values,
                               results);
    return word;
  } else {
    return packed(Tag<T>(), pair[0], pair[1]);
  }
}
