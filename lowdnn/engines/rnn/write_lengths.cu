// write_lengths: lengths[i] = values[i], where the values are parameters of the launch: it may be captured into a
// graph, and the caller's array need not live on.
//
// Block: 128 threads, one for each value. Launch: ceil(count / 128) blocks. Shared memory: none.
// Macros: CAPACITY (values of a launch).

#include "include/numeric.cuh"

struct Params {
  i32* lengths;
  i32 count;
  i32 values[CAPACITY];
};

extern "C" __global__ void __launch_bounds__(128) KERNEL_NAME(const __grid_constant__ Params p) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < p.count) p.lengths[i] = p.values[i];
}
