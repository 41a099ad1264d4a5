// Teams: how the threads that own a row (rows.cuh) join what each of them has of it.
//
// Order of summation: the thread's own elements one after the other, the lanes as a tree, then the warps and the blocks
// one after the other, many blocks in a few interleaved parts; joined rows one after the other, block by block. Where
// SIDE does not divide a warp, members of a team take the place of warps. It depends on the parameters only.

#pragma once

#include "include/ptx/grid_barrier.cuh"
#include "include/rows/rows.cuh"
#include "include/ptx/warpgroup.cuh"

// Numbers that are joined one by one: `joined` of a thread with another's.
template <class Operator> struct OneByOne {
  template <class T, int COUNT> static __device__ __forceinline__ void join_all(T (&joined)[COUNT],
                                                                               const T (&others)[COUNT]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) joined[k] = Operator::join(joined[k], others[k]);
  }
};

struct Plus : OneByOne<Plus> {
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};
struct Largest : OneByOne<Largest> {
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return maximum(a, b); }
};

// Joins numbers of the threads of a team: afterwards each has the result of all. At most MOST at once. An operator has
// join_all for a thread's numbers; without BY_NUMBER these need not be joined one by one.
// TELLS: whether blocks of a cluster tell each other few numbers, or read them. On an H200, with the next row on its way,
// gradients of softmax took 9 to 29 % longer when they told each other; softmax forward took 8 % less.
// HAS_ROLES: whether the threads are those of one role (row_roles.cuh), which meet without the others', and join what is
// not of neighbours in a RowMeeting; each role has a Shared of its own.
template <class Tile_, class T, int MOST, bool TELLS = true, bool HAS_ROLES = false> struct RowTeam {
  typedef Tile_ Tile;
  typedef T Number;

  static constexpr int SPAN = Tile::TEAM_SIZE * Tile::SIDE_SIZE, WIDTH = Tile::WIDTH;
  static constexpr int NUMBERS = Tile::SIDE_SIZE * MOST;  // of a block
  static constexpr bool IN_LANES = WARP_SIZE % Tile::SIDE_SIZE == 0;
  static constexpr bool MEETS = SPAN > WARP_SIZE || Tile::BLOCKS > 1;  // its lanes of a warp are not all
  static constexpr int PARTS = IN_LANES ? SPAN / WARP_SIZE : Tile::TEAM_SIZE;  // of a team, with numbers each
  // Whether a thread joins one of many numbers and leaves it to the others; few are joined by every thread for itself.
  static constexpr bool BY_NUMBER = Tile::IN_GRID || !IN_LANES || (Tile::SIDE_SIZE > 1 && SPAN > WARP_SIZE);
  static constexpr bool IS_TOLD = TELLS && !BY_NUMBER && Tile::CLUSTER_BLOCKS > 1;
  static constexpr bool PULLS = !IS_TOLD && Tile::CLUSTER_BLOCKS > 1;
  static_assert(!BY_NUMBER || Tile::SLOTS == 1, "the numbers are those of one team");
  static constexpr int AT_ONCE = 16;  // of a number, loads on their way
  static constexpr int FEW_SLOTS = 4;  // whose barriers the compiler knows
  // Rows of a block, where some are joined with another thread's; and what they become.
  static constexpr int ROWS = WIDTH % Tile::JOINED_ROWS == 0 ? 0 : Tile::SLOTS * Tile::SIDE_SIZE * WIDTH;
  static constexpr int GROUPS = Tile::APART > 1 ? 0 : ROWS / Tile::JOINED_ROWS;

  struct Shared {
    // Numbers joined one by one have one area: all threads have read it when the results are there.
    T parts[BY_NUMBER ? 1 : 2][HAS_ROLES ? 1 : MOST]
           [HAS_ROLES ? 1 : BY_NUMBER ? PARTS : SPAN > WARP_SIZE ? Tile::BLOCK_SIZE / WARP_SIZE : 1][Tile::SIDE_SIZE];
    T blocks[2][PULLS ? NUMBERS : 1];
    T told[2][IS_TOLD ? Tile::CLUSTER_BLOCKS : 1][IS_TOLD ? NUMBERS : 1];
    T shares[HAS_ROLES || !BY_NUMBER ? 1 : NUMBERS > Tile::BLOCK_SIZE ? NUMBERS : Tile::BLOCK_SIZE];
    T rows[ROWS > 0 ? MOST / WIDTH * ROWS : 1], groups[GROUPS > 0 ? MOST / WIDTH * GROUPS : 1];
  };

  Shared& shared;
  T* const partials;  // in device memory, of a cooperative grid: NUMBERS of each block
  // Two areas in turn, of each kind: what was read last time may still be read.
  int turn = 0;
  u32 meetings = 0;  // of blocks, whose turns these are

  __device__ __forceinline__ RowTeam(Shared& shared, T* partials = nullptr) : shared(shared), partials(partials) {
    if constexpr (IS_TOLD) cluster_arrive();
  }

  // Joins the values of all; in a cooperative grid once in a launch, as there is one area of partial results.
  template <class Operator, int COUNT> __device__ __forceinline__ void all(T (&values)[COUNT]) {
    join<Operator, Tile::BLOCKS>(values);
  }

  // Joins in two steps: first the team's lanes in a warp, for which nothing waits, then the rest. Without BY_NUMBER.
  template <class Operator, int COUNT> __device__ __forceinline__ void all_of_lanes(T (&values)[COUNT]) {
    join_lanes<Operator>(values);
  }
  template <class Operator, int COUNT> __device__ __forceinline__ void all_beyond_lanes(T (&values)[COUNT]) {
    join_beyond_lanes<Operator, Tile::BLOCKS>(values);
  }

  // Joins the values of the team's threads in this block alone.
  template <class Operator, int COUNT> __device__ __forceinline__ void all_of_block(T (&values)[COUNT]) {
    join<Operator, 1>(values);
  }

  // Joins those of joined rows, when each row has its own: WIDTH of one number, then those of the next.
  template <class Operator, int COUNT> __device__ __forceinline__ void neighbours(T (&values)[COUNT]) {
    if constexpr (Tile::APART > 1) {
      join_apart<Operator>(values);
    } else if constexpr (ROWS > 0) {
      join_in_block<Operator>(values);
    } else if constexpr (Tile::JOINED_ROWS > 1) {
#pragma unroll
      for (int first = 0; first < COUNT; first += Tile::JOINED_ROWS) {
#pragma unroll
        for (int k = 1; k < Tile::JOINED_ROWS; ++k) values[first] = Operator::join(values[first], values[first + k]);
#pragma unroll
        for (int k = 1; k < Tile::JOINED_ROWS; ++k) values[first + k] = values[first];
      }
    }
  }

  // At the kernel's end: no block may leave while another reads its memory.
  __device__ __forceinline__ void leave() const {
    if constexpr (PULLS) cluster_sync();
    else begin_telling();
  }

  // The steps of a meeting, for those that meet in other ways, too (row_exchange.cuh).

  // Joins the values of the team's lanes in a warp.
  template <class Operator, int COUNT> static __device__ __forceinline__ void join_lanes(T (&values)[COUNT]) {
#pragma unroll
    for (int offset = Tile::SIDE_SIZE; IN_LANES && offset < WARP_SIZE && offset < SPAN; offset *= 2) {
      T others[COUNT];
#pragma unroll
      for (int k = 0; k < COUNT; ++k) others[k] = __shfl_xor_sync(0xffffffffu, values[k], offset);
      Operator::join_all(values, others);
    }
  }

  // The parts' numbers.
  template <class Area, int COUNT>
  static __device__ __forceinline__ void publish_in(Area& parts, const T (&values)[COUNT]) {
    constexpr int PART_SIZE = IN_LANES ? WARP_SIZE : Tile::SIDE_SIZE;
    const int part = threadIdx.x / PART_SIZE, side = threadIdx.x % PART_SIZE;
    if (side >= Tile::SIDE_SIZE) return;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) parts[k][part][side] = values[k];
  }

  // What `first`, `first` + STEP, ... of COUNT have of a number; `take` asks for as many at once as there is room for.
  template <class Operator, int COUNT, int STEP = 1, class Take>
  static __device__ __forceinline__ T joined_of(int first, Take take) {
    constexpr int ALL = (COUNT + STEP - 1) / STEP, AT_A_TIME = ALL < AT_ONCE ? ALL : AT_ONCE;
    T joined;
#pragma unroll
    for (int begin = 0; begin < ALL; begin += AT_A_TIME) {
      T several[AT_A_TIME];
      take(several, first + begin * STEP, STEP);
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        if (begin + i == 0) joined = several[0];
        else if (first + (begin + i) * STEP < COUNT) joined = Operator::join(joined, several[i]);
      }
    }
    return joined;
  }

  template <int COUNT, int AT_A_TIME, class Of>
  static __device__ __forceinline__ void take_several(T (&several)[AT_A_TIME], int first, int step, Of of) {
#pragma unroll
    for (int i = 0; i < AT_A_TIME; ++i) several[i] = first + i * step < COUNT ? of(first + i * step) : T(0);
  }

 private:
  // At the latest when there is something to tell: a block has no memory before it begins.
  __device__ __forceinline__ void begin_telling() const {
    if constexpr (IS_TOLD) {
      if (meetings == 0) cluster_wait();
    }
  }

  template <class Operator, int BLOCKS, int COUNT> __device__ __forceinline__ void join(T (&values)[COUNT]) {
    join_lanes<Operator>(values);
    join_beyond_lanes<Operator, BLOCKS>(values);
  }

  template <class Operator, int BLOCKS, int COUNT>
  __device__ __forceinline__ void join_beyond_lanes(T (&values)[COUNT]) {
    static_assert(COUNT <= MOST, "the areas have room");
    if constexpr (BY_NUMBER) {
      join_by_number<Operator, BLOCKS>(values);
    } else {
      if constexpr (SPAN > WARP_SIZE) join_warps<Operator>(values);
      if constexpr (BLOCKS > 1) join_blocks<Operator>(values);
    }
    turn ^= 1;
    if constexpr (BLOCKS > 1) ++meetings;
  }

  // The parts' numbers into shared memory.
  template <int COUNT> __device__ __forceinline__ void publish(const T (&values)[COUNT]) {
    publish_in(area(), values);
    meet();
  }

  // The threads of a team; those of a block do not wait for each other.
  static __device__ __forceinline__ void meet() {
    if constexpr (Tile::SLOTS == 1) meet_block();
    else if constexpr (Tile::SLOTS <= FEW_SLOTS) meet_slot<Tile::SLOTS>();
    else named_barrier(1 + threadIdx.x / SPAN, SPAN);
  }

  // The threads of a block; of one role, where there are several.
  static __device__ __forceinline__ void meet_block() {
    if constexpr (HAS_ROLES) named_barrier(1 + threadIdx.y, Tile::BLOCK_SIZE);
    else __syncthreads();
  }

  // A block takes all sixteen barriers where the compiler does not know which it uses, and a multiprocessor has room
  // for few such blocks: layer norms of rows of 1024 in teams of two warps took 112 us instead of 75 on an H200.
  template <int COUNT> static __device__ __forceinline__ void meet_slot() {
    if (COUNT == 1 || threadIdx.x / SPAN == COUNT - 1) named_barrier(COUNT, SPAN);
    else if constexpr (COUNT > 1) meet_slot<COUNT - 1>();
  }

  __device__ __forceinline__ auto& area() const { return shared.parts[BY_NUMBER ? 0 : turn]; }

  template <class Operator, int COUNT> __device__ __forceinline__ void join_warps(T (&values)[COUNT]) {
    publish(values);
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int first = warp / PARTS * PARTS, side = lane % Tile::SIDE_SIZE;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      T others[COUNT];
#pragma unroll
      for (int k = 0; k < COUNT; ++k) (part == 0 ? values : others)[k] = area()[k][first + part][side];
      if (part > 0) Operator::join_all(values, others);
    }
  }

  // Each block tells all of the cluster, and what it is told lies there when they have met; or each reads the others'.
  template <class Operator, int COUNT> __device__ __forceinline__ void join_blocks(T (&values)[COUNT]) {
    const int side = threadIdx.x % Tile::SIDE_SIZE;
    if constexpr (IS_TOLD) {
      begin_telling();
      for (u32 block = threadIdx.x / Tile::SIDE_SIZE; block < Tile::BLOCKS; block += Tile::TEAM_SIZE) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) tell(block, side * MOST + k, values[k]);
      }
      cluster_sync();
      join_told<Operator, Tile::BLOCKS>(side * MOST, values);
    } else {
      T* const own = shared.blocks[turn_of_blocks()] + side * MOST;
      if (threadIdx.x < Tile::SIDE_SIZE) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) own[k] = values[k];
      }
      cluster_sync();
