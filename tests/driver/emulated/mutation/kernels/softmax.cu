// y = softmax of each row of x [rows, n]. A block of 128 threads per row; maximum and sum meet in shared memory, the
// same words for both.
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(128) softmax(const float* x, float* y, int n) {
  __shared__ float part[4];
  int t = threadIdx.x;
  x += blockIdx.x * (u64)n;
  y += blockIdx.x * (u64)n;

  float largest = -3.4e38f;
  for (int i = t; LESS("x inside", i, n); i += 128) largest = fmaxf(largest, x[i]);
  for (int lane = 16; lane > 0; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lane));
  if (t % 32 == 0) part[t / 32] = largest;
  BAR_SYNC("maxima written");
  largest = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  BAR_SYNC("maxima read");

  float sum = 0;
  for (int i = t; i < n; i += 128) sum += __expf(x[i] - largest);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  if (t % 32 == 0) part[t / 32] = sum;
  BAR_SYNC("sums written");
  sum = part[0] + part[1] + part[2] + part[3];
  for (int i = t; LESS("y inside", i, n); i += 128) y[i] = __expf(x[i] - largest) / sum;
}
