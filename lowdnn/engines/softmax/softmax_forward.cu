// softmax_forward: softmax of each row of x = prologue(...). With m its largest element and s = sum of exp(x - m)
//
//   y = epilogue(exp(x - m) / s)        IS_LOG: y = epilogue(x - m - log(s))
//
// A masked row, of only minus infinity, has m = minus infinity, s = 0 and
//
//   y = epilogue(0 * masked)            IS_LOG: y = epilogue(minus infinity - masked)
//
// masked: 1 (IS_LOG: 0), or the infinity with which y is NaN.
//
// SINK: m and s count one more element of each row.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Block: one group of rows for each slot, then one grid further on, and so on; CLUSTER blocks share rows. A row that
// fits the threads' registers is read once: largest element, sum, result. For a longer one (CHUNKED) each thread does
// an online softmax over the chunks, and all chunks but the last are read again, in reverse order. The lanes of a warp
// find their largest element first; warps and blocks wait at one barrier only, with their largest elements and sums.
// Shared memory: RowTeam's; with LOOKS_AHEAD (dynamic) the next row.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW NORM_GROUP CHUNKED;
// INDEX: u32 below 2^31 rows and groups, else i64; IS_LOG; SINK; STATS (m + log(s), times stats_factor), MAX (m), SUM
// (s): whether they are stored; LOOKS_AHEAD: whether and how the next row is prefetched (include/rows/next_row.cuh);
// LINE_GROUPS: groups of a memory line at which warps' accesses begin, or 1.

#include "include/exponential.cuh"
#include "include/optional.cuh"
#include "include/rows/next_row.cuh"
#include "include/rows/row_numbers.cuh"
#include "include/rows/row_team.cuh"
#include "generated.cuh"

// Optional functors: generated.cuh defines those that the kernel has.
struct Sink;
struct Stats;
struct Max;
struct Sum;

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, NORM_GROUP, ITEMS, SHARING,
                CLUSTER, CHUNKED, INDEX, LINE_GROUPS>
    Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH, LOOKS_AHEAD == BY_THREADS> Team;

struct Numbers {
  RowSizes<Tile::RANK> sizes;
  Value stats_factor;
  Value masked;
};

struct Params : Numbers,
                ArgsOf<Prologue>,
                ArgsOf<Epilogue>,
                ArgsOf<Sink, SINK>,
                ArgsOf<Stats, STATS>,
                ArgsOf<Max, MAX>,
                ArgsOf<Sum, SUM> {};

constexpr int WIDTH = Tile::WIDTH;
// Whether lanes first reduce largest elements, then sums, and the rest of the team then reduces both together.
constexpr bool JOINS_BOTH = !Team::BY_NUMBER && Team::HAS_BARRIER;
// Whether a chunk's exponentials overwrite its elements in registers.
constexpr bool KEEPS_EXPONENTIALS = !CHUNKED && !IS_LOG && !AS_READ;

// The base of a row's exponentials: its largest element, or 0 if all are minus infinity.
__device__ __forceinline__ Value base_of(Value largest) { return largest == Value(-INFINITE) ? Value(0) : largest; }

// Joins largest elements, followed by the sums of exponentials relative to them: the rescale of online softmax.
struct LargestAndSum {
  static __device__ __forceinline__ void join_all(Value (&joined)[2 * WIDTH], const Value (&others)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      const Value largest = maximum(joined[w], others[w]), base = base_of(largest);
      joined[WIDTH + w] = joined[WIDTH + w] * exponential(joined[w] - base) +
                          others[WIDTH + w] * exponential(others[w] - base);
      joined[w] = largest;
    }
  }
};

__device__ __forceinline__ void add_largest(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& cached,
                                            Value (&largest)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value x[group.SIZE];
    cached.get(args_of<Prologue>(p), group, x);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) largest[v % WIDTH] = maximum(largest[v % WIDTH], x[v]);
  });
}

// Adds exp(x - base) to the sums.
template <class Chunk>
__device__ __forceinline__ void add_exponentials(const Params& p, RowWalk<Tile>& walk, i64 chunk, Chunk& cached,
                                                 const Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value x[group.SIZE];
    cached.get(args_of<Prologue>(p), group, x);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      x[v] = exponential(x[v] - base[v % WIDTH]);
      sum[v % WIDTH] += x[v];
    }
    if constexpr (KEEPS_EXPONENTIALS) cached.replace(group, x);
  });
}

template <class Operator> __device__ __forceinline__ void join_first(Team& team, Value (&values)[WIDTH]) {
  if constexpr (JOINS_BOTH) team.all_of_lanes<Operator>(values);
  else team.all<Operator>(values);
}

// Reduces over the rest of the team. Afterwards the sums are relative to the row's base, and `factor` rescales
// exponentials that are relative to the base before.
__device__ __forceinline__ void join_rest(Team& team, Value (&largest)[WIDTH], Value (&base)[WIDTH],
                                          Value (&sum)[WIDTH], Value (&factor)[WIDTH]) {
  Value both[2 * WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    both[w] = largest[w];
    both[WIDTH + w] = sum[w];
    factor[w] = Value(1);
  }
  if constexpr (JOINS_BOTH) {
    team.all_beyond_lanes<LargestAndSum>(both);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      factor[w] = exponential(base[w] - base_of(both[w]));
      base[w] = base_of(both[w]);
      sum[w] = both[WIDTH + w];
    }
  }
}

// Adds a chunk to the thread's largest elements and sums: a step of online softmax.
__device__ __forceinline__ void add_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk, Chunk& cached,
                                          Value (&largest)[WIDTH], Value (&sum)[WIDTH]) {
  Value before[WIDTH], base[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) before[w] = largest[w];
  add_largest(p, walk, chunk, cached, largest);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    base[w] = base_of(largest[w]);
    sum[w] *= exponential(before[w] - base[w]);  // 0 where all before were minus infinity
  }
  cached.begin_pass();
  add_exponentials(p, walk, chunk, cached, base, sum);
}

