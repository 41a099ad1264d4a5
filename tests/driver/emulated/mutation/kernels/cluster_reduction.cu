// y[b] = sum of x[1024 b], ..., x[1024 b + 1023]: a cluster of four blocks per y[b], 256 numbers a block, 64 threads.
// Each block adds its own in shared memory, the last block of the cluster adds the four.
#include "sites.cuh"

extern "C" __global__ void __cluster_dims__(4) __launch_bounds__(64) cluster_reduction(const float* x, float* y) {
  __shared__ float part[2];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; i++) sum += x[blockIdx.x * 256 + i * 64 + t];
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  if (t % 32 == 0) part[t / 32] = sum;
  CLUSTER_ARRIVE("parts written");
  CLUSTER_WAIT("parts visible");
  if (cluster_rank() == 3 && t < 8) {
    u32 remote = mapped(shared_address(&part[t % 2]), t / 2);
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(sum) : "r"(remote) : "memory");
    for (int lane = 4; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xff, sum, lane);
    if (t == 0) y[blockIdx.x / 4] = sum;
  }
  __syncwarp();
  CLUSTER_ARRIVE("parts read");
  CLUSTER_WAIT("parts kept");
}
