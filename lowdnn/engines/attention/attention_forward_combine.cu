// attention_forward_combine: o of each query from what attention_forward_decode has found of parts of its keys.
//
// Warp: one row; its lanes have two neighbouring columns each, every 64. The parts are joined in their order.
// Launch: WARPS warps in a block, one for each row.
// Macros: those of attention_forward.cuh, WARPS.

#include "generated.cuh"
#include "include/attention_forward.cuh"
#include "include/attention_partials.cuh"

constexpr int PAIRS = (HEAD_V + 2 * WARP_SIZE - 1) / (2 * WARP_SIZE);

struct Params {
  Partials partials;
  Divider queries, heads;
  i32 parts;
  Forward forward;
};

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) KERNEL_NAME(const __grid_constant__ Params params) {
  const Forward& p = params.forward;
  const u32 row = blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
  if (row >= params.partials.rows) return;
  const u32 head = params.queries.divide(row), batch = params.heads.divide(head);
  const i64 coordinate[4] = {batch, head - batch * params.heads.divisor, row - head * params.queries.divisor, 0};
  const int first_column = threadIdx.x % WARP_SIZE * 2;

  f32 largest = -INFINITE, sum = 0, o[PAIRS][2] = {};
#pragma unroll 4
  for (i32 part = 0; part < params.parts; ++part) {
    const float2 extreme = *params.partials.extreme(part, row);
    f32 kept, added;
    join(p.scale * LOG2_E, largest, sum, extreme.x, extreme.y, kept, added);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const int column = first_column + i * 2 * WARP_SIZE;
      if (column >= HEAD_V) break;
      const float2 pair = *params.partials.pair(part, row, column);
      o[i][0] = o[i][0] * kept + pair.x * added;
      o[i][1] = o[i][1] * kept + pair.y * added;
    }
  }

  if (threadIdx.x % WARP_SIZE == 0) store_statistics(p, coordinate, largest, sum);
  const f32 share = sum == 0 ? 0 : 1 / sum;
  const OutputRow output(p, coordinate, true);
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const f32 values[2] = {o[i][0] * share, o[i][1] * share};
    output.store(first_column + i * 2 * WARP_SIZE, values);
  }
}
