// The prefetch of a thread's next row (rows.cuh) while it works on a row, so that memory does not idle while the
// threads of a row wait at barriers.
//
// Whole groups are copied to shared memory, [Tile::THREAD_GROUPS][threads]; elements outside whole vectors are read
// into registers. Either each thread copies its own groups, and no barrier is needed, or one bulk copy brings all
// groups of a block, which takes no time of the threads and does not delay their other accesses.

#pragma once

#include "include/cp_async.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/tma.cuh"
#include "include/rows/row_chunks.cuh"

// How the next row is prefetched; with NOT_AHEAD each row is read when the walk reaches it.
enum : int {
  NOT_AHEAD,
  BY_THREADS,
  BY_BULK_COPY  // needs one team in a block, one contiguous tensor, and groups of whole 16 bytes
};

// The prefetched operands of a functor, for rows of one chunk.
template <class Source, class Tile, int HOW> struct NextRow {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;
  static constexpr int BARRIER_BYTES = HOW == BY_BULK_COPY ? 16 : 0;

  Loaded* const first;  // the entries of all threads
  u32 parity = 0;       // the parity of the bulk copy that is waited for next
  typename Source::template Loaded<1> singles[Tile::SINGLES > 0 ? Tile::SINGLES : 1];

  __device__ __forceinline__ explicit NextRow(void* memory) : first(static_cast<Loaded*>(memory)) {
    if constexpr (HOW == BY_BULK_COPY) {
      if (threadIdx.x == 0) {
        mbarrier_init(barrier(), 1);
        mbarrier_fence_init();
      }
    }
  }

  // The address after this object's shared memory.
  __device__ __forceinline__ void* end() const {
    return reinterpret_cast<u8*>(first + Tile::THREAD_GROUPS * Tile::BLOCK_SIZE) + BARRIER_BYTES;
  }

  // All threads must call it after each load, before the next copy, and before the first copy.
  __device__ __forceinline__ static void release() {
    if constexpr (HOW == BY_BULK_COPY) __syncthreads();
  }

  // Begins the copies of a row; the row before it must have been loaded.
  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& ahead) {
    if constexpr (HOW == BY_THREADS) {
      ahead.each_whole(0, [&](auto group, i64 column) {
        Source::template copy<group.SIZE>(args, Source::cursor(args, ahead.coordinate), column, group.SIZE,
                                          at(group.item));
      });
      cp_async_commit();
    }
    if constexpr (HOW == BY_BULK_COPY) {
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
                                       RowChunk<Source, Tile, IS_AS_READ>& cached) {
    if constexpr (HOW != NOT_AHEAD) {
      auto&& read = cached.template reading<Source>();
      if constexpr (HOW == BY_THREADS) cp_async_wait<0>();
      if constexpr (HOW == BY_BULK_COPY) {
        mbarrier_wait(barrier(), parity);
        parity ^= 1;
      }
      walk.each_whole(0, [&](auto group, i64) {
        Source::template fetch<group.SIZE>(at(group.item), read.in[group]);
      });
      walk.each_single(0, [&](auto group, i64) { read.in[group] = singles[group.item]; });
      cached.take(args, walk, 0, read);
    } else {
      cached.load(args, walk, 0);
    }
  }

 private:
  __device__ __forceinline__ Loaded& at(int item) const { return first[item * Tile::BLOCK_SIZE + threadIdx.x]; }
  __device__ __forceinline__ u32 barrier() const {
    return shared_address(first + Tile::THREAD_GROUPS * Tile::BLOCK_SIZE);
  }
};
