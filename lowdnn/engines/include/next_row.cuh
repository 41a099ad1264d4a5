// The next of a thread's rows (rows.cuh), on its way while the thread works on one: memory goes on working while the
// threads of a row meet.
//
// Its whole groups are copied to shared memory, [Tile::HELD][threads], where each thread has places of its own, so that
// no barrier is needed; what lies beside whole vectors is read into registers.

#pragma once

#include "include/cp_async.cuh"
#include "include/rows.cuh"

// Of what a functor reads of rows of one chunk. Without ANY each row is read when its turn comes.
template <class Source, class Tile, bool ANY> struct NextRow {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;

  Loaded* const first;  // of all threads
  typename Source::template Loaded<1> singles[Tile::SINGLES > 0 ? Tile::SINGLES : 1];

  __device__ __forceinline__ explicit NextRow(void* memory) : first(static_cast<Loaded*>(memory)) {}

  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + Tile::HELD * Tile::BLOCK_SIZE; }

  // Asks for a row, when the one before it has been loaded.
  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& ahead) {
    if constexpr (ANY) {
      ahead.each_whole(0, [&](auto group, i64 column) {
        Source::template copy<group.SIZE>(args, Source::cursor(args, ahead.coordinate), column, group.SIZE,
                                          place(group.item));
      });
      ahead.each_single(0, [&](auto group, i64 column) {
        Source::template load<1>(args, Source::cursor(args, ahead.coordinate), column, 1, singles[group.item]);
      });
      cp_async_commit();
    }
  }

  template <bool IS_AS_READ>
  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk,
                                       RowChunk<Source, Tile, IS_AS_READ>& held) {
    if constexpr (ANY) {
      auto&& read = held.template reading<Source>();
      cp_async_wait<0>();
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
};
