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
// Macros: THREADS TEAM SIDE ITEMS CLUSTER RESIDENT VECTOR KEPT IS_ROW; INDEX: u32 below 2^31 rows and groups, else i64;
// CENTRED; SCALED: whether there is a scale; GRADIENTS: 0, 1 (dscale) or 2 (dscale and dbias).

#include "include/rows.cuh"
#include "include/vector.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, VECTOR, THREADS, TEAM, SIDE, ITEMS, CLUSTER, INDEX> Tile;
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

// xhat and dy of a chunk.
__device__ __forceinline__ void load_values(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Value (&mean)[WIDTH],
                                            const Value (&inverse)[WIDTH], Value (&xhat)[ITEMS][VECTOR],
                                            Value (&dy)[ITEMS][VECTOR]) {
  load_chunk<Data>(p.x, walk, chunk, xhat);
  load_chunk<Prologue>(p.dy, walk, chunk, dy);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) xhat[i][v] = (xhat[i][v] - mean[v % WIDTH]) * inverse[v % WIDTH];
  }
}

// From dy to g.
__device__ __forceinline__ void scale_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk,
                                            Value (&g)[ITEMS][VECTOR]) {
#if SCALED
  Value scale[ITEMS][VECTOR];
  load_chunk<Scale>(p.scale, walk, chunk, scale);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) g[i][v] *= scale[i][v];
  }
#endif
}

// What does not exist is 0 and adds nothing.
__device__ __forceinline__ void add_products(const Value (&xhat)[ITEMS][VECTOR], const Value (&g)[ITEMS][VECTOR],
                                             Value (&sums)[2 * WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      sums[v % WIDTH] += g[i][v];
      sums[WIDTH + v % WIDTH] += g[i][v] * xhat[i][v];
    }
  }
}

__device__ __forceinline__ void store_chunk(const Params& p, RowWalk<Tile>& walk, i64 chunk,
                                            const Value (&xhat)[ITEMS][VECTOR], const Value (&g)[ITEMS][VECTOR],
                                            const Value (&inverse)[WIDTH], const Value (&averages)[2 * WIDTH]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    i64 column;
    if (!walk.locate(chunk, i, column)) continue;
    Value dx[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value centred = CENTRED ? g[i][v] - averages[v % WIDTH] : g[i][v];
      dx[v] = inverse[v % WIDTH] * (centred - xhat[i][v] * averages[WIDTH + v % WIDTH]);
    }
    Epilogue::apply<VECTOR>(p.dx, Epilogue::cursor(p.dx, walk.coordinate), column, VECTOR, dx);
  }
}

#if GRADIENTS
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
    Value mean[WIDTH] = {}, inverse[WIDTH] = {}, xhat[ITEMS][VECTOR], g[ITEMS][VECTOR], sums[2 * WIDTH] = {};
#if CENTRED
    load_of_row<Mean>(p.mean, walk, mean);
#endif
    load_of_row<Inverse>(p.inverse, walk, inverse);
    load_values(p, walk, 0, mean, inverse, xhat, g);
#if GRADIENTS
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        gradients[0][i][v] += g[i][v] * xhat[i][v];
        if (GRADIENTS > 1) gradients[GRADIENTS - 1][i][v] += g[i][v];
      }
    }
#endif
    scale_chunk(p, walk, 0, g);
    add_products(xhat, g, sums);
#pragma unroll 1
    for (i64 chunk = 1; chunk < p.sizes.chunks; ++chunk) {
      load_values(p, walk, chunk, mean, inverse, xhat, g);
      scale_chunk(p, walk, chunk, g);
      add_products(xhat, g, sums);
    }
    team.all<Plus>(sums);
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] *= p.share;

    store_chunk(p, walk, p.sizes.chunks - 1, xhat, g, inverse, sums);
#pragma unroll 1
    for (i64 chunk = p.sizes.chunks - 2; chunk >= 0; --chunk) {
      load_values(p, walk, chunk, mean, inverse, xhat, g);
      scale_chunk(p, walk, chunk, g);
      store_chunk(p, walk, chunk, xhat, g, inverse, sums);
    }
  }
#if GRADIENTS
#pragma unroll
  for (int k = 0; k < GRADIENTS; ++k) store_gradients(p, walk, gradients[k], p.gradients[k]);
#endif
  team.leave();
}
