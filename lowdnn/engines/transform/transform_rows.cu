// transform_rows: y[i] = x[i] for every coordinate i, converted if the types differ; several such copies in a launch.
// Along COLUMN_AXIS y may be longer than x; it is zero there.
//
// Layouts: any strides over RANK axes. Along COLUMN_AXIS, in which y is fastest, the elements are cut into groups of
// VECTOR neighbours. One thread moves a group, in accesses of X_WIDTH and Y_WIDTH elements or, where that is 0, in
// strided single elements. The groups are numbered with the last axis fastest: the coordinates of group g are its
// digits over the radices `axes`.
// Block: THREADS * UNROLL consecutive groups of one part; thread t has t, t + THREADS, ... of them.
// Shared memory: none.
// Launch: THREADS threads; at least ceil(groups / (THREADS * UNROLL)) blocks for each part, assigned in rounds.
// Macros: X Y RANK COLUMN_AXIS PARTS THREADS UNROLL VECTOR X_WIDTH Y_WIDTH; INDEX: u32 up to 2^31 groups, otherwise
// i64; HAS_TAIL: whether y ends within a group; OVERLAPS_PREVIOUS: whether it is a dependent launch.

#include "include/elements/transform.cuh"

struct Part {
  const X* x;
  Y* y;
  i64 groups;
  i64 span;                // elements from x to just past its last
  i64 x_extent, y_extent;  // along COLUMN_AXIS
  i64 x_strides[RANK];
  i64 y_strides[RANK];
  Divider axes[RANK];  // groups along each axis; the first is not used
};

struct Params {
  Part parts[PARTS];
  PartRounds<PARTS> rounds;
};

typedef Elements<X, VECTOR, X_WIDTH> Input;

struct Group {
  const X* x;
  Y* y;
  int valid_x, valid_y;
};

__device__ __forceinline__ Group locate(const Part& part, INDEX group) {
  i64 coordinate[RANK];
  digits<RANK>(part.axes, group, coordinate);
  coordinate[COLUMN_AXIS] *= VECTOR;
  const i64 column = coordinate[COLUMN_AXIS];
  const int valid_y = HAS_TAIL ? clamped_count<VECTOR>(part.y_extent - column) : VECTOR;
  Group found{part.x, part.y, clamped_count<VECTOR>(part.x_extent - column), valid_y};
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) {
    found.x += coordinate[axis] * part.x_strides[axis];
    found.y += coordinate[axis] * part.y_strides[axis];
  }
  return found;
}

__device__ __forceinline__ void write(const Part& part, const Group& group, const Input& from) {
  const Vector<X, VECTOR> values = from.get();
  Y out[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) out[i] = Moved<Y, X>::of(values.v[i]);
  if constexpr (Y_WIDTH == 0) {
    store_strided(group.y, out, part.y_strides[COLUMN_AXIS], group.valid_y);
  } else {
    store_neighbours<Y_WIDTH>(group.y, out, group.valid_y);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  u32 block = blockIdx.x;
  const Part& part = p.parts[p.rounds.part_of(block)];
  const i64 first = i64(block) * (THREADS * UNROLL) + threadIdx.x;
  Group groups[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    if (first + u * THREADS < part.groups) groups[u] = locate(part, INDEX(first + u * THREADS));
  }

  begin_launch<OVERLAPS_PREVIOUS>();
  // All loads are issued before the first store.
  Input in[UNROLL];
  const i64 stride = part.x_strides[COLUMN_AXIS];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    if (first + u * THREADS < part.groups) {
      in[u].load(groups[u].x, stride, groups[u].valid_x, part.x, part.x + part.span);
    }
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    if (first + u * THREADS < part.groups) write(part, groups[u], in[u]);
  }
}
