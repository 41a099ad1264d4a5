// norm_backward_turns: gradients of norms of few and long rows, as norm_backward.cuh says. Blocks of a cooperative grid
// share one row after the other: a row's chunks are spread over SHARING blocks, and in each of these, threads of roles
// (row_roles.cuh) have the sums of one row and dx of another.
//
// Block: its part of the rows of a group of SHARING blocks, then of the next grid's. A row is read once, into slots where
// its chunks stay for the second pass.
// Shared memory: RowMeeting's, and RowTeam's for the second pass; dynamic `slots` slots of chunks of x, then of dy.
// Launch: THREADS x ROLES threads, any multiple of SHARING blocks, cooperative, with workspace for each block:
// RowMeeting::AREAS times RowMeeting::NUMBERS of Told.

#include "norm_backward.cuh"
#include "row_exchange.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true, true> Team;
typedef RowMeeting<Team, 2 * WIDTH, false> Meeting;
typedef RowStages<Tile, sizeof(Data::Loaded<VECTOR>) + sizeof(Prologue::Loaded<VECTOR>)> Slots;

// What is read of a row for its second pass.
struct OfRow {
  Value mean[WIDTH] = {}, inverse[WIDTH] = {}, scale[WIDTH] = {};

  __device__ __forceinline__ OfRow(const Params& p, const RowWalk<Tile>& walk) {
    load_number<Mean, CENTRED, JOINED>(p, walk, mean);
    load_number<Inverse, true, JOINED>(p, walk, inverse);
    load_number<Scale, ROW_SCALE>(p, walk, scale);
  }
};

// What threads of each role do for one row after the other.
struct Turns {
  const Params& p;
  RowPasses<Slots>& passes;
  Meeting meeting;

  __device__ __forceinline__ void copy_rows(RowWalk<Tile>& walk) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      passes.slots.copy_row([&](int chunk, int slot) { passes.elements.copy(walk, chunk, slot); });
    }
  }

  __device__ __forceinline__ void sum_rows(RowWalk<Tile>& walk) {
    Operands held;
    load_number<Mean, CENTRED, JOINED>(p, walk, held.mean);
#pragma unroll 1
    while (walk.is_within()) {
      Value sums[2 * WIDTH] = {};
      passes.first_pass(walk, held, sums);
      walk.next();
      load_number<Mean, CENTRED, JOINED>(p, walk, held.mean);  // comes while the row before it is handed over
      meeting.hand_over<Plus>(sums);
    }
  }

  __device__ __forceinline__ void store_rows(Team& team, RowWalk<Tile>& walk) {
    OfRow of_row(p, walk);
#pragma unroll 1
    while (walk.is_within()) {
      Operands held;
      Value sums[2 * WIDTH];
      meeting.take(sums);
      RowWalk<Tile> following = walk;
      following.next();
      const OfRow next(p, following);  // comes while the row before it is stored
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) held.mean[w] = of_row.mean[w];
      passes.second_pass(team, walk, held, of_row.inverse, of_row.scale, sums);
      walk = following;
      of_row = next;
    }
  }

  __device__ __forceinline__ void join_rows(RowWalk<Tile>& walk) {
    meeting.begin_turns();
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      if (role() == TELLING) meeting.tell<Plus>();
      else meeting.hear<Plus>();
    }
  }
};

extern "C" __global__ void __launch_bounds__(ROLES * THREADS, RESIDENT)
    KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  Team team(shared);
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  RowPasses<Slots> passes(p, memory);
  Turns turns{p, passes, meeting_of_block<Meeting>(p)};

  if (role() == COPYING) turns.copy_rows(walk);
  else if (role() == FIRST_PASS) turns.sum_rows(walk);
  else if (role() == SECOND_PASS) turns.store_rows(team, walk);
  else turns.join_rows(walk);
}
