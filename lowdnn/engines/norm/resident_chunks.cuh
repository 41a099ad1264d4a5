// Chunks of a row (rows.cuh) that stay in shared memory from their first use to the second.
//
// Which of them do, and in which order they are used, is the matter of ChunkSlots and of RowRing. Both run over a row
// twice, `use(chunk, held)` at a time, with what a kernel has of its rows: `elements` has
//   copy(walk, chunk, slot)              asks for a chunk's copy in a slot,
//   load(walk, chunk, slot, held)        reads it from there for the first time,
//   load_again(walk, chunk, slot, held)  and for the second.

#pragma once

#include "include/cp_async.cuh"
#include "include/rows/row_chunks.cuh"

// Slots for the first chunks of a row, which are copied there all at once. Where a row has more chunks than slots, the
// last RING slots are used again and again: by the later chunks on the way to the last one, and by those that did not
// stay on the way back. A group of copies is closed with each chunk, also where there is nothing to copy, so that the
// number of groups behind a chunk's own is known.
//
// A row has at least as many chunks as slots, and more than RING of these where it has more. Without ANY there are no
// slots.
template <class Tile, bool ANY> struct ChunkSlots {
  static constexpr int RING = 3;  // two are on their way when one is used
  static constexpr int FIRST_GROUPS = 16;  // at least, closed before the first chunk is used

  const int chunks, count;

  __device__ __forceinline__ ChunkSlots(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)) {}

  template <class Elements> __device__ __forceinline__ void begin(Elements&) {}

  // Walks to the last chunk, which `held` has then.
  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, Held& held, Use use) const {
    if constexpr (ANY) {
#pragma unroll 1
      for (int chunk = 0; chunk < count; ++chunk) close(true, elements, walk, chunk);
      for (int group = count; group < FIRST_GROUPS; ++group) cp_async_commit();
    }
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if constexpr (ANY) {
        if (chunk < count) cp_async_wait<FIRST_GROUPS - 1>();
        else cp_async_wait<RING - 1>();
      }
      elements.load(walk, chunk, of(chunk), held);
      const int later = chunk + RING;
      close(later >= count && later < chunks, elements, walk, later);
      use(chunk, held);
    }
  }

  // And back from it.
  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, Held& held, Use use) const {
    use(chunks - 1, held);
    go_back(elements, walk, chunks - 1);
#pragma unroll 1
    for (int chunk = chunks - 2; chunk >= 0; --chunk) {
      if constexpr (ANY) {
        if (chunk >= staying()) cp_async_wait<RING - 1>();
      }
      elements.load_again(walk, chunk, of(chunk), held);
      go_back(elements, walk, chunk);
      use(chunk, held);
    }
  }

 private:
  __device__ __forceinline__ int staying() const { return chunks == count ? count : count - RING; }

  __device__ __forceinline__ int of(int chunk) const {
    return chunk < staying() ? chunk : staying() + (chunk - staying()) % RING;
  }

  template <class Elements>
  __device__ __forceinline__ void go_back(Elements& elements, RowWalk<Tile>& walk, int chunk) const {
    close(chunk - RING >= staying(), elements, walk, chunk - RING);
  }

  template <class Elements>
  __device__ __forceinline__ void close(bool any, Elements& elements, RowWalk<Tile>& walk, int chunk) const {
    if constexpr (ANY) {
      if (any) elements.copy(walk, chunk, of(chunk));
      cp_async_commit();
    }
  }
};

// Slots in a ring with room for all chunks of a row, which those of one row after the other go through: when a chunk is
// needed no more, its slot is for the one `count` behind it, of the next row or a later one. So memory goes on working
// while the threads of a row meet.
template <class Tile> struct RowRing {
  static constexpr int MOST_PENDING = 15;  // of the groups behind a chunk's own, that are told apart

  const int chunks, count;
  RowWalk<Tile> ahead;  // the row with the chunk that is asked for next
  int next = 0;         // this chunk
  int first = 0;        // slot of the first chunk of the row at hand

  __device__ __forceinline__ RowRing(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)), ahead(sizes) {}

  template <class Elements> __device__ __forceinline__ void begin(Elements& elements) {
    ahead.begin();
#pragma unroll 1
    for (int slot = 0; slot < count; ++slot) fill(elements, slot);
  }

  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, const Held& held, Use use) const {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Held one = held;
      cp_async_wait_for<0, MOST_PENDING>(count - 1 - chunk);
      elements.load(walk, chunk, of(chunk), one);
      use(chunk, one);
    }
  }

  template <class Elements, class Held, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, const Held& held, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Held one = held;
      elements.load_again(walk, chunk, of(chunk), one);
      fill(elements, of(chunk));
      use(chunk, one);
    }
    first = of(chunks);
  }

 private:
  __device__ __forceinline__ int of(int chunk) const {
    const int slot = first + chunk;
    return slot < count ? slot : slot - count;
  }

  template <class Elements> __device__ __forceinline__ void fill(Elements& elements, int slot) {
    elements.copy(ahead, next, slot);
    cp_async_commit();
    if (++next < chunks) return;
    next = 0;
    ahead.next();
  }
};

// What a functor reads of the chunks, in their slots: [count][Tile::HELD][threads]. Each thread has places of its own
// there, with zeros where the row has no group: so no register waits for whether it has. Without ANY chunks are read
// from device memory.
template <class Source, class Tile, bool ANY> struct StayingChunks {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;

  Loaded* const first;  // of all threads
  const i64 count;

  __device__ __forceinline__ StayingChunks(void* memory, i64 count)
      : first(static_cast<Loaded*>(memory)), count(count) {}

  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + count * (Tile::HELD * Tile::BLOCK_SIZE); }

  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       int slot) const {
    if constexpr (ANY) {
      const auto ask = [&](auto group, i64 column) {
        Source::template copy<group.SIZE>(args, Source::cursor(args, walk.coordinate), column, group.SIZE,
                                          place(slot, group.item));
      };
      walk.each_whole(chunk, ask, [&](int item) { place(slot, item) = {}; });
    }
  }

  // A chunk for a functor that reads the same tensors; what lies beside whole vectors has no place to stay.
  template <class Same>
  __device__ __forceinline__ void load(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot,
                                       ReadChunk<Same, Tile>& read) const {
    if constexpr (ANY) {
      walk.each_single(chunk, read.loading(args, walk));
      fetch(slot, read);
    } else {
      read.load(args, walk, chunk);
    }
  }

 private:
  template <class Same> __device__ __forceinline__ void fetch(int slot, ReadChunk<Same, Tile>& read) const {
    typedef typename ReadChunk<Same, Tile>::Loaded Copied;
    static_assert(sizeof(Copied) == sizeof(Loaded), "the same tensors");
#pragma unroll
    for (int item = 0; item < Tile::HELD; ++item) {
      Same::template fetch<Tile::VECTOR_SIZE>(reinterpret_cast<const Copied&>(place(slot, item)), read.in.whole[item]);
    }
  }

  __device__ __forceinline__ Loaded& place(int slot, int item) const {
    return first[(slot * Tile::HELD + item) * Tile::BLOCK_SIZE + threadIdx.x];
  }
};
