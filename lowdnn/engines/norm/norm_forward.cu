// norm_forward: norms whose rows each belong to one team of threads, to a cluster of blocks, or to neighbouring blocks
// of a cooperative grid, as norm_forward.cuh says.
//
// Block: one group of rows for each slot, then one grid further on, and so on; SHARING blocks share rows. A row that
// fits on chip is read once. Chunks of a longer row are read again in reverse order, in which the cache still has them.
// The estimate of the mean is the average of the first chunk. If blocks share a row or a normalisation group, it is the
// average of TEAM groups from all over the row, which every block reads, so that they agree without a barrier.
// Shared memory: RowTeam's; dynamic, with CHUNKS_RESIDENT, `slots` slots for chunks; with LOOKS_AHEAD, the next row.
// Launch: THREADS threads, any multiple of SHARING and CLUSTER blocks. If SHARING is more than CLUSTER, the launch is
// cooperative, with SHARING blocks for each group of rows and RowTeam::NUMBERS values of workspace for each block.
// OVERLAPS_PREVIOUS: it is a dependent launch (dependent_launch.cuh).
// With PEERS, ranks have parts of the same rows (row_peers.cuh): statistics are those of all parts. Between the passes
// over a row each block exchanges its statistics with the other ranks, so that the launch is cooperative, and the grid
// is persistent. If a rank is missing, y is NaN and the statistics in memory stay as they were.

#include "include/ptx/dependent_launch.cuh"
#include "norm_forward.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true> Team;
typedef Either<IN_RING, RowRing<Tile>, ChunkSlots<Tile, CHUNKS_RESIDENT>>::Type Slots;

// One group of each member, over which `shift` is averaged if blocks share a row or a normalisation group. In a
// normalisation group of n rows the first one is sampled: |mean of the first row - mean| <= deviation * sqrt(n). The
// group is loaded one row ahead, so that nothing waits for it.
struct Sample {
  static constexpr bool ANY = CENTRED && CLUSTER * SHARING > 1;

  Reread::Loaded<VECTOR> in = {};

  Sample() = default;
  __device__ __forceinline__ Sample(const Params& p, const RowWalk<Tile>& of) {
    RowWalk<Tile> walk = of.first_of_cluster();
    i64 column;
    if (!ANY || !locate(p, walk, column)) return;
    Reread::load<VECTOR>(args_of<Reread>(p), Reread::cursor(args_of<Reread>(p), walk.coordinate), column, VECTOR, in);
  }

  __device__ __forceinline__ void add(const Params& p, const RowWalk<Tile>& of, Value (&sums)[WIDTH]) const {
    RowWalk<Tile> walk = of.first_of_cluster();
    i64 column;
    Value x[VECTOR];
    if (!locate(p, walk, column)) return;
    const Reread::Args& args = args_of<Reread>(p);
    Reread::finish<VECTOR>(args, Reread::cursor(args, walk.coordinate), column, VECTOR, in, x);
    add_first(x, sums);
  }

 private:
  __device__ __forceinline__ static bool locate(const Params& p, RowWalk<Tile>& walk, i64& column) {
    return walk.locate(walk.member() * p.step, column);
  }
};

// The sums that `shift` is computed from: over the cached first chunk's whole groups, or over the sample.
__device__ __forceinline__ void first_sums(const Params& p, RowWalk<Tile>& walk, const Chunk& cached,
                                           const Sample& sample, Value (&sums)[WIDTH]) {
  if constexpr (Sample::ANY) {
    sample.add(p, walk, sums);
  } else {
    walk.each_whole(0, [&](auto group, i64) {
      Value x[VECTOR];
      cached.get(args_of<Prologue>(p), group, x);
      add_first(x, sums);
    });
  }
}

// 1 / elements in the average `shift`. With a skew, one row may have a group less than its neighbour.
__device__ __forceinline__ Value first_share(const Params& p, Team& team, const RowWalk<Tile>& walk) {
  if constexpr (HAS_SKEW) {
    const i64 groups = walk.first_of_cluster().groups(), most = TEAM * (Sample::ANY ? 1 : ITEMS);
    Value elements[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) elements[w] = Value((groups < most ? groups : most) * VECTOR);
    if constexpr (Tile::GROUP_BLOCKS == 1) team.neighbours<Plus>(elements);
    return reciprocal(elements[0]);
  } else {
    return p.first_share;
  }
}

// The estimate of each row's mean, the same in all blocks that share the row.
__device__ __forceinline__ void first_mean(const Params& p, Team& team, RowWalk<Tile>& walk, const Chunk& cached,
                                           const Sample& sample, Value (&mean)[WIDTH]) {
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) mean[w] = Value(0);
  if constexpr (CENTRED) {
    Value sums[WIDTH] = {};
    first_sums(p, walk, cached, sample, sums);
    team.all_of_block<Plus>(sums);
    if constexpr (Tile::GROUP_BLOCKS == 1) team.neighbours<Plus>(sums);
    finish_mean(sums, first_share(p, team, walk), mean);
  }
}

// The passes over a block's rows, including the estimates of their means.
struct Rows : RowPasses<Slots> {
  Team& team;
  Sample sample;  // the next row's

  __device__ __forceinline__ Rows(const Params& p, Team& team, void* memory, const RowWalk<Tile>& first)
      : RowPasses(p, memory), team(team) {
    sample = Sample(p, first);
  }

  __device__ __forceinline__ void first_pass(RowWalk<Tile>& walk, Chunk& cached, Value (&shift)[WIDTH],
                                             Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] = Value(0);
    slots.first_pass(elements, walk, cached, [&](i64 chunk, Chunk& cached) {
      if (chunk == 0) first_mean(p, team, walk, cached, sample, shift);
      add_deviations(p, walk, chunk, cached, shift, sums);
    });
    RowWalk<Tile> following = walk;
    following.next();
    sample = Sample(p, following);
  }
};

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  Team team = team_of_block<Team>(p);
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
  if constexpr (OVERLAPS_PREVIOUS) {
    wait_for_previous_kernel();
    allow_next_kernel();
  }
  walk.begin();
  Rows rows(p, team, memory, walk);
  Peers peers = peers_of_block<Peers>(p);

#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Chunk cached;
    Value shift[WIDTH], sums[2 * WIDTH];
    // The loads of scale, offset and operands overlap with the reduction.
    Value scale[WIDTH] = {}, offset[WIDTH] = {};
    rows.first_pass(walk, cached, shift, sums);
    peers.begin(walk);
    Stored stored(args_of<Epilogue>(p), walk, 0);
    load_parameters(p, walk, scale, offset);
    team.all<Plus>(sums);
    team.neighbours<Plus>(sums);
    Moments moments(p, shift, sums);
    const bool is_known = join_peers(peers, walk, moments);
    rows.second_pass(walk, cached, stored, moments, scale, offset, is_known);
    if (IS_WHOLE) break;  // the compiler then keeps no registers for a further row
  }
  finish_extremes(p, rows.skipped, memory);
  team.leave();
}
