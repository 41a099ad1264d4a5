// The exchange of a row's sums among the blocks of a cooperative grid that share it, by threads of roles
// (row_roles.cuh). The first pass hands its sums over, one warp posts them to the block's mailboxes, other threads poll
// those of all blocks, and the second pass takes the totals.
//
// Order of summation: as in row_team.cuh; the rows of a normalisation group in order, before the blocks.

#pragma once

#include "include/ptx/grid_barrier.cuh"
#include "row_roles.cuh"
#include "include/rows/row_team.cuh"
#include "mailbox.cuh"

// Reduces COUNT numbers of each thread: WIDTH of one kind, then those of the next. TOGETHER: whether the rows of a
// normalisation group are posted as one. Before the first pass over a row, the posting warp may publish WIDTH estimates
// for each side to both passes.
template <class Team, int COUNT, bool TOGETHER> struct RowExchange {
  typedef typename Team::Tile Tile;
  typedef typename Team::Number T;

  static constexpr int WIDTH = Tile::WIDTH, WARPS = Tile::BLOCK_SIZE / WARP_SIZE;
  static constexpr int GROUP_ROWS = TOGETHER ? Tile::GROUP_ROWS : 1;
  static constexpr int GROUPS = Tile::SIDE_SIZE * WIDTH / GROUP_ROWS;  // groups of a block's rows, each posted as one
  static constexpr int NUMBERS = COUNT / WIDTH * GROUPS;               // numbers that a block posts
  static constexpr int POLLERS = Tile::BLOCK_SIZE - POSTERS;
  // Threads that poll one number, each from as many blocks as it can load at once.
  static constexpr int MOST_SHARES = NUMBERS * 8 < POLLERS ? 8 : POLLERS / NUMBERS;
  static constexpr int WANTED_SHARES = (Tile::BLOCKS + Team::AT_ONCE - 1) / Team::AT_ONCE;
  static constexpr int SHARES = MOST_SHARES < 1 ? 1 : MOST_SHARES < WANTED_SHARES ? MOST_SHARES : WANTED_SHARES;
  static constexpr int RESULTS = 4;  // rows whose results wait for the second pass
  // Rows that the mailboxes have room for. A block posts the sums of a row when it has the totals of the one MOST_ROWS
  // before it. So all blocks have posted that one, and are done polling for the row twice as many before.
  static constexpr int AREAS = 16;
  static_assert(AREAS >= 2 * MOST_ROWS, "no mailbox is posted to while it is polled");

  struct Shared {
    T parts[COUNT][Team::PARTS][Tile::SIDE_SIZE];
    T shares[2][SHARES > 1 ? SHARES * NUMBERS : 1];
    T results[RESULTS][NUMBERS];
    T estimates[RESULTS][Tile::SIDE_SIZE * WIDTH];  // for each row
    T rows[Tile::SIDE_SIZE * WIDTH];                // scratch for the reduction over normalisation groups
    // Barriers. `handed`: the parts are there; `taken`: they are posted. For each row, `estimated`: its estimates are
    // there; `known`: the first pass is over and the totals are there; `used`: the second pass has read them.
    u64 handed, taken, estimated[RESULTS], known[RESULTS], used[RESULTS];
  };

  Shared& shared;
  T* const partials;  // in device memory: Mailbox [AREAS][blocks][NUMBERS]
  u32 sequence = 0;   // rows that this role has passed

  __device__ __forceinline__ RowExchange(Shared& shared, T* partials) : shared(shared), partials(partials) {}

  // To be called before the barrier of the block's threads.
  __device__ __forceinline__ void begin() const {
    if (role() != POSTING || threadIdx.x > 0) return;
    mbarrier_init(shared_address(&shared.handed), WARPS);
    mbarrier_init(shared_address(&shared.taken), 1);
    for (int i = 0; i < RESULTS; ++i) {
      mbarrier_init(shared_address(shared.estimated + i), 1);
      mbarrier_init(shared_address(shared.known + i), 2 * WARPS - 1);
      mbarrier_init(shared_address(shared.used + i), WARPS);
    }
  }

  // To be called by the posting and polling threads before any block posts: marks this block's mailboxes as empty.
  __device__ __forceinline__ void clear_mailboxes() const {
    for (int entry = threadIdx.x; entry < AREAS * NUMBERS; entry += Tile::BLOCK_SIZE) {
      mailboxes_in(entry / NUMBERS)[entry % NUMBERS].clear();
    }
    grid_sync(threadIdx.x == 0, [] { named_barrier(1 + POLLING, Tile::BLOCK_SIZE); });
  }

  // Reduces the posting threads' values over the rows of each normalisation group.
  template <class Operator> __device__ __forceinline__ void join_rows(T (&values)[WIDTH]) const {
    if constexpr (GROUP_ROWS > 1) {
      if (threadIdx.x < Tile::SIDE_SIZE) {
#pragma unroll
        for (int w = 0; w < WIDTH; ++w) shared.rows[threadIdx.x * WIDTH + w] = values[w];
      }
      __syncwarp();
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        const int first = (threadIdx.x % Tile::SIDE_SIZE * WIDTH + w) / GROUP_ROWS * GROUP_ROWS;
        values[w] = shared.rows[first];
#pragma unroll
        for (int row = 1; row < GROUP_ROWS; ++row) values[w] = Operator::join(values[w], shared.rows[first + row]);
      }
      __syncwarp();
    }
  }

  // Publishes the estimates of this block's row `number`, once those of the row RESULTS before are no longer needed.
  __device__ __forceinline__ void publish_estimate(u32 number, const T (&values)[WIDTH]) const {
    const u32 result = number % RESULTS;
    mbarrier_wait(shared_address(shared.used + result), number / RESULTS & 1 ^ 1);
    if (threadIdx.x < Tile::SIDE_SIZE) {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) shared.estimates[result][w * Tile::SIDE_SIZE + threadIdx.x] = values[w];
    }
    arrive_by_warps(shared_address(shared.estimated + result));
  }

  // Waits for the estimates of the current row.
  __device__ __forceinline__ void get_estimate(T (&values)[WIDTH]) const {
    const u32 result = sequence % RESULTS;
    mbarrier_wait(shared_address(shared.estimated + result), sequence / RESULTS & 1);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      values[w] = shared.estimates[result][w * Tile::SIDE_SIZE + threadIdx.x % Tile::SIDE_SIZE];
    }
  }

  // Hands over a first-pass thread's sums of a row.
  template <class Operator> __device__ __forceinline__ void hand_over(T (&values)[COUNT]) {
    Team::template join_lanes<Operator>(values);
    const u32 result = sequence % RESULTS;
    mbarrier_wait(shared_address(&shared.taken), sequence & 1 ^ 1);
    Team::publish_in(shared.parts, values);
    arrive_by_warps(shared_address(&shared.handed));
    mbarrier_wait(shared_address(shared.used + result), sequence / RESULTS & 1 ^ 1);
    arrive_by_warps(shared_address(shared.known + result));
    ++sequence;
  }

  // Posts the block's sums, when all threads of the first pass have handed theirs over.
  template <class Operator> __device__ __forceinline__ void post() {
    Mailbox<T>* const mailboxes = mailboxes_in(sequence % AREAS);
    mbarrier_wait(shared_address(&shared.handed), sequence & 1);
    ++sequence;
    for (int number = threadIdx.x; number < NUMBERS; number += POSTERS) {
      mailboxes[number].post(joined_parts<Operator>(number), sequence);
    }
    arrive_by_warps(shared_address(&shared.taken));
  }

  // Collects the sums of all blocks that share the row.
  template <class Operator> __device__ __forceinline__ void collect() {
    const Mailbox<T>* const mailboxes = mailboxes_in(sequence % AREAS) - i64(blockIdx.x % Tile::BLOCKS) * NUMBERS;
    const u32 result = sequence % RESULTS, free_phase = sequence / RESULTS & 1 ^ 1;
    T* const shares = shared.shares[sequence % 2];
    const int poller = int(threadIdx.x) - POSTERS;
    ++sequence;
    const auto joined_share = [&](int number, int share) {
      return Team::template joined_of<Operator, Tile::BLOCKS, SHARES>(
          share, [&](auto& several, int first, int step) { poll(several, mailboxes + number, first, step); });
    };
    if constexpr (SHARES > 1) {
      if (poller < SHARES * NUMBERS) shares[poller] = joined_share(poller % NUMBERS, poller / NUMBERS);
      named_barrier(1 + POLLING, POLLERS);
    }
    mbarrier_wait(shared_address(shared.used + result), free_phase);
    for (int number = poller; number < NUMBERS; number += POLLERS) {
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

  // Gives the totals of a row to a thread of the second pass, which then needs nothing more of its exchange.
  __device__ __forceinline__ void take(T (&values)[COUNT]) {
    const u32 result = sequence % RESULTS, side = threadIdx.x % Tile::SIDE_SIZE;
    mbarrier_wait(shared_address(shared.known + result), sequence / RESULTS & 1);
    ++sequence;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      const int row = side * WIDTH + k % WIDTH;
      values[k] = shared.results[result][k / WIDTH * GROUPS + row / GROUP_ROWS];
    }
    arrive_by_warps(shared_address(shared.used + result));
  }

 private:
  // This block's mailboxes in an area.
  __device__ __forceinline__ Mailbox<T>* mailboxes_in(u32 area) const {
    return reinterpret_cast<Mailbox<T>*>(partials) + (i64(area) * gridDim.x + blockIdx.x) * NUMBERS;
  }

  // The block's sum for a number, over its rows and parts.
  template <class Operator> __device__ __forceinline__ T joined_parts(int number) const {
    const int kind = number / GROUPS, first = number % GROUPS * GROUP_ROWS;
    return Team::template joined_of<Operator, GROUP_ROWS * Team::PARTS>(0, [&](auto& several, int begin, int step) {
      Team::template take_several<GROUP_ROWS * Team::PARTS>(several, begin, step, [&](int i) {
        const int row = first + i / Team::PARTS;
        return shared.parts[kind * WIDTH + row % WIDTH][i % Team::PARTS][row / WIDTH];
      });
    });
  }

  // Polls the mailboxes of blocks `first`, `first` + step, ... until all have posted for this sequence number.
  template <int AT_A_TIME>
  __device__ __forceinline__ void poll(T (&several)[AT_A_TIME], const Mailbox<T>* mailboxes, int first,
                                       int step) const {
    bool are_there;
    do {
      Mailbox<T> now[AT_A_TIME] = {};
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        const int block = first + i * step;
        if (block < Tile::BLOCKS) now[i] = mailboxes[i64(block) * NUMBERS].poll();
      }
      are_there = true;
#pragma unroll
      for (int i = 0; i < AT_A_TIME; ++i) {
        are_there &= first + i * step >= Tile::BLOCKS || now[i].is_of(sequence);
        several[i] = now[i].value();
      }
    } while (!are_there);
  }
};

// Creates the exchange of a block. All its threads must call this; what they initialised before is visible afterwards.
template <class Exchange, class Params> __device__ __forceinline__ Exchange exchange_of_block(const Params& p) {
  __shared__ typename Exchange::Shared shared;
  const Exchange exchange(shared, p.partials);
  exchange.begin();
  __syncthreads();
  return exchange;
}
