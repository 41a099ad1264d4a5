// Rows: how the threads of a block, or of several blocks, own the rows of a tensor.
//
// A row is what one statistic is taken over: the elements at one coordinate of the KEPT kept axes, along the other axes
// of the space. One axis is cut into groups of VECTOR neighbouring elements: the last of the row (IS_ROW), or the last
// kept one, so that a thread has VECTOR rows side by side and a group is one element of each.
//
// Rows with a SKEW, of one axis, begin anywhere in memory. Their groups are the whole vectors there; fewer than VECTOR
// elements lie before the first of these, and behind the last. A thread has SINGLES of these elements, each as a group
// of its own, in the first chunk: so no group has to be looked at to see which of its elements exist.
//
// With WHOLE, each thread has ITEMS groups of every row, and all of them together the row: the compiler then knows
// which groups exist, and moves one's accesses past another's. It takes the registers for that which RESIDENT leaves.
//
// With LINE > 1 rows have one axis, and one block has a row in one chunk. The threads' groups are then counted from the
// last multiple of LINE groups before the row in memory, where a line begins: so each access of a warp is whole lines.
// The groups before the row (`lead`) do not exist.
//
// A block has THREADS threads: slots of TEAM members of SIDE threads side by side, the last of these fastest. A team
// owns one group of rows, and its threads the groups member, member + TEAM, ... of it. In registers a thread holds a
// chunk (row_chunks.cuh): ITEMS groups. SHARING blocks share rows: a cluster of them or, where CLUSTER is less, neighbours in a
// cooperative grid in which each group of rows has blocks of its own. A row that is longer than their chunks has
// several. What was read of the first ones can stay in shared memory; the others are read again when they are needed.
// JOINED neighbouring rows have their statistics together, as the channels of a group do; then a block has them all, or
// the blocks of a CLUSTER that shares no row.

#pragma once

#include "include/ptx/cluster.cuh"
#include "include/math/division.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

// The bounds of a kernel over rows, by its macros: RESIDENT blocks of a multiprocessor, since ptxas by itself now and
// then spills a few registers to fit one more.
#if CLUSTER > 1
#define ROW_KERNEL __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
#else
#define ROW_KERNEL __launch_bounds__(THREADS, RESIDENT)
#endif

template <int RANK> struct RowSizes {
  i64 rows;    // groups of rows
  i64 groups;  // of a row that begins at a vector
  i64 chunks;
  i64 elements;     // along the vector axis
  i64 skews[RANK];  // where a row begins in a vector or, with LINE > 1, in a line: for each step along an axis
  Divider axes[RANK];  // the axis with groups in groups
};

template <int RANK_, int KEPT_AXES_, bool IN_ROW_, bool SKEWED_, int VECTOR_SIZE_, int BLOCK_SIZE_, int TEAM_SIZE_,
          int SIDE_SIZE_, int JOINED_ROWS_, int HELD_, int BLOCKS_, int CLUSTER_SIZE, bool IN_CHUNKS, class Index_,
          int LINE_ = 1, bool WHOLE_ = false>
