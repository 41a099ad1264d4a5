// Teams: the reductions among the threads that own a row (rows.cuh).
//
// Order of summation: a thread's own elements in order, the lanes of a warp as a tree, then the warps and the blocks in
// order. Many blocks are in a few interleaved parts. The rows of a normalisation group are in order, block by block. If
// SIDE does not divide a warp, members of a team take the place of warps. The order depends only on the parameters.

#pragma once

#include "include/ptx/grid_barrier.cuh"
#include "include/rows/rows.cuh"
#include "include/ptx/warpgroup.cuh"

// Applies an operator's `join` to arrays element by element: `joined` of this thread, `others` of another one.
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

// Reduces numbers over the threads of a team, at most MOST at once; each thread gets the result. An operator has
// join_all for the numbers of a thread; without BY_NUMBER these may depend on each other.
//
// POSTS: whether blocks of a cluster write few numbers into each other's shared memory; otherwise they read them there.
// On an H200, while the next row was prefetched, posting took 9 to 29 % longer in gradients of softmax, and 8 % less in
// softmax.
// HAS_ROLES: whether the threads are those of one role (row_roles.cuh). They then have barriers and a Shared of their
// own, and only `neighbours` reduces by this object; the rest goes through a RowExchange.
template <class Tile_, class T, int MOST, bool POSTS = true, bool HAS_ROLES = false> struct RowTeam {
  typedef Tile_ Tile;
  typedef T Number;

  static constexpr int SPAN = Tile::TEAM_SIZE * Tile::SIDE_SIZE, WIDTH = Tile::WIDTH;
  static constexpr int NUMBERS = Tile::SIDE_SIZE * MOST;  // numbers of a block
  static constexpr bool IN_LANES = WARP_SIZE % Tile::SIDE_SIZE == 0;
  static constexpr bool HAS_BARRIER = SPAN > WARP_SIZE || Tile::BLOCKS > 1;  // whether a reduction needs one
  static constexpr int PARTS = IN_LANES ? SPAN / WARP_SIZE : Tile::TEAM_SIZE;  // warps or members
  // Whether each of many numbers is reduced by one thread, which shares the result; few are reduced by every thread
  // itself.
  static constexpr bool BY_NUMBER = Tile::IN_GRID || !IN_LANES || (Tile::SIDE_SIZE > 1 && SPAN > WARP_SIZE);
  static constexpr bool IS_POSTED = POSTS && !BY_NUMBER && Tile::CLUSTER_BLOCKS > 1;
  static constexpr bool PULLS = !IS_POSTED && Tile::CLUSTER_BLOCKS > 1;
  static_assert(!BY_NUMBER || Tile::SLOTS == 1, "the numbers are those of one team");
  static constexpr int AT_ONCE = 16;   // most loads in flight while a thread reduces one number
  static constexpr int FEW_SLOTS = 4;  // most slots of a block whose barriers have compile-time ids
  // Rows of a block whose normalisation groups have rows of several threads, and the number of these groups.
  static constexpr int ROWS = WIDTH % Tile::GROUP_ROWS == 0 ? 0 : Tile::SLOTS * Tile::SIDE_SIZE * WIDTH;
  static constexpr int GROUPS = Tile::GROUP_BLOCKS > 1 ? 0 : ROWS / Tile::GROUP_ROWS;

  struct Shared {
    // One buffer suffices for BY_NUMBER: when the results are there, all threads have read it.
    T parts[BY_NUMBER ? 1 : 2][HAS_ROLES ? 1 : MOST]
           [HAS_ROLES ? 1 : BY_NUMBER ? PARTS : SPAN > WARP_SIZE ? Tile::BLOCK_SIZE / WARP_SIZE : 1][Tile::SIDE_SIZE];
    T blocks[2][PULLS ? NUMBERS : 1];
    T mailboxes[2][IS_POSTED ? Tile::CLUSTER_BLOCKS : 1][IS_POSTED ? NUMBERS : 1];
    T shares[HAS_ROLES || !BY_NUMBER ? 1 : NUMBERS > Tile::BLOCK_SIZE ? NUMBERS : Tile::BLOCK_SIZE];
    T rows[ROWS > 0 ? MOST / WIDTH * ROWS : 1], groups[GROUPS > 0 ? MOST / WIDTH * GROUPS : 1];
  };

  Shared& shared;
  T* const partials;  // in device memory, for a cooperative grid: NUMBERS for each block
  // Each area has two buffers, used alternately, since the last one may still be read.
  int buffer = 0;
  u32 cluster_barriers = 0;  // cluster or grid barriers passed so far

  __device__ __forceinline__ RowTeam(Shared& shared, T* partials = nullptr) : shared(shared), partials(partials) {
    if constexpr (IS_POSTED) cluster_arrive();
  }

  // Reduces over all threads that share a row; in a cooperative grid once in a launch, as `partials` has one buffer.
  template <class Operator, int COUNT> __device__ __forceinline__ void all(T (&values)[COUNT]) {
    join<Operator, Tile::BLOCKS>(values);
  }

  // Reduce in two steps, without BY_NUMBER: first over the team's lanes in a warp, which needs no barrier, then the
  // rest.
  template <class Operator, int COUNT> __device__ __forceinline__ void all_of_lanes(T (&values)[COUNT]) {
    join_lanes<Operator>(values);
  }
  template <class Operator, int COUNT> __device__ __forceinline__ void all_beyond_lanes(T (&values)[COUNT]) {
    join_beyond_lanes<Operator, Tile::BLOCKS>(values);
  }

  // Reduces over the team's threads in this block alone.
  template <class Operator, int COUNT> __device__ __forceinline__ void all_of_block(T (&values)[COUNT]) {
    join<Operator, 1>(values);
  }

  // Reduces over the rows of a normalisation group, when each row has its own result: WIDTH of one number, then of the
  // next.
  template <class Operator, int COUNT> __device__ __forceinline__ void neighbours(T (&values)[COUNT]) {
    if constexpr (Tile::GROUP_BLOCKS > 1) {
      join_across_cluster<Operator>(values);
    } else if constexpr (ROWS > 0) {
      join_in_block<Operator>(values);
    } else if constexpr (Tile::GROUP_ROWS > 1) {
#pragma unroll
      for (int first = 0; first < COUNT; first += Tile::GROUP_ROWS) {
#pragma unroll
        for (int k = 1; k < Tile::GROUP_ROWS; ++k) values[first] = Operator::join(values[first], values[first + k]);
#pragma unroll
        for (int k = 1; k < Tile::GROUP_ROWS; ++k) values[first + k] = values[first];
      }
    }
  }

  // To be called at the kernel's end: no block may exit while another accesses its shared memory.
  __device__ __forceinline__ void leave() const {
    if constexpr (PULLS) cluster_sync();
    else begin_posting();
  }

  // The steps of a reduction, which row_exchange.cuh uses too.

  // Reduces over the team's lanes in a warp.
  template <class Operator, int COUNT> static __device__ __forceinline__ void join_lanes(T (&values)[COUNT]) {
#pragma unroll
    for (int offset = Tile::SIDE_SIZE; IN_LANES && offset < WARP_SIZE && offset < SPAN; offset *= 2) {
      T others[COUNT];
#pragma unroll
      for (int k = 0; k < COUNT; ++k) others[k] = __shfl_xor_sync(0xffffffffu, values[k], offset);
      Operator::join_all(values, others);
    }
  }

  // Writes each part's numbers into shared memory.
  template <class Area, int COUNT>
  static __device__ __forceinline__ void publish_in(Area& parts, const T (&values)[COUNT]) {
    constexpr int PART_SIZE = IN_LANES ? WARP_SIZE : Tile::SIDE_SIZE;
    const int part = threadIdx.x / PART_SIZE, side = threadIdx.x % PART_SIZE;
    if (side >= Tile::SIDE_SIZE) return;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) parts[k][part][side] = values[k];
  }

  // Reduces a number over the sources `first`, `first` + STEP, ... below COUNT. `take(several, first, step)` loads the
  // next few of them, at most AT_ONCE.
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
  // Waits for the cluster's blocks to have begun, before the first post: until then a block has no shared memory.
  __device__ __forceinline__ void begin_posting() const {
    if constexpr (IS_POSTED) {
      if (cluster_barriers == 0) cluster_wait();
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
    buffer ^= 1;
    if constexpr (BLOCKS > 1) ++cluster_barriers;
  }

  // Publishes the parts' numbers to the team.
  template <int COUNT> __device__ __forceinline__ void publish(const T (&values)[COUNT]) {
    publish_in(area(), values);
    team_barrier();
  }

  // A barrier of the threads of a team; the teams of a block do not wait for each other.
  static __device__ __forceinline__ void team_barrier() {
    if constexpr (Tile::SLOTS == 1) block_barrier();
    else if constexpr (Tile::SLOTS <= FEW_SLOTS) slot_barrier<Tile::SLOTS>();
    else named_barrier(1 + threadIdx.x / SPAN, SPAN);
  }

  // A barrier of the threads of a block or, with HAS_ROLES, of one role.
  static __device__ __forceinline__ void block_barrier() {
    if constexpr (HAS_ROLES) named_barrier(1 + threadIdx.y, Tile::BLOCK_SIZE);
    else __syncthreads();
  }

  // A block reserves all sixteen barriers if the compiler does not know which it uses, and few such blocks fit a
  // multiprocessor. On an H200, layer norms of rows of 1024 in teams of two warps took 112 us instead of 75.
  template <int COUNT> static __device__ __forceinline__ void slot_barrier() {
    if (COUNT == 1 || threadIdx.x / SPAN == COUNT - 1) named_barrier(COUNT, SPAN);
    else if constexpr (COUNT > 1) slot_barrier<COUNT - 1>();
  }

  __device__ __forceinline__ auto& area() const { return shared.parts[BY_NUMBER ? 0 : buffer]; }

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

  // Reduces over the blocks of a cluster, after whose barrier each block's numbers lie in every block's mailboxes, or
  // are read from their owner.
  template <class Operator, int COUNT> __device__ __forceinline__ void join_blocks(T (&values)[COUNT]) {
    const int side = threadIdx.x % Tile::SIDE_SIZE;
    if constexpr (IS_POSTED) {
      begin_posting();
      for (u32 block = threadIdx.x / Tile::SIDE_SIZE; block < Tile::BLOCKS; block += Tile::TEAM_SIZE) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) post(block, side * MOST + k, values[k]);
      }
      cluster_sync();
      join_posted<Operator, Tile::BLOCKS>(side * MOST, values);
    } else {
      T* const own = shared.blocks[cluster_buffer()] + side * MOST;
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

  __device__ __forceinline__ void post(u32 block, int number, T value) const {
    store_of_block(shared.mailboxes[cluster_buffer()][cluster_rank()] + number, block, value);
  }

  __device__ __forceinline__ int cluster_buffer() const { return int(cluster_barriers % 2); }

  // Reduces consecutive numbers that the blocks of the cluster have posted.
  template <class Operator, int BLOCKS, int COUNT>
  __device__ __forceinline__ void join_posted(int first, T (&values)[COUNT]) const {
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      T others[COUNT];
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
        (block == 0 ? values : others)[k] = shared.mailboxes[cluster_buffer()][block][first + k];
      }
      if (block > 0) Operator::join_all(values, others);
    }
  }

  // Reduces with a thread for each number: first over the block's parts, then, after a barrier, over the blocks.
  template <class Operator, int BLOCKS, int COUNT> __device__ __forceinline__ void join_by_number(T (&values)[COUNT]) {
    constexpr int OWN = Tile::SIDE_SIZE * COUNT;
    publish(values);
    T* const in_cluster = BLOCKS == 1 ? shared.shares : shared.blocks[cluster_buffer()];
    T* const own = BLOCKS > 1 && Tile::IN_GRID ? partials_of_block<OWN>() : in_cluster;
    join_parts<Operator, COUNT>([&](int number, T value) { own[number] = value; });
    if constexpr (BLOCKS > 1) {
      if constexpr (Tile::IN_GRID) grid_sync();
      else cluster_sync();
      join_numbers_of_blocks<Operator, BLOCKS>(values, [&](auto& several, int first, int step, int number) {
        take_several<BLOCKS>(several, first, step, [&](int block) { return number_of_block<OWN>(block, number); });
      });
    } else {
      block_barrier();
      take_shares(values);
    }
  }

  // Reduces each of the block's numbers over its parts, and hands it to `post(number, value)`.
  template <class Operator, int COUNT, class Tell> __device__ __forceinline__ void join_parts(Tell post) const {
    for (int number = threadIdx.x; number < Tile::SIDE_SIZE * COUNT; number += Tile::BLOCK_SIZE) {
      const int side = number % Tile::SIDE_SIZE, k = number / Tile::SIDE_SIZE;
      post(number, joined_of<Operator, PARTS>(0, [&](auto& several, int first, int step) {
             take_several<PARTS>(several, first, step, [&](int part) { return area()[k][part][side]; });
           }));
    }
  }

  // Reduces each number over the blocks that share the rows, by one thread or by several, each of which takes about as
  // many blocks as it can load at once.
  template <class Operator, int BLOCKS, int COUNT, class Take>
  __device__ __forceinline__ void join_numbers_of_blocks(T (&values)[COUNT], Take take) const {
    constexpr int OWN = Tile::SIDE_SIZE * COUNT, MOST_SHARES = OWN * 8 < Tile::BLOCK_SIZE ? 8 : Tile::BLOCK_SIZE / OWN;
    constexpr int WANTED_SHARES = (BLOCKS + AT_ONCE - 1) / AT_ONCE;
    constexpr int SHARES = MOST_SHARES < 1 ? 1 : MOST_SHARES < WANTED_SHARES ? MOST_SHARES : WANTED_SHARES;
    for (int entry = threadIdx.x; entry < SHARES * OWN; entry += Tile::BLOCK_SIZE) {
      const int share = SHARES == 1 ? 0 : entry / OWN;
      shared.shares[entry] = joined_of<Operator, BLOCKS, SHARES>(
          share, [&](auto& several, int first, int step) { take(several, first, step, entry % OWN); });
    }
    if constexpr (SHARES > 1) {
      block_barrier();
      for (int number = threadIdx.x; number < OWN; number += Tile::BLOCK_SIZE) {
        shared.shares[number] = joined_of<Operator, SHARES>(0, [&](auto& several, int first, int step) {
          take_several<SHARES>(several, first, step, [&](int share) { return shared.shares[share * OWN + number]; });
        });
      }
    }
    block_barrier();
    take_shares(values);
  }

  template <int COUNT> __device__ __forceinline__ void take_shares(T (&values)[COUNT]) const {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      values[k] = shared.shares[k * Tile::SIDE_SIZE + threadIdx.x % Tile::SIDE_SIZE];
    }
  }

  // Reduces over the rows of a normalisation group that are spread over a cluster: a thread for each number and each
  // block reduces over this block's rows and posts the result, then every thread reduces over the blocks.
  template <class Operator, int COUNT> __device__ __forceinline__ void join_across_cluster(T (&values)[COUNT]) {
    static_assert(WIDTH * Tile::SIDE_SIZE == 1, "a slot has one row");
    if (threadIdx.x % SPAN == 0) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.rows[k * ROWS + threadIdx.x / SPAN] = values[k];
    }
    block_barrier();
    begin_posting();
    if (threadIdx.x < COUNT * Tile::GROUP_BLOCKS) {
      const int k = threadIdx.x % COUNT;
      T joined = shared.rows[k * ROWS];
#pragma unroll
      for (int row = 1; row < ROWS; ++row) joined = Operator::join(joined, shared.rows[k * ROWS + row]);
      post(threadIdx.x / COUNT, k, joined);
    }
    cluster_sync();
    join_posted<Operator, Tile::GROUP_BLOCKS>(0, values);
    ++cluster_barriers;
  }

  // Reduces over the rows of normalisation groups in this block, with a thread for each number of a group.
  template <class Operator, int COUNT> __device__ __forceinline__ void join_in_block(T (&values)[COUNT]) {
    const int team = threadIdx.x / SPAN, member = threadIdx.x / Tile::SIDE_SIZE % Tile::TEAM_SIZE;
    const int first = (team * Tile::SIDE_SIZE + threadIdx.x % Tile::SIDE_SIZE) * WIDTH;
    if (member == 0) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.rows[k / WIDTH * ROWS + first + k % WIDTH] = values[k];
    }
    block_barrier();
    for (int number = threadIdx.x; number < COUNT / WIDTH * GROUPS; number += Tile::BLOCK_SIZE) {
      const T* const own = shared.rows + number * Tile::GROUP_ROWS;
      T joined = own[0];
#pragma unroll 16
      for (int row = 1; row < Tile::GROUP_ROWS; ++row) joined = Operator::join(joined, own[row]);
      shared.groups[number] = joined;
    }
    block_barrier();
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      values[k] = shared.groups[k / WIDTH * GROUPS + (first + k % WIDTH) / Tile::GROUP_ROWS];
    }
  }

  template <int OWN> __device__ __forceinline__ T* partials_of_block(int offset = 0) const {
    return partials + (i64(blockIdx.x) + offset) * OWN;
  }

  // Number `number` of block `block`, one of those that share the rows.
  template <int OWN> __device__ __forceinline__ T number_of_block(int block, int number) const {
    if constexpr (Tile::IN_GRID) return partials_of_block<OWN>(block - int(blockIdx.x % Tile::BLOCKS))[number];
    return load_of_block(shared.blocks[cluster_buffer()] + number, block);
  }
};
