// How blocks of a cooperative grid that share one row after the other join what each has of it, by threads of roles
// (row_roles.cuh): the first pass hands its sums over, some threads tell them, some hear those of all blocks, and the
// second pass takes what they join to.
//
// Order of summation: as in row_team.cuh; joined rows one after the other before the blocks.

#pragma once

#include "include/ptx/grid_barrier.cuh"
#include "row_roles.cuh"
#include "include/rows/row_team.cuh"
#include "mailbox.cuh"

// Joins COUNT numbers of each thread: WIDTH of one kind, then those of the next. TOGETHER: whether joined rows are told
// as one. Before the first pass over a row those that tell may keep WIDTH numbers of each side for both passes.
template <class Team, int COUNT, bool TOGETHER> struct RowMeeting {
  typedef typename Team::Tile Tile;
  typedef typename Team::Number T;

  static constexpr int WIDTH = Tile::WIDTH, WARPS = Tile::BLOCK_SIZE / WARP_SIZE;
  static constexpr int JOINED_ROWS = TOGETHER ? Tile::JOINED_ROWS : 1;
  static constexpr int GROUPS = Tile::SIDE_SIZE * WIDTH / JOINED_ROWS;  // of a block's rows, that are told as one each
  static constexpr int NUMBERS = COUNT / WIDTH * GROUPS;                // that a block tells
  static constexpr int HEARERS = Tile::BLOCK_SIZE - TELLERS;
  // Threads that hear a number, each of as many blocks as it can ask for at once.
  static constexpr int MOST_SHARES = NUMBERS * 8 < HEARERS ? 8 : HEARERS / NUMBERS;
  static constexpr int WANTED_SHARES = (Tile::BLOCKS + Team::AT_ONCE - 1) / Team::AT_ONCE;
  static constexpr int SHARES = MOST_SHARES < 1 ? 1 : MOST_SHARES < WANTED_SHARES ? MOST_SHARES : WANTED_SHARES;
  static constexpr int RESULTS = 4;  // rows whose results wait for the second pass
  // Rows that what is told has areas for. A block tells of a row when it has heard of the one MOST_ROWS before: so all
  // have told of that, and heard of the one twice as many before.
  static constexpr int AREAS = 16;
  static_assert(AREAS >= 2 * MOST_ROWS, "no area is told in that is heard");

  struct Shared {
    T parts[COUNT][Team::PARTS][Tile::SIDE_SIZE];
    T shares[2][SHARES > 1 ? SHARES * NUMBERS : 1];
    T results[RESULTS][NUMBERS];
    T kept[RESULTS][Tile::SIDE_SIZE * WIDTH];  // of each row
    T rows[Tile::SIDE_SIZE * WIDTH];           // before those that are joined are
    // Barriers: the parts are there, they are told; of a row, what is kept is there, the first pass is over and all is
    // heard, the second pass has it.
    u64 handed, taken, begun[RESULTS], known[RESULTS], used[RESULTS];
  };

  Shared& shared;
  T* const partials;  // in device memory: AREAS of Told, NUMBERS of each block
  u32 turn = 0;       // of this role

  __device__ __forceinline__ RowMeeting(Shared& shared, T* partials) : shared(shared), partials(partials) {}

  // Before the threads of the block meet.
  __device__ __forceinline__ void begin() const {
    if (role() != TELLING || threadIdx.x > 0) return;
    mbarrier_init(shared_address(&shared.handed), WARPS);
    mbarrier_init(shared_address(&shared.taken), 1);
    for (int i = 0; i < RESULTS; ++i) {
      mbarrier_init(shared_address(shared.begun + i), 1);
      mbarrier_init(shared_address(shared.known + i), 2 * WARPS - 1);
      mbarrier_init(shared_address(shared.used + i), WARPS);
    }
  }

  // Called by the threads that tell and hear before any block tells something: nothing is told yet.
  __device__ __forceinline__ void begin_turns() const {
    for (int place = threadIdx.x; place < AREAS * NUMBERS; place += Tile::BLOCK_SIZE) {
      told_in_area(place / NUMBERS)[place % NUMBERS].clear();
    }
    grid_sync(threadIdx.x == 0, [] { named_barrier(1 + HEARING, Tile::BLOCK_SIZE); });
  }

  // Joins what threads that tell have of joined rows.
  template <class Operator> __device__ __forceinline__ void join_rows(T (&values)[WIDTH]) const {
    if constexpr (JOINED_ROWS > 1) {
      if (threadIdx.x < Tile::SIDE_SIZE) {
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) shared.rows[threadIdx.x * WIDTH + w] = values[w];
      }
      __syncwarp();
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        const int first = (threadIdx.x % Tile::SIDE_SIZE * WIDTH + w) / JOINED_ROWS * JOINED_ROWS;
        values[w] = shared.rows[first];
#pragma unroll
        for (int row = 1; row < JOINED_ROWS; ++row) values[w] = Operator::join(values[w], shared.rows[first + row]);
      }
      __syncwarp();
    }
  }

  // Keeps numbers of row `number` of this block, when the one RESULTS before is no longer needed.
  __device__ __forceinline__ void keep(u32 number, const T (&values)[WIDTH]) const {
    const u32 result = number % RESULTS;
    mbarrier_wait(shared_address(shared.used + result), number / RESULTS & 1 ^ 1);
    if (threadIdx.x < Tile::SIDE_SIZE) {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) shared.kept[result][w * Tile::SIDE_SIZE + threadIdx.x] = values[w];
    }
    arrive_by_warps(shared_address(shared.begun + result));
  }

  // What is kept of the row at hand.
  __device__ __forceinline__ void get_kept(T (&values)[WIDTH]) const {
    const u32 result = turn % RESULTS;
    mbarrier_wait(shared_address(shared.begun + result), turn / RESULTS & 1);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      values[w] = shared.kept[result][w * Tile::SIDE_SIZE + threadIdx.x % Tile::SIDE_SIZE];
    }
  }

  // What a thread of the first pass has of a row.
  template <class Operator> __device__ __forceinline__ void hand_over(T (&values)[COUNT]) {
    Team::template join_lanes<Operator>(values);
    const u32 result = turn % RESULTS;
    mbarrier_wait(shared_address(&shared.taken), turn & 1 ^ 1);
    Team::publish_in(shared.parts, values);
    arrive_by_warps(shared_address(&shared.handed));
    mbarrier_wait(shared_address(shared.used + result), turn / RESULTS & 1 ^ 1);
    arrive_by_warps(shared_address(shared.known + result));
    ++turn;
  }

  // The block's sums, when all threads of the first pass have handed theirs over.
  template <class Operator> __device__ __forceinline__ void tell() {
    Told<T>* const told = told_in_area(turn % AREAS);
    mbarrier_wait(shared_address(&shared.handed), turn & 1);
    ++turn;
    for (int number = threadIdx.x; number < NUMBERS; number += TELLERS) {
      told[number].tell(joined_parts<Operator>(number), turn);
    }
    arrive_by_warps(shared_address(&shared.taken));
  }

  // The sums of all blocks that share the row.
  template <class Operator> __device__ __forceinline__ void hear() {
    const Told<T>* const told = told_in_area(turn % AREAS) - i64(blockIdx.x % Tile::BLOCKS) * NUMBERS;
    const u32 result = turn % RESULTS, free_phase = turn / RESULTS & 1 ^ 1;
    T* const shares = shared.shares[turn % 2];
    const int hearer = int(threadIdx.x) - TELLERS;
    ++turn;
    const auto joined_share = [&](int number, int share) {
      return Team::template joined_of<Operator, Tile::BLOCKS, SHARES>(
          share, [&](auto& several, int first, int step) { hear(several, told + number, first, step); });
    };
    if constexpr (SHARES > 1) {
      if (hearer < SHARES * NUMBERS) shares[hearer] = joined_share(hearer % NUMBERS, hearer / NUMBERS);
      named_barrier(1 + HEARING, HEARERS);
    }
    mbarrier_wait(shared_address(shared.used + result), free_phase);
    for (int number = hearer; number < NUMBERS; number += HEARERS) {
      if constexpr (SHARES > 1) {
        const auto take = [&](auto& several, int first, int step) {
          Team::template take_several<SHARES>(several, first, step,
                                              [&](int share) { return shares[share * NUMBERS + number]; });
        };
        shared.results[result][number] = Team::template joined_of<Operator, SHARES>(0, take);
      } else {
        shared.results[result][number] = joined_share(number, 0);
      }
    }
    arrive_by_warps(shared_address(shared.known + result));
  }

  // What all blocks have of a row, to a thread of the second pass, which then needs nothing more that is kept of it.
  __device__ __forceinline__ void take(T (&values)[COUNT]) {
    const u32 result = turn % RESULTS, side = threadIdx.x % Tile::SIDE_SIZE;
    mbarrier_wait(shared_address(shared.known + result), turn / RESULTS & 1);
    ++turn;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      const int row = side * WIDTH + k % WIDTH;
      values[k] = shared.results[result][k / WIDTH * GROUPS + row / JOINED_ROWS];
    }
    arrive_by_warps(shared_address(shared.used + result));
  }

 private:
  // What this block tells.
  __device__ __forceinline__ Told<T>* told_in_area(u32 area) const {
    return reinterpret_cast<Told<T>*>(partials) + (i64(area) * gridDim.x + blockIdx.x) * NUMBERS;
  }

  // The block's number, from those of its rows and parts.
  template <class Operator> __device__ __forceinline__ T joined_parts(int number) const {
    const int kind = number / GROUPS, first = number % GROUPS * JOINED_ROWS;
    return Team::template joined_of<Operator, JOINED_ROWS * Team::PARTS>(0, [&](auto& several, int begin, int step) {
      Team::template take_several<JOINED_ROWS * Team::PARTS>(several, begin, step, [&](int i) {
        const int row = first + i / Team::PARTS;
        return shared.parts[kind * WIDTH + row % WIDTH][i % Team::PARTS][row / WIDTH];
      });
    });
  }

  // What blocks tell in this turn, as soon as it is there.
  template <int AT_A_TIME>
  __device__ __forceinline__ void hear(T (&several)[AT_A_TIME], const Told<T>* told, int first, int step) const {
    bool are_there;
    do {
      Told<T> now[AT_A_TIME] = {};
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        const int block = first + i * step;
        if (block < Tile::BLOCKS) now[i] = told[i64(block) * NUMBERS].heard();
      }
      are_there = true;
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        are_there &= first + i * step >= Tile::BLOCKS || now[i].is_of(turn);
        several[i] = now[i].value();
      }
    } while (!are_there);
  }
};

// The meeting of all threads of a block, which they make together: what they have made before is there then.
template <class Meeting, class Params> __device__ __forceinline__ Meeting meeting_of_block(const Params& p) {
  __shared__ typename Meeting::Shared shared;
  const Meeting meeting(shared, p.partials);
  meeting.begin();
  __syncthreads();
  return meeting;
}