__device__ __forceinline__ void store_softmax(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& cached,
                                              const Value (&base)[WIDTH], const Value (&last)[WIDTH]) {
  store_chunk<Epilogue, Value>(args_of<Epilogue>(p), walk, chunk, [&](auto group, auto& y) {
    cached.get(args_of<Prologue>(p), group, y);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      const int w = v % WIDTH;
      y[v] = IS_LOG ? y[v] - base[w] - last[w]
                    : (KEEPS_EXPONENTIALS ? y[v] : exponential(y[v] - base[w])) * last[w];
    }
  });
}

// Reduces a row of several chunks, the first of which is `cached`, to the largest element of the threads that
// join_first joins, to its base, and to the thread's own sum relative to that base.
__device__ __forceinline__ void add_chunks(const Params& p, RowWalk<Tile>& walk, i64 chunks, Team& team, Chunk& cached,
                                           Value (&largest)[WIDTH], Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  add_chunk(p, walk, 0, cached, largest, sum);
#pragma unroll 1
  for (i64 chunk = 1; chunk < chunks; ++chunk) {
    cached.load(args_of<Prologue>(p), walk, chunk);
    add_chunk(p, walk, chunk, cached, largest, sum);
  }
  Value own[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) own[w] = largest[w];
  join_first<Largest>(team, largest);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    base[w] = base_of(largest[w]);
    sum[w] *= exponential(own[w] - base[w]);
  }
}

// Reduces a row that the threads cache whole in the same way.
__device__ __forceinline__ void add_row(const Params& p, RowWalk<Tile>& walk, Team& team, Chunk& cached,
                                        Value (&largest)[WIDTH], Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  add_largest(p, walk, 0, cached, largest);
  join_first<Largest>(team, largest);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) base[w] = base_of(largest[w]);
  cached.begin_pass();
  add_exponentials(p, walk, 0, cached, base, sum);
}

// Reduces a row to its largest element, its base, its sum including the sink, and the `factor` of join_rest. On entry
// `largest` is the sink, or minus infinity.
__device__ __forceinline__ void reduce_row(const Params& p, RowWalk<Tile>& walk, i64 chunks, Team& team, Chunk& cached,
                                           Value (&largest)[WIDTH], Value (&base)[WIDTH], Value (&sum)[WIDTH],
                                           Value (&factor)[WIDTH]) {
  Value sink[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) sink[w] = largest[w];
  if constexpr (CHUNKED) add_chunks(p, walk, chunks, team, cached, largest, base, sum);
  else add_row(p, walk, team, cached, largest, base, sum);
  join_first<Plus>(team, sum);
  join_rest(team, largest, base, sum, factor);
  if constexpr (SINK) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sum[w] += exponential(sink[w] - base[w]);
  }
}

// Stores the statistics that are wanted.
__device__ __forceinline__ void store_statistics(const Params& p, const RowWalk<Tile>& walk,
                                                 const Value (&base)[WIDTH], const Value (&sum)[WIDTH]) {
  if constexpr (STATS) {
    Value stats[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) stats[w] = (base[w] + log(sum[w])) * p.stats_factor;
    store_number<Stats, STATS>(p, walk, stats);
  }
  if constexpr (MAX) {
    // Keeping `largest` until here would take registers, so the maximum is derived from the base.
    Value max[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) max[w] = sum[w] == 0 ? Value(-INFINITE) : base[w];
    store_number<Max, MAX>(p, walk, max);
  }
  store_number<Sum, SUM>(p, walk, sum);
}

// Stores the results of a row whose last chunk is `cached`; the other chunks are read again, in reverse order.
__device__ __forceinline__ void store_row(const Params& p, RowWalk<Tile>& walk, i64 chunks, Chunk& cached,
                                          const Value (&base)[WIDTH], const Value (&last)[WIDTH]) {
  cached.begin_pass();
  store_softmax(p, walk, chunks - 1, cached, base, last);
#pragma unroll 1
  for (i64 chunk = chunks - 2; chunk >= 0; --chunk) {
    cached.load(args_of<Prologue>(p), walk, chunk);
    store_softmax(p, walk, chunk, cached, base, last);
  }
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  extern __shared__ __align__(16) u8 memory[];
  Team team(shared);
  RowWalk<Tile> walk(p.sizes), ahead(p.sizes);
  NextRow<Prologue, Tile, LOOKS_AHEAD> next(memory);
  const i64 chunks = Tile::chunks(p.sizes);

  ahead.begin();
  next.release();
  next.copy(args_of<Prologue>(p), ahead);
#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Chunk cached;
    Value largest[WIDTH], base[WIDTH], sum[WIDTH] = {}, factor[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) largest[w] = Value(-INFINITE);
    load_number<Sink, SINK>(p, walk, largest);
    next.load(args_of<Prologue>(p), walk, cached);
    ahead.next();
    next.release();
    next.copy(args_of<Prologue>(p), ahead);
    reduce_row(p, walk, chunks, team, cached, largest, base, sum, factor);

    // A sum is at least 1, or 0 if all elements are minus infinity.
    Value last[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) last[w] = sum[w] == 0 ? p.masked : IS_LOG ? log(sum[w]) : reciprocal(sum[w]);
    store_statistics(p, walk, base, sum);
    if constexpr (KEEPS_EXPONENTIALS) {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) last[w] *= factor[w];
    }
    store_row(p, walk, chunks, cached, base, last);
  }
  team.leave();
}
