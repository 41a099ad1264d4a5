// Combines the states of the parts of an output, which threads of a block hold, in their order.

#pragma once

#include "generated.cuh"

// part, side: the part and the output of this thread; the first `present` of COUNT parts have a state.
// has_state: whether this thread holds its part's state, if several threads work on one. The result is valid in part 0.
template <int COUNT, int SIDE>
__device__ __forceinline__ Reducer::State join_parts(
    const Reducer::Args& args, Reducer::State total, int part, int side, int present, bool has_state) {
  if constexpr (COUNT > 1) {
    __shared__ Reducer::State shared[COUNT][SIDE];
    if (has_state) shared[part][side] = total;
#pragma unroll
    for (int step = 1; step < COUNT; step *= 2) {
      __syncthreads();
      if (has_state && part % (2 * step) == 0 && part + step < present) {
        total = Reducer::combine(args, total, shared[part + step][side]);
        shared[part][side] = total;
      }
    }
  }
  return total;
}
