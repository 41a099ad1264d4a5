// Rows: how the threads of a block, or of several blocks, own the rows of a tensor.
//
// A row is the set of elements that one statistic is taken over: those at one coordinate of the KEPT kept axes, along
// the other axes of the space. One axis is cut into groups of VECTOR neighbouring elements. It is the last axis of a
// row (IS_ROW), or the last kept axis: then a thread has VECTOR rows side by side, and a group has one element of each.
//
// Rows with a SKEW have one axis and begin anywhere in memory. Their groups are the aligned vectors; fewer than VECTOR
// elements lie before the first of these, and fewer after the last. A thread has SINGLES of these elements, each as a
// group of its own, in the first chunk: so groups need no masks for their elements.
//
// With WHOLE, each thread has exactly ITEMS groups of every row. The compiler then knows which groups exist, and
// reorders the accesses of different groups, for which it takes the registers that RESIDENT leaves.
//
// With LINE > 1 rows have one axis, and one block has a row in one chunk. The threads' groups are then counted from the
// memory line in which the row begins, LINE groups long, so that each access of a warp covers whole lines. The `lead`
// groups before the row do not exist.
//
// A block has THREADS threads: slots of TEAM members of SIDE threads side by side, the last of these fastest. A team
// owns SIDE groups of rows, and a member the groups member, member + TEAM, ... of them. A thread caches a chunk of
// ITEMS groups in registers (row_chunks.cuh). SHARING blocks share rows: those of a cluster or, if CLUSTER is smaller,
// neighbours in a cooperative grid, which has blocks for each group of rows. A row that is longer than the blocks'
// chunks has several. The first chunks can stay resident in shared memory; the others are read again when they are
// needed.
//
// NORM_GROUP neighbouring rows, the channels of a normalisation group, share their statistics. One block has them all,
// or the blocks of a CLUSTER that shares no row.

#pragma once

#include "include/ptx/cluster.cuh"
#include "include/math/division.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

// The launch bounds of a kernel over rows, from its macros. RESIDENT blocks fit a multiprocessor; without this bound
// ptxas sometimes spills a few registers to fit one more.
#if CLUSTER > 1
#define ROW_KERNEL __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
#else
#define ROW_KERNEL __launch_bounds__(THREADS, RESIDENT)
#endif

template <int RANK> struct RowSizes {
  i64 rows;            // groups of rows
  i64 groups;          // whole groups of a row that begins at a vector
  i64 chunks;          // chunks of a row
  i64 elements;        // along the vector axis
  // Elements from one row's start to the next along each kept axis, modulo those of a vector or, with LINE > 1, of a
  // memory line.
  i64 skews[RANK];
  Divider axes[RANK];  // extents, with the vector axis in groups
};

template <int RANK_, int KEPT_AXES_, bool IN_ROW_, bool SKEWED_, int VECTOR_SIZE_, int BLOCK_SIZE_, int TEAM_SIZE_,
          int SIDE_SIZE_, int GROUP_ROWS_, int THREAD_GROUPS_, int BLOCKS_, int CLUSTER_SIZE, bool IN_CHUNKS,
          class Index_, int LINE_ = 1, bool WHOLE_ = false>
