// C = A B^T; A [m, k], B [64, k] in bf16, C [m, 64] in fp32, row-major; m a multiple of 128, k of 64. A cluster of two
// blocks per 128 x 64 of C, a block per 64 x 64. Each block brings its own rows of A and half of the rows of B, which it
// sends to both blocks (TMA multicast), so a stage may be filled again only when both blocks are done with it.
//
// Dynamic shared memory: STAGES x (A tile [64, 64], B tile [64, 64]).
#include "sites.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int STAGES = 2;
constexpr int TILE_BYTES = 64 * 128;

extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(160)
    cluster_multicast(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int k) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ u64 full_barriers[STAGES], empty_barriers[STAGES];
  u32 ring = shared_address(shared), full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  u32 rank = cluster_rank();
  int steps = k / 64;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      MBARRIER_INIT("full made", full + 8 * stage, 1);
      MBARRIER_INIT("empty made", empty + 8 * stage, 2);
    }
    FENCE_MBARRIER_INIT("barriers fenced");
  }
  __syncwarp();
  CLUSTER_ARRIVE("barriers made");
  CLUSTER_WAIT("barriers visible");

  if (threadIdx.x == 128) {
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      u32 stage = step % STAGES, at = ring + stage * 2 * TILE_BYTES;
      MBARRIER_WAIT_CLUSTER("wait empty", empty + 8 * stage, step / STAGES % 2 ^ 1);
      MBARRIER_ARRIVE_EXPECT("expected", full + 8 * stage, 2 * TILE_BYTES);
      tma_load(at, a, step * 64, blockIdx.x * 64, full + 8 * stage);
      tma_load_multicast(at + TILE_BYTES + rank * TILE_BYTES / 2, b, step * 64, rank * 32, full + 8 * stage, 3);
    }
  }
  if (threadIdx.x < 128) {
    float sums[32];
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
      u32 stage = step % STAGES, at = ring + stage * 2 * TILE_BYTES;
      MBARRIER_WAIT("wait full", full + 8 * stage, step / STAGES % 2);
      WGMMA_FENCE("sums fenced");
      multiply_tiles(sums, at, at + TILE_BYTES, step > 0);
      WGMMA_COMMIT("multiply commit");
      WGMMA_WAIT("multiply wait", 0);
      if (threadIdx.x < 2) MBARRIER_ARRIVE_REMOTE("stage freed", mapped(empty + 8 * stage, threadIdx.x));
    }
    for (int i = 0; i < 32; i++) c[(blockIdx.x * 64 + sums_row(i)) * 64 + sums_column(i)] = sums[i];
  }
  __syncwarp();
  CLUSTER_ARRIVE("arrivals made");
  CLUSTER_WAIT("arrivals received");
}
