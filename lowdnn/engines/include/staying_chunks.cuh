// Chunks of a row (rows.cuh) that stay in shared memory from their first use to the second.
//
// All of them are copied there at once, a group of copies for each, and waited for one after the other.

#pragma once

#include "include/cp_async.cuh"
#include "include/rows.cuh"

// Groups of copies (cp_async.cuh) that are closed ahead of a row: one for each chunk that stays, or more.
constexpr int CHUNK_GROUPS = 16;

// After the last chunk's group.
__device__ __forceinline__ void close_chunk_groups(i64 chunks) {
  for (i64 group = chunks; group < CHUNK_GROUPS; ++group) cp_async_commit();
}

// For the chunks one after the other: a further group each time, and then the oldest of them is there.
__device__ __forceinline__ void wait_for_chunk() {
  cp_async_commit();
  cp_async_wait<CHUNK_GROUPS>();
}

// What a functor reads of the first `count` chunks, in shared memory: [chunks][Tile::HELD][threads]. Each thread has
// places of its own there. Without ANY there are none.
template <class Source, class Tile, bool ANY> struct StayingChunks {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;

  Loaded* const first;  // of all threads
  const i64 count;

  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + count * (Tile::HELD * Tile::BLOCK_SIZE); }

  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) const {
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
      i64 column;
      if (!walk.locate(chunk, i, column)) continue;
      Source::template copy<Tile::VECTOR_SIZE>(args, Source::cursor(args, walk.coordinate), column, Tile::VECTOR_SIZE,
                                               *place(chunk, i));
    }
  }

  // A chunk for a functor that reads the same tensors: what stays, when it is there, or from device memory.
  template <class Same>
  __device__ __forceinline__ void load(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       ReadChunk<Same, Tile>& read) const {
    if constexpr (ANY) {
      if (chunk < count) return fetch(walk, chunk, read);
    }
    read.load(args, walk, chunk);
  }

 private:
  template <class Same>
  __device__ __forceinline__ void fetch(RowWalk<Tile>& walk, i64 chunk, ReadChunk<Same, Tile>& read) const {
    typedef typename ReadChunk<Same, Tile>::Loaded Copied;
    static_assert(sizeof(Copied) == sizeof(Loaded), "the same tensors");
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
      i64 column;
      if (!walk.locate(chunk, i, column)) continue;
      Same::template fetch<Tile::VECTOR_SIZE>(*reinterpret_cast<const Copied*>(place(chunk, i)), read.in[i]);
    }
  }

  __device__ __forceinline__ Loaded* place(i64 chunk, int item) const {
    return first + ((chunk * Tile::HELD + item) * Tile::BLOCK_SIZE + threadIdx.x);
  }
};
