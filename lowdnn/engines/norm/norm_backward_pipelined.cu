// norm_backward_pipelined: gradients of norms of few and long rows, as norm_backward.cuh says. The blocks of a
// cooperative grid share each row: its chunks are spread over SHARING blocks. In each block, threads of roles
// (row_roles.cuh) sum one row while others compute dx of an earlier one.
//
// Block: its part of the rows of SHARING neighbouring blocks, then one grid further on, and so on. A row is read once,
// into slots where its chunks stay resident for the second pass.
// Shared memory: RowExchange's, and RowTeam's for the second pass; dynamic: `slots` slots for chunks of x, then for
// those of dy.
// Launch: THREADS x ROLES threads, any multiple of SHARING blocks, cooperative, with AREAS times NUMBERS mailboxes of
// workspace for each block (RowExchange).

#include "norm_backward.cuh"
#include "row_exchange.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true, true> Team;
typedef RowExchange<Team, 2 * WIDTH, false> Exchange;
typedef RowStages<Tile, sizeof(Data::Loaded<VECTOR>) + sizeof(Prologue::Loaded<VECTOR>)> Slots;

// The numbers of a row that its second pass reads.
struct RowParameters {
  Value mean[WIDTH] = {}, inverse[WIDTH] = {}, scale[WIDTH] = {};

  __device__ __forceinline__ RowParameters(const Params& p, const RowWalk<Tile>& walk) {
    load_number<Mean, CENTRED, NORM_GROUP>(p, walk, mean);
    load_number<Inverse, true, NORM_GROUP>(p, walk, inverse);
    load_number<Scale, ROW_SCALE>(p, walk, scale);
  }
};

// The loops of the roles over rows.
struct Pipeline {
  const Params& p;
  RowPasses<Slots>& passes;
  Exchange exchange;

  __device__ __forceinline__ void copy_rows(RowWalk<Tile>& walk) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      passes.slots.copy_row([&](int chunk, int slot) { passes.elements.copy(walk, chunk, slot); });
    }
  }

  __device__ __forceinline__ void sum_rows(RowWalk<Tile>& walk) {
    Operands cached;
    load_number<Mean, CENTRED, NORM_GROUP>(p, walk, cached.mean);
#pragma unroll 1
    while (walk.is_within()) {
      Value sums[2 * WIDTH] = {};
      passes.first_pass(walk, cached, sums);
      walk.next();
      load_number<Mean, CENTRED, NORM_GROUP>(p, walk, cached.mean);  // arrives while the last row is handed over
      exchange.hand_over<Plus>(sums);
    }
  }

  __device__ __forceinline__ void store_rows(Team& team, RowWalk<Tile>& walk) {
    RowParameters parameters(p, walk);
    Peers peers;
#pragma unroll 1
    while (walk.is_within()) {
      Operands cached;
      Value sums[2 * WIDTH];
      exchange.take(sums);
      RowWalk<Tile> following = walk;
      following.next();
      const RowParameters next(p, following);  // arrives while this row is stored
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) cached.mean[w] = parameters.mean[w];
      passes.second_pass(team, peers, walk, cached, parameters.inverse, parameters.scale, sums);
      walk = following;
      parameters = next;
    }
  }

  __device__ __forceinline__ void join_rows(RowWalk<Tile>& walk) {
    exchange.clear_mailboxes();
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      if (role() == POSTING) exchange.post<Plus>();
      else exchange.collect<Plus>();
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
  Pipeline pipeline{p, passes, exchange_of_block<Exchange>(p)};

  if (role() == COPYING) pipeline.copy_rows(walk);
  else if (role() == FIRST_PASS) pipeline.sum_rows(walk);
  else if (role() == SECOND_PASS) pipeline.store_rows(team, walk);
  else pipeline.join_rows(walk);
}
