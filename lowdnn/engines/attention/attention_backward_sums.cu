// attention_backward_sums: dq = scale * sums, in fp8 with what stands in the place of the scale, of the sums that
// attention_backward_wgmma.cu leaves; zeros for a tile whose queries see no key.
//
// Block: a tile of TILE_Q queries of one head. A thread has 8 columns of a query and of the 8th one after it.
// Launch: TILE_Q / 2 threads for each 8 columns that there are sums of.
// Macros: OUT TILE_Q HEAD_QK IS_FP8.

#include "include/attention_backward_scaling.cuh"
#include "include/dependent_launch.cuh"
#include "include/query_sums.cuh"

constexpr int COLUMN_GROUPS = QuerySums::COLUMN_PARTS * QuerySums::BLOCKS, THREADS = TILE_Q / 2 * COLUMN_GROUPS;

struct Params {
  Heads<OUT> dq;
  const f32* sums;   // (batch, head, tile of queries)
  const u32* turns;  // of the same: 0 where nothing was stored
  Backward problem;
  Divider tiles, heads;  // of a head; of a batch
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 heads_before = p.tiles.divide(blockIdx.x), tile = blockIdx.x - heads_before * p.tiles.divisor;
  const i32 batch = i32(p.heads.divide(heads_before)), head = i32(heads_before - batch * p.heads.divisor);
  const u32 group = threadIdx.x % COLUMN_GROUPS, rows = threadIdx.x / COLUMN_GROUPS, row = rows / 8 * 16 + rows % 8;
  const u32 part = QuerySums::COLUMN_PARTS > 1 ? group / QuerySums::BLOCKS : row / 64;

  wait_for_previous_kernel();
  f32 sums[1][4][4] = {};  // of each pair of columns: two of one query, two of the other one
  if (p.turns[blockIdx.x] > 0) {
    const u32 first = QuerySums::at(part, group % QuerySums::BLOCKS, row % 64 / 16 * WARP_SIZE + row % 8 * 4);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
      load<Stream, 4>(sums[0][pair], p.sums + i64(blockIdx.x) * QuerySums::NUMBERS + first + pair * 4);
  }
  const f32 factor = factor_of(p.problem, OF_Q, sums);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i32 query = tile * TILE_Q + row + half * 8;
    OUT results[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) results[i] = convert<OUT>(sums[0][i / 2][half * 2 + i % 2] * factor);
    const bool exists = query < p.problem.queries && group * 8 < p.problem.size_qk;
    if (exists) store<8>(p.dq.at(batch, head, query) + group * 8, results);
  }
}
