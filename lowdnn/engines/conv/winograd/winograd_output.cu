// winograd_output: y[n, c, row, column] = epilogue(sum over a, b of L[a, i] * L[b, j] * m[a, b, tile, c]): the results of
// Winograd's products (transforms.cuh), or the gradient of the taps.
//
// Layouts: m has one stride for each of (a, b), tile and c; tile = (n, tile row, tile column), and element (i, j) of a
// tile is element (tile row * OUTPUTS + i, tile column * OUTPUTS + j) of y, where that exists.
// Block: 256 threads, each with one tile of one channel; CHANNELS_FIRST: neighbours are tiles, otherwise channels.
// Launch: ceil(tiles * channels / 256) blocks of 256 threads; no shared memory.
// Macros: ALPHA; MATRIX, that of Filtering<ALPHA> which is L; OUTPUTS, its columns; CHANNELS_FIRST.

#include "include/math/division.cuh"
#include "include/optional.cuh"
#include "generated.cuh"
#include "transforms.cuh"

struct Source {
  const f32* m;
  i64 product_stride, tile_stride, channel_stride;
  i32 rows, columns;  // extents of y
  Divider fast;  // extent of the axis along which threads are neighbours
  Divider tiles[3];  // images, tile rows, tile columns
  i32 items;
};
struct Params : Source, ArgsOf<Functor> {};

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 item = blockIdx.x * 256 + threadIdx.x;
  if (item >= u32(p.items)) return;
  const u32 slow = p.fast.divide(item), fast = item - slow * p.fast.divisor;
  const u32 tile = CHANNELS_FIRST ? fast : slow, channel = CHANNELS_FIRST ? slow : fast;
  i32 place[3];
  digits<3>(p.tiles, tile, place);

  const f32* const from = p.m + tile * p.tile_stride + channel * p.channel_stride;
  f32 m[ALPHA][ALPHA], y[OUTPUTS][OUTPUTS];
#pragma unroll
  for (int a = 0; a < ALPHA; ++a) {
#pragma unroll
    for (int b = 0; b < ALPHA; ++b) m[a][b] = from[(a * ALPHA + b) * p.product_stride];
  }
  back_along_both(Filtering<ALPHA>::MATRIX, m, y);

#pragma unroll
  for (int i = 0; i < OUTPUTS; ++i) {
#pragma unroll
    for (int j = 0; j < OUTPUTS; ++j) {
      const i64 at[4] = {place[0], channel, place[1] * OUTPUTS + i, place[2] * OUTPUTS + j};
      if (at[2] >= p.rows || at[3] >= p.columns) continue;
      const f32 sum[1] = {y[i][j]};
      const Functor::Cursor cursor = Functor::cursor(args_of<Functor>(p), at);
      Functor::apply<1>(args_of<Functor>(p), cursor, at[1], 1, sum);
    }
  }
}
