// softmax_backward: from the output y and its gradient dy = prologue(...), for each row
//   dx = epilogue(y * (dy - sum of dy * y))        IS_LOG: dx = epilogue(dy - exp(y) * sum of dy)
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Block: one group of rows for each slot, then one grid further on, and so on; CLUSTER blocks share rows. A row that
// fits the threads' registers is read once; of a longer one all chunks but the last are read again.
// Shared memory: RowTeam's; with LOOKS_AHEAD (dynamic) the next row of y, then of dy.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW NORM_GROUP CHUNKED;
// INDEX: u32 below 2^31 rows and groups, else i64; IS_LOG; LOOKS_AHEAD: whether and how the next row is prefetched
// (include/rows/next_row.cuh).

#include "include/exponential.cuh"
#include "include/rows/next_row.cuh"
#include "include/rows/row_team.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, NORM_GROUP, ITEMS, SHARING,
                CLUSTER, CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, Tile::WIDTH, false> Team;

struct Params {
  RowSizes<Tile::RANK> sizes;
  Data::Args y;
  Prologue::Args dy;
  Epilogue::Args dx;
};

constexpr int WIDTH = Tile::WIDTH;

struct Operands {
  RowChunk<Data, Tile, AS_READ> y;
  RowChunk<Prologue, Tile, AS_READ> dy;

  __device__ __forceinline__ void load(const Params& p, RowWalk<Tile>& walk, i64 chunk) {
    y.load(p.y, walk, chunk);
    dy.load(p.dy, walk, chunk);
  }
  __device__ __forceinline__ void begin_pass() {
    y.begin_pass();
    dy.begin_pass();
  }
  template <class Group>
  __device__ __forceinline__ void get(const Params& p, Group group, Value (&y_of)[Group::SIZE],
                                      Value (&dy_of)[Group::SIZE]) const {
    y.get(p.y, group, y_of);
    dy.get(p.dy, group, dy_of);
  }
};

struct Next {
  const Params& p;
  NextRow<Data, Tile, LOOKS_AHEAD> y;
  NextRow<Prologue, Tile, LOOKS_AHEAD> dy;
  RowWalk<Tile> walk;

  __device__ __forceinline__ Next(const Params& p, void* memory) : p(p), y(memory), dy(y.end()), walk(p.sizes) {
    walk.begin();
    copy();
  }

  // Loads the prefetched row, and begins the copies of the one after it.
  __device__ __forceinline__ void load(RowWalk<Tile>& own, Operands& cached) {
    y.load(p.y, own, cached.y);
    dy.load(p.dy, own, cached.dy);
    walk.next();
    copy();
  }

 private:
  __device__ __forceinline__ void copy() {
    y.release();
    y.copy(p.y, walk);
    dy.copy(p.dy, walk);
  }
};

__device__ __forceinline__ void add_terms(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& cached,
                                          Value (&sum)[WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value y[group.SIZE], dy[group.SIZE];
    cached.get(p, group, y, dy);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) sum[v % WIDTH] += IS_LOG ? dy[v] : dy[v] * y[v];
  });
}

__device__ __forceinline__ void store_gradient(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& cached,
                                               const Value (&sum)[WIDTH]) {
  store_chunk<Epilogue, Value>(p.dx, walk, chunk, [&](auto group, auto& dx) {
    Value y[group.SIZE], dy[group.SIZE];
    cached.get(p, group, y, dy);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      dx[v] = IS_LOG ? dy[v] - exponential(y[v]) * sum[v % WIDTH] : y[v] * (dy[v] - sum[v % WIDTH]);
    }
  });
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  extern __shared__ __align__(16) u8 memory[];
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);
  Next next(p, memory);
  const i64 chunks = Tile::chunks(p.sizes);

#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Operands cached;
    Value sum[WIDTH] = {};
    next.load(walk, cached);
    add_terms(p, walk, 0, cached, sum);
#pragma unroll 1
    for (i64 chunk = 1; chunk < chunks; ++chunk) {
      cached.load(p, walk, chunk);
      add_terms(p, walk, chunk, cached, sum);
    }
    team.all<Plus>(sum);

    cached.begin_pass();
    store_gradient(p, walk, chunks - 1, cached, sum);
#pragma unroll 1
    for (i64 chunk = chunks - 2; chunk >= 0; --chunk) {
      cached.load(p, walk, chunk);
      store_gradient(p, walk, chunk, cached, sum);
    }
  }
  team.leave();
}