struct RowTile {
  static constexpr int RANK = RANK_, KEPT_AXES = KEPT_AXES_, VECTOR_SIZE = VECTOR_SIZE_;
  static constexpr int BLOCK_SIZE = BLOCK_SIZE_, TEAM_SIZE = TEAM_SIZE_, SIDE_SIZE = SIDE_SIZE_;
  static constexpr int THREAD_GROUPS = THREAD_GROUPS_;  // groups of a chunk in each thread
  static constexpr int BLOCKS = BLOCKS_;  // blocks that share a row
  static constexpr int CLUSTER_BLOCKS = CLUSTER_SIZE;
  static constexpr bool IN_GRID = BLOCKS_ > CLUSTER_SIZE;  // whether these blocks are of a cooperative grid
  static constexpr int SLOTS = BLOCK_SIZE / (TEAM_SIZE * SIDE_SIZE);
  static constexpr bool IN_ROW = IN_ROW_, SKEWED = SKEWED_;
  static constexpr int SINGLES = SKEWED ? (2 * (VECTOR_SIZE - 1) + TEAM_SIZE - 1) / TEAM_SIZE : 0;  // in each thread
  static constexpr int WIDTH = IN_ROW ? 1 : VECTOR_SIZE;  // rows of a thread
  static constexpr int GROUP_ROWS = GROUP_ROWS_;  // rows that share statistics
  static constexpr int LINE = LINE_;  // a warp's accesses begin at multiples of so many groups
  static constexpr bool WHOLE = WHOLE_;  // whether each thread has THREAD_GROUPS groups of every row
  static constexpr int GROUP_BLOCKS = BLOCKS_ == 1 ? CLUSTER_SIZE : 1;  // blocks of a normalisation group
  typedef Index_ Index;
  // Whether whole chunks have code of their own. It pays if groups are not a constant number of bytes apart, and in
  // long rows of one axis that blocks of a grid share.
  static constexpr bool HAS_WHOLE_CHUNKS = IN_CHUNKS && (!IN_ROW || (IN_GRID && RANK == KEPT_AXES + 1));
  static_assert(BLOCKS == 1 || SLOTS == 1, "blocks share the rows of one slot");
  static_assert(GROUP_BLOCKS * SLOTS * SIDE_SIZE * WIDTH % GROUP_ROWS == 0, "blocks have whole normalisation groups");
  static_assert(GROUP_BLOCKS == 1 || GROUP_BLOCKS * SLOTS * SIDE_SIZE * WIDTH == GROUP_ROWS,
                "a cluster has one normalisation group");
  static_assert(!SKEWED || (IN_ROW && RANK == KEPT_AXES + 1), "only rows with one axis have a skew");
  static_assert(LINE == 1 || (IN_ROW && RANK == KEPT_AXES + 1 && BLOCKS == 1 && !IN_CHUNKS),
                "lines need rows of one axis, one chunk and one block");
  static_assert(!WHOLE || (!SKEWED && !IN_CHUNKS && LINE == 1), "all rows have the same groups");
  static_assert(LINE == 1 || LINE <= TEAM_SIZE, "only a thread's first group can lie before the row");

  // Chunks of a row; a compile-time constant if there is one.
  __device__ __forceinline__ static i64 chunks(const RowSizes<RANK>& sizes) { return IN_CHUNKS ? sizes.chunks : 1; }
};

// A group of a thread's chunk: number `item` of its THREAD_GROUPS groups, or of its SINGLES.
template <int SIZE_, bool IS_SINGLE_> struct RowGroup {
  static constexpr int SIZE = SIZE_;  // elements
  static constexpr bool IS_SINGLE = IS_SINGLE_;
  int item;
};

