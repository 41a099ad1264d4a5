// Chunks: what a thread holds of its rows (rows.cuh) in registers, read by one functor and handed to another.
//
// A chunk of a narrow type may be held AS_READ, and converted whenever it is used: a multiprocessor then has registers
// for more rows, some of which are read while others join their statistics.

#pragma once

#include "include/rows/rows.cuh"

// Something for each of a thread's groups of a chunk.
template <class Tile, class Whole, class Single> struct OfGroups {
  alignas(16) Whole whole[Tile::HELD];
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

// What a functor reads of a chunk; all loads before the first use.
template <class Source, class Tile> struct ReadChunk {
  typedef typename Source::template Loaded<Tile::VECTOR_SIZE> Loaded;

  static constexpr int WORDS = sizeof(Loaded) / 4;  // of a group: narrower ones are not worth it

  OfGroups<Tile, Loaded, typename Source::template Loaded<1>> in = {};

  // Makes what was read something else to the compiler before it is used once more: otherwise the converted elements
  // would stay in registers.
  __device__ __forceinline__ void renew() {
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
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

// A chunk of the values that a functor hands back. What does not exist is 0.
template <class Source, class Tile, bool IS_AS_READ> struct RowChunk {
  typedef typename Source::Result Value;

  OfGroups<Tile, Value[Tile::VECTOR_SIZE], Value[1]> values;

  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) {
    auto read = reading<Source>();
    read.load(args, walk, chunk);
    take(args, walk, chunk, read);
  }

  // Where a functor with the same values reads to, and what becomes of it.
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

  // Called before all items are used once more.
  __device__ __forceinline__ void begin_pass() {}

  template <class Group>
  __device__ __forceinline__ void get(const typename Source::Args&, Group group, Value (&of_group)[Group::SIZE]) const {
#pragma unroll
    for (int v = 0; v < Group::SIZE; ++v) of_group[v] = values[group][v];
  }

  // Keeps what was made of a group in its place.
  template <class Group>
  __device__ __forceinline__ void replace(Group group, const Value (&of_group)[Group::SIZE]) {
#pragma unroll
    for (int v = 0; v < Group::SIZE; ++v) values[group][v] = of_group[v];
  }
};

// A chunk AS_READ, of a functor that hands back the elements of one tensor.
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

// A chunk of values handed to a functor that stores: `make(group, values)` gives those of a group. Rows side by side
// leave registers for what the functor reads besides: of several groups before the first use, unless that is much.
template <class Target, class Value, class Tile, class Make>
__device__ __forceinline__ void store_chunk(const typename Target::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                            Make make) {
  constexpr int V = Tile::VECTOR_SIZE;
  typedef typename Target::template Loaded<V> Loaded;
  constexpr int AHEAD = Tile::IN_ROW || sizeof(Loaded) > 16 || sizeof(Loaded) == 1 || Tile::HELD == 1 ? 1 : 2;
  if constexpr (AHEAD == 1) {
    walk.each(chunk, [&](auto group, i64 column) {
      Value values[group.SIZE];
      make(group, values);
      Target::template apply<group.SIZE>(args, Target::cursor(args, walk.coordinate), column, group.SIZE, values);
    });
  } else {
#pragma unroll
    for (int first = 0; first < Tile::HELD; first += AHEAD) {
      i64 column;
      Loaded in[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (first + i >= Tile::HELD || !walk.locate(walk.group(chunk, first + i), column)) continue;
        Target::template load<V>(args, Target::cursor(args, walk.coordinate), column, V, in[i]);
      }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        if (first + i >= Tile::HELD || !walk.locate(walk.group(chunk, first + i), column)) continue;
        Value values[V];
        make(RowGroup<V, false>{first + i}, values);
        Target::template finish<V>(args, Target::cursor(args, walk.coordinate), column, V, in[i], values);
      }
    }
  }
}

// A chunk of values handed to a functor that stores, as by `store_chunk`; what the functor reads besides is asked for
// AHEAD groups before it is used, of the first ones when this begins. With 0 each group asks for its own.
template <class Target, class Tile, int AHEAD> struct StoredChunk {
  static constexpr int V = Tile::VECTOR_SIZE;
  static_assert(!Tile::SKEWED, "of whole groups");

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
      if (later < Tile::HELD && walk.locate(walk.group(chunk, later), column)) load(args, walk, later, column);
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
