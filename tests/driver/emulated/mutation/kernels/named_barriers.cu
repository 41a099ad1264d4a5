// y = 2 x + 1, n a multiple of 64. Warp 0 brings 64 numbers at a time into one of two slots, warps 1 and 2 take them out;
// two named barriers for each slot: 1 and 2 "full", 3 and 4 "empty".
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(96) named_barriers(const float* x, float* y, int n) {
  __shared__ float slots[2][64];
  int t = threadIdx.x, steps = n / 64;
  if (t < 32) {
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      int slot = step % 2;
      if (step >= 2) BAR_SYNC_SOME("slot empty", 3 + slot, 96);
      slots[slot][t] = x[step * 64 + t];
      slots[slot][t + 32] = x[step * 64 + t + 32];
      BAR_ARRIVE_SOME("slot filled", 1 + slot, 96);
    }
  } else {
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      int slot = step % 2;
      BAR_SYNC_SOME("slot full", 1 + slot, 96);
      y[step * 64 + t - 32] = 2 * slots[slot][t - 32] + 1;
      if (step + 2 < steps) BAR_ARRIVE_SOME("slot read", 3 + slot, 96);
    }
  }
}
