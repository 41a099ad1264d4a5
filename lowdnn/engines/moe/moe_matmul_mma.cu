// moe_matmul_mma: output[to(r), n] = epilogue(sum over k of token[r, k] * weight[expert(r), k, n]) with mma.sync, for
// sm_80 and newer (token_groups.cuh, routing.cuh).
//
// Layouts: token's k is contiguous; B_K_MAJOR: weight's k is contiguous, otherwise its n; the other dimension has any
// stride. A launch before has gathered the rows (moe_gather.cu), so that from(r) = r.
// Block: blockIdx.x = row tile * column tiles + column tile. A row tile is TILE_M rows of one group; row tiles are
// numbered group by group, and blocks past the last one end at once.
// Shared memory: STAGES stages of (A tile, B tile), later the epilogue's staging (epilogue_tile.cuh); from byte `table`
// on, groups + 1 words for GroupTiles.
// Launch: WARPS_M * WARPS_N * 32 threads.

#include "include/epilogue/epilogue_tile.cuh"
#include "routed_map.cuh"
#include "include/tile/strided_operand.cuh"
#include "token_groups.cuh"
#include "generated.cuh"

typedef TileMma<TYPE, TILE_M, TILE_N, TILE_K, WARPS_M, WARPS_N, STAGES, true, B_K_MAJOR> Product;
typedef EpilogueTile<Product> Epilogue;

struct Params {
  const TYPE* token;
  const TYPE* weight;
  TokenGroups<OFFSET_TYPE> groups;
  i64 token_stride, weight_stride, expert_stride;  // rows, other dimension, experts
  i32 columns, depth, column_tiles, table;
  RoutedMap map;
  Functor::Args epilogue;
};

extern "C" __global__ void __launch_bounds__(Product::THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 shared[];
  const GroupTiles tiles = GroupTiles::of<TILE_M>(reinterpret_cast<u32*>(shared + p.table), p.groups);

  // The block's rows and their group.
  const u32 row_tile = blockIdx.x / p.column_tiles;
  if (row_tile >= tiles.all()) return;
  const u32 group = tiles.group_of(row_tile);
  const RowRange range = p.groups.range(group);
  const u32 row = range.first + (row_tile - tiles.before[group]) * TILE_M;
  const u32 column = blockIdx.x % p.column_tiles * TILE_N;

  const TYPE* a = p.token + row * p.token_stride;
  const TYPE* b = p.weight + p.groups.expert(group) * p.expert_stride + column * (B_K_MAJOR ? p.weight_stride : 1);
  StridedOperand<TYPE, Product::TileA, A_ALIGNMENT, Product::THREADS> load_a(a, p.token_stride, range.end - row,
                                                                             p.depth);
  StridedOperand<TYPE, Product::TileB, B_ALIGNMENT, Product::THREADS> load_b(b, p.weight_stride, p.columns - column,
                                                                             p.depth);
  Product product;
  product.run(load_a, load_b, shared_address(shared), (p.depth + TILE_K - 1) / TILE_K);

  const TilePlace place = {row, column, range.end, u32(p.columns)};
  Epilogue::run<Functor, VECTOR>(product, shared, place, p.map, p.epilogue);
}
