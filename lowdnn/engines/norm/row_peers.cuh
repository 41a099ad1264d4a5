// The exchange of numbers of rows (rows.cuh) among peers (peers.cuh): each rank has rows of its own with the same
// numbers, the channels of a batch, and gets what all ranks' numbers are joined to, in the order of the ranks.
//
// Buffers: as lowdnn/ops/peer_stats.py says. A rank writes its numbers to its mailboxes in every peer's buffer, and
// polls those of the peers in its own. If blocks share a row, the first of them posts, and all poll.
// Exchanges are counted for each channel in the rank's own buffer. The count is read before the row's blocks have met
// at their barrier, and the row's first block writes it afterwards.
// Successive exchanges use the two halves in turn. A rank that writes to a half has ended the launch of the exchange
// before, which needed a number from every peer. That peer posted it when its launch of the exchange before that one had
// ended, so that nobody still reads the half.
// Macro: PEERS, the ranks; kernels without peers do not have it.

#pragma once

#include "include/rows/rows.cuh"
#include "mailbox.cuh"
#include "peers.cuh"

#ifndef PEERS
#define PEERS 1
#endif

// A base of a kernel's Params: the channels that buffers have room for; the own buffer, then those of the ranks after
// it, and behind the last rank those from rank 0 on.
template <bool ANY> struct PeersOf {
  i64 channels;
  u8* buffers[PEERS];
};
template <> struct PeersOf<false> {};

// The lanes of a warp that hold a row's numbers, one lane for each rank: rank 0's is the first. Every lane of the warp
// calls these functions, and all lanes of a row get the same result.
struct RankLanes {
  static constexpr int COUNT = PEERS > 4 ? 8 : PEERS > 2 ? 4 : 2;

  template <class T> static __device__ __forceinline__ T first(T number) {
    return __shfl_sync(~0u, number, 0, COUNT);
  }
  // The sum in the order of the ranks.
  template <class T> static __device__ __forceinline__ T sum(T number) {
    T total = first(number);
#pragma unroll
    for (int rank = 1; rank < PEERS; ++rank) total += __shfl_sync(~0u, number, rank, COUNT);
    return total;
  }
};

