// Chunks: the elements of its rows (rows.cuh) that a thread caches in registers, read by one functor and passed to
// another.
//
// A chunk of a narrow type may be cached AS_READ, unconverted, and converted at each use. A multiprocessor then has
// registers for more rows, some of which are read while others reduce their statistics.

#pragma once

#include "include/rows/rows.cuh"

// An array with one entry for each of a thread's groups of a chunk.
template <class Tile, class Whole, class Single> struct OfGroups {
  alignas(16) Whole whole[Tile::THREAD_GROUPS];
  Single single[Tile::SINGLES > 0 ? Tile::SINGLES : 1];

  template <class Group> __device__ __forceinline__ auto& operator[](Group group) {
    if constexpr (Group::IS_SINGLE) return single[group.item];
    else return whole[group.item];
  }
  template <class Group> __device__ __forceinline__ const auto& operator[](Group group) const {
    if constexpr (Group::IS_SINGLE) return single[group.item];
    else return whole[group.item];
  }
};

// The operands that a functor reads for a chunk; all loads are issued before the first use.
template <class Source, class Tile> struct ReadChunk {
  typedef typename Source::template Loaded<Tile::VECTOR_SIZE> Loaded;

  static constexpr int WORDS = sizeof(Loaded) / 4;  // words of a group; 0 for groups narrower than a word

  OfGroups<Tile, Loaded, typename Source::template Loaded<1>> in = {};

  // Hides from the compiler that the registers still hold what was read. It would otherwise keep converted elements in
  // further registers for the next use.
  __device__ __forceinline__ void renew() {
#pragma unroll
    for (int i = 0; i < Tile::THREAD_GROUPS; ++i) {
#pragma unroll
      for (int k = 0; k < WORDS; ++k) asm volatile("" : "+r"(reinterpret_cast<u32*>(in.whole + i)[k]));
    }
  }

  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) {
    walk.each(chunk, loading(args, walk));
  }

  __device__ __forceinline__ auto loading(const typename Source::Args& args, RowWalk<Tile>& walk) {
    return [&](auto group, i64 column) {
      Source::template load<group.SIZE>(args, Source::cursor(args, walk.coordinate), column, group.SIZE, in[group]);
    };
  }
};

// A chunk of values that a functor returns; those of groups that do not exist are 0.
template <class Source, class Tile, bool IS_AS_READ> struct RowChunk {
  typedef typename Source::Result Value;

  OfGroups<Tile, Value[Tile::VECTOR_SIZE], Value[1]> values;

  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) {
    auto read = reading<Source>();
    read.load(args, walk, chunk);
    take(args, walk, chunk, read);
  }

  // `reading` returns an empty object into which functor Same, which gives the same values, loads its operands; `take`
  // computes the values from them.
  template <class Same> __device__ __forceinline__ ReadChunk<Same, Tile> reading() const { return {}; }
  template <class Same>
  __device__ __forceinline__ void take(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       const ReadChunk<Same, Tile>& read) {
    values = {};
    walk.each(chunk, [&](auto group, i64 column) {
      Same::template finish<group.SIZE>(args, Same::cursor(args, walk.coordinate), column, group.SIZE, read.in[group],
                                        values[group]);
    });
  }

  // To be called before each further pass over the chunk.
  __device__ __forceinline__ void begin_pass() {}

  template <class Group>
  __device__ __forceinline__ void get(const typename Source::Args&, Group group, Value (&of_group)[Group::SIZE]) const {
#pragma unroll
    for (int v = 0; v < Group::SIZE; ++v) of_group[v] = values[group][v];
  }

  // Replaces the values of a group.
  template <class Group>
  __device__ __forceinline__ void replace(Group group, const Value (&of_group)[Group::SIZE]) {
#pragma unroll
    for (int v = 0; v < Group::SIZE; ++v) values[group][v] = of_group[v];
  }
};