#pragma unroll
      for (u32 block = 0; block < Tile::BLOCKS; ++block) {
        T others[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; ++k) (block == 0 ? values : others)[k] = load_of_block(own + k, block);
        if (block > 0) Operator::join_all(values, others);
      }
    }
  }

  __device__ __forceinline__ void tell(u32 block, int number, T value) const {
    store_of_block(shared.told[turn_of_blocks()][cluster_rank()] + number, block, value);
  }

  __device__ __forceinline__ int turn_of_blocks() const { return int(meetings % 2); }

  // What the blocks of the cluster have told of numbers one after the other.
  template <class Operator, int BLOCKS, int COUNT>
  __device__ __forceinline__ void join_told(int first, T (&values)[COUNT]) const {
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      T others[COUNT];
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
        (block == 0 ? values : others)[k] = shared.told[turn_of_blocks()][block][first + k];
      }
      if (block > 0) Operator::join_all(values, others);
    }
  }

  // A thread for each of the block's numbers joins the parts'; when all blocks have told theirs, the blocks' are joined.
  template <class Operator, int BLOCKS, int COUNT> __device__ __forceinline__ void join_by_number(T (&values)[COUNT]) {
    constexpr int OWN = Tile::SIDE_SIZE * COUNT;
    publish(values);
    T* const in_cluster = BLOCKS == 1 ? shared.shares : shared.blocks[turn_of_blocks()];
    T* const own = BLOCKS > 1 && Tile::IN_GRID ? place_of_block<OWN>() : in_cluster;
    join_parts<Operator, COUNT>([&](int number, T value) { own[number] = value; });
    if constexpr (BLOCKS > 1) {
      if constexpr (Tile::IN_GRID) grid_sync();
      else cluster_sync();
      join_told_numbers<Operator, BLOCKS>(values, [&](auto& several, int first, int step, int number) {
        take_several<BLOCKS>(several, first, step, [&](int block) { return told_by<OWN>(block, number); });
      });
    } else {
      meet_block();
      take_shares(values);
    }
  }

  // The block's numbers, from those of its parts.
  template <class Operator, int COUNT, class Tell> __device__ __forceinline__ void join_parts(Tell tell) const {
    for (int number = threadIdx.x; number < Tile::SIDE_SIZE * COUNT; number += Tile::BLOCK_SIZE) {
      const int side = number % Tile::SIDE_SIZE, k = number / Tile::SIDE_SIZE;
      tell(number, joined_of<Operator, PARTS>(0, [&](auto& several, int first, int step) {
             take_several<PARTS>(several, first, step, [&](int part) { return area()[k][part][side]; });
           }));
    }
  }

  // A thread for each number joins those of the blocks that share the rows, or several do, each of as many as it can ask
  // for at once.
  template <class Operator, int BLOCKS, int COUNT, class Take>
  __device__ __forceinline__ void join_told_numbers(T (&values)[COUNT], Take take) const {
    constexpr int OWN = Tile::SIDE_SIZE * COUNT, MOST_SHARES = OWN * 8 < Tile::BLOCK_SIZE ? 8 : Tile::BLOCK_SIZE / OWN;
    constexpr int WANTED_SHARES = (BLOCKS + AT_ONCE - 1) / AT_ONCE;
    constexpr int SHARES = MOST_SHARES < 1 ? 1 : MOST_SHARES < WANTED_SHARES ? MOST_SHARES : WANTED_SHARES;
    for (int place = threadIdx.x; place < SHARES * OWN; place += Tile::BLOCK_SIZE) {
      const int share = SHARES == 1 ? 0 : place / OWN;
      shared.shares[place] = joined_of<Operator, BLOCKS, SHARES>(
          share, [&](auto& several, int first, int step) { take(several, first, step, place % OWN); });
    }
    if constexpr (SHARES > 1) {
      meet_block();
      for (int number = threadIdx.x; number < OWN; number += Tile::BLOCK_SIZE) {
        shared.shares[number] = joined_of<Operator, SHARES>(0, [&](auto& several, int first, int step) {
          take_several<SHARES>(several, first, step, [&](int share) { return shared.shares[share * OWN + number]; });
        });
      }
    }
    meet_block();
    take_shares(values);
  }

  template <int COUNT> __device__ __forceinline__ void take_shares(T (&values)[COUNT]) const {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      values[k] = shared.shares[k * Tile::SIDE_SIZE + threadIdx.x % Tile::SIDE_SIZE];
    }
  }

  // Joined rows of a cluster's blocks: a thread for each number of the block's rows and each block that is told, then
  // every thread for itself.
  template <class Operator, int COUNT> __device__ __forceinline__ void join_apart(T (&values)[COUNT]) {
    static_assert(WIDTH * Tile::SIDE_SIZE == 1, "a slot has one row");
    if (threadIdx.x % SPAN == 0) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.rows[k * ROWS + threadIdx.x / SPAN] = values[k];
    }
    meet_block();
    begin_telling();
    if (threadIdx.x < COUNT * Tile::APART) {
      const int k = threadIdx.x % COUNT;
      T joined = shared.rows[k * ROWS];
#pragma unroll
      for (int row = 1; row < ROWS; ++row) joined = Operator::join(joined, shared.rows[k * ROWS + row]);
      tell(threadIdx.x / COUNT, k, joined);
    }
    cluster_sync();
    join_told<Operator, Tile::APART>(0, values);
    ++meetings;
  }

  // Joined rows of several threads: a thread for each number of a group.
  template <class Operator, int COUNT> __device__ __forceinline__ void join_in_block(T (&values)[COUNT]) {
    const int team = threadIdx.x / SPAN, member = threadIdx.x / Tile::SIDE_SIZE % Tile::TEAM_SIZE;
    const int first = (team * Tile::SIDE_SIZE + threadIdx.x % Tile::SIDE_SIZE) * WIDTH;
    if (member == 0) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.rows[k / WIDTH * ROWS + first + k % WIDTH] = values[k];
    }
    meet_block();
    for (int number = threadIdx.x; number < COUNT / WIDTH * GROUPS; number += Tile::BLOCK_SIZE) {
      const T* const own = shared.rows + number * Tile::JOINED_ROWS;
      T joined = own[0];
#pragma unroll 16
      for (int row = 1; row < Tile::JOINED_ROWS; ++row) joined = Operator::join(joined, own[row]);
      shared.groups[number] = joined;
    }
    meet_block();
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      values[k] = shared.groups[k / WIDTH * GROUPS + (first + k % WIDTH) / Tile::JOINED_ROWS];
    }
  }

  template <int OWN> __device__ __forceinline__ T* place_of_block(int offset = 0) const {
    return partials + (i64(blockIdx.x) + offset) * OWN;
  }

  // What a block of those that share the rows has told.
  template <int OWN> __device__ __forceinline__ T told_by(int block, int number) const {
    if constexpr (Tile::IN_GRID) return place_of_block<OWN>(block - int(blockIdx.x % Tile::BLOCKS))[number];
    return load_of_block(shared.blocks[turn_of_blocks()] + number, block);
  }
};
