// softmax_backward: from the output y and its gradient dy = prologue(...), for each row
//   dx = epilogue(y * (dy - sum of dy * y))        IS_LOG: dx = epilogue(dy - exp(y) * sum of dy)
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; CLUSTER blocks share rows. A row that fits the threads'
// registers is read once; of a longer one all chunks but the last are read again.
// Shared memory (static): RowTeam's.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER RESIDENT VECTOR KEPT IS_ROW; INDEX: u32 below 2^31 rows and groups,
// else i64; IS_LOG.

#include "include/row_team.cuh"
#include "softmax/exponential.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, VECTOR, THREADS, TEAM, SIDE, ITEMS, SHARING, CLUSTER, INDEX> Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, Tile::WIDTH> Team;

struct Params {
  RowSizes<Tile::RANK> sizes;
  Data::Args y;
  Prologue::Args dy;
  Epilogue::Args dx;
};

constexpr int WIDTH = Tile::WIDTH;

// What does not exist is 0 and adds nothing.
__device__ __forceinline__ void add_terms(const Value (&y)[ITEMS][VECTOR], const Value (&dy)[ITEMS][VECTOR],
                                          Value (&sum)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) sum[v % WIDTH] += IS_LOG ? dy[i][v] : dy[i][v] * y[i][v];
  }
}

__device__ __forceinline__ void store_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk,
                                            const Value (&y)[ITEMS][VECTOR], const Value (&dy)[ITEMS][VECTOR],
                                            const Value (&sum)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value dx[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      dx[v] = IS_LOG ? dy[i][v] - exponential(y[i][v]) * sum[v % WIDTH] : y[i][v] * (dy[i][v] - sum[v % WIDTH]);
    }
    Epilogue::apply<VECTOR>(p.dx, Epilogue::cursor(p.dx, walk.coordinate), column, VECTOR, dx);
  }
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);

#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Value y[ITEMS][VECTOR], dy[ITEMS][VECTOR], sum[WIDTH] = {};
    load_chunk<Data>(p.y, walk, 0, y);
    load_chunk<Prologue>(p.dy, walk, 0, dy);
    add_terms(y, dy, sum);
#pragma unroll 1
    for (i64 chunk = 1; chunk < p.sizes.chunks; ++chunk) {
      load_chunk<Data>(p.y, walk, chunk, y);
      load_chunk<Prologue>(p.dy, walk, chunk, dy);
      add_terms(y, dy, sum);
    }
    team.all<Plus>(sum);

    store_chunk(p, walk, p.sizes.chunks - 1, y, dy, sum);
#pragma unroll 1
    for (i64 chunk = p.sizes.chunks - 2; chunk >= 0; --chunk) {
      load_chunk<Data>(p.y, walk, chunk, y);
      load_chunk<Prologue>(p.dy, walk, chunk, dy);
      store_chunk(p, walk, chunk, y, dy, sum);
    }
  }
  team.leave();
}