// A chunk AS_READ: the unconverted elements of the one tensor that a functor reads.
template <class Source, class Tile> struct RowChunk<Source, Tile, true> {
  typedef typename Source::Result Value;
  ReadChunk<Source, Tile> read;

  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) {
    reading<Source>().load(args, walk, chunk);
  }

  template <class Same> __device__ __forceinline__ ReadChunk<Same, Tile>& reading() {
    read = {};
    return read;
  }
  __device__ __forceinline__ void take(const typename Source::Args&, RowWalk<Tile>&, i64,
                                       const ReadChunk<Source, Tile>&) {}

  __device__ __forceinline__ void begin_pass() { read.renew(); }

  template <class Group>
  __device__ __forceinline__ void get(const typename Source::Args& args, Group group,
                                      Value (&of_group)[Group::SIZE]) const {
    Source::template finish<Group::SIZE>(args, {}, 0, Group::SIZE, read.in[group], of_group);
  }
};

// Passes a chunk of values to a functor that stores: `make(group, values)` computes those of a group. If rows lie side
// by side, the functor's other operands of AHEAD groups are loaded before the first use, unless they are wide.
template <class Target, class Value, class Tile, class Make>
__device__ __forceinline__ void store_chunk(const typename Target::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                            Make make) {
  constexpr int V = Tile::VECTOR_SIZE;
  typedef typename Target::template Loaded<V> Loaded;
  constexpr int AHEAD = Tile::IN_ROW || sizeof(Loaded) > 16 || sizeof(Loaded) == 1 || Tile::THREAD_GROUPS == 1 ? 1 : 2;
  if constexpr (AHEAD == 1) {
    walk.each(chunk, [&](auto group, i64 column) {
      Value values[group.SIZE];
      make(group, values);
      Target::template apply<group.SIZE>(args, Target::cursor(args, walk.coordinate), column, group.SIZE, values);
    });
  } else {
#pragma unroll
    for (int first = 0; first < Tile::THREAD_GROUPS; first += AHEAD) {
      i64 column;
      Loaded in[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (first + i >= Tile::THREAD_GROUPS || !walk.locate(walk.group(chunk, first + i), column)) continue;
        Target::template load<V>(args, Target::cursor(args, walk.coordinate), column, V, in[i]);
      }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (first + i >= Tile::THREAD_GROUPS || !walk.locate(walk.group(chunk, first + i), column)) continue;
        Value values[V];
        make(RowGroup<V, false>{first + i}, values);
        Target::template finish<V>(args, Target::cursor(args, walk.coordinate), column, V, in[i], values);
      }
    }
  }
}

// Stores a chunk like `store_chunk`, with the functor's other operands prefetched AHEAD groups early, those of the
// first groups by the constructor. With AHEAD = 0 each group loads its own.
template <class Target, class Tile, int AHEAD> struct StoredChunk {
  static constexpr int V = Tile::VECTOR_SIZE;
  static_assert(!Tile::SKEWED, "only whole groups are prefetched");

  typename Target::template Loaded<V> in[AHEAD];

  __device__ __forceinline__ StoredChunk(const typename Target::Args& args, RowWalk<Tile>& walk, i64 chunk) {
    walk.each_whole(chunk, [&](auto group, i64 column) {
      if (group.item < AHEAD) load(args, walk, group.item, column);
    });
  }

  template <class Value, class Make>
  __device__ __forceinline__ void store(const typename Target::Args& args, RowWalk<Tile>& walk, i64 chunk, Make make) {
    walk.each_whole(chunk, [&](auto group, i64 column) {
      Value values[V];
      make(group, values);
      Target::template finish<V>(args, Target::cursor(args, walk.coordinate), column, V, in[group.item % AHEAD],
                                 values);
      const int later = group.item + AHEAD;
      if (later < Tile::THREAD_GROUPS && walk.locate(walk.group(chunk, later), column)) load(args, walk, later, column);
    });
  }

 private:
  __device__ __forceinline__ void load(const typename Target::Args& args, const RowWalk<Tile>& walk, int item,
                                       i64 column) {
    Target::template load<V>(args, Target::cursor(args, walk.coordinate), column, V, in[item % AHEAD]);
  }
};
template <class Target, class Tile> struct StoredChunk<Target, Tile, 0> {
  __device__ __forceinline__ StoredChunk(const typename Target::Args&, RowWalk<Tile>&, i64) {}

  template <class Value, class Make>
  __device__ __forceinline__ void store(const typename Target::Args& args, RowWalk<Tile>& walk, i64 chunk, Make make) {
    store_chunk<Target, Value>(args, walk, chunk, make);
  }
};
