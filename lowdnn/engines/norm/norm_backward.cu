// norm_backward: gradients of norms whose rows each belong to one team of threads, to a cluster of blocks, or to
// neighbouring blocks of a cooperative grid, as norm_backward.cuh says.
//
// Block: one group of rows for each slot, then one grid further on, and so on; SHARING blocks share rows. A row that
// fits on chip is read once; chunks of a longer row are read again.
// Shared memory: RowTeam's; dynamic, with CHUNKS_RESIDENT, `slots` slots for chunks of x, then for those of dy; with
// LOOKS_AHEAD, the next row of both.
// Launch: THREADS threads, any multiple of SHARING and CLUSTER blocks. If SHARING is more than CLUSTER, the launch is
// cooperative, with SHARING blocks for each group of rows and RowTeam::NUMBERS values of workspace for each block.
// With PEERS, ranks have parts of the same rows (row_peers.cuh): dx follows from the sums over all parts, which ranks
// exchange between the passes, so that the launch is cooperative, and the grid is persistent. dscale and dbias are this
// rank's own sums. If a rank is missing, dx is NaN.

#include "norm_backward.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true> Team;
typedef Either<IN_RING, RowRing<Tile>, ChunkSlots<Tile, CHUNKS_RESIDENT>>::Type Slots;

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  Team team = team_of_block<Team>(p);
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  RowPasses<Slots> passes(p, memory);
  Peers peers = peers_of_block<Peers>(p);

#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Operands cached;
    Value inverse[WIDTH] = {}, scale[WIDTH] = {}, sums[2 * WIDTH] = {};
    load_number<Mean, CENTRED, NORM_GROUP>(p, walk, cached.mean);
    load_number<Inverse, true, NORM_GROUP>(p, walk, inverse);
    passes.first_pass(walk, cached, sums);
    peers.begin(walk);
    load_number<Scale, ROW_SCALE>(p, walk, scale);  // arrives while the row's threads wait
    team.all<Plus>(sums);
    passes.second_pass(team, peers, walk, cached, inverse, scale, sums);
  }
  team.leave();
}
