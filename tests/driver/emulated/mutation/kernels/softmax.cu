// y = softmax of each row of x [rows, n], n at most 1024. A block of 128 threads per row, which a thread holds eight
// numbers of; maximum and sum meet in shared memory, the same words for both.
#include "sites.cuh"

constexpr int HELD = 8;

extern "C" __global__ void __launch_bounds__(128) softmax(const float* x, float* y, int n) {
  __shared__ float part[4];
  int t = threadIdx.x;
  x += blockIdx.x * (u64)n;
  y += blockIdx.x * (u64)n;

  float held[HELD];
  float largest = -3.4e38f;
  for (int i = 0; i < HELD; i++) {
    held[i] = LESS("x inside", i * 128 + t, n) ? x[i * 128 + t] : -3.4e38f;
    largest = fmaxf(largest, held[i]);
  }
  for (int lane = 16; lane > 0; lane /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lane));
  if (t % 32 == 0) part[t / 32] = largest;
  BAR_SYNC("maxima written");
  largest = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  BAR_SYNC("maxima read");

  float sum = 0;
  for (int i = 0; i < HELD; i++) sum += held[i] = __expf(held[i] - largest);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  if (t % 32 == 0) part[t / 32] = sum;
  BAR_SYNC("sums written");
  float scale = 1 / (part[0] + part[1] + part[2] + part[3]);
  for (int i = 0; i < HELD; i++)
    if (LESS("y inside", i * 128 + t, n)) y[i * 128 + t] = held[i] * scale;
}
