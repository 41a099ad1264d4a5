// y = 2 x + 1, n a multiple of 128. One warp brings 128 numbers at a time by bulk copies into a ring of STAGES; four
// warps compute in place and one of their threads sends the stage to y, also by a bulk copy. ``full``: the numbers have
// come; ``empty``: they have been sent.
#include "sites.cuh"

constexpr int STAGES = 2;
constexpr int BYTES = 512;

extern "C" __global__ void __launch_bounds__(160) bulk_pipeline(const float* x, float* y, int n) {
  __shared__ __align__(128) float ring[STAGES][128];
  __shared__ u64 full_barriers[STAGES], empty_barriers[STAGES];
  int t = threadIdx.x, steps = n / 128;
  u32 full = shared_address(full_barriers), empty = shared_address(empty_barriers);
  if (t == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      MBARRIER_INIT("full made", full + 8 * stage, 1);
      MBARRIER_INIT("empty made", empty + 8 * stage, 1);
    }
    FENCE_MBARRIER_INIT("barriers fenced");
  }
  BAR_SYNC("barriers made");

  if (t == 128) {
#pragma unroll 1
    for (int step = blockIdx.x, turn = 0; step < steps; step += gridDim.x, turn++) {
      int stage = turn % STAGES, round = turn / STAGES;
      if (round > 0) MBARRIER_WAIT("wait empty", empty + 8 * stage, (round - 1) % 2);
      MBARRIER_ARRIVE_EXPECT("expected", full + 8 * stage, BYTES);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   ::"r"(shared_address(ring[stage])), "l"(x + step * 128), "n"(BYTES), "r"(full + 8 * stage)
                   : "memory");
    }
  } else if (t < 128) {
#pragma unroll 1
    for (int step = blockIdx.x, turn = 0; step < steps; step += gridDim.x, turn++) {
      int stage = turn % STAGES, round = turn / STAGES;
      MBARRIER_WAIT("wait full", full + 8 * stage, round % 2);
      ring[stage][t] = 2 * ring[stage][t] + 1;
      FENCE_PROXY_ASYNC("results fenced");
      BAR_SYNC_SOME("results written", 1, 128);
      if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     ::"l"(y + step * 128), "r"(shared_address(ring[stage])), "n"(BYTES) : "memory");
        BULK_COMMIT("results sent");
        BULK_WAIT_READ("ring read", 0);
        MBARRIER_ARRIVE("stage freed", empty + 8 * stage);
      }
    }
  }
}
