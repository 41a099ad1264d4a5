// pointwise: outputs[i] = functor(inputs[i]) for every coordinate i of one index space.
//
// Layouts: any strides over the space's RANK axes. Along VECTOR_AXIS it is cut into groups of VECTOR neighbouring
// elements, which the functor handles at once (16-byte accesses if the layouts allow). Groups are numbered with the
// last axis fastest: the coordinates of group g are its digits over the radices `axes`.
// Block: THREADS * UNROLL consecutive groups; thread t has the groups t, t + THREADS, ... of them, so that neighbouring
// threads have neighbouring groups, and UNROLL of each thread are in flight.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / (THREADS * UNROLL)) blocks.
// Macros: THREADS UNROLL VECTOR VECTOR_AXIS; INDEX: u32 up to 2^31 groups, otherwise i64.

#include "include/math/division.cuh"
#include "generated.cuh"

struct Params {
  i64 groups;
  i64 whole_groups;             // leading groups with VECTOR elements each
  i64 extent;                   // elements along VECTOR_AXIS
  Divider axes[Functor::RANK];  // groups along each axis; the first is not used
  Functor::Args pointwise;
};

// The position of a group: its row, its first element along the vector axis, and how many of its elements exist.
struct Group {
  Functor::Cursor row;
  i64 column;
  int valid;
};

template <bool WHOLE> __device__ __forceinline__ Group locate(const Params& p, INDEX group) {
  i64 coordinate[Functor::RANK];
  digits<Functor::RANK>(p.axes, group, coordinate);
  const i64 column = coordinate[VECTOR_AXIS] * VECTOR;
  const i64 remaining = p.extent - column;
  return {Functor::cursor(p.pointwise, coordinate), column, WHOLE || remaining >= VECTOR ? VECTOR : int(remaining)};
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 begin = i64(blockIdx.x) * (THREADS * UNROLL);
  const i64 first = begin + threadIdx.x;

  if (begin + THREADS * UNROLL <= p.whole_groups) {
    // All loads are issued before the first store.
    Group groups[UNROLL];
    Functor::Loaded<VECTOR> in[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      groups[u] = locate<true>(p, INDEX(first + u * THREADS));
      Functor::load<VECTOR>(p.pointwise, groups[u].row, groups[u].column, VECTOR, in[u]);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      Functor::finish<VECTOR>(p.pointwise, groups[u].row, groups[u].column, VECTOR, in[u]);
    }
    return;
  }

#pragma unroll 1
  for (i64 index = first; index < p.groups && index < begin + THREADS * UNROLL; index += THREADS) {
    const Group group = locate<false>(p, INDEX(index));
    Functor::apply<VECTOR>(p.pointwise, group.row, group.column, group.valid);
  }
}
