// winograd_transform: t[a, b, tile, c] = sum over i, j of L[a, i] * L[b, j] * x[n, c, y + i, x + j], 0 outside of x:
// the tiles of an image, of a filter or of a response, as factors of Winograd's products (transforms.cuh).
//
// Layouts: x has any strides, a flipped filter negative ones; t has one stride for each of (a, b), tile and c, and
// another for chunks of channels if it has CHUNK.
// tile = (n, tile row, tile column); a tile begins at (row, column) * STEP + origin.
// Block: 256 threads, each with one tile of one channel; CHANNELS_FIRST: neighbours are tiles, otherwise channels.
// Launch: ceil(tiles * channels / 256) blocks of 256 threads; no shared memory.
// Macros: TYPE of x and t; ALPHA; MATRIX, that of Filtering<ALPHA> which is L; INPUTS, its columns; STEP;
// CHANNELS_FIRST; CHUNK, channels of a chunk, or 0.

#include "include/math/division.cuh"
#include "include/vector.cuh"
#include "transforms.cuh"

struct Params {
  const TYPE* x;
  TYPE* t;
  i64 image_stride, channel_stride, row_stride, column_stride;  // strides of x
  i64 product_stride, tile_stride, of_channel_stride, chunk_stride;  // strides of t
  i32 images, channels, rows, columns;  // extents of x; tiles and channels beyond are zeros
  i32 first_row, first_column;  // where tile 0 begins
  Divider fast;  // extent of the axis along which threads are neighbours
  Divider tiles[3];  // images, tile rows, tile columns
  i32 items;
};

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 item = blockIdx.x * 256 + threadIdx.x;
  if (item >= u32(p.items)) return;
  const u32 slow = p.fast.divide(item), fast = item - slow * p.fast.divisor;
  const u32 tile = CHANNELS_FIRST ? fast : slow, channel = CHANNELS_FIRST ? slow : fast;
  i32 at[3];
  digits<3>(p.tiles, tile, at);

  // The tile's elements that exist.
  const i32 row = at[1] * STEP + p.first_row, column = at[2] * STEP + p.first_column;
  const TYPE* const from = p.x + at[0] * p.image_stride + channel * p.channel_stride;
  const bool is_image = at[0] < p.images && channel < u32(p.channels);
  f32 x[INPUTS][INPUTS], t[ALPHA][ALPHA];
#pragma unroll
  for (int i = 0; i < INPUTS; ++i) {
#pragma unroll
    for (int j = 0; j < INPUTS; ++j) {
      const bool exists = is_image && u32(row + i) < u32(p.rows) && u32(column + j) < u32(p.columns);
      TYPE value[1] = {};
      load_where<1>(exists, value, from + (row + i) * p.row_stride + (column + j) * p.column_stride);
      x[i][j] = widen(value[0]);
    }
  }

  along_both(Filtering<ALPHA>::MATRIX, x, t);
  TYPE* to = p.t + tile * p.tile_stride;
  if constexpr (CHUNK > 0) to += channel / CHUNK * p.chunk_stride + channel % CHUNK * p.of_channel_stride;
  else to += channel * p.of_channel_stride;
#pragma unroll
  for (int a = 0; a < ALPHA; ++a) {
#pragma unroll
    for (int b = 0; b < ALPHA; ++b) to[(a * ALPHA + b) * p.product_stride] = convert<TYPE>(t[a][b]);
  }
}
