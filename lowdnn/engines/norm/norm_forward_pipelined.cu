// norm_forward_pipelined: norms of few and long rows, as norm_forward.cuh says. The blocks of a cooperative grid share
// each row: its chunks are spread over SHARING blocks. In each block, threads of roles (row_roles.cuh) sum one row
// while others compute y of an earlier one.
//
// Block: its part of the rows of SHARING neighbouring blocks, then one grid further on, and so on. A row is read once,
// into slots where its chunks stay resident for the second pass. The estimate of the mean is the average of a few
// groups from all over the row, which every block reads, so that they agree without a barrier.
// Shared memory: RowExchange's and Sample's; dynamic: `slots` slots for chunks.
// Launch: THREADS x ROLES threads, any multiple of SHARING blocks, cooperative, with AREAS times NUMBERS mailboxes of
// workspace for each block (RowExchange).

#include "row_exchange.cuh"
#include "norm_forward.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true, true> Team;
typedef RowExchange<Team, 2 * WIDTH, (NORM_GROUP > 1)> Exchange;
typedef RowStages<Tile, sizeof(Prologue::Loaded<VECTOR>)> Slots;

// One group of each of MEMBERS members of a team, from all over the row, over which `shift` is averaged. They are
// copied with the row's first chunk.
struct Sample {
  static constexpr int MEMBERS = TEAM < 4 ? TEAM : 4, ROWS = 8;
  static_assert(ROWS > MOST_ROWS, "a row's sample is overwritten only after its use");

  typedef Reread::Loaded<VECTOR> Loaded;
  Loaded (*const entries)[MEMBERS * SIDE];  // [ROWS]
  u32 row = 0;                              // rows that this role has passed

  __device__ __forceinline__ Sample() : entries(memory()) {}

  // Copies the sampled groups of the next row; for the threads that copy.
  __device__ __forceinline__ void copy(const Params& p, RowWalk<Tile>& walk) {
    const u32 entry = row++ % ROWS;
    i64 column;
    if (!CENTRED || walk.member() >= MEMBERS || !walk.locate(walk.member() * p.step, column)) return;
    const Reread::Args& args = args_of<Reread>(p);
    Reread::copy<VECTOR>(args, Reread::cursor(args, walk.coordinate), column, VECTOR, entries[entry][threadIdx.x]);
  }

  // Adds the sampled groups of the next row to this side's sums.
  __device__ __forceinline__ void add(const Params& p, RowWalk<Tile>& walk, Value (&sums)[WIDTH]) {
    const u32 entry = row++ % ROWS;
    const Reread::Args& args = args_of<Reread>(p);
#pragma unroll
    for (int member = 0; member < MEMBERS; ++member) {
      i64 column;
      if (!walk.locate(member * p.step, column)) continue;
      Loaded in;
      Value x[VECTOR];
      Reread::fetch<VECTOR>(entries[entry][member * SIDE + threadIdx.x % SIDE], in);
      Reread::finish<VECTOR>(args, Reread::cursor(args, walk.coordinate), column, VECTOR, in, x);
      add_first(x, sums);
    }
  }

 private:
  __device__ __forceinline__ static Loaded (*memory())[MEMBERS * SIDE] {
    __shared__ __align__(16) Loaded all[ROWS][MEMBERS * SIDE];
    return all;
  }
};

// The loops of the roles over rows.
struct Pipeline {
  const Params& p;
  RowPasses<Slots>& passes;
  Sample sample;
  Exchange exchange;

  __device__ __forceinline__ void copy_rows(RowWalk<Tile>& walk) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      passes.slots.copy_row([&](int chunk, int slot) {
        if (chunk == 0) sample.copy(p, walk);
        passes.elements.copy(walk, chunk, slot);
      });
    }
  }

  __device__ __forceinline__ void sum_rows(RowWalk<Tile>& walk) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      Chunk cached;
      Value shift[WIDTH], sums[2 * WIDTH] = {};
      get_shift(shift);
      passes.slots.first_pass(passes.elements, walk, cached, [&](i64 chunk, Chunk& cached) {
        add_deviations(p, walk, chunk, cached, shift, sums);
      });
      exchange.hand_over<Plus>(sums);
    }
  }

  __device__ __forceinline__ void store_rows(RowWalk<Tile>& walk) {
    Value scale[WIDTH] = {}, offset[WIDTH] = {};
    load_parameters(p, walk, scale, offset);
#pragma unroll 1
    while (walk.is_within()) {
      Chunk cached;
      Value shift[WIDTH], sums[2 * WIDTH];
      Stored stored(args_of<Epilogue>(p), walk, 0);
      get_shift(shift);
      exchange.take(sums);
      RowWalk<Tile> following = walk;
      following.next();
      Value next_scale[WIDTH] = {}, next_offset[WIDTH] = {};
      load_parameters(p, following, next_scale, next_offset);  // arrive while this row is stored
      passes.second_pass(walk, cached, stored, Moments(p, shift, sums), scale, offset);
      walk = following;
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        scale[w] = next_scale[w];
        offset[w] = next_offset[w];
      }
    }
  }

  __device__ __forceinline__ void poll_rows(RowWalk<Tile>& walk) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) exchange.collect<Plus>();
  }

  __device__ __forceinline__ void post_rows(RowWalk<Tile>& walk) {
    begin_row(0, walk);
#pragma unroll 1
    while (walk.is_within()) {
      walk.next();
      begin_row(exchange.sequence + 1, walk);
      exchange.post<Plus>();
    }
  }

 private:
  // Publishes the estimate of a row's mean, if it needs one, to both passes.
  __device__ __forceinline__ void begin_row(u32 number, RowWalk<Tile>& walk) {
    if (!CENTRED || !walk.is_within()) return;
    Value sums[WIDTH] = {}, shift[WIDTH];
    passes.slots.wait_for_row();
    sample.add(p, walk, sums);
    exchange.join_rows<Plus>(sums);
    finish_mean(sums, p.first_share, shift);
    exchange.publish_estimate(number, shift);
  }

  __device__ __forceinline__ void get_shift(Value (&shift)[WIDTH]) const {
    if constexpr (CENTRED) {
      exchange.get_estimate(shift);
    } else {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) shift[w] = Value(0);
    }
  }
};

extern "C" __global__ void __launch_bounds__(ROLES * THREADS, RESIDENT)
    KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  RowPasses<Slots> passes(p, memory);
  Pipeline pipeline{p, passes, Sample(), exchange_of_block<Exchange>(p)};

  if (role() == COPYING) {
    pipeline.copy_rows(walk);
  } else if (role() == FIRST_PASS) {
    pipeline.sum_rows(walk);
  } else if (role() == SECOND_PASS) {
    pipeline.store_rows(walk);
  } else {
    pipeline.exchange.clear_mailboxes();
    if (role() == POLLING) pipeline.poll_rows(walk);
    else pipeline.post_rows(walk);
  }
  finish_extremes(p, passes.skipped, memory);
}
