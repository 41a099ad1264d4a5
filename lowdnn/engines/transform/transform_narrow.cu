// transform_narrow: y[u, c] = x[u, c] for NARROW columns c, which are interleaved in one tensor and planar in the other
// (images of a few channels in NHWC and NCHW), for every coordinate of the other axes. Elements are converted if the
// types differ.
//
// Layouts: the interleaved tensor has u at stride NARROW and c at stride 1. The planar one has u at stride 1 and c at
// any stride. All other strides are free.
// Block: THREADS * VECTOR neighbours along u of one row. A thread moves VECTOR of them between each column of the
// planar tensor and shared memory, which has the order of the interleaved one; neighbouring threads move neighbouring
// vectors between shared memory and the interleaved tensor. Every access is as wide as the layouts allow, and accesses
// coalesce.
// Shared memory: THREADS * VECTOR * NARROW elements of x.
// Launch: THREADS threads, ceil(extent / (THREADS * VECTOR)) blocks for each row; the coordinates of a block are its
// digits over the radices `axes`: the OUTER other axes, blocks along u.
// Macros: X Y OUTER NARROW VECTOR THREADS X_WIDTH Y_WIDTH; INTERLEAVED_Y: 1 if y is the interleaved tensor, 0 if x is;
// OVERLAPS_PREVIOUS: whether it is a dependent launch.

#include "include/elements/transform.cuh"

constexpr int SPAN = THREADS * VECTOR;

struct Params {
  const X* x;
  Y* y;
  i64 extent;                  // elements along u
  i64 planar_stride;            // stride of the columns in the planar tensor
  i64 x_strides[OUTER + 1];    // the outer axes; the last is not used
  i64 y_strides[OUTER + 1];
  Divider axes[OUTER + 1];     // the first is not used
};

__device__ __forceinline__ void read(X (&to)[VECTOR], const X* from, i64 remaining) {
  load_row<PathOf<X_WIDTH * sizeof(X)>::Type, X_WIDTH>(to, from, clamped_count<VECTOR>(remaining));
}

__device__ __forceinline__ void write(Y* to, const X (&from)[VECTOR], i64 remaining) {
  Y out[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) out[i] = Moved<Y, X>::of(from[i]);
  store_row<Y_WIDTH>(to, out, clamped_count<VECTOR>(remaining));
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Vector<X, VECTOR> tile[THREADS * NARROW];
  i64 coordinate[OUTER + 1];
  digits<OUTER + 1>(p.axes, blockIdx.x, coordinate);
  const i64 first = coordinate[OUTER] * SPAN;
  const X* x = p.x + first * (INTERLEAVED_Y ? 1 : NARROW);
  Y* y = p.y + first * (INTERLEAVED_Y ? NARROW : 1);
#pragma unroll
  for (int axis = 0; axis < OUTER; ++axis) {
    x += coordinate[axis] * p.x_strides[axis];
    y += coordinate[axis] * p.y_strides[axis];
  }
  const int own = threadIdx.x * VECTOR;
  const i64 remaining = p.extent - first - own, interleaved_remaining = (p.extent - first) * NARROW - own;
  // This thread's VECTOR times NARROW elements in interleaved order, and the same in columns.
  Vector<X, VECTOR>* square = tile + threadIdx.x * NARROW;
  X columns[NARROW][VECTOR];

  begin_launch<OVERLAPS_PREVIOUS>();
  if constexpr (INTERLEAVED_Y) {
#pragma unroll
    for (int c = 0; c < NARROW; ++c) read(columns[c], x + own + c * p.planar_stride, remaining);
#pragma unroll
    for (int i = 0; i < NARROW; ++i) {
      Vector<X, VECTOR> part;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) part.v[j] = columns[(i * VECTOR + j) % NARROW][(i * VECTOR + j) / NARROW];
      square[i] = part;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NARROW; ++i) {
      write(y + own + i * SPAN, tile[threadIdx.x + i * THREADS].v, interleaved_remaining - i * SPAN);
    }
  } else {
    Vector<X, VECTOR> parts[NARROW];
#pragma unroll
    for (int i = 0; i < NARROW; ++i) read(parts[i].v, x + own + i * SPAN, interleaved_remaining - i * SPAN);
#pragma unroll
    for (int i = 0; i < NARROW; ++i) tile[threadIdx.x + i * THREADS] = parts[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NARROW; ++i) {
      const Vector<X, VECTOR> part = square[i];
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) columns[(i * VECTOR + j) % NARROW][(i * VECTOR + j) / NARROW] = part.v[j];
    }
#pragma unroll
    for (int c = 0; c < NARROW; ++c) write(y + own + c * p.planar_stride, columns[c], remaining);
  }
}
