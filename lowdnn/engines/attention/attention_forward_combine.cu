// attention_forward_combine: combines the partial results of attention_forward_decode for the parts of the keys into o
// of each query.
//
// Block: one row. Each warp combines every WARPS-th part; then the first warp combines the warps' results. A lane has
// two neighbouring columns in each 64. The order is fixed. Shared memory: for each warp the largest score, the sum and
// the outputs.
// Launch: WARPS warps in a block, a block for each row.
// Macros: as in attention_forward.cuh, and WARPS; OVERLAPS_PREVIOUS: as a dependent launch (dependent_launch.cuh).

#include "attention_forward.cuh"
#include "attention_forward_store.cuh"
#include "attention_partials.cuh"
#include "include/ptx/dependent_launch.cuh"

constexpr int PAIRS = (HEAD_V + 2 * WARP_SIZE - 1) / (2 * WARP_SIZE);

struct Params {
  Partials partials;
  Divider queries, heads;
  i32 parts;
  Forward forward;
};

// The combination of the parts so far, in this lane's columns.
struct Joined {
  f32 largest = -INFINITE, sum = 0;
  float2 o[PAIRS] = {};

  // pair(i): the lane's i-th pair of columns. unit: as in `join`.
  template <class Pair> __device__ __forceinline__ void add(f32 unit, const float2& extreme, const Pair& pair) {
    f32 kept, added;
    join(unit, largest, sum, extreme.x, extreme.y, kept, added);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      const float2 other = pair(i);
      o[i] = {o[i].x * kept + other.x * added, o[i].y * kept + other.y * added};
    }
  }
};

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) KERNEL_NAME(const __grid_constant__ Params params) {
  __shared__ float2 extremes[WARPS], outputs[WARPS][PAIRS][WARP_SIZE];
  const Forward& p = params.forward;
  const u32 row = blockIdx.x, warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const u32 head = params.queries.divide(row), batch = params.heads.divide(head);
  const i64 coordinate[4] = {batch, head - batch * params.heads.divisor, row - head * params.queries.divisor, 0};
  const auto column = [&](int pair) { return i32(lane + pair * WARP_SIZE) * 2; };

  if constexpr (OVERLAPS_PREVIOUS) {
    wait_for_previous_kernel();
    allow_next_kernel();
  }

  const f32 unit = p.score_scale() * LOG2_E;
  Joined joined;
#pragma unroll 4
  for (i32 part = i32(warp); part < params.parts; part += WARPS) {
    joined.add(unit, *params.partials.extreme(part, row), [&](int i) {
      return column(i) < HEAD_V ? *params.partials.pair(part, row, column(i)) : float2{};
    });
  }
  if (warp > 0) {
    extremes[warp] = {joined.largest, joined.sum};
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) outputs[warp][i][lane] = joined.o[i];
  }
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int other = 1; other < WARPS; ++other) {
    joined.add(unit, extremes[other], [&](int i) { return outputs[other][i][lane]; });
  }

  const Destination to(p, i32(batch));
  if (lane == 0) store_statistics(p, to, coordinate, joined.largest, joined.sum);
  const f32 share = joined.sum == 0 ? 0 : 1 / joined.sum;
  const OutputRow output(p, to, coordinate, column(0), true);
#pragma unroll
  for (int i = 0; i < PAIRS; ++i) {
    const f32 values[2] = {joined.o[i].x * share, joined.o[i].y * share};
    Output::Loaded<2> loaded;
    output.load(column(i) - column(0), loaded);
    output.store(column(i) - column(0), loaded, values);
  }
}
