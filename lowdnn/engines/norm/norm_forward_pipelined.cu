// norm_forward_turns: norms of few and long rows, as norm_forward.cuh says. Blocks of a cooperative grid share one row
// after the other: a row's chunks are spread over SHARING blocks, and in each of these, threads of roles
// (row_roles.cuh) have the sums of one row and y of another.
//
// Block: its part of the rows of a group of SHARING blocks, then of the next grid's. A row is read once, into slots
// where its chunks stay for the second pass. The estimate of the mean is the average of a few groups from all over the
// row, which each of the blocks reads, so that they agree without meeting.
// Shared memory: RowMeeting's, the places of Sample; dynamic `slots` slots of chunks.
// Launch: THREADS x ROLES threads, any multiple of SHARING blocks, cooperative, with workspace for each block:
// RowMeeting::AREAS times RowMeeting::NUMBERS of Told.

#include "row_exchange.cuh"
#include "norm_forward.cuh"

typedef RowTeam<Tile, Value, 2 * WIDTH, true, true> Team;
typedef RowMeeting<Team, 2 * WIDTH, (JOINED > 1)> Meeting;
typedef RowStages<Tile, sizeof(Prologue::Loaded<VECTOR>)> Slots;

// The groups of MEMBERS of a team that `shift` is the average of, from all over the row. They come with the row's first
// chunk.
struct Sample {
  static constexpr int MEMBERS = TEAM < 4 ? TEAM : 4, ROWS = 8;
  static_assert(ROWS > MOST_ROWS, "a row's place is another's when it has been used");

  typedef Reread::Loaded<VECTOR> Loaded;
  Loaded (*const places)[MEMBERS * SIDE];  // [ROWS]
  u32 row = 0;                             // of this role, in turn

  __device__ __forceinline__ Sample() : places(memory()) {}

  // Copies what is read of the next row, by the threads that copy.
  __device__ __forceinline__ void copy(const Params& p, RowWalk<Tile>& walk) {
    const u32 place = row++ % ROWS;
    i64 column;
    if (!CENTRED || walk.member() >= MEMBERS || !walk.locate(walk.member() * p.step, column)) return;
    const Reread::Args& args = args_of<Reread>(p);
    Reread::copy<VECTOR>(args, Reread::cursor(args, walk.coordinate), column, VECTOR, places[place][threadIdx.x]);
  }

  // Adds what one side has of the next row.
  __device__ __forceinline__ void add(const Params& p, RowWalk<Tile>& walk, Value (&sums)[WIDTH]) {
    const u32 place = row++ % ROWS;
    const Reread::Args& args = args_of<Reread>(p);
#pragma unroll
    for (int member = 0; member < MEMBERS; ++member) {
      i64 column;
      if (!walk.locate(member * p.step, column)) continue;
      Loaded in;
      Value x[VECTOR];
      Reread::fetch<VECTOR>(places[place][member * SIDE + threadIdx.x % SIDE], in);
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

// What threads of each role do for one row after the other.
struct Turns {
  const Params& p;
  RowPasses<Slots>& passes;
  Sample sample;
  Meeting meeting;

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
      Chunk held;
      Value shift[WIDTH], sums[2 * WIDTH] = {};
      get_shift(shift);
      passes.slots.first_pass(passes.elements, walk, held, [&](i64 chunk, Chunk& held) {
        add_deviations(p, walk, chunk, held, shift, sums);
      });
      meeting.hand_over<Plus>(sums);
    }
  }

  __device__ __forceinline__ void store_rows(RowWalk<Tile>& walk) {
    Value scale[WIDTH] = {}, offset[WIDTH] = {};
    load_parameters(p, walk, scale, offset);
#pragma unroll 1
    while (walk.is_within()) {
      Chunk held;
      Value shift[WIDTH], sums[2 * WIDTH];
      Stored stored(args_of<Epilogue>(p), walk, 0);
      get_shift(shift);
      meeting.take(sums);
      RowWalk<Tile> following = walk;
      following.next();
      Value next_scale[WIDTH] = {}, next_offset[WIDTH] = {};
      load_parameters(p, following, next_scale, next_offset);  // come while the row before them is stored
      passes.second_pass(walk, held, stored, shift, sums, scale, offset);
      walk = following;
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        scale[w] = next_scale[w];
        offset[w] = next_offset[w];
      }
    }
  }

  __device__ __forceinline__ void hear_rows(RowWalk<Tile>& walk) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) meeting.hear<Plus>();
  }

  __device__ __forceinline__ void tell_rows(RowWalk<Tile>& walk) {
    begin_row(0, walk);
#pragma unroll 1
    while (walk.is_within()) {
      walk.next();
      begin_row(meeting.turn + 1, walk);
      meeting.tell<Plus>();
    }
  }

 private:
  // Keeps the estimate of a row's mean, if there is one, for its passes.
  __device__ __forceinline__ void begin_row(u32 number, RowWalk<Tile>& walk) {
    if (!CENTRED || !walk.is_within()) return;
    Value sums[WIDTH] = {}, shift[WIDTH];
    passes.slots.wait_for_row();
    sample.add(p, walk, sums);
    meeting.join_rows<Plus>(sums);
    finish_mean(sums, p.first_share, shift);
    meeting.keep(number, shift);
  }

  __device__ __forceinline__ void get_shift(Value (&shift)[WIDTH]) const {
    if constexpr (CENTRED) {
      meeting.get_kept(shift);
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
  Turns turns{p, passes, Sample(), meeting_of_block<Meeting>(p)};

  if (role() == COPYING) {
    turns.copy_rows(walk);
  } else if (role() == FIRST_PASS) {
    turns.sum_rows(walk);
  } else if (role() == SECOND_PASS) {
    turns.store_rows(walk);
  } else {
    turns.meeting.begin_turns();
    if (role() == HEARING) turns.hear_rows(walk);
    else turns.tell_rows(walk);
  }
  finish_extremes(p, passes.left, memory);
}