// Walks over the rows of a thread, and over the groups of the current row.
template <class Tile> struct RowWalk {
  typedef typename Tile::Index Index;

  const RowSizes<Tile::RANK>* sizes;
  i64 first;  // number of the block's first row
  bool exists;  // whether this thread has a row
  i64 coordinate[Tile::RANK];
  i64 kept_column;  // the first of the thread's rows, along the last kept axis
  i64 head;         // elements of the row before its first whole vector
  int lead = 0;     // groups of a line before the row's first whole one

  RowWalk() = default;
  __device__ __forceinline__ RowWalk(const RowSizes<Tile::RANK>& sizes) : sizes(&sizes) {}

  __device__ __forceinline__ void begin() { start(i64(blockIdx.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)); }
  // Whether the block has a row; all its threads agree.
  __device__ __forceinline__ bool is_within() const { return first < sizes->rows; }
  __device__ __forceinline__ void next(int steps = 1) {
    start(first + steps * (i64(gridDim.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)));
  }

  // The walk at the first row of the normalisation group that a cluster's blocks share; elsewhere a copy.
  __device__ __forceinline__ RowWalk first_of_cluster() const {
    RowWalk there = *this;
    if constexpr (Tile::GROUP_BLOCKS > 1) there.move_to_row(first - first % Tile::GROUP_ROWS);
    return there;
  }

  // Moves to group `own` of WIDTH rows, whichever thread owns it.
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

  // Whether this thread is the first of a row's first block; whether this block is a row's first.
  __device__ __forceinline__ bool is_first_member() const { return exists && member() == 0 && rank == 0; }
  __device__ __forceinline__ bool is_first_block() const { return rank == 0; }

  // The number of steps since the walk began.
  __device__ __forceinline__ u32 step() const {
    return u32(first / (i64(gridDim.x / Tile::BLOCKS) * (Tile::SLOTS * Tile::SIDE_SIZE)));
  }

  __device__ __forceinline__ static int member() { return threadIdx.x / Tile::SIDE_SIZE % Tile::TEAM_SIZE; }

  // The number of the whole group that `item` of a chunk is. Items have constant distances.
  __device__ __forceinline__ i64 group(i64 chunk, int item) const {
    const Index before = (Index(chunk) * Tile::BLOCKS + rank) * (Tile::THREAD_GROUPS * Tile::TEAM_SIZE);
    return i64(before) + member() + item * Tile::TEAM_SIZE - lead;
  }

  // Whole groups of the row.
  __device__ __forceinline__ i64 groups() const {
    if constexpr (Tile::SKEWED) return i64(u64(sizes->elements - head) / Tile::VECTOR_SIZE);
    return sizes->groups;
  }

  // Moves to each group of a chunk that this thread has, and calls `use(group, column)` with its position along the
  // functors' vector axis.
  template <class Use> __device__ __forceinline__ void each(i64 chunk, Use use) {
    each_whole(chunk, use);
    each_single(chunk, use);
  }

  template <class Use> __device__ __forceinline__ void each_whole(i64 chunk, Use use) {
    each_whole(chunk, use, [](int) {});
  }

  // Calls `otherwise(item)` for groups beyond the row.
  template <class Use, class Otherwise>
  __device__ __forceinline__ void each_whole(i64 chunk, Use use, Otherwise otherwise) {
    const i64 first = group(chunk, 0);
    if (Tile::WHOLE && (Tile::SLOTS * Tile::SIDE_SIZE == 1 || exists)) {
      each_of(first, use);
      return;
    }
    const int left = exists ? groups_from(first) : 0;
    if (Tile::HAS_WHOLE_CHUNKS && left > (Tile::THREAD_GROUPS - 1) * Tile::TEAM_SIZE) {
      each_of(first, use);
      return;
    }
#pragma unroll
    for (int item = 0; item < Tile::THREAD_GROUPS; ++item) {
      const bool is_before = Tile::LINE > 1 && item == 0 && first < 0;
      if (is_before || item * Tile::TEAM_SIZE >= left) {
        otherwise(item);
        continue;
      }
      const i64 column = move_to(first + item * Tile::TEAM_SIZE);
      use(RowGroup<Tile::VECTOR_SIZE, false>{item}, column);
    }
  }

  // The single elements before and after the row's whole vectors, which the first block has.
  template <class Use> __device__ __forceinline__ void each_single(i64 chunk, Use use) {
    if constexpr (Tile::SKEWED) {
      const i64 outside = exists && chunk == 0 && rank == 0 ? sizes->elements - groups() * Tile::VECTOR_SIZE : 0;
#pragma unroll
      for (int item = 0; item < Tile::SINGLES; ++item) {
        const i64 number = item * Tile::TEAM_SIZE + member();
        if (number >= outside) continue;
        use(RowGroup<1, true>{item}, number < head ? number : number + groups() * Tile::VECTOR_SIZE);
      }
    }
  }

  // For the block's first thread: the number of whole groups that the block has in a chunk; `column` is where they
  // begin.
  __device__ __forceinline__ u32 block_groups(i64 chunk, i64& column) {
    constexpr int MOST = Tile::THREAD_GROUPS * Tile::TEAM_SIZE;
    const i64 first = group(chunk, 0) + lead;  // groups before the row are not copied
    const int left = exists ? groups_from(first) : 0;
    column = move_to(first);
    return left <= 0 ? 0 : left < MOST ? left : MOST;
  }

  // Moves to whole group `number` of the row; false if the row has no such group.
  __device__ __forceinline__ bool locate(i64 number, i64& column) {
    column = move_to(number);
    return exists && number < groups();
  }

  // The number of elements in a row.
  __device__ __forceinline__ i64 elements() const {
    return Tile::SKEWED ? sizes->elements : sizes->groups * (Tile::IN_ROW ? Tile::VECTOR_SIZE : 1);
  }
  // Moves to element `number` of one of the WIDTH rows; returns its position along the functors' vector axis.
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
  // Visits all groups of a chunk that is whole. No group needs a bounds check, and the compiler derives one's address
  // from the last one's.
  template <class Use> __device__ __forceinline__ void each_of(i64 first, Use use) {
#pragma unroll
    for (int item = 0; item < Tile::THREAD_GROUPS; ++item) {
      const i64 column = move_to(first + item * Tile::TEAM_SIZE);
      use(RowGroup<Tile::VECTOR_SIZE, false>{item}, column);
    }
  }

  // Groups of the row from `first` on, counted to a chunk's end at least; zero or negative if there are none.
  __device__ __forceinline__ int groups_from(i64 first) const {
    constexpr int MOST = Tile::THREAD_GROUPS * Tile::TEAM_SIZE;
    if constexpr (sizeof(Index) == 4) return int(u32(groups()) - u32(first));
    const i64 left = groups() - first;
    return left < MOST ? int(left) : MOST;
  }

  u32 rank;  // the block's number among those that share the row; cached, since reading it is slow

  // Moves to a group; returns its position along the functors' vector axis.
  __device__ __forceinline__ i64 move_to(i64 number) {
    if constexpr (Tile::RANK - Tile::KEPT_AXES == 1) {
      coordinate[Tile::KEPT_AXES] = number;  // in 64 bits, so that the distances of items are constants
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
