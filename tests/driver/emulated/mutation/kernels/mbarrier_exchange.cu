// Each 64 numbers of y are those of x backwards; n a multiple of 64. 64 threads pass them through one of two slots; each
// tells an mbarrier of its store and waits for the phase that its own arrival was counted in. Whoever fills a slot again
// has seen the phase between, so everyone has read it.
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(64) mbarrier_exchange(const float* x, float* y, int n) {
  __shared__ float slots[2][64];
  __shared__ u64 arrivals;
  int t = threadIdx.x;
  u32 barrier = shared_address(&arrivals);
  if (t == 0) MBARRIER_INIT("barrier made", barrier, 64);
  BAR_SYNC("barrier known");
#pragma unroll 1
  for (int start = 0; start < n; start += 64) {
    float* slot = slots[start / 64 % 2];
    slot[t] = x[start + t];
    u64 phase;
    MBARRIER_ARRIVE_PHASE("slot filled", phase, barrier);
    MBARRIER_WAIT_PHASE("slot full", barrier, phase);
    y[start + t] = slot[63 - t];
  }
}
