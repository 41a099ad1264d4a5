// The next of a thread's rows (rows.cuh), on its way while the thread works on one: memory goes on working while the
// threads of a row meet.
//
// Its whole groups are copied to shared memory, [Tile::HELD][threads], where each thread has places of its own; what
// lies beside whole vectors is read into registers. Each thread copies its own groups, so that no barrier is needed; or
// the copy engine all of a block's, which then neither takes the threads' time nor stands before their other accesses.

#pragma once

#include "include/cp_async.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/tma.cuh"
#include "include/rows/row_chunks.cuh"

// How the next row comes; with NOT_AHEAD each row is read when its turn comes.
enum : int {
  NOT_AHEAD,
  BY_THREADS,
  BY_COPY_ENGINE  // needs one team in a block, one contiguous tensor, and groups of whole 16 bytes
};

// The next row of what a functor reads of rows of one chunk.
template <class Source, class Tile, int HOW> struct NextRow {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;
  static constexpr int BARRIER_BYTES = HOW == BY_COPY_ENGINE ? 16 : 0;

  Loaded* const first;  // of all threads
  u32 parity = 0;       // of the copy that is waited for next
  typename Source::template Loaded<1> singles[Tile::SINGLES > 0 ? Tile::SINGLES : 1];

  __device__ __forceinline__ explicit NextRow(void* memory) : first(static_cast<Loaded*>(memory)) {
    if constexpr (HOW == BY_COPY_ENGINE) {
      if (threadIdx.x == 0) {
        mbarrier_init(barrier(), 1);
        mbarrier_fence_init();
      }
    }
  }

  // Where the next area may begin.
  __device__ __forceinline__ void* end() const {
    return reinterpret_cast<u8*>(first + Tile::HELD * Tile::BLOCK_SIZE) + BARRIER_BYTES;
  }

  // All threads call it between a load and the next copy, and before the first copy.
  __device__ __forceinline__ static void release() {
    if constexpr (HOW == BY_COPY_ENGINE) __syncthreads();
  }

  // Asks for a row, when the one before it has been loaded.
  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& ahead) {
    if constexpr (HOW == BY_THREADS) {
      ahead.each_whole(0, [&](auto group, i64 column) {
        Source::template copy<group.SIZE>(args, Source::cursor(args, ahead.coordinate), column, group.SIZE,
                                          place(group.item));
      });
      cp_async_commit();
    }
    if constexpr (HOW == BY_COPY_ENGINE) {
      if (threadIdx.x == 0) {
        i64 column;
        const u32 bytes = ahead.block_groups(0, column) * sizeof(Loaded);
        mbarrier_expect(barrier(), bytes);
        const void* const source = Source::address(args, Source::cursor(args, ahead.coordinate), column);
        if (bytes > 0) bulk_load(shared_address(first + ahead.lead), source, bytes, barrier());
      }
    }
    if constexpr (HOW != NOT_AHEAD) {
      ahead.each_single(0, [&](auto group, i64 column) {
        Source::template load<1>(args, Source::cursor(args, ahead.coordinate), column, 1, singles[group.item]);
      });
    }
  }

  template <bool IS_AS_READ>
  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk,
                                       RowChunk<Source, Tile, IS_AS_READ>& held) {
    if constexpr (HOW != NOT_AHEAD) {
      auto&& read = held.template reading<Source>();
      if constexpr (HOW == BY_THREADS) cp_async_wait<0>();
      if constexpr (HOW == BY_COPY_ENGINE) {
        mbarrier_wait(barrier(), parity);
        parity ^= 1;
      }
      walk.each_whole(0, [&](auto group, i64) {
        Source::template fetch<group.SIZE>(place(group.item), read.in[group]);
      });
      walk.each_single(0, [&](auto group, i64) { read.in[group] = singles[group.item]; });
      held.take(args, walk, 0, read);
    } else {
      held.load(args, walk, 0);
    }
  }

 private:
  __device__ __forceinline__ Loaded& place(int item) const { return first[item * Tile::BLOCK_SIZE + threadIdx.x]; }
  __device__ __forceinline__ u32 barrier() const { return shared_address(first + Tile::HELD * Tile::BLOCK_SIZE); }
};
