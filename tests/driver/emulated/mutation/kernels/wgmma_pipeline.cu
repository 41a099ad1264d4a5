// C = A B^T; A [m, k], B [n, k] in bf16, C [m, n] in fp32, row-major, by tensor maps; m, n, k multiples of the tile.
// A block works on tiles blockIdx.x, blockIdx.x + gridDim.x, ... of BLOCK_M x BLOCK_N of C, numbered along n first.
//
// WARPGROUPS warpgroups multiply (wgmma, 64 rows each); one more warp brings 64 of k at a time by TMA into a ring of
// STAGES. ``full``: a stage has come; ``empty``: every multiplying warpgroup is done with it. C goes by way of shared memory
// and TMA stores, one of 64 x 32 numbers at a time, so that the next tile is multiplied meanwhile.
//
// Dynamic shared memory: STAGES x (A tile, B tile), then C [BLOCK_N / 32, BLOCK_M, 32].
#include "sites.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int BLOCK_M = 64 * WARPGROUPS;
constexpr int A_BYTES = BLOCK_M * 128;
constexpr int B_BYTES = BLOCK_N * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int CONSUMERS = 128 * WARPGROUPS;

// One thread brings the tiles of a block.
__device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b, u32 ring, u32 full, u32 empty,
                                        int tiles, int tiles_n, int steps) {
  int turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    int row = tile / tiles_n * BLOCK_M, column = tile % tiles_n * BLOCK_N;
#pragma unroll 1
    for (int step = 0; step < steps; step++, turn++) {
      u32 stage = turn % STAGES, at = ring + stage * STAGE_BYTES;
      // In the first round the phase before the first counts as complete.
      MBARRIER_WAIT("wait empty", empty + 8 * stage, turn / STAGES % 2 ^ 1);
      MBARRIER_ARRIVE_EXPECT("expected", full + 8 * stage, STAGE_BYTES);
      tma_load(at, a, step * 64, row, full + 8 * stage);
      tma_load(at + A_BYTES, b, step * 64, column, full + 8 * stage);
    }
  }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32)
    wgmma_pipeline(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                   const __grid_constant__ TensorMap c, int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ u64 full_barriers[STAGES], empty_barriers[STAGES];
  u32 ring = shared_address(shared), full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  int tiles_n = n / BLOCK_N, tiles = m / BLOCK_M * tiles_n, steps = k / 64;

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      MBARRIER_INIT("full made", full + 8 * stage, 1);
      MBARRIER_INIT("empty made", empty + 8 * stage, WARPGROUPS);
    }
    FENCE_MBARRIER_INIT("barriers fenced");
  }
  BAR_SYNC("barriers made");

  if (threadIdx.x >= CONSUMERS) {
    if (threadIdx.x == CONSUMERS) produce(a, b, ring, full, empty, tiles, tiles_n, steps);
    return;
  }

  int turn = 0, group = threadIdx.x / 128;
  float* out = (float*)(shared + STAGES * STAGE_BYTES) + group * 64 * 32;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sums[BLOCK_N / 2];
#pragma unroll 1
    for (int step = 0; step < steps; step++, turn++) {
      u32 stage = turn % STAGES, at = ring + stage * STAGE_BYTES;
      MBARRIER_WAIT("wait full", full + 8 * stage, turn / STAGES % 2);
      WGMMA_FENCE("sums fenced");
      multiply_tiles(sums, at + group * 64 * 128, at + A_BYTES, step > 0);
      WGMMA_COMMIT("multiply commit");
      WGMMA_WAIT("multiply wait", 0);
      if (threadIdx.x % 128 == 0) MBARRIER_ARRIVE("stage freed", empty + 8 * stage);
    }

    bool sends = threadIdx.x % 128 == 0;
    if (sends) BULK_WAIT_READ("out sent", 0);
    BAR_SYNC_SOME("out free", 1 + group, 128);
#pragma unroll
    for (int i = 0; i < BLOCK_N / 2; i++)
      out[sums_column(i) / 32 * BLOCK_M * 32 + sums_row(i) * 32 + sums_column(i) % 32] = sums[i];
    FENCE_PROXY_ASYNC("out fenced");
    BAR_SYNC_SOME("out written", 1 + group, 128);
    if (sends) {
      int row = tile / tiles_n * BLOCK_M + group * 64, column = tile % tiles_n * BLOCK_N;
      for (int part = 0; part < BLOCK_N / 32; part++)
        tma_store(c, column + part * 32, row, shared_address(out + part * BLOCK_M * 32));
      BULK_COMMIT("out commit");
    }
  }
  if (threadIdx.x % 128 == 0) BULK_WAIT_READ("last sent", 0);
}