struct RowTile {
  static constexpr int RANK = RANK_, KEPT_AXES = KEPT_AXES_, VECTOR_SIZE = VECTOR_SIZE_;
  static constexpr int BLOCK_SIZE = BLOCK_SIZE_, TEAM_SIZE = TEAM_SIZE_, SIDE_SIZE = SIDE_SIZE_;
  static constexpr int HELD = HELD_;                       // groups of a chunk, in a thread
  static constexpr int BLOCKS = BLOCKS_;                   // that share rows
  static constexpr int CLUSTER_BLOCKS = CLUSTER_SIZE;
  static constexpr bool IN_GRID = BLOCKS_ > CLUSTER_SIZE;  // they are of a cooperative grid
  static constexpr int SLOTS = BLOCK_SIZE / (TEAM_SIZE * SIDE_SIZE);
  static constexpr bool IN_ROW = IN_ROW_, SKEWED = SKEWED_;
  static constexpr int SINGLES = SKEWED ? (2 * (VECTOR_SIZE - 1) + TEAM_SIZE - 1) / TEAM_SIZE : 0;  // in a thread
  static constexpr int WIDTH = IN_ROW ? 1 : VECTOR_SIZE;  // rows of a thread
  static constexpr int JOINED_ROWS = JOINED_ROWS_;  // that have their statistics together
  static constexpr int LINE = LINE_;  // groups that a warp's accesses begin at a multiple of
  static constexpr bool WHOLE = WHOLE_;  // HELD groups of each thread are a row
  static constexpr int APART = BLOCKS_ == 1 ? CLUSTER_SIZE : 1;  // blocks that these rows are spread over
  typedef Index_ Index;
  // Whether a chunk that is whole is worth code of its own: where groups are no constant bytes apart, and in long rows of
  // one axis, which blocks of a grid share.
  static constexpr bool HAS_WHOLE_CHUNKS = IN_CHUNKS && (!IN_ROW || (IN_GRID && RANK == KEPT_AXES + 1));
  static_assert(BLOCKS == 1 || SLOTS == 1, "blocks share one group of rows");
  static_assert(APART * SLOTS * SIDE_SIZE * WIDTH % JOINED_ROWS == 0, "blocks have whole groups of joined rows");
  static_assert(APART == 1 || APART * SLOTS * SIDE_SIZE * WIDTH == JOINED_ROWS, "a cluster has one group of them");
  static_assert(!SKEWED || (IN_ROW && RANK == KEPT_AXES + 1), "a skew is of a row's only axis");
  static_assert(LINE == 1 || (IN_ROW && RANK == KEPT_AXES + 1 && BLOCKS == 1 && !IN_CHUNKS),
                "lines are of a row's only axis, chunk and block");
  static_assert(!WHOLE || (!SKEWED && !IN_CHUNKS && LINE == 1), "groups of all rows are the same");
  static_assert(LINE == 1 || LINE <= TEAM_SIZE, "only a thread's first group can lie before the row");

  // Chunks of a row; the compiler knows a single one.
  __device__ __forceinline__ static i64 chunks(const RowSizes<RANK>& sizes) { return IN_CHUNKS ? sizes.chunks : 1; }
};

// One of a thread's groups of a chunk: of the HELD, or of the SINGLES.
template <int SIZE_, bool IS_SINGLE_> struct RowGroup {
  static constexpr int SIZE = SIZE_;  // elements
  static constexpr bool IS_SINGLE = IS_SINGLE_;
  int item;
};

