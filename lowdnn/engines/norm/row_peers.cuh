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

// Exchanges COUNT numbers of each row. `Join::join(all, joined)` turns those of all ranks, all[PEERS][COUNT], into
// joined[COUNT].
template <class Tile, class T, int COUNT, class Join> struct RowPeers {
  static constexpr int WIDTH = Tile::WIDTH, ROWS = Tile::SLOTS * Tile::SIDE_SIZE * WIDTH;
  static constexpr int EACH = (ROWS + Tile::BLOCK_SIZE - 1) / Tile::BLOCK_SIZE;  // rows of a thread, in turns
  static constexpr int MOST_NUMBERS = 3;  // NUMBERS of lowdnn/ops/peer_stats.py
  static_assert(COUNT <= MOST_NUMBERS, "mailboxes have room");
  typedef Mailbox<T, OF_SYSTEM> Box;

  struct Shared {
    T numbers[COUNT][ROWS];
    u32 is_lost;
  };

  const PeersOf<true>& p;
  Shared& shared;
  u32 rank;
  u32 sequences[EACH];  // this block's exchange, for the rows of this thread

  __device__ __forceinline__ RowPeers(const PeersOf<true>& p, Shared& shared) : p(p), shared(shared) {
    rank = header()->rank;
  }

  // Reads what the exchange of a block's rows needs, before their first pass.
  __device__ __forceinline__ void begin(const RowWalk<Tile>& walk) {
#pragma unroll
    for (int turn = 0; turn < EACH; ++turn) {
      const i64 row = number_of(walk, turn);
      sequences[turn] = exists(walk, turn) ? counts()[2 * row] + 1 : 0;
    }
  }

  // Joins the numbers of the ranks: values[k * WIDTH + w] is number k of the thread's row w. To be called by all
  // threads of a block, after the blocks that share the row have met. If a rank is missing, it returns false and NaN.
  __device__ __forceinline__ bool join(const RowWalk<Tile>& walk, T (&values)[COUNT * WIDTH]) {
    const int first = (threadIdx.x / (Tile::TEAM_SIZE * Tile::SIDE_SIZE) * Tile::SIDE_SIZE +
                       threadIdx.x % Tile::SIDE_SIZE) * WIDTH;
    __syncthreads();  // the last rows' numbers have been read
    if (threadIdx.x == 0) shared.is_lost = 0;
    if (RowWalk<Tile>::member() == 0) {
#pragma unroll
      for (int k = 0; k < COUNT * WIDTH; ++k) shared.numbers[k / WIDTH][first + k % WIDTH] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < EACH; ++turn) {
      if (exists(walk, turn)) exchange(walk, turn);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < COUNT * WIDTH; ++k) values[k] = shared.numbers[k / WIDTH][first + k % WIDTH];
    return shared.is_lost == 0;
  }

 private:
  __device__ __forceinline__ PeerHeader* header() const { return reinterpret_cast<PeerHeader*>(p.buffers[0]); }
  // Two words for each channel, of which the first counts its exchanges.
  __device__ __forceinline__ u32* counts() const { return reinterpret_cast<u32*>(header() + 1); }

  // The mailbox in a buffer for number `number` of `row`, written by rank `writer`.
  __device__ __forceinline__ Box* box(int buffer, u32 sequence, u32 writer, int number, i64 row) const {
    u8* const boxes = p.buffers[buffer] + sizeof(PeerHeader) + p.channels * 8;
    const i64 place = ((sequence & 1) * PEERS + writer) * MOST_NUMBERS + number;
    return reinterpret_cast<Box*>(boxes) + place * p.channels + row;
  }

  // The row of a thread's turn, among the block's rows and among all.
  __device__ __forceinline__ static int own_row(int turn) { return turn * Tile::BLOCK_SIZE + threadIdx.x; }
  __device__ __forceinline__ static i64 number_of(const RowWalk<Tile>& walk, int turn) {
    return walk.first * WIDTH + own_row(turn);
  }
  __device__ __forceinline__ static bool exists(const RowWalk<Tile>& walk, int turn) {
    return own_row(turn) < ROWS && walk.first + own_row(turn) / WIDTH < walk.sizes->rows;
  }

  // Exchanges the numbers of one row, and leaves what they are joined to in their place.
  __device__ __forceinline__ void exchange(const RowWalk<Tile>& walk, int turn) {
    const i64 row = number_of(walk, turn);
    const u32 sequence = sequences[turn];
    T own[COUNT], all[PEERS][COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) own[k] = shared.numbers[k][own_row(turn)];
    if (walk.is_first_block()) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
#pragma unroll
        for (int peer = 1; peer < PEERS; ++peer) box(peer, sequence, rank, k, row)->post(own[k], sequence);
      }
      counts()[2 * row] = sequence;
    }
    const bool are_there = poll(sequence, row, own, all);
    T joined[COUNT];
    Join::join(all, joined);
    if (!are_there) shared.is_lost = 1;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      shared.numbers[k][own_row(turn)] = are_there ? joined[k] : T(__uint_as_float(0x7fffffff));
    }
  }

  // Polls the mailboxes of all other ranks until they have posted; false if one is missing.
  __device__ __forceinline__ bool poll(u32 sequence, i64 row, const T (&own)[COUNT], T (&all)[PEERS][COUNT]) const {
    u32 missing = 0;
    const auto look = [&] {
      Box now[PEERS][COUNT] = {};
#pragma unroll
      for (u32 writer = 0; writer < PEERS; ++writer) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
          if (writer != rank) now[writer][k] = box(0, sequence, writer, k, row)->poll();
        }
      }
      bool are_there = true;
#pragma unroll
      for (u32 writer = 0; writer < PEERS; ++writer) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
          const bool is_there = writer == rank || now[writer][k].is_of(sequence);
          if (!is_there) missing = writer;
          are_there &= is_there;
          all[writer][k] = writer == rank ? own[k] : now[writer][k].value();
        }
      }
      return are_there;
    };
    return wait_for_peers(header(), look, [&] { return missing; });
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
