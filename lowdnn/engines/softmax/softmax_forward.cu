// softmax_forward: for each row of x = prologue(...), with m its largest element and s = sum of exp(x - m),
//   y = epilogue(exp(x - m) / s)        IS_LOG: y = epilogue(x - m - log(s))
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; CLUSTER blocks share rows. A row that fits the threads'
// registers is read once: largest element, sum, result. Of a longer one (CHUNKED) each thread keeps a largest element
// and a sum relative to it as it goes along, and all chunks but the last are read again, backwards.
// Shared memory (static): RowTeam's.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER RESIDENT VECTOR KEPT IS_ROW; INDEX: u32 below 2^31 rows and groups,
// else i64; IS_LOG; CHUNKED; STATS (m + log(s), times stats_factor), MAX (m), SUM (s): whether they are stored.

#include "include/row_team.cuh"
#include "softmax/exponential.cuh"
#include "generated.cuh"

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, VECTOR, THREADS, TEAM, SIDE, ITEMS, SHARING, CLUSTER, INDEX> Tile;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, Tile::WIDTH> Team;

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value stats_factor;
  Prologue::Args before;
  Epilogue::Args after;
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

__device__ __forceinline__ void add_largest(RowWalk<Tile>& walk, i64 chunk, const Value (&x)[ITEMS][VECTOR],
                                            Value (&largest)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) largest[v % WIDTH] = maximum(largest[v % WIDTH], x[i][v]);
  }
}

// Adds exp(x - base); where the results are kept they replace x.
template <bool KEEPS>
__device__ __forceinline__ void add_exponentials(RowWalk<Tile>& walk, i64 chunk, Value (&x)[ITEMS][VECTOR],
                                                 const Value (&base)[WIDTH], Value (&sum)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value e = exponential(x[i][v] - base[v % WIDTH]);
      sum[v % WIDTH] += e;
      if (KEEPS) x[i][v] = e;
    }
  }
}

#if CHUNKED
// What a thread's sum is relative to: its largest element, or 0 where all were minus infinity.
__device__ __forceinline__ Value base_of(Value largest) { return largest == Value(-INFINITE) ? Value(0) : largest; }

// A chunk joined to the thread's largest elements and sums.
__device__ __forceinline__ void add_chunk(RowWalk<Tile>& walk, i64 chunk, Value (&x)[ITEMS][VECTOR],
                                          Value (&largest)[WIDTH], Value (&sum)[WIDTH]) {
  Value base[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) base[w] = base_of(largest[w]);
  add_largest(walk, chunk, x, largest);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    const Value before = base[w];
    base[w] = base_of(largest[w]);
    sum[w] *= exponential(before - base[w]);
  }
  add_exponentials<false>(walk, chunk, x, base, sum);
}
#endif

// x holds elements, or with neither CHUNKED nor IS_LOG their exponentials.
__device__ __forceinline__ void store_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk,
                                            const Value (&x)[ITEMS][VECTOR], const Value (&largest)[WIDTH],
                                            const Value (&last)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value y[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const int w = v % WIDTH;
      y[v] = IS_LOG ? x[i][v] - largest[w] - last[w]
                    : (CHUNKED ? exponential(x[i][v] - largest[w]) : x[i][v]) * last[w];
    }
    Epilogue::apply<VECTOR>(p.after, Epilogue::cursor(p.after, walk.coordinate), column, VECTOR, y);
  }
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);

#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Value x[ITEMS][VECTOR], largest[WIDTH], sum[WIDTH] = {};
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) largest[w] = Value(-INFINITE);
    load_chunk<Prologue>(p.before, walk, 0, x);
#if CHUNKED
    add_chunk(walk, 0, x, largest, sum);
#pragma unroll 1
    for (i64 chunk = 1; chunk < p.sizes.chunks; ++chunk) {
      load_chunk<Prologue>(p.before, walk, chunk, x);
      add_chunk(walk, chunk, x, largest, sum);
    }
    Value own[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) own[w] = base_of(largest[w]);
    team.all<Largest>(largest);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sum[w] *= exponential(own[w] - largest[w]);
#else
    add_largest(walk, 0, x, largest);
    team.all<Largest>(largest);
    add_exponentials<!IS_LOG>(walk, 0, x, largest, sum);
#endif
    team.all<Plus>(sum);

    Value last[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) last[w] = IS_LOG ? log(sum[w]) : reciprocal(sum[w]);
#if STATS
    Value stats[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) stats[w] = (largest[w] + log(sum[w])) * p.stats_factor;
    store_of_row<Stats>(p.stats, walk, stats);
#endif
#if MAX
    store_of_row<Max>(p.max, walk, largest);
#endif
#if SUM
    store_of_row<Sum>(p.sum, walk, sum);
#endif
    store_chunk(p, walk, p.sizes.chunks - 1, x, largest, last);
#pragma unroll 1
    for (i64 chunk = p.sizes.chunks - 2; chunk >= 0; --chunk) {
      load_chunk<Prologue>(p.before, walk, chunk, x);
      store_chunk(p, walk, chunk, x, largest, last);
    }
  }
  team.leave();
}
