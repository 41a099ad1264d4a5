// Rows: how the threads of a block, or of a cluster of blocks, own the rows of a tensor, hold them and join statistics.
//
// A row is what one statistic is taken over: the elements at one coordinate of the KEPT kept axes, along the other axes
// of the space. One axis is cut into groups of VECTOR neighbouring elements: the last of the row (IS_ROW), or the last
// kept one, so that a thread has VECTOR rows side by side and a group is one element of each.
//
// Rows with a SKEW, of one axis, begin anywhere in memory. Their groups are the whole vectors there: the first has fewer
// elements by the skew, and the last may have fewer too.
//
// A block has THREADS threads: slots of TEAM members of SIDE threads side by side, the last of these fastest. A team
// owns one group of rows, and its threads the groups member, member + TEAM, ... of it. In registers a thread holds a
// chunk: ITEMS groups. The CLUSTER blocks of a cluster share the rows; a row that is longer than their chunks has
// several, which are read again when they are needed again. A chunk of a narrow type may be held AS_READ, and converted
// whenever it is used: a multiprocessor then has registers for more rows, some of which are read while others join their
// statistics.
//
// Order of summation: the thread's own elements one after the other, the lanes as a tree, then the warps and the blocks
// one after the other. It depends on the parameters only.

#pragma once

#include "include/cluster.cuh"
#include "include/division.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

// The bounds of a kernel over rows, by its macros: RESIDENT blocks of a multiprocessor, since ptxas by itself now and
// then spills a few registers to fit one more.
#if CLUSTER > 1
#define ROW_KERNEL __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
#else
#define ROW_KERNEL __launch_bounds__(THREADS, RESIDENT)
#endif

template <int RANK_, int KEPT_AXES_, bool IN_ROW_, bool SKEWED_, int VECTOR_SIZE_, int BLOCK_SIZE_, int TEAM_SIZE_,
          int SIDE_SIZE_, int HELD_, int BLOCKS_, class Index_>
struct RowTile {
  static constexpr int RANK = RANK_, KEPT_AXES = KEPT_AXES_, VECTOR_SIZE = VECTOR_SIZE_;
  static constexpr int BLOCK_SIZE = BLOCK_SIZE_, TEAM_SIZE = TEAM_SIZE_, SIDE_SIZE = SIDE_SIZE_;
  static constexpr int HELD = HELD_;      // groups of a chunk, in a thread
  static constexpr int BLOCKS = BLOCKS_;  // of a cluster
  static constexpr int SLOTS = BLOCK_SIZE / (TEAM_SIZE * SIDE_SIZE);
  static constexpr bool IN_ROW = IN_ROW_, SKEWED = SKEWED_;
  static constexpr int WIDTH = IN_ROW ? 1 : VECTOR_SIZE;  // rows of a thread
  typedef Index_ Index;
  static_assert(SIDE_SIZE <= WARP_SIZE && (BLOCKS == 1 || SLOTS == 1), "lanes of a warp have rows of their own");
  static_assert(!SKEWED || (IN_ROW && RANK == KEPT_AXES + 1), "a skew is of a row's only axis");
};

template <int RANK> struct RowSizes {
  i64 rows;    // groups of rows
  i64 groups;  // of a row
  i64 chunks;
  i64 elements;     // along the vector axis
  i64 skews[RANK];  // of a row, for each step along an axis
  Divider axes[RANK];  // the axis with groups in groups
};

