// y[b] = sum of x[512 b], ..., x[512 b + 511], where x ends after n. A block of 128 threads per y[b]; a tree in shared
// memory.
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(128) tree_reduction(const float* x, float* y, int n) {
  __shared__ float part[128];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; i++) {
    int place = blockIdx.x * 512 + i * 128 + t;
    if (LESS("inside", place, n)) sum += x[place];
  }
  part[t] = sum;
  BAR_SYNC("filled");
#pragma unroll 1
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];
    BAR_SYNC("halved");
  }
  if (t == 0) y[blockIdx.x] = part[0];
}
