// softmax_forward: for each row of x = prologue(...), with m its largest element and s = sum of exp(x - m),
//   y = epilogue(exp(x - m) / s)        IS_LOG: y = epilogue(x - m - log(s))
// and, for a row of nothing but minus infinity (a masked one), with m = minus infinity and s = 0,
//   y = epilogue(0)                     IS_LOG: y = epilogue(minus infinity)
// SINK: m and s count one more element of each row.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; CLUSTER blocks share rows. A row that fits the threads'
// registers is read once: largest element, sum, result. Of a longer one (CHUNKED) each thread keeps a largest element
// and a sum relative to it as it goes along, and all chunks but the last are read again, backwards.
// Shared memory: RowTeam's; with LOOKS_AHEAD (dynamic) the next row.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; IS_LOG; SINK; STATS (m + log(s), times stats_factor), MAX (m), SUM (s):
// whether they are stored; LOOKS_AHEAD: whether the next row is asked for when a row begins.

#include "include/exponential.cuh"
#include "include/next_row.cuh"
#include "include/row_team.cuh"
#include "generated.cuh"

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
    Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, Tile::WIDTH> Team;

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value stats_factor;
  Prologue::Args before;
  Epilogue::Args after;
#if SINK
  Sink::Args sink;
#endif
#if STATS
  Stats::Args stats;
#endif
#if MAX
  Max::Args max;
#endif
#if SUM
  Sum::Args sum;
#endif
};

constexpr int WIDTH = Tile::WIDTH;
// Whether a chunk's exponentials replace its elements.
#define KEEPS_EXPONENTIALS (!CHUNKED && !IS_LOG && !AS_READ)

__device__ __forceinline__ void add_largest(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                            Value (&largest)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value x[group.SIZE];
    held.get(p.before, group, x);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) largest[v % WIDTH] = maximum(largest[v % WIDTH], x[v]);
  });
}

// Adds exp(x - base).
__device__ __forceinline__ void add_exponentials(const Params& p, RowWalk<Tile>& walk, i64 chunk, Chunk& held,
                                                 const Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value x[group.SIZE];
    held.get(p.before, group, x);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      x[v] = exponential(x[v] - base[v % WIDTH]);
      sum[v % WIDTH] += x[v];
    }
#if KEEPS_EXPONENTIALS
    held.replace(group, x);
#endif
  });
}

// What a sum is relative to: the largest element, or 0 where all are minus infinity.
__device__ __forceinline__ Value base_of(Value largest) { return largest == Value(-INFINITE) ? Value(0) : largest; }

#if CHUNKED
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
#endif

__device__ __forceinline__ void store_softmax(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                              const Value (&base)[WIDTH], const Value (&last)[WIDTH]) {
  store_chunk<Epilogue, Value>(p.after, walk, chunk, [&](auto group, auto& y) {
    held.get(p.before, group, y);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      const int w = v % WIDTH;
      y[v] = IS_LOG ? y[v] - base[w] - last[w]
                    : (KEEPS_EXPONENTIALS ? y[v] : exponential(y[v] - base[w])) * last[w];
    }
  });
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  extern __shared__ __align__(16) u8 memory[];
  Team team(shared);
  RowWalk<Tile> walk(p.sizes), ahead(p.sizes);
  NextRow<Prologue, Tile, LOOKS_AHEAD> next(memory);
  const i64 chunks = Tile::chunks(p.sizes);

  ahead.begin();
  next.copy(p.before, ahead);
#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Chunk held;
    Value largest[WIDTH], base[WIDTH], sum[WIDTH] = {};
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) largest[w] = Value(-INFINITE);
#if SINK
    load_of_row<Sink>(p.sink, walk, largest);
    Value sink[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sink[w] = largest[w];
#endif
    next.load(p.before, walk, held);
    ahead.next();
    next.copy(p.before, ahead);
#if CHUNKED
    add_chunk(p, walk, 0, held, largest, sum);
#pragma unroll 1
    for (i64 chunk = 1; chunk < chunks; ++chunk) {
      held.load(p.before, walk, chunk);
      add_chunk(p, walk, chunk, held, largest, sum);
    }
    Value own[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) own[w] = largest[w];
    team.all<Largest>(largest);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      base[w] = base_of(largest[w]);
      sum[w] *= exponential(own[w] - base[w]);
    }
#else
    add_largest(p, walk, 0, held, largest);
    team.all<Largest>(largest);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) base[w] = base_of(largest[w]);
    held.begin_pass();
    add_exponentials(p, walk, 0, held, base, sum);
#endif
    team.all<Plus>(sum);
#if SINK
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sum[w] += exponential(sink[w] - base[w]);
#endif

    // A sum is at least 1, or 0 where all elements are minus infinity: y is 0 then (IS_LOG: minus infinity).
    Value last[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) last[w] = sum[w] == 0 ? Value(0) : IS_LOG ? log(sum[w]) : reciprocal(sum[w]);
#if STATS
    Value stats[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) stats[w] = (base[w] + log(sum[w])) * p.stats_factor;
    store_of_row<Stats>(p.stats, walk, stats);
#endif
#if MAX
    // Not by way of `largest`, which would keep its registers.
    Value max[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) max[w] = sum[w] == 0 ? Value(-INFINITE) : base[w];
    store_of_row<Max>(p.max, walk, max);
#endif
#if SUM
    store_of_row<Sum>(p.sum, walk, sum);
#endif
    held.begin_pass();
    store_softmax(p, walk, chunks - 1, held, base, last);
#pragma unroll 1
    for (i64 chunk = chunks - 2; chunk >= 0; --chunk) {
      held.load(p.before, walk, chunk);
      store_softmax(p, walk, chunk, held, base, last);
    }
  }
  team.leave();
}
