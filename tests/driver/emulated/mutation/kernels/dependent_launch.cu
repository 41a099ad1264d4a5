// middle = 2 x, then y = middle + 1: two launches, of which the second may begin while the first still runs.
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(64) first(const float* x, float* middle) {
  GRID_LAUNCH("second may start");
  int place = blockIdx.x * 64 + threadIdx.x;
  middle[place] = 2 * x[place];
}

extern "C" __global__ void __launch_bounds__(64) second(const float* middle, float* y) {
  int place = blockIdx.x * 64 + threadIdx.x;
  GRID_WAIT("first is done");
  y[place] = middle[place] + 1;
}
