// attention_forward_amax: sets the largest magnitudes to 0; attention_forward_wgmma.cu then raises them with atomic
// maxima.
//
// Launch: a warp.
// Macros: NUMBERS.

#include "include/numeric.cuh"

struct Params {
  u32* numbers[NUMBERS];  // bits of f32
};

extern "C" __global__ void __launch_bounds__(WARP_SIZE) KERNEL_NAME(const __grid_constant__ Params p) {
  if (threadIdx.x < NUMBERS) *p.numbers[threadIdx.x] = 0;
}
