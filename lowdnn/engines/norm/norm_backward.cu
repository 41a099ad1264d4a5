// norm_backward: gradients of norms whose rows belong to one team of threads each, or to a cluster of blocks, or to
// neighbouring blocks of a cooperative grid, as norm_backward.cuh says.
//
// Block: one group of rows for each slot, then the next grid's; SHARING blocks share rows. A row that fits on chip is
// read once; of a longer one chunks are read again.
// Shared memory: RowTeam's; dynamic with STAYS `slots` slots of chunks of x, then of dy, with LOOKS_AHEAD the next row
// of both.
// Launch: THREADS threads, any multiple of SHARING and CLUSTER blocks; where SHARING is more, cooperative, with
// workspace for each block: RowTeam::NUMBERS values, with SHARING blocks for each group of rows.

#include "norm_backward.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true> Team;
typedef Either<IN_RING, RowRing<Tile>, ChunkSlots<Tile, STAYS>>::Type Slots;

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  Team team = team_of_block<Team>(p);
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  RowPasses<Slots> passes(p, memory);

#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Operands held;
    Value inverse[WIDTH] = {}, scale[WIDTH] = {}, sums[2 * WIDTH] = {};
    load_number<Mean, CENTRED, JOINED>(p, walk, held.mean);
    load_number<Inverse, true, JOINED>(p, walk, inverse);
    passes.first_pass(walk, held, sums);
    load_number<Scale, ROW_SCALE>(p, walk, scale);  // comes while the row's threads meet
    team.all<Plus>(sums);
    passes.second_pass(team, walk, held, inverse, scale, sums);
  }
  team.leave();
}
