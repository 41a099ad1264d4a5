// attention_backward_sums: dq = scale * sums, from the sums that attention_backward_wgmma.cu leaves; in fp8 the factor
// is that of factor_of. A tile whose queries attend to no key becomes 0. With IS_SPLIT it also adds the sums of dk and
// dv of tiles of keys that several blocks shared, in their order.
//
// Block: a tile of TILE_Q queries of one head, or a part of a tile of TILE_KV keys. A thread has 8 columns of rows r
// and r + 8.
// Launch: TILE_Q / 2 threads for each 8 columns of q; a block for each tile of queries, then the blocks of each shared
// tile of keys, those of dk first.
// Macros: OUT KEY_OUT (of dq, of dk and dv) TILE_Q HEAD_QK TILE_KV HEAD_V IS_FP8 IS_SPLIT.

#include "attention_backward_scaling.cuh"
#include "attention_key_order.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "tile_sums.cuh"

typedef QuerySumsOf<TILE_Q, HEAD_QK> QuerySums;

template <class Sums> constexpr int threads_of() { return Sums::NUMBERS / 16; }
constexpr int THREADS = threads_of<QuerySums>();

template <class Out> struct Gradient {
  Heads<Out> to;
  const f32* sums;  // (split, tile)
  Divider heads;    // heads of a batch
};

struct QueryParams {
  Gradient<OUT> dq;
  Divider query_tiles;  // tiles of a head
  const u32* turns;     // [batch][head][tile of queries]: 0 where no sum was stored
  Backward problem;
};

// Parameters for tiles of keys with splits.
template <bool IS_THERE> struct KeyParams {
  Gradient<KEY_OUT> dk, dv;
  KeyOrder keys;
  u32 all_query_tiles;
};
template <> struct KeyParams<false> {};

// Each base class begins with a member of 8 bytes, so none lies in the tail padding of another: the layout is that of
// one struct, as the host writes it.
struct Params : QueryParams, KeyParams<IS_SPLIT> {};

// Stores a thread's part of the gradient of `tile`, which has ROWS rows: adds the sums of `count` splits, the first at
// index `index`, with a stride of `apart` numbers.
template <int ROWS, class Sums, class Out>
__device__ __forceinline__ void store_sums(const Backward& problem, const Gradient<Out>& gradient, Result result,
                                           u32 index, TileIndex tile, u32 thread, i32 count, i64 apart, i32 rows,
                                           i32 size) {
  constexpr u32 GROUPS = Sums::COLUMN_PARTS * Sums::BLOCKS;
  const u32 group = thread % GROUPS, pair_of_rows = thread / GROUPS, row = pair_of_rows / 8 * 16 + pair_of_rows % 8;
  const u32 part = Sums::COLUMN_PARTS > 1 ? group / Sums::BLOCKS : row / 64;
  const f32* const first = gradient.sums + i64(index) * Sums::NUMBERS +
                           Sums::at(part, group % Sums::BLOCKS, row % 64 / 16 * WARP_SIZE + row % 8 * 4);
  f32 sums[1][4][4] = {};  // [pair of columns]: two columns of one row, then of the other
#pragma unroll 4
  for (i32 split = 0; split < count; ++split) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      f32 addends[4];
      load<Stream, 4>(addends, first + split * apart + pair * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[0][pair][i] += addends[i];
    }
  }
  const i32 batch = i32(gradient.heads.divide(tile.row));
  const i32 head = i32(tile.row - batch * gradient.heads.divisor) * gradient.to.sharing;
  const f32 factor = factor_of(problem, result, sums);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i32 own_row = i32(tile.column) * ROWS + row + half * 8;
    Out results[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) results[i] = convert<Out>(sums[0][i / 2][half * 2 + i % 2] * factor);
    if (own_row < rows && group * 8 < size) store<8>(gradient.to.at(batch, head, own_row) + group * 8, results);
  }
}

// Stores a thread's part of dk or dv (`gradient`) of a tile of keys.
template <class Sums, class Params>
__device__ __forceinline__ void store_key_sums(const Params& p, const Gradient<KEY_OUT>& gradient, Result result,
                                               u32 split_tile, u32 thread, i32 size) {
  if (thread >= threads_of<Sums>()) return;
  const i64 apart = i64(p.keys.split_tiles()) * Sums::NUMBERS;
  store_sums<TILE_KV, Sums>(p.problem, gradient, result, split_tile, p.keys.tile(p.keys.whole_tiles + split_tile),
                            thread, p.keys.splits, apart, p.problem.keys, size);
}

// Stores the block's part of dk or of dv and returns true; returns false where the block has a tile of queries.
template <class Params> __device__ __forceinline__ bool store_gradients_of_keys(const Params& p) {
  if constexpr (IS_SPLIT) {
    if (blockIdx.x >= p.all_query_tiles) {
      typedef KeySumsOf<TILE_KV, HEAD_QK> KeySums;
      typedef KeySumsOf<TILE_KV, HEAD_V> ValueSums;
      constexpr u32 OF_DK = (threads_of<KeySums>() + THREADS - 1) / THREADS;
      constexpr u32 OF_BOTH = OF_DK + (threads_of<ValueSums>() + THREADS - 1) / THREADS;
      const u32 index = blockIdx.x - p.all_query_tiles, tile = index / OF_BOTH, share = index % OF_BOTH;
      const u32 thread = share * THREADS + threadIdx.x;
      if (share < OF_DK) {
        store_key_sums<KeySums>(p, p.dk, OF_K, tile, thread, p.problem.size_qk);
      } else {
        store_key_sums<ValueSums>(p, p.dv, OF_V, tile, thread - OF_DK * THREADS, p.problem.size_v);
      }
      return true;
    }
  }
  return false;
}

// Stores dq of the block's tile of queries.
__device__ __forceinline__ void store_gradient_of_queries(const Params& p) {
  const i32 count = p.turns[blockIdx.x] > 0;
  const u32 head = p.query_tiles.divide(blockIdx.x);
  const TileIndex tile = {head, blockIdx.x - head * p.query_tiles.divisor};
  store_sums<TILE_Q, QuerySums>(p.problem, p.dq, OF_Q, blockIdx.x, tile, threadIdx.x, count, 0, p.problem.queries,
                                p.problem.size_qk);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  wait_for_previous_kernel();
  if (!store_gradients_of_keys(p)) store_gradient_of_queries(p);
}
