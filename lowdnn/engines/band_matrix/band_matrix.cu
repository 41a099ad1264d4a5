// band_matrix: y[i, j] = x[i, c] with c = j + SLOPE * i + shift if 0 <= c < source_extent, otherwise pad.
// SLOPE -1 expands a band, 1 contracts a matrix.
//
// Layouts: any strides over RANK axes: the outer ones, rows i, columns j. Columns are cut into groups of VECTOR, which
// a thread reads one by one, as they are misaligned, and writes in accesses of Y_WIDTH elements, or strided if that is
// 0.
// Block: THREADS threads on neighbouring groups; elements without a column in x are not read.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks; a group's number counts over `axes`.
// Macros: X Y SLOPE RANK THREADS VECTOR Y_WIDTH; INDEX: u32 up to 2^31 groups, otherwise i64.

#include "include/elements/transform.cuh"

struct Params {
  const X* x;
  Y* y;
  i64 groups;
  i64 columns;
  i64 source_extent;
  i64 shift;
  i64 x_strides[RANK];
  i64 y_strides[RANK];
  f64 pad;
  Divider axes[RANK];  // radices of a group's number; the first is not used
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;
  i64 coordinate[RANK];
  digits<RANK>(p.axes, INDEX(group), coordinate);
  const i64 column = coordinate[RANK - 1] * VECTOR, row = coordinate[RANK - 2];
  const i64 remaining = p.columns - column;
  const int valid = remaining >= VECTOR ? VECTOR : int(remaining);
  const X* x = p.x;
  Y* y = p.y + column * p.y_strides[RANK - 1];
#pragma unroll
  for (int axis = 0; axis < RANK - 1; ++axis) {
    x += coordinate[axis] * p.x_strides[axis];
    y += coordinate[axis] * p.y_strides[axis];
  }

  const Y pad = convert<Y>(p.pad);
  const i64 first = column + SLOPE * row + p.shift;
  Y out[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) {
    const i64 source = first + i;
    const bool inside = i < valid && source >= 0 && source < p.source_extent;
    out[i] = inside ? Moved<Y, X>::of(x[source * p.x_strides[RANK - 1]]) : pad;
  }
  if constexpr (Y_WIDTH == 0) {
    store_strided(y, out, p.y_strides[RANK - 1], valid);
  } else {
    store_row<Y_WIDTH>(y, out, valid);
  }
}
