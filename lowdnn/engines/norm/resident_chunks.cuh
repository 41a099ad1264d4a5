// Chunks of a row (rows.cuh) that stay resident in shared memory from the first pass over the row to the second.
//
// ChunkSlots and RowRing decide which chunks do, and in which order they are used. Both run over a row twice and call
// `use(chunk, cached)`. A kernel's `elements` has
//   copy(walk, chunk, slot)                begins the copy of a chunk to a slot,
//   load(walk, chunk, slot, cached)        reads it from there in the first pass,
//   load_again(walk, chunk, slot, cached)  reads it in the second pass.

#pragma once

#include "include/cp_async.cuh"
#include "include/rows/row_chunks.cuh"

// Slots for the first chunks of a row, all of which are copied at once. If a row has more chunks than slots, the last
// RING slots form a ring: later chunks go through it on the way to the last one, and those that are not resident on the
// way back. A group of copies is committed with each chunk, even an empty one, so that the number of groups committed
// after a chunk's own is known.
//
// A row has at least as many chunks as slots; if it has more, there are more than RING slots. Without ANY there are
// none.
template <class Tile, bool ANY> struct ChunkSlots {
  static constexpr int RING = 3;  // two chunks are in flight while one is used
  static constexpr int FIRST_GROUPS = 16;  // least copy groups committed before the first chunk is used

  const int chunks, count;

  __device__ __forceinline__ ChunkSlots(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)) {}

  template <class Elements> __device__ __forceinline__ void begin(Elements&) {}

  // Walks to the last chunk, which remains in `cached`.
  template <class Elements, class Cached, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, Cached& cached, Use use) const {
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
      elements.load(walk, chunk, of(chunk), cached);
      const int later = chunk + RING;
      close(later >= count && later < chunks, elements, walk, later);
      use(chunk, cached);
    }
  }

  // Walks back from the last chunk.
  template <class Elements, class Cached, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, Cached& cached, Use use) const {
    use(chunks - 1, cached);
    go_back(elements, walk, chunks - 1);
#pragma unroll 1
    for (int chunk = chunks - 2; chunk >= 0; --chunk) {
      if constexpr (ANY) {
        if (chunk >= resident()) cp_async_wait<RING - 1>();
      }
      elements.load_again(walk, chunk, of(chunk), cached);
      go_back(elements, walk, chunk);
      use(chunk, cached);
    }
  }

 private:
  __device__ __forceinline__ int resident() const { return chunks == count ? count : count - RING; }

  __device__ __forceinline__ int of(int chunk) const {
    return chunk < resident() ? chunk : resident() + (chunk - resident()) % RING;
  }

  template <class Elements>
  __device__ __forceinline__ void go_back(Elements& elements, RowWalk<Tile>& walk, int chunk) const {
    close(chunk - RING >= resident(), elements, walk, chunk - RING);
  }

  template <class Elements>
  __device__ __forceinline__ void close(bool any, Elements& elements, RowWalk<Tile>& walk, int chunk) const {
    if constexpr (ANY) {
      if (any) elements.copy(walk, chunk, of(chunk));
      cp_async_commit();
    }
  }
};

// A ring of slots with room for at least all chunks of a row, which successive rows go through. Once a chunk has been
// used for the last time, its slot is refilled with the chunk `count` positions later, of the next row or a later one.
// So memory does not idle while the threads of a row wait at barriers.
template <class Tile> struct RowRing {
  static constexpr int MOST_PENDING = 15;  // most copy groups that a wait can leave pending

  const int chunks, count;
  RowWalk<Tile> ahead;  // the row of the chunk that is copied next
  int next = 0;         // the chunk that is copied next
  int first = 0;        // the slot of the current row's first chunk

  __device__ __forceinline__ RowRing(const RowSizes<Tile::RANK>& sizes, i64 count)
      : chunks(int(Tile::chunks(sizes))), count(int(count)), ahead(sizes) {}

  template <class Elements> __device__ __forceinline__ void begin(Elements& elements) {
    ahead.begin();
#pragma unroll 1
    for (int slot = 0; slot < count; ++slot) fill(elements, slot);
  }

  template <class Elements, class Cached, class Use>
  __device__ __forceinline__ void first_pass(Elements& elements, RowWalk<Tile>& walk, const Cached& cached,
                                             Use use) const {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Cached one = cached;
      cp_async_wait_for<0, MOST_PENDING>(count - 1 - chunk);
      elements.load(walk, chunk, of(chunk), one);
      use(chunk, one);
    }
  }

  template <class Elements, class Cached, class Use>
  __device__ __forceinline__ void second_pass(Elements& elements, RowWalk<Tile>& walk, const Cached& cached, Use use) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Cached one = cached;
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

// A functor's operands for the resident chunks: [count][Tile::THREAD_GROUPS][threads]. Each thread has entries of its
// own, which are 0 where the row has no group, so that loads need no predicate. Without ANY chunks are read from device
// memory.
template <class Source, class Tile, bool ANY> struct ResidentChunks {
  typedef typename ReadChunk<Source, Tile>::Loaded Loaded;

  Loaded* const first;  // the entries of all threads
  const i64 count;

  __device__ __forceinline__ ResidentChunks(void* memory, i64 count)
      : first(static_cast<Loaded*>(memory)), count(count) {}

  // The address after this object's shared memory.
  __device__ __forceinline__ void* end() const { return first + count * (Tile::THREAD_GROUPS * Tile::BLOCK_SIZE); }

  __device__ __forceinline__ void copy(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       int slot) const {
    if constexpr (ANY) {
      const auto copy_group = [&](auto group, i64 column) {
        Source::template copy<group.SIZE>(args, Source::cursor(args, walk.coordinate), column, group.SIZE,
                                          at(slot, group.item));
      };
      walk.each_whole(chunk, copy_group, [&](int item) { at(slot, item) = {}; });
    }
  }

  // Loads a chunk for a functor that reads the same tensors. Elements outside whole vectors are never resident.
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
    for (int item = 0; item < Tile::THREAD_GROUPS; ++item) {
      Same::template fetch<Tile::VECTOR_SIZE>(reinterpret_cast<const Copied&>(at(slot, item)), read.in.whole[item]);
    }
  }

  __device__ __forceinline__ Loaded& at(int slot, int item) const {
    return first[(slot * Tile::THREAD_GROUPS + item) * Tile::BLOCK_SIZE + threadIdx.x];
  }
};
