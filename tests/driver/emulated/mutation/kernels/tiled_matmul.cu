// C = A B in fp32; A [m, k], B [k, n], C [m, n], row-major. A block of 16 x 16 threads per 16 x 16 of C, 16 of k at a
// time through shared memory.
#include "sites.cuh"

extern "C" __global__ void __launch_bounds__(256)
    tiled_matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[16][17], b_tile[16][17];
  int x = threadIdx.x % 16, y = threadIdx.x / 16;
  int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
#pragma unroll 1
  for (int k0 = 0; k0 < k; k0 += 16) {
    a_tile[y][x] = LESS("a row", row, m) && LESS("a column", k0 + x, k) ? a[row * k + k0 + x] : 0;
    b_tile[y][x] = LESS("b row", k0 + y, k) && LESS("b column", column, n) ? b[(k0 + y) * n + column] : 0;
    BAR_SYNC("tiles filled");
    for (int i = 0; i < 16; i++) sum += a_tile[y][i] * b_tile[i][x];
    BAR_SYNC("tiles read");
  }
  if (LESS("c row", row, m) && LESS("c column", column, n)) c[row * n + column] = sum;
}