// The rows of a thread one after the other, and the places of its groups in them.
template <class Tile> struct RowWalk {
  typedef typename Tile::Index Index;

  const RowSizes<Tile::RANK>& sizes;
  i64 first;  // row of the block's first thread
  bool exists;
  i64 coordinate[Tile::RANK];
  i64 kept_column;  // the first of the thread's rows, along the last kept axis
  i64 skew;         // elements of the row's first vector that lie before the row

  __device__ __forceinline__ RowWalk(const RowSizes<Tile::RANK>& sizes) : sizes(sizes) {}

  __device__ __forceinline__ void begin() { start(i64(blockIdx.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)); }
  // The same for all threads of a block.
  __device__ __forceinline__ bool is_within() const { return first < sizes.rows; }
  __device__ __forceinline__ void next() {
    start(first + i64(gridDim.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE));
  }

  // The first thread of a row's first block.
  __device__ __forceinline__ bool is_first_member() const { return exists && member() == 0 && rank() == 0; }

  __device__ __forceinline__ static int member() { return threadIdx.x / Tile::SIDE_SIZE % Tile::TEAM_SIZE; }

  // Which group of its rows an item of a chunk is.
  __device__ __forceinline__ static i64 group(i64 chunk, int item) {
    return ((chunk * Tile::BLOCKS + rank()) * Tile::HELD + item) * Tile::TEAM_SIZE + member();
  }

  // Moves to an item of a chunk: gives its place along the functors' vector axis, in `column`; false where the row has
  // no such group, and the place means nothing.
  __device__ __forceinline__ bool locate(i64 chunk, int item, i64& column) {
    const i64 number = group(chunk, item);
    if constexpr (Tile::RANK - Tile::KEPT_AXES == 1) {
      coordinate[Tile::KEPT_AXES] = number;  // not by way of 32 bits: items then lie at constant offsets
    } else {
      digits<Tile::RANK - Tile::KEPT_AXES>(sizes.axes + Tile::KEPT_AXES, Index(number), coordinate + Tile::KEPT_AXES);
    }
    column = Tile::IN_ROW ? coordinate[Tile::RANK - 1] * Tile::VECTOR_SIZE : kept_column;
    if constexpr (Tile::SKEWED) {
      column -= skew;
      return exists && column < sizes.elements;
    }
    return exists && number < sizes.groups;
  }

  // Which elements of the group at `column` exist: all, where rows have no skew.
  __device__ __forceinline__ auto window(i64 column) const {
    if constexpr (Tile::SKEWED) {
      return Window{-column, sizes.elements - column};
    } else {
      return Tile::VECTOR_SIZE;
    }
  }

  // Gives `value` to what the row has not of the group at `column`.
  template <class Value>
  __device__ __forceinline__ void fill_absent(i64 column, Value value, Value (&values)[Tile::VECTOR_SIZE]) const {
    if (is_whole<Tile::VECTOR_SIZE>(window(column))) return;
#pragma unroll
    for (int v = 0; v < Tile::VECTOR_SIZE; ++v) {
      if (!has(window(column), v)) values[v] = value;
    }
  }

  // Elements of the row in its first chunk.
  __device__ __forceinline__ i64 first_count() const {
    const i64 most = i64(Tile::TEAM_SIZE) * Tile::HELD * Tile::BLOCKS * Tile::VECTOR_SIZE - skew;
    return most < sizes.elements ? most : sizes.elements;
  }

  // The coordinates along the kept axes.
  __device__ __forceinline__ void locate_row(i64 (&kept)[Tile::KEPT_AXES]) const {
#pragma unroll
    for (int axis = 0; axis < Tile::KEPT_AXES; ++axis) kept[axis] = coordinate[axis];
  }

 private:
  __device__ __forceinline__ static u32 rank() { return Tile::BLOCKS > 1 ? cluster_rank() : 0; }

  __device__ __forceinline__ void start(i64 row) {
    first = row;
    const int slot = threadIdx.x / (Tile::TEAM_SIZE * Tile::SIDE_SIZE), side = threadIdx.x % Tile::SIDE_SIZE;
    const i64 own = first + slot * Tile::SIDE_SIZE + side;
    exists = own < sizes.rows;
    digits<Tile::KEPT_AXES>(sizes.axes, Index(own), coordinate);
    kept_column = coordinate[Tile::KEPT_AXES - 1] * Tile::WIDTH;
    skew = 0;
    if constexpr (Tile::SKEWED) {
#pragma unroll
      for (int axis = 0; axis < Tile::KEPT_AXES; ++axis) skew += coordinate[axis] * sizes.skews[axis];
      skew %= Tile::VECTOR_SIZE;
    }
  }
};

// A chunk of what a functor hands back; all loads before the first use. What does not exist is 0.
template <class Source, class Tile, bool IS_AS_READ> struct RowChunk {
  typedef typename Source::Result Value;
  static constexpr int V = Tile::VECTOR_SIZE;

  Value held[Tile::HELD][V];

  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) {
    typename Source::template Loaded<V> in[Tile::HELD] = {};
    typename Source::Cursor at[Tile::HELD];
    i64 columns[Tile::HELD];
    bool exists[Tile::HELD];
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
      exists[i] = walk.locate(chunk, i, columns[i]);
      at[i] = Source::cursor(args, walk.coordinate);
      if (exists[i]) Source::template load<V>(args, at[i], columns[i], walk.window(columns[i]), in[i]);
    }
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
      if (exists[i]) {
        Source::template finish<V>(args, at[i], columns[i], walk.window(columns[i]), in[i], held[i]);
        walk.fill_absent(columns[i], Value(0), held[i]);
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) held[i][v] = Value(0);
      }
    }
  }

  // Before the values of all items are used once more.
  __device__ __forceinline__ void begin_pass() {}

  __device__ __forceinline__ void get(const typename Source::Args&, int item, Value (&values)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = held[item][v];
  }
};

