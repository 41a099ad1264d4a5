// y = x backwards, 64 numbers, by way of ``middle``: block 0 writes it and sets the flag, block 1 waits for the flag and
// reads. Both blocks must be resident: a cooperative launch.
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(64) block_to_block(const float* x, float* middle, u32* flag, float* y) {
  int t = threadIdx.x;
  if (blockIdx.x == 0) {
    middle[t] = x[t];
    BAR_SYNC("middle written");
    if (t == 0) STORE_RELEASE("flag set", flag, 1);
  } else {
    if (t == 0) {
      u32 is_set;
      do LOAD_ACQUIRE("flag seen", is_set, flag);
      while (!is_set);
    }
    BAR_SYNC("middle visible");
    y[t] = middle[63 - t];
  }
}
