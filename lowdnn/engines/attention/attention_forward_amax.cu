// attention_forward_amax: zeros, from which attention_forward_wgmma.cu goes on with the largest magnitudes.
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