// Of a functor that hands back the elements of one tensor. To the compiler they are others in each pass: it would keep
// the converted ones in registers.
template <class Source, class Tile> struct RowChunk<Source, Tile, true> {
  typedef typename Source::Result Value;
  static constexpr int V = Tile::VECTOR_SIZE;

  typedef typename Source::template Loaded<V> Loaded;
  static constexpr int WORDS = sizeof(Loaded) / 4;  // narrower ones are not worth it

  union Item {
    Loaded in;
    u32 words[WORDS > 0 ? WORDS : 1];
  };
  Item held[Tile::HELD];

  __device__ __forceinline__ void load(const typename Source::Args& args, RowWalk<Tile>& walk, i64 chunk) {
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
      i64 column;
      held[i].in = {};
      if (!walk.locate(chunk, i, column)) continue;
      Source::template load<V>(args, Source::cursor(args, walk.coordinate), column, walk.window(column), held[i].in);
    }
  }

  __device__ __forceinline__ void begin_pass() {
#pragma unroll
    for (int i = 0; i < Tile::HELD; ++i) {
#pragma unroll
      for (int k = 0; k < WORDS; ++k) asm volatile("" : "+r"(held[i].words[k]));
    }
  }

  __device__ __forceinline__ void get(const typename Source::Args& args, int item, Value (&values)[V]) const {
    Source::template finish<V>(args, {}, 0, {}, held[item].in, values);
  }
};

// One number of each row of this thread, from a functor over the kept axes.
template <class Source, class Tile, class Value>
__device__ __forceinline__ void load_of_row(const typename Source::Args& args, const RowWalk<Tile>& walk,
                                            Value (&values)[Tile::WIDTH]) {
  if (!walk.exists) return;
  i64 kept[Tile::KEPT_AXES];
  walk.locate_row(kept);
  Source::template apply<Tile::WIDTH>(args, Source::cursor(args, kept), walk.kept_column, Tile::WIDTH, values);
}

// Stores one number of each row by a functor over the kept axes.
template <class Target, class Tile, class Value>
__device__ __forceinline__ void store_of_row(const typename Target::Args& args, const RowWalk<Tile>& walk,
                                             const Value (&values)[Tile::WIDTH]) {
  if (!walk.is_first_member()) return;
  i64 kept[Tile::KEPT_AXES];
  walk.locate_row(kept);
  Target::template apply<Tile::WIDTH>(args, Target::cursor(args, kept), walk.kept_column, Tile::WIDTH, values);
}

struct Plus {
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};
struct Largest {
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return maximum(a, b); }
};

// Joins numbers of the threads of a team: afterwards each has the result of all. At most MOST at once.
template <class Tile, class T, int MOST> struct RowTeam {
  static constexpr int SPAN = Tile::TEAM_SIZE * Tile::SIDE_SIZE, WARPS = SPAN / WARP_SIZE;

  struct Shared {
    T warps[2][SPAN > WARP_SIZE ? Tile::BLOCK_SIZE / WARP_SIZE : 1][Tile::SIDE_SIZE][MOST];
    T blocks[2][Tile::SIDE_SIZE][MOST];
  };

  Shared& shared;
  int turn = 0;  // two areas in turn: what was read last time may still be read

  __device__ __forceinline__ RowTeam(Shared& shared) : shared(shared) {}

  template <class Operator, int COUNT> __device__ __forceinline__ void all(T (&values)[COUNT]) {
    static_assert(COUNT <= MOST, "the areas have room");
#pragma unroll
    for (int offset = Tile::SIDE_SIZE; offset < WARP_SIZE && offset < SPAN; offset *= 2) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) {
        values[k] = Operator::join(values[k], __shfl_xor_sync(0xffffffffu, values[k], offset));
      }
    }
    if constexpr (SPAN > WARP_SIZE) all_warps<Operator>(values);
    if constexpr (Tile::BLOCKS > 1) all_blocks<Operator>(values);
    turn ^= 1;
  }

  // At the kernel's end: no block may leave while another reads its memory.
  __device__ __forceinline__ void leave() const {
    if constexpr (Tile::BLOCKS > 1) cluster_sync();
  }

 private:
  template <class Operator, int COUNT> __device__ __forceinline__ void all_warps(T (&values)[COUNT]) {
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    if (lane < Tile::SIDE_SIZE) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.warps[turn][warp][lane][k] = values[k];
    }
    __syncthreads();
    const int first = warp / WARPS * WARPS, side = lane % Tile::SIDE_SIZE;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      values[k] = shared.warps[turn][first][side][k];
#pragma unroll
      for (int other = 1; other < WARPS; ++other) {
        values[k] = Operator::join(values[k], shared.warps[turn][first + other][side][k]);
      }
    }
  }

  template <class Operator, int COUNT> __device__ __forceinline__ void all_blocks(T (&values)[COUNT]) {
    const int side = threadIdx.x % Tile::SIDE_SIZE;
    if (threadIdx.x < Tile::SIDE_SIZE) {
#pragma unroll
      for (int k = 0; k < COUNT; ++k) shared.blocks[turn][side][k] = values[k];
    }
    cluster_sync();
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      values[k] = load_of_block(&shared.blocks[turn][side][k], 0);
#pragma unroll
      for (u32 block = 1; block < Tile::BLOCKS; ++block) {
        values[k] = Operator::join(values[k], load_of_block(&shared.blocks[turn][side][k], block));
      }
    }
  }
};
