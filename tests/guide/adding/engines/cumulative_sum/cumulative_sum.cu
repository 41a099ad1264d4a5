// cumulative_sum: y[i] = x[0] + ... + x[i] for the elements of each row, a row being those along one axis.
//
// Layouts: any strides.
// Block: computes row blockIdx.x, THREADS elements at a time, one for each thread. An element's sum is that of its
// warp's lanes up to it (shuffles), of the warps before (shared memory), and of the chunks before (carry). So the order
// of additions depends on the element's index alone, and every run gives the same bits.
// Shared memory: warp_sums[THREADS / 32], the sum of each warp's elements in the current chunk.
// Launch: THREADS threads, one block for each row; the digits of a row's number over `axes` are its position.
// Macros: X Y (types of x and y) SUM (f32, f64) RANK (of the tensors) THREADS.

#include "include/math/division.cuh"

constexpr int WARPS = THREADS / WARP_SIZE;

struct Params {
  const X* x;
  Y* y;
  i64 length;          // elements of a row
  i64 x_step, y_step;  // strides along the axis of the sums
  i64 x_strides[RANK], y_strides[RANK];
  Divider axes[RANK];  // the axis of the sums has one position
};

// The sum of `value` over the lanes of a warp up to and including this one.
__device__ __forceinline__ SUM sum_up_to(int lane, SUM value) {
#pragma unroll
  for (int distance = 1; distance < WARP_SIZE; distance *= 2) {
    const SUM lower = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ SUM warp_sums[WARPS];
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
  u32 position[RANK];
  digits<RANK>(p.axes, u32(blockIdx.x), position);
  const X* x = p.x;
  Y* y = p.y;
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) {
    x += position[axis] * p.x_strides[axis];
    y += position[axis] * p.y_strides[axis];
  }

  SUM carry = 0;  // the sum of the chunks before
  for (i64 first = 0; first < p.length; first += THREADS) {
    const i64 i = first + threadIdx.x;
    const SUM sum = sum_up_to(lane, i < p.length ? SUM(widen(x[i * p.x_step])) : SUM(0));
    if (lane == WARP_SIZE - 1) warp_sums[warp] = sum;
    __syncthreads();
    SUM before = carry;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      if (other < warp) before += warp_sums[other];
      carry += warp_sums[other];
    }
    if (i < p.length) y[i * p.y_step] = convert<Y>(before + sum);
    __syncthreads();  // all have read warp_sums before the next chunk's sums replace them
  }
}