// The rows of a thread one after the other, and the places of its groups in them.
template <class Tile> struct RowWalk {
  typedef typename Tile::Index Index;

  const RowSizes<Tile::RANK>* sizes;
  i64 first;  // row of the block's first thread
  bool exists;
  i64 coordinate[Tile::RANK];
  i64 kept_column;  // the first of the thread's rows, along the last kept axis
  i64 head;         // elements of the row before its first whole vector
  int lead = 0;     // groups of a line before the row's first whole one

  RowWalk() = default;
  __device__ __forceinline__ RowWalk(const RowSizes<Tile::RANK>& sizes) : sizes(&sizes) {}

  __device__ __forceinline__ void begin() { start(i64(blockIdx.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)); }
  // Whether the first row exists, for all threads of a block alike.
  __device__ __forceinline__ bool is_within() const { return first < sizes->rows; }
  __device__ __forceinline__ void next(int steps = 1) {
    start(first + steps * (i64(gridDim.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)));
  }

  // At the first of the joined rows that the blocks of a cluster have; where there are none, at the same row.
  __device__ __forceinline__ RowWalk first_of_cluster() const {
    RowWalk there = *this;
    if constexpr (Tile::APART > 1) there.move_to_row(first - first % Tile::JOINED_ROWS);
    return there;
  }

  // Moves to the WIDTH rows with this number, whichever thread has them.
  __device__ __forceinline__ void move_to_row(i64 own) {
    exists = own < sizes->rows;
    digits<Tile::KEPT_AXES>(sizes->axes, Index(own), coordinate);
    kept_column = coordinate[Tile::KEPT_AXES - 1] * Tile::WIDTH;
    head = 0;
    if constexpr (Tile::SKEWED || Tile::LINE > 1) {
      u32 skew = 0;
#pragma unroll
      for (int axis = 0; axis < Tile::KEPT_AXES; ++axis) skew += u32(coordinate[axis]) * u32(sizes->skews[axis]);
      if constexpr (Tile::SKEWED) head = (0 - skew) % Tile::VECTOR_SIZE;
      if constexpr (Tile::LINE > 1) lead = (skew + u32(head)) / Tile::VECTOR_SIZE % Tile::LINE;
    }
  }

  // Whether this is the first thread of a row's first block, and whether this is that block.
  __device__ __forceinline__ bool is_first_member() const { return exists && member() == 0 && rank == 0; }
  __device__ __forceinline__ bool is_first_block() const { return rank == 0; }

  // The number of steps since the walk began.
  __device__ __forceinline__ u32 step() const {
    return u32(first / (i64(gridDim.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)));
  }

  __device__ __forceinline__ static int member() { return threadIdx.x / Tile::SIDE_SIZE % Tile::TEAM_SIZE; }

  // Which whole group of its rows an item of a chunk is. Items lie at constant offsets.
  __device__ __forceinline__ i64 group(i64 chunk, int item) const {
    const Index before = (Index(chunk) * Tile::BLOCKS + rank) * (Tile::HELD * Tile::TEAM_SIZE);
    return i64(before) + member() + item * Tile::TEAM_SIZE - lead;
  }

  // Groups of the row.
  __device__ __forceinline__ i64 groups() const {
    if constexpr (Tile::SKEWED) return i64(u64(sizes->elements - head) / Tile::VECTOR_SIZE);
    return sizes->groups;
  }

  // Moves to each of this thread's groups of a chunk that the row has: `use(group, column)` with its place along the
  // functors' vector axis.
  template <class Use> __device__ __forceinline__ void each(i64 chunk, Use use) {
    each_whole(chunk, use);
    each_single(chunk, use);
  }

  template <class Use> __device__ __forceinline__ void each_whole(i64 chunk, Use use) {
    each_whole(chunk, use, [](int) {});
  }

  // `otherwise(item)` for those that the row has not.
  template <class Use, class Otherwise>
  __device__ __forceinline__ void each_whole(i64 chunk, Use use, Otherwise otherwise) {
    const i64 first = group(chunk, 0);
    if (Tile::WHOLE && (Tile::SLOTS * Tile::SIDE_SIZE == 1 || exists)) {
      each_of(first, use);
      return;
    }
    const int left = exists ? groups_from(first) : 0;
    if (Tile::HAS_WHOLE_CHUNKS && left > (Tile::HELD - 1) * Tile::TEAM_SIZE) {
      each_of(first, use);
      return;
    }
#pragma unroll
    for (int item = 0; item < Tile::HELD; ++item) {
      const bool is_before = Tile::LINE > 1 && item == 0 && first < 0;
      if (is_before || item * Tile::TEAM_SIZE >= left) {
        otherwise(item);
        continue;
      }
      const i64 column = move_to(first + item * Tile::TEAM_SIZE);
      use(RowGroup<Tile::VECTOR_SIZE, false>{item}, column);
    }
  }

  // The first block has them: those before the row's whole vectors, then those behind.
  template <class Use> __device__ __forceinline__ void each_single(i64 chunk, Use use) {
    if constexpr (Tile::SKEWED) {
      const i64 beside = exists && chunk == 0 && rank == 0 ? sizes->elements - groups() * Tile::VECTOR_SIZE : 0;
#pragma unroll
      for (int item = 0; item < Tile::SINGLES; ++item) {
        const i64 number = item * Tile::TEAM_SIZE + member();
        if (number >= beside) continue;
        use(RowGroup<1, true>{item}, number < head ? number : number + groups() * Tile::VECTOR_SIZE);
      }
    }
  }

  // Tells the block's first thread how many whole groups of a chunk the block has, and where they begin.
  __device__ __forceinline__ u32 block_groups(i64 chunk, i64& column) {
    constexpr int MOST = Tile::HELD * Tile::TEAM_SIZE;
    const i64 first = group(chunk, 0) + lead;  // what lies before the row is not copied
    const int left = exists ? groups_from(first) : 0;
    column = move_to(first);
    return left <= 0 ? 0 : left < MOST ? left : MOST;
  }

  // Moves to a whole group of the row by its number: false where the row has none.
  __device__ __forceinline__ bool locate(i64 number, i64& column) {
    column = move_to(number);
    return exists && number < groups();
  }

  // The number of elements in a row.
  __device__ __forceinline__ i64 elements() const {
    return Tile::SKEWED ? sizes->elements : sizes->groups * (Tile::IN_ROW ? Tile::VECTOR_SIZE : 1);
  }
  // Moves to an element, by its number, of one of the WIDTH rows; returns its place along the functors' vector axis.
  __device__ __forceinline__ i64 locate_element(i64 number, int row) {
    if constexpr (Tile::SKEWED) {
      coordinate[Tile::KEPT_AXES] = 0;
      return number;
    }
    if constexpr (!Tile::IN_ROW) return move_to(number) + row;
    return move_to(number / Tile::VECTOR_SIZE) + number % Tile::VECTOR_SIZE;
  }

  // The coordinates along the kept axes.
  __device__ __forceinline__ void locate_row(i64 (&kept)[Tile::KEPT_AXES]) const {
#pragma unroll
    for (int axis = 0; axis < Tile::KEPT_AXES; ++axis) kept[axis] = coordinate[axis];
  }

 private:
  // All groups of a chunk, as every chunk but the last has them: none asks whether it exists, and the compiler steps
  // from one's place to the next.
  template <class Use> __device__ __forceinline__ void each_of(i64 first, Use use) {
#pragma unroll
    for (int item = 0; item < Tile::HELD; ++item) {
      const i64 column = move_to(first + item * Tile::TEAM_SIZE);
      use(RowGroup<Tile::VECTOR_SIZE, false>{item}, column);
    }
  }

  // Groups of the row from one of its own on, to a chunk's end at least; none, or a negative number, behind them.
  __device__ __forceinline__ int groups_from(i64 first) const {
    constexpr int MOST = Tile::HELD * Tile::TEAM_SIZE;
    if constexpr (sizeof(Index) == 4) return int(u32(groups()) - u32(first));
    const i64 behind = groups() - first;
    return behind < MOST ? int(behind) : MOST;
  }

  u32 rank;  // of the block among those that share the row: read once for it, since each reading takes its time

  // Gives the group's place along the functors' vector axis.
  __device__ __forceinline__ i64 move_to(i64 number) {
    if constexpr (Tile::RANK - Tile::KEPT_AXES == 1) {
      coordinate[Tile::KEPT_AXES] = number;  // not by way of 32 bits: items then lie at constant offsets
    } else {
      digits<Tile::RANK - Tile::KEPT_AXES>(sizes->axes + Tile::KEPT_AXES, Index(number), coordinate + Tile::KEPT_AXES);
    }
    return Tile::IN_ROW ? head + coordinate[Tile::RANK - 1] * Tile::VECTOR_SIZE : kept_column;
  }

  __device__ __forceinline__ static u32 rank_of_block() {
    if constexpr (Tile::IN_GRID) return blockIdx.x % Tile::BLOCKS;
    return Tile::BLOCKS > 1 ? cluster_rank() : 0;
  }

  __device__ __forceinline__ void start(i64 row) {
    first = row;
    rank = rank_of_block();
    const int slot = threadIdx.x / (Tile::TEAM_SIZE * Tile::SIDE_SIZE), side = threadIdx.x % Tile::SIDE_SIZE;
    move_to_row(first + slot * Tile::SIDE_SIZE + side);
  }
};
