// C = A B^T; A [m, k], B [n, k] in bf16, C [m, n] in fp32, row-major; k a multiple of 16. A block of 4 warps per
// 32 x 32 of C; three stages of 16 of k by cp.async, ldmatrix, mma.sync. One barrier a step: it tells that the stage has
// come, and that everyone is done with the one that is filled next.
#include "sites.cuh"

constexpr int STAGES = 3;

__device__ void copy(u16* to, const u16* from, bool is_inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_inside ? 8 : 0) : "memory");
}

__device__ void fragment(u32 (&part)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3]) : "r"(shared_address(row)) : "memory");
}

__device__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128)
    cp_async_pipeline(const u16* a, const u16* b, float* c, int m, int n, int k) {
  __shared__ __align__(16) u16 a_tile[STAGES][32][24], b_tile[STAGES][32][24];
  int t = threadIdx.x, lane = t % 32, row = t / 4, column = t % 4 * 4;
  int m0 = blockIdx.y * 32, n0 = blockIdx.x * 32, warp_m = t / 64 * 16, warp_n = t / 32 % 2 * 16;
  int steps = k / 16;
  float sums[2][4] = {};

  auto load = [&](int step) {
    int stage = step % STAGES;
    bool a_inside = LESS("a row", m0 + row, m), b_inside = LESS("b row", n0 + row, n);
    copy(&a_tile[stage][row][column], a + (m0 + row) * k + step * 16 + column, a_inside);
    copy(&b_tile[stage][row][column], b + (n0 + row) * k + step * 16 + column, b_inside);
  };

  for (int step = 0; step < STAGES - 1; step++) {
    if (step < steps) load(step);
    CP_ASYNC_COMMIT("first commit");
  }
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    CP_ASYNC_WAIT("stage landed", 1);
    BAR_SYNC("stage shared");
    if (LESS("k inside", step + STAGES - 1, steps)) load(step + STAGES - 1);
    CP_ASYNC_COMMIT("next commit");
    u32 a_part[4], b_part[4];
    fragment(a_part, &a_tile[step % STAGES][warp_m + lane % 16][lane / 16 * 8]);
    fragment(b_part, &b_tile[step % STAGES][warp_n + lane % 16][lane / 16 * 8]);
    multiply(sums[0], a_part, b_part[0], b_part[2]);
    multiply(sums[1], a_part, b_part[1], b_part[3]);
  }
  for (int i = 0; i < 8; i++) {
    int y = m0 + warp_m + lane / 4 + i / 2 % 2 * 8, x = n0 + warp_n + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (LESS("c row", y, m) && LESS("c column", x, n)) c[y * n + x] = sums[i / 4][i % 4];
  }
}
