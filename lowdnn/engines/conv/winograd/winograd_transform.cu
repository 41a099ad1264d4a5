// winograd_transform: t[a, b, tile, c] = sum over i, j of L[a, i] * L[b, j] * x[n, c, y + i, x + j], 0 outside of x:
// the tiles of an image, of a filter or of a response, as factors of Winograd's products (transforms.cuh).
//
// Layouts: x has any strides, a flipped filter negative ones; t has one stride for each of (a, b), and rows of tiles or
// channels, the other index of which is contiguous. With CHUNK so many of a row's elements lie together, and the next
// so many chunk_stride behind them. PARTS: an element is two, the parts of an fp32 number for products by TF32
// (include/math/tf32_parts.cuh), the low one CHUNK elements behind the high one.
// tile = (n, tile row, tile column); a tile begins at (row, column) * STEP + origin.
// Block: 256 threads, each with one tile of one channel; CHANNELS_FIRST: neighbours are tiles, which are contiguous in
// t, otherwise channels. TURNED: channels are contiguous in x and tiles in t; a block has 32 tiles of 8 channels, a warp 4
// of these tiles.
// Shared memory: TURNED: t of the block's tiles and channels, [a, b][channel][tile], whose rows leave as whole lines.
// Launch: ceil(tiles * channels / 256) blocks of 256 threads; TURNED: ceil(tiles / 32) * ceil(channels / 8).
// Macros: TYPE of x and t; ALPHA; MATRIX, that of Filtering<ALPHA> which is L; INPUTS, its columns; STEP;
// CHANNELS_FIRST; TURNED; CHUNK, or 0; PARTS.

#include "include/math/division.cuh"
#include "include/math/tf32_parts.cuh"
#include "include/vector.cuh"
#include "transforms.cuh"

struct Params {
  const TYPE* x;
  TYPE* t;
  i64 image_stride, channel_stride, row_stride, column_stride;  // strides of x
  i64 product_stride, pitch, chunk_stride;  // strides of t
  i32 images, channels, rows, columns;  // extents of x; tiles and channels beyond are zeros
  i32 first_row, first_column;  // where tile 0 begins
  Divider fast;  // extent of the axis along which threads are neighbours; TURNED: blocks of channels
  Divider tiles[3];  // images, tile rows, tile columns
  i32 items;
};

constexpr u32 TURNED_TILES = 32, TURNED_CHANNELS = 8;

struct Item { u32 tile, channel; };

// This thread's item. TURNED: rows of t are padded to whole blocks of tiles.
__device__ __forceinline__ Item own_item(const Params& p) {
  const u32 number = TURNED ? blockIdx.x : blockIdx.x * 256 + threadIdx.x;
  const u32 slow = p.fast.divide(number), fast = number - slow * p.fast.divisor;
  if constexpr (TURNED) {
    return {slow * TURNED_TILES + threadIdx.x / TURNED_CHANNELS, fast * TURNED_CHANNELS + threadIdx.x % TURNED_CHANNELS};
  } else return CHANNELS_FIRST ? Item{fast, slow} : Item{slow, fast};
}

// Stores neighbouring elements at `to`.
template <class T, int COUNT> __device__ __forceinline__ void put(T* to, const f32 (&x)[COUNT]) {
  T whole[COUNT], low[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if constexpr (PARTS) {
      const Tf32Parts parts = tf32_parts(__float_as_uint(x[i]));
      whole[i] = __uint_as_float(parts.high), low[i] = __uint_as_float(parts.low);
    } else {
      whole[i] = convert<T>(x[i]);
    }
  }
  store<COUNT>(to, whole);
  if constexpr (PARTS) store<COUNT>(to + CHUNK, low);
}

// The place in t of the element of product 0.
__device__ __forceinline__ TYPE* place_in_t(const Params& p, u32 tile, u32 channel) {
  const u32 row = CHANNELS_FIRST ? channel : tile, along = CHANNELS_FIRST ? tile : channel;
  TYPE* const to = p.t + row * p.pitch;
  if constexpr (CHUNK > 0) return to + along / CHUNK * p.chunk_stride + along % CHUNK;
  else return to + along;
}

// Stores the products of a block's tiles in rows of tiles: a thread 4 tiles of a channel at a time, a warp whole lines.
// item: this thread's; its channel and tile of the block follow from the thread.
__device__ __forceinline__ void put_turned(const Params& p, const Item& item, const f32 (&t)[ALPHA][ALPHA]) {
  constexpr u32 GROUP = 4, GROUPS = TURNED_TILES / GROUP;
  constexpr u32 PITCH = TURNED_TILES + GROUP;  // a warp's tiles and channels are in different banks
  __shared__ __align__(16) f32 products[ALPHA * ALPHA][TURNED_CHANNELS][PITCH];
  const u32 own_tile = item.tile % TURNED_TILES, own_channel = item.channel % TURNED_CHANNELS;
#pragma unroll
  for (int product = 0; product < ALPHA * ALPHA; ++product) {
    products[product][own_channel][own_tile] = t[product / ALPHA][product % ALPHA];
  }
  __syncthreads();

  const u32 group = threadIdx.x % GROUPS * GROUP, channel = threadIdx.x / GROUPS % TURNED_CHANNELS;
  const u32 first_tile = item.tile - own_tile, first_channel = item.channel - own_channel;
  if (first_channel + channel >= u32(p.channels)) return;
  TYPE* const to = place_in_t(p, first_tile + group, first_channel + channel);
  constexpr u32 STEP_PRODUCTS = 256 / (GROUPS * TURNED_CHANNELS);
#pragma unroll
  for (u32 first = 0; first < ALPHA * ALPHA; first += STEP_PRODUCTS) {
    const u32 product = first + threadIdx.x / (GROUPS * TURNED_CHANNELS);
    const auto four = *reinterpret_cast<const Vector<f32, GROUP>*>(&products[product][channel][group]);
    put(to + product * p.product_stride, four.v);
  }
}

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  const Item item = own_item(p);
  const u32 tile = item.tile, channel = item.channel;
  if (!TURNED && blockIdx.x * 256 + threadIdx.x >= u32(p.items)) return;
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
  if constexpr (TURNED) {
    put_turned(p, item, t);
  } else {
    TYPE* const to = place_in_t(p, tile, channel);
#pragma unroll
    for (int a = 0; a < ALPHA; ++a) {
#pragma unroll
      for (int b = 0; b < ALPHA; ++b) put(to + (a * ALPHA + b) * p.product_stride, {t[a][b]});
    }
  }
}