// Exchanges COUNT numbers of each row. A lane for each row and rank posts the row's numbers to one peer and polls those
// of one rank, so that all of a block's mailboxes are polled at the same time. `Join::join(numbers)` then turns each
// rank's numbers, in lanes as RankLanes says, into the joined ones.
template <class Tile, class T, int COUNT, class Join> struct RowPeers {
  static constexpr int WIDTH = Tile::WIDTH, ROWS = Tile::SLOTS * Tile::SIDE_SIZE * WIDTH;
  static constexpr int EACH = (ROWS + Tile::BLOCK_SIZE - 1) / Tile::BLOCK_SIZE;  // rows whose counts a thread reads
  static constexpr int TOGETHER = Tile::BLOCK_SIZE / RankLanes::COUNT;  // rows that have lanes at the same time
  static constexpr int MOST_NUMBERS = 3;  // NUMBERS of lowdnn/ops/peer_stats.py
  static_assert(COUNT <= MOST_NUMBERS, "mailboxes have room");
  static_assert(PEERS <= RankLanes::COUNT, "each rank has a lane");
  static_assert(Tile::BLOCK_SIZE % WARP_SIZE == 0, "all lanes of a warp are there");
  typedef Mailbox<T, OF_SYSTEM> Box;

  struct Shared {
    T numbers[COUNT][ROWS];
    u32 sequences[ROWS];  // the rows' exchanges
  };

  const PeersOf<true>& p;
  Shared& shared;
  u32 rank;
  u32 sequences[EACH];  // the exchanges of rows threadIdx.x, threadIdx.x + BLOCK_SIZE, ...

  __device__ __forceinline__ RowPeers(const PeersOf<true>& p, Shared& shared)
      : p(p), shared(shared) {}

  // Reads what the exchange of a block's rows needs. To be called before their sums are reduced: it arrives meanwhile.
  __device__ __forceinline__ void begin(const RowWalk<Tile>& walk) {
    rank = header()->rank;
#pragma unroll
    for (int turn = 0; turn < EACH; ++turn) {
      const int row = turn * Tile::BLOCK_SIZE + threadIdx.x;
      sequences[turn] = exists(walk, row) ? counts()[2 * number_of(walk, row)] + 1 : 0;
    }
  }

  // Joins the numbers of the ranks: values[k * WIDTH + w] is number k of the thread's row w. To be called by all
  // threads of a block, after the blocks that share the row have met. If a rank is missing, it returns false, and the
  // numbers that it did not post count as NaN.
  __device__ __forceinline__ bool join(const RowWalk<Tile>& walk, T (&values)[COUNT * WIDTH]) {
    const int first = (threadIdx.x / (Tile::TEAM_SIZE * Tile::SIDE_SIZE) * Tile::SIDE_SIZE +
                       threadIdx.x % Tile::SIDE_SIZE) * WIDTH;
    __syncthreads();  // the last rows' numbers have been read
    if (RowWalk<Tile>::member() == 0) {
#pragma unroll
      for (int k = 0; k < COUNT * WIDTH; ++k) shared.numbers[k / WIDTH][first + k % WIDTH] = values[k];
    }
#pragma unroll
    for (int turn = 0; turn < EACH; ++turn) {
      const int row = turn * Tile::BLOCK_SIZE + threadIdx.x;
      if (row < ROWS) shared.sequences[row] = sequences[turn];
    }
    __syncthreads();
    if (walk.is_first_block()) each_turn([&](int row) { post(walk, row); });
    __syncwarp();  // the lane that stores a row's joined numbers is not the only one that has read them
    bool are_there = true;
    each_turn([&](int row) { are_there &= exchange(walk, row); });
    are_there = __syncthreads_and(are_there);
#pragma unroll
    for (int k = 0; k < COUNT * WIDTH; ++k) values[k] = shared.numbers[k / WIDTH][first + k % WIDTH];
    return are_there;
  }

 private:
  __device__ __forceinline__ PeerHeader* header() const { return reinterpret_cast<PeerHeader*>(p.buffers[0]); }
  // Two words for each channel, of which the first counts its exchanges.
  __device__ __forceinline__ u32* counts() const { return reinterpret_cast<u32*>(header() + 1); }

  // The mailbox in a buffer for number `number` of a channel, written by rank `writer`.
  __device__ __forceinline__ Box* box(int buffer, u32 sequence, u32 writer, int number, i64 channel) const {
    u8* const boxes = p.buffers[buffer] + sizeof(PeerHeader) + p.channels * 8;
    const i64 place = ((sequence & 1) * PEERS + writer) * MOST_NUMBERS + number;
    return reinterpret_cast<Box*>(boxes) + place * p.channels + channel;
  }

  // A row of the block: its number among all rows, and whether there is one.
  __device__ __forceinline__ static i64 number_of(const RowWalk<Tile>& walk, int row) {
    return walk.first * WIDTH + row;
  }
  __device__ __forceinline__ static bool exists(const RowWalk<Tile>& walk, int row) {
    return row < ROWS && walk.first + row / WIDTH < walk.sizes->rows;
  }

  // Calls `use(row)` for each row of the block for which this thread is a lane; rows from ROWS on fill up a warp.
  template <class Use> __device__ __forceinline__ static void each_turn(Use use) {
#pragma unroll 1
    for (int begin = 0; begin < ROWS; begin += TOGETHER) use(begin + int(threadIdx.x) / RankLanes::COUNT);
  }
  __device__ __forceinline__ static u32 lane() { return threadIdx.x % RankLanes::COUNT; }

  // Posts a row's numbers to the lane's peer and counts the exchange.
  __device__ __forceinline__ void post(const RowWalk<Tile>& walk, int row) const {
    if (!exists(walk, row)) return;
    const i64 channel = number_of(walk, row);
    const u32 sequence = shared.sequences[row], peer = lane();
    if (peer == 0) {
      counts()[2 * channel] = sequence;
    } else if (peer < PEERS) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) box(peer, sequence, rank, k, channel)->post(shared.numbers[k][row], sequence);
    }
  }

  // Gets the numbers of the lane's rank and leaves the joined ones in the place of this rank's. All lanes of a warp call
  // it. Returns false if the lane's rank is missing.
  __device__ __forceinline__ bool exchange(const RowWalk<Tile>& walk, int row) {
    const u32 writer = lane();
    T numbers[COUNT] = {};
    bool is_there = true;
    if (exists(walk, row) && writer < PEERS) {
      if (writer == rank) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) numbers[k] = shared.numbers[k][row];
      } else {
        is_there = poll(writer, shared.sequences[row], number_of(walk, row), numbers);
      }
    }
    Join::join(numbers);
    if (exists(walk, row) && writer == rank) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.numbers[k][row] = numbers[k];
    }
    return is_there;
  }

  // Polls a rank's mailboxes until it has posted. If it is missing, the numbers are NaN and the result is false.
  __device__ __forceinline__ bool poll(u32 writer, u32 sequence, i64 channel, T (&numbers)[COUNT]) const {
    const auto look = [&] {
      Box now[COUNT];
      bool are_there = true;
#pragma unroll
      for (int k = 0; k < COUNT; ++k) now[k] = box(0, sequence, writer, k, channel)->poll();
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
        are_there &= now[k].is_of(sequence);
        numbers[k] = now[k].value();
      }
      return are_there;
    };
    if (wait_for_peers(header(), look, [&] { return writer; })) return true;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) numbers[k] = T(__uint_as_float(0x7fffffff));
    return false;
  }
};

// Takes the position of RowPeers in kernels without peers.
struct NoPeers {
  template <class Walk> __device__ __forceinline__ void begin(const Walk&) {}
  template <class Walk, class T, int COUNT> __device__ __forceinline__ bool join(const Walk&, T (&)[COUNT]) {
    return true;
  }
};

// Creates the exchange of a block.
template <class Peers, class Params> __device__ __forceinline__ Peers peers_of_block(const Params& p) {
  if constexpr (PEERS > 1) {
    __shared__ typename Peers::Shared shared;
    return Peers(static_cast<const PeersOf<true>&>(p), shared);
  } else {
    return Peers();
  }
}
