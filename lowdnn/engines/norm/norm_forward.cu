// norm_forward: y = epilogue((x - mean) * inverse) with x = prologue(...), for each row the mean and
// inverse = 1 / sqrt(average of (x - mean)^2 + epsilon); without CENTRED the mean is 0.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; CLUSTER blocks share rows. A row that fits the threads'
// registers is read once: the mean of its first chunk (`shift`), then the sums of x - shift and of its square over the
// whole row, which correct that mean and give the variance. So neither the rounding of a large mean nor the
// cancellation of squares shows in y. Of a longer row all chunks but the last are read again, backwards, as the cache
// still has them.
// Shared memory (static): RowTeam's.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW; INDEX: u32 below 2^31 rows and
// groups, else i64; CENTRED; TRAINING: whether the statistics are stored; RUNNING: whether the unbiased variance is used.

#include "include/rows.cuh"
#include "generated.cuh"

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, ITEMS, CLUSTER, INDEX> Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH> Team;

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value epsilon;
  Value first_share;  // 1 / elements in the first chunk of a row without a skew
  Value share;        // 1 / elements of a row
  Value unbiased;     // elements of a row / (elements - 1)
  Prologue::Args before;
  Epilogue::Args after;
#if TRAINING
#if CENTRED
  Mean::Args mean;
#endif
  Inverse::Args inverse;
#if RUNNING
  Variance::Args variance;
#endif
#endif
};

constexpr int WIDTH = Tile::WIDTH;

// Adds what a chunk has of each row: the deviations from `shift`, then their squares.
__device__ __forceinline__ void add_deviations(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                               const Value (&shift)[WIDTH], Value (&sums)[2 * WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value deviation[VECTOR];
    held.get(p.before, i, deviation);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) deviation[v] -= shift[v % WIDTH];
    walk.fill_absent(column, Value(0), deviation);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      sums[v % WIDTH] += deviation[v];
      sums[WIDTH + v % WIDTH] += deviation[v] * deviation[v];
    }
  }
}

// The mean of each row's first chunk, which is held; 0 where it is no finite number, since deviations from it would
// not be either.
__device__ __forceinline__ void first_mean(const Params& p, RowWalk<Tile>& walk, Team& team, const Chunk& held,
                                           Value (&mean)[WIDTH]) {
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) mean[w] = Value(0);
#if CENTRED
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(0, i, column)) continue;
    Value x[VECTOR];
    held.get(p.before, i, x);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) mean[v % WIDTH] += x[v];
  }
  team.all<Plus>(mean);
  const Value first_share = HAS_SKEW ? reciprocal(Value(walk.first_count())) : p.first_share;
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    mean[w] *= first_share;
    if (mean[w] - mean[w] != Value(0)) mean[w] = Value(0);
  }
#endif
}

__device__ __forceinline__ void store_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                            const Value (&shift)[WIDTH], const Value (&correction)[WIDTH],
                                            const Value (&inverse)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value y[VECTOR];
    held.get(p.before, i, y);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      y[v] = (y[v] - shift[v % WIDTH] - correction[v % WIDTH]) * inverse[v % WIDTH];
    }
    Epilogue::apply<VECTOR>(p.after, Epilogue::cursor(p.after, walk.coordinate), column, walk.window(column), y);
  }
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);

#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Chunk held;
    held.load(p.before, walk, 0);
    Value shift[WIDTH], sums[2 * WIDTH];
    first_mean(p, walk, team, held, shift);
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] = Value(0);
    held.begin_pass();
    add_deviations(p, walk, 0, held, shift, sums);
#pragma unroll 1
    for (i64 chunk = 1; chunk < p.sizes.chunks; ++chunk) {
      held.load(p.before, walk, chunk);
      add_deviations(p, walk, chunk, held, shift, sums);
    }
    team.all<Plus>(sums);

    Value mean[WIDTH], correction[WIDTH], variance[WIDTH], inverse[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      correction[w] = CENTRED ? sums[w] * p.share : Value(0);
      variance[w] = sums[WIDTH + w] * p.share - correction[w] * correction[w];
      mean[w] = shift[w] + correction[w];
      inverse[w] = inverse_sqrt(variance[w] + p.epsilon);
    }
#if TRAINING
#if CENTRED
    store_of_row<Mean>(p.mean, walk, mean);
#endif
    store_of_row<Inverse>(p.inverse, walk, inverse);
#if RUNNING
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) variance[w] *= p.unbiased;
    store_of_row<Variance>(p.variance, walk, variance);
#endif
#endif
    held.begin_pass();
    store_chunk(p, walk, p.sizes.chunks - 1, held, shift, correction, inverse);
#pragma unroll 1
    for (i64 chunk = p.sizes.chunks - 2; chunk >= 0; --chunk) {
      held.load(p.before, walk, chunk);
      store_chunk(p, walk, chunk, held, shift, correction, inverse);
    }
  }
  team.leave();
}
