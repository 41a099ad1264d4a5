// Chunks of a row (rows.cuh) that stay in shared memory from their first use to the second.
//
// There are slots for the first chunks, which are copied there all at once. Where a row has more chunks than slots, the
// last RING slots are used again and again: by the later chunks on the way to the last one, and by those that did not
// stay on the way back. A group of copies is closed with each chunk, also where there is nothing to copy, so that the
// number of groups behind a chunk's own is known.

#pragma once

#include "include/cp_async.cuh"
#include "include/rows.cuh"

// Which chunk has which slot, and when it is copied there by `copy(chunk)`. A row has at least as many chunks as slots,
// and more than RING of these where it has more. Without ANY there are none.
template <bool ANY_> struct ChunkSlots {
  static constexpr bool ANY = ANY_;
  static constexpr int RING = 2;
  static constexpr int FIRST_GROUPS = 16;  // at least, closed before the first chunk is used

  const i64 chunks;
  const i64 count;

  __device__ __forceinline__ i64 staying() const { return chunks == count ? count : count - RING; }

  __device__ __forceinline__ int of(i64 chunk) const {
    return int(chunk < staying() ? chunk : staying() + (chunk - staying()) % RING);
  }

  template <class Copy> __device__ __forceinline__ void begin(Copy copy) const {
    if constexpr (ANY) {
#pragma unroll 1
      for (i64 chunk = 0; chunk < count; ++chunk) close(true, copy, chunk);
      for (i64 group = count; group < FIRST_GROUPS; ++group) cp_async_commit();
    }
  }

  // On the way to the last chunk: before a chunk is read from its slot, and after.
  __device__ __forceinline__ void wait(i64 chunk) const {
    if constexpr (ANY) {
      if (chunk < count) cp_async_wait<FIRST_GROUPS - 1>();
      else cp_async_wait<RING - 1>();
    }
  }
  template <class Copy> __device__ __forceinline__ void go_on(i64 chunk, Copy copy) const {
    const i64 later = chunk + RING;
    close(later >= count && later < chunks, copy, later);
  }

  // On the way back from the last chunk, which needs its slot no more.
  template <class Copy> __device__ __forceinline__ void turn_back(Copy copy) const { go_back(chunks - 1, copy); }
  __device__ __forceinline__ void wait_back(i64 chunk) const {
    if constexpr (ANY) {
      if (chunk >= staying()) cp_async_wait<RING - 1>();
    }
  }
  template <class Copy> __device__ __forceinline__ void go_back(i64 chunk, Copy copy) const {
    close(chunk - RING >= staying(), copy, chunk - RING);
  }

 private:
  template <class Copy> __device__ __forceinline__ void close(bool any, Copy copy, i64 chunk) const {
    if constexpr (ANY) {
      if (any) copy(chunk);
      cp_async_commit();
    }
  }
};

// Slots in a ring, which the chunks of one row after the other go through: each has room for all of a row, and when the
// row needs a chunk no more, the chunk `count` later takes its slot, of the next row or of one behind it. So memory goes
// on working while the threads of a row meet. `copy(walk, chunk, slot)` asks for a chunk of a row.
template <class Tile> struct RowRing {
  static constexpr bool ANY = true;
  static constexpr int MOST_PENDING = 15;  // of the groups behind a chunk's own, that are told apart

  const int chunks, count;
  RowWalk<Tile> ahead;  // the row that the next chunk is asked for of
  int next = 0;         // this chunk
  int first = 0;        // slot of the first chunk of the row at hand

  __device__ __forceinline__ RowRing(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)), ahead(sizes) {}

  template <class Copy> __device__ __forceinline__ void begin(Copy copy) {
    ahead.begin();
#pragma unroll 1
    for (int slot = 0; slot < count; ++slot) fill(slot, copy);
  }

  __device__ __forceinline__ int of(int chunk) const {
    const int slot = first + chunk;
    return slot < count ? slot : slot - count;
  }

  // Before the row's chunk is read for the first time.
  __device__ __forceinline__ void wait(int chunk) const { cp_async_wait_for<0, MOST_PENDING>(count - 1 - chunk); }

  // When it has been read for the last time.
  template <class Copy> __device__ __forceinline__ void release(int chunk, Copy copy) { fill(of(chunk), copy); }

  __device__ __forceinline__ void next_row() { first = of(chunks); }

 private:
  template <class Copy> __device__ __forceinline__ void fill(int slot, Copy copy) {
    copy(ahead, next, slot);
    cp_async_commit();
    if (++next == chunks) {
      next = 0;
      ahead.next();
    }
  }
};

// What a functor reads of the chunks, in their slots: [slots][Tile::HELD][threads]. Each thread has places of its own
// there. Without ANY chunks are read from device memory.
template <class Source, class Tile, class Slots> struct StayingChunks {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;
  static constexpr bool ANY = Slots::ANY;

  Loaded* const first;  // of all threads
  const Slots& slots;

  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + slots.count * (Tile::HELD * Tile::BLOCK_SIZE); }

  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot) const {
    if constexpr (ANY) {
      const auto ask = [&](auto group, i64 column) {
        Source::template copy<group.SIZE>(args, Source::cursor(args, walk.coordinate), column, group.SIZE,
                                          *place(slot, group.item));
      };
      walk.each_whole(chunk, ask, [&](int item) { *place(slot, item) = {}; });
    }
  }

  // A chunk for a functor that reads the same tensors; what lies beside whole vectors has no place to stay.
  template <class Same>
  __device__ __forceinline__ void load(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       ReadChunk<Same, Tile>& read) const {
    if constexpr (ANY) {
      walk.each_single(chunk, read.loading(args, walk));
      fetch(chunk, read);
    } else {
      read.load(args, walk, chunk);
    }
  }

 private:
  // Zeros of groups that the row has not: no register depends on whether it has them.
  template <class Same> __device__ __forceinline__ void fetch(i64 chunk, ReadChunk<Same, Tile>& read) const {
    typedef typename ReadChunk<Same, Tile>::Loaded Copied;
    static_assert(sizeof(Copied) == sizeof(Loaded), "the same tensors");
    const int slot = slots.of(chunk);
#pragma unroll
    for (int item = 0; item < Tile::HELD; ++item) {
      Same::template fetch<Tile::VECTOR_SIZE>(*reinterpret_cast<const Copied*>(place(slot, item)), read.in.whole[item]);
    }
  }

  __device__ __forceinline__ Loaded* place(int slot, int item) const {
    return first + ((slot * Tile::HELD + item) * Tile::BLOCK_SIZE + threadIdx.x);
  }
};
