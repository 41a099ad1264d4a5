// softmax_forward: for each row of x = prologue(...), with m its largest element and s = sum of exp(x - m),
//   y = epilogue(exp(x - m) / s)        IS_LOG: y = epilogue(x - m - log(s))
// and, for a row of nothing but minus infinity (a masked one), with m = minus infinity and s = 0,
//   y = epilogue(0)                     IS_LOG: y = epilogue(minus infinity)
// SINK: m and s count one more element of each row.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; CLUSTER blocks share rows. A row that fits the threads'
// registers is read once: largest element, sum, result. Of a longer one (CHUNKED) each thread keeps a largest element
// and a sum relative to it as it goes along, and all chunks but the last are read again, backwards. The lanes of a warp
// find their largest element first; warps and blocks meet once, with their largest elements and sums.
// Shared memory: RowTeam's; with LOOKS_AHEAD (dynamic) the next row.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; IS_LOG; SINK; STATS (m + log(s), times stats_factor), MAX (m), SUM (s):
// whether they are stored; LOOKS_AHEAD: whether and how the next row is asked for when a row begins
// (include/rows/next_row.cuh); LINE_GROUPS: groups of a memory line that warps begin at, or 1.

#include "include/exponential.cuh"
#include "include/optional.cuh"
#include "include/rows/next_row.cuh"
#include "include/rows/row_numbers.cuh"
#include "include/rows/row_team.cuh"
#include "generated.cuh"

// Functors that the kernel may be without.
struct Sink;
struct Stats;
struct Max;
struct Sum;

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX, LINE_GROUPS>
    Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH, LOOKS_AHEAD == BY_THREADS> Team;

struct Numbers {
  RowSizes<Tile::RANK> sizes;
  Value stats_factor;
};

struct Params : Numbers,
                ArgsOf<Prologue>,
                ArgsOf<Epilogue>,
                ArgsOf<Sink, SINK>,
                ArgsOf<Stats, STATS>,
                ArgsOf<Max, MAX>,
                ArgsOf<Sum, SUM> {};

constexpr int WIDTH = Tile::WIDTH;
// Whether lanes join largest elements and sums, and what is left joins both together.
constexpr bool MEETS_ONCE = !Team::BY_NUMBER && Team::MEETS;
// Whether a chunk's exponentials replace its elements.
constexpr bool KEEPS_EXPONENTIALS = !CHUNKED && !IS_LOG && !AS_READ;

// What a sum is relative to: the largest element, or 0 where all are minus infinity.
__device__ __forceinline__ Value base_of(Value largest) { return largest == Value(-INFINITE) ? Value(0) : largest; }

// Joins largest elements, and the sums behind them, which are relative to these.
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

__device__ __forceinline__ void add_largest(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                            Value (&largest)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value x[group.SIZE];
    held.get(args_of<Prologue>(p), group, x);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) largest[v % WIDTH] = maximum(largest[v % WIDTH], x[v]);
  });
}

// Adds exp(x - base).
template <class Chunk>
__device__ __forceinline__ void add_exponentials(const Params& p, RowWalk<Tile>& walk, i64 chunk, Chunk& held,
                                                 const Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value x[group.SIZE];
    held.get(args_of<Prologue>(p), group, x);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      x[v] = exponential(x[v] - base[v % WIDTH]);
      sum[v % WIDTH] += x[v];
    }
    if constexpr (KEEPS_EXPONENTIALS) held.replace(group, x);
  });
}

template <class Operator> __device__ __forceinline__ void join_first(Team& team, Value (&values)[WIDTH]) {
  if constexpr (MEETS_ONCE) team.all_of_lanes<Operator>(values);
  else team.all<Operator>(values);
}

// From what was joined first to the row's. Afterwards the sums are relative to the row's base, and `factor` is what
// turns exponentials relative to the one before into such.
__device__ __forceinline__ void join_rest(Team& team, Value (&largest)[WIDTH], Value (&base)[WIDTH],
                                          Value (&sum)[WIDTH], Value (&factor)[WIDTH]) {
  Value both[2 * WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    both[w] = largest[w];
    both[WIDTH + w] = sum[w];
    factor[w] = Value(1);
  }
  if constexpr (MEETS_ONCE) {
    team.all_beyond_lanes<LargestAndSum>(both);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      factor[w] = exponential(base[w] - base_of(both[w]));
      base[w] = base_of(both[w]);
      sum[w] = both[WIDTH + w];
    }
  }
}

// A chunk joined to the thread's largest elements and sums.
__device__ __forceinline__ void add_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk, Chunk& held,
                                          Value (&largest)[WIDTH], Value (&sum)[WIDTH]) {
  Value before[WIDTH], base[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) before[w] = largest[w];
  add_largest(p, walk, chunk, held, largest);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    base[w] = base_of(largest[w]);
    sum[w] *= exponential(before[w] - base[w]);  // 0 where all before were minus infinity
  }
  held.begin_pass();
  add_exponentials(p, walk, chunk, held, base, sum);
}

