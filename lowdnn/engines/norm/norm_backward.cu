// norm_backward: for each row, with xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// and, with GRADIENTS, the sums over this block's rows of dy * xhat and (2) of dy, for each element of a row. Without
// CENTRED the mean is 0 and average(g) is left out.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; CLUSTER blocks share rows. A row that fits the threads'
// registers is read once; of a longer one all chunks but the last are read again. GRADIENTS needs rows of one chunk,
// along the vector axis: each thread then has the same elements of all of its rows, and sums them in registers; the
// slots of a block join theirs in order, and the blocks theirs in the workspace, [blocks / CLUSTER][elements of a row].
// Shared memory (static): RowTeam's; with GRADIENTS and several slots, VECTOR sums of each thread.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW; INDEX: u32 below 2^31 rows and
// groups, else i64; CENTRED; SCALED: whether there is a scale; GRADIENTS: 0, 1 (dscale) or 2 (dscale and dbias).

#include "include/rows.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, ITEMS, CLUSTER, INDEX> Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH> Team;

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value share;  // 1 / elements of a row
#if GRADIENTS
  Value* gradients[GRADIENTS];
#endif
  Data::Args x;
  Prologue::Args dy;
  Epilogue::Args dx;
  Inverse::Args inverse;
#if CENTRED
  Mean::Args mean;
#endif
#if SCALED
  Scale::Args scale;
#endif
};

constexpr int WIDTH = Tile::WIDTH;

// What a thread holds of its rows.
struct Operands {
  RowChunk<Data, Tile, AS_READ> x;
  RowChunk<Prologue, Tile, AS_READ> dy;
  Value mean[WIDTH], inverse[WIDTH];

  __device__ __forceinline__ void load(const Params& p, RowWalk<Tile>& walk, i64 chunk) {
    x.load(p.x, walk, chunk);
    dy.load(p.dy, walk, chunk);
  }

  __device__ __forceinline__ void begin_pass() {
    x.begin_pass();
    dy.begin_pass();
  }

  // What does not exist is 0 and adds nothing.
  __device__ __forceinline__ void get(const Params& p, const RowWalk<Tile>& walk, i64 column, int item,
                                      Value (&xhat)[VECTOR], Value (&dy_of)[VECTOR]) const {
    x.get(p.x, item, xhat);
    dy.get(p.dy, item, dy_of);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) xhat[v] = (xhat[v] - mean[v % WIDTH]) * inverse[v % WIDTH];
    walk.fill_absent(column, Value(0), xhat);
  }
};

// From dy to g. A chunk's scales are read whenever they are used: the cache has them, and registers are few.
struct Scales {
#if SCALED
  RowChunk<Scale, Tile, false> chunk;
#endif

  __device__ __forceinline__ Scales(const Params& p, RowWalk<Tile>& walk, i64 number) {
#if SCALED
    chunk.load(p.scale, walk, number);
#endif
  }

  __device__ __forceinline__ void apply(int item, Value (&g)[VECTOR]) const {
#if SCALED
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) g[v] *= chunk.held[item][v];
#endif
  }
};

__device__ __forceinline__ void add_products(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& held,
                                             Value (&sums)[2 * WIDTH]) {
  const Scales scales(p, walk, chunk);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value xhat[VECTOR], g[VECTOR];
    held.get(p, walk, column, i, xhat, g);
    scales.apply(i, g);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      sums[v % WIDTH] += g[v];
      sums[WIDTH + v % WIDTH] += g[v] * xhat[v];
    }
  }
}

__device__ __forceinline__ void store_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& held,
                                            const Value (&averages)[2 * WIDTH]) {
  const Scales scales(p, walk, chunk);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value xhat[VECTOR], g[VECTOR], dx[VECTOR];
    held.get(p, walk, column, i, xhat, g);
    scales.apply(i, g);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value centred = CENTRED ? g[v] - averages[v % WIDTH] : g[v];
      dx[v] = held.inverse[v % WIDTH] * (centred - xhat[v] * averages[WIDTH + v % WIDTH]);
    }
    Epilogue::apply<VECTOR>(p.dx, Epilogue::cursor(p.dx, walk.coordinate), column, walk.window(column), dx);
  }
}

#if GRADIENTS
__device__ __forceinline__ void add_gradients(const Params& p, RowWalk<Tile>& walk, const Operands& held,
                                              Value (&gradients)[GRADIENTS][ITEMS][VECTOR]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(0, i, column)) continue;
    Value xhat[VECTOR], dy[VECTOR];
    held.get(p, walk, column, i, xhat, dy);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      gradients[0][i][v] += dy[v] * xhat[v];
      if (GRADIENTS > 1) gradients[GRADIENTS - 1][i][v] += dy[v];
    }
  }
}

// The sums of a block's slots joined, and stored at the elements of a row.
__device__ __forceinline__ void store_gradients(const Params& p, RowWalk<Tile>& walk, Value (&sums)[ITEMS][VECTOR],
                                                Value* gradients) {
  __shared__ Value joined[Tile::SLOTS > 1 ? THREADS : 1][VECTOR];
  const i64 elements = p.sizes.groups * VECTOR;
  Value* const own = gradients + i64(blockIdx.x / CLUSTER) * elements;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if constexpr (Tile::SLOTS > 1) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) joined[threadIdx.x][v] = sums[i][v];
      __syncthreads();
      if (threadIdx.x < TEAM) {
        for (int slot = 1; slot < Tile::SLOTS; ++slot) {
#pragma unroll
          for (int v = 0; v < VECTOR; ++v) sums[i][v] += joined[slot * TEAM + threadIdx.x][v];
        }
      }
      __syncthreads();
    }
    const i64 group = walk.group(0, i);
    if (threadIdx.x < TEAM && group < p.sizes.groups) store<VECTOR>(own + group * VECTOR, sums[i]);
  }
}
#endif

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);
#if GRADIENTS
  Value gradients[GRADIENTS][ITEMS][VECTOR] = {};
#endif

#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Operands held = {};
    Value sums[2 * WIDTH] = {};
#if CENTRED
    load_of_row<Mean>(p.mean, walk, held.mean);
#endif
    load_of_row<Inverse>(p.inverse, walk, held.inverse);
    held.load(p, walk, 0);
#if GRADIENTS
    add_gradients(p, walk, held, gradients);
    held.begin_pass();
#endif
    add_products(p, walk, 0, held, sums);
#pragma unroll 1
    for (i64 chunk = 1; chunk < p.sizes.chunks; ++chunk) {
      held.load(p, walk, chunk);
      add_products(p, walk, chunk, held, sums);
    }
    team.all<Plus>(sums);
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] *= p.share;

    held.begin_pass();
    store_chunk(p, walk, p.sizes.chunks - 1, held, sums);
#pragma unroll 1
    for (i64 chunk = p.sizes.chunks - 2; chunk >= 0; --chunk) {
      held.load(p, walk, chunk);
      store_chunk(p, walk, chunk, held, sums);
    }
  }
#if GRADIENTS
#pragma unroll
  for (int k = 0; k < GRADIENTS; ++k) store_gradients(p, walk, gradients[k], p.gradients[k]);
#endif
  team.leave();
}
