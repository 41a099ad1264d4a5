// tf32_split: the parts of the rows of a matrix of fp32 as columns of products by TF32 (include/math/tf32_parts.cuh):
//     t[row, block, 0, i] = high part of x[row, 32 * block + i],  t[row, block, 1, i] = its low part
// and zeros for k past the end of a row.
//
// Layouts: x has AXES axes of rows, each at a multiple of 16 bytes, and contiguous k; t is packed, [rows][blocks][2][32].
// Block: 256 threads, each with 4 elements of a row.
// Launch: ceil(rows * blocks * 8 / 256) blocks of 256 threads; a dependent launch (dependent_launch.cuh).

#include "include/math/division.cuh"
#include "include/math/tf32_parts.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/vector.cuh"

struct Params {
  const f32* x;
  f32* t;
  i64 strides[AXES];
  Divider extents[AXES];
  Divider groups;  // groups of 4 elements in a row of t, those past the end of k included
  i32 depth, items;
};

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  constexpr int GROUP = 4, BLOCK_GROUPS = 8;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u32 item = blockIdx.x * 256 + threadIdx.x;
  if (item >= u32(p.items)) return;
  const u32 row = p.groups.divide(item), group = item - row * p.groups.divisor;
  u32 at[AXES];
  digits<AXES>(p.extents, row, at);
  const f32* from = p.x + i64(group) * GROUP;
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) from += at[axis] * p.strides[axis];

  f32 x[GROUP], high[GROUP], low[GROUP];
  load_row<Stream, GROUP>(x, from, min(max(p.depth - i32(group) * GROUP, 0), GROUP));
#pragma unroll
  for (int i = 0; i < GROUP; ++i) {
    const Tf32Parts parts = tf32_parts(__float_as_uint(x[i]));
    high[i] = __uint_as_float(parts.high);
    low[i] = __uint_as_float(parts.low);
  }
  f32* const to = p.t + (i64(item) + item / BLOCK_GROUPS * BLOCK_GROUPS) * GROUP;
  store<GROUP>(to, high);
  store<GROUP>(to + BLOCK_GROUPS * GROUP, low);
}