__device__ __forceinline__ void store_softmax(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                              const Value (&base)[WIDTH], const Value (&last)[WIDTH]) {
  store_chunk<Epilogue, Value>(args_of<Epilogue>(p), walk, chunk, [&](auto group, auto& y) {
    held.get(args_of<Prologue>(p), group, y);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      const int w = v % WIDTH;
      y[v] = IS_LOG ? y[v] - base[w] - last[w]
                    : (KEEPS_EXPONENTIALS ? y[v] : exponential(y[v] - base[w])) * last[w];
    }
  });
}

// Reduces a row in chunks, the first of which is `held`, to the largest element of the threads that join first, the
// base that follows from it, and the thread's own sum relative to that.
__device__ __forceinline__ void add_chunks(const Params& p, RowWalk<Tile>& walk, i64 chunks, Team& team, Chunk& held,
                                           Value (&largest)[WIDTH], Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  add_chunk(p, walk, 0, held, largest, sum);
#pragma unroll 1
  for (i64 chunk = 1; chunk < chunks; ++chunk) {
    held.load(args_of<Prologue>(p), walk, chunk);
    add_chunk(p, walk, chunk, held, largest, sum);
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

// Reduces a row that the threads hold whole to these.
__device__ __forceinline__ void add_row(const Params& p, RowWalk<Tile>& walk, Team& team, Chunk& held,
                                        Value (&largest)[WIDTH], Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  add_largest(p, walk, 0, held, largest);
  join_first<Largest>(team, largest);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) base[w] = base_of(largest[w]);
  held.begin_pass();
  add_exponentials(p, walk, 0, held, base, sum);
}

// Reduces a row to its largest element, its base, its sum with that of the sink, and the `factor` of join_rest. At
// first `largest` is the sink, or minus infinity.
__device__ __forceinline__ void reduce_row(const Params& p, RowWalk<Tile>& walk, i64 chunks, Team& team, Chunk& held,
                                           Value (&largest)[WIDTH], Value (&base)[WIDTH], Value (&sum)[WIDTH],
                                           Value (&factor)[WIDTH]) {
  Value sink[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) sink[w] = largest[w];
  if constexpr (CHUNKED) add_chunks(p, walk, chunks, team, held, largest, base, sum);
  else add_row(p, walk, team, held, largest, base, sum);
  join_first<Plus>(team, sum);
  join_rest(team, largest, base, sum, factor);
  if constexpr (SINK) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sum[w] += exponential(sink[w] - base[w]);
  }
}

// Stores the statistics that have a functor.
__device__ __forceinline__ void store_statistics(const Params& p, const RowWalk<Tile>& walk,
                                                 const Value (&base)[WIDTH], const Value (&sum)[WIDTH]) {
  if constexpr (STATS) {
    Value stats[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) stats[w] = (base[w] + log(sum[w])) * p.stats_factor;
    store_number<Stats, STATS>(p, walk, stats);
  }
  if constexpr (MAX) {
    // Not by way of `largest`, which would keep its registers.
    Value max[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) max[w] = sum[w] == 0 ? Value(-INFINITE) : base[w];
    store_number<Max, MAX>(p, walk, max);
  }
  store_number<Sum, SUM>(p, walk, sum);
}

// Stores the results of a row whose last chunk is `held`; the other chunks are read again, backwards.
__device__ __forceinline__ void store_row(const Params& p, RowWalk<Tile>& walk, i64 chunks, Chunk& held,
                                          const Value (&base)[WIDTH], const Value (&last)[WIDTH]) {
  held.begin_pass();
  store_softmax(p, walk, chunks - 1, held, base, last);
#pragma unroll 1
  for (i64 chunk = chunks - 2; chunk >= 0; --chunk) {
    held.load(args_of<Prologue>(p), walk, chunk);
    store_softmax(p, walk, chunk, held, base, last);
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
    Chunk held;
    Value largest[WIDTH], base[WIDTH], sum[WIDTH] = {}, factor[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) largest[w] = Value(-INFINITE);
    load_number<Sink, SINK>(p, walk, largest);
    next.load(args_of<Prologue>(p), walk, held);
    ahead.next();
    next.release();
    next.copy(args_of<Prologue>(p), ahead);
    reduce_row(p, walk, chunks, team, held, largest, base, sum, factor);

    // A sum is at least 1, or 0 where all elements are minus infinity: y is 0 then (IS_LOG: minus infinity).
    Value last[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) last[w] = sum[w] == 0 ? Value(0) : IS_LOG ? log(sum[w]) : reciprocal(sum[w]);
    store_statistics(p, walk, base, sum);
    if constexpr (KEEPS_EXPONENTIALS) {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) last[w] *= factor[w];
    }
    store_row(p, walk, chunks, held, base, last);
  }
  team.leave();
}
