// conv_direct:
//     y[n, k, o] = epilogue(sum over c, r of x[n, g * channels + c, o * stride + r * dilation - padding] * w[k, c, r])
// with g = k / (filters of a group), as an implicit matrix product in the accumulator's type, without tensor cores.
//
// Layouts: x, w and y have any strides; positions outside x count as 0. A flipped filter comes with negative tap
// strides and the last tap's address. Product: pixels (n, o) by filters or, where PIXELS_ARE_COLUMNS (y's vector axis
// is its last one), filters by pixels; the reduction index kk = (r, c), c fastest where CHANNELS_FASTEST, or (c, r).
// Block: blockIdx.x = ((group * pixel tiles) + pixel tile) * filter tiles + filter tile; it computes TILE_ROWS x
// TILE_COLUMNS elements of y. The last extent of the pixel numbering is rounded up to PIXEL_RUN, so that a run of
// pixels never crosses the end of an image row.
// Shared memory (static): the two operand tiles, twice (SimtTile::Shared); of the tile's pixels, base offset and first
// position in x; of a step's reduction indices, twice, offsets in x and w and displacement in x.
// Launch: Tile::THREADS threads.
// Macros: X_TYPE W_TYPE SPATIAL (1 to 3) TILE_ROWS TILE_COLUMNS TILE_DEPTH PIXELS_ARE_COLUMNS CHANNELS_FASTEST; RUN:
// columns that the epilogue gets at a time, 4, or 1 where image rows or groups are not made of fours; X_ALONG_DEPTH,
// W_ALONG_DEPTH: 1 where neighbouring threads read neighbouring kk.

#include "include/numeric.cuh"
#include "include/tile_simt.cuh"
#include "generated.cuh"

typedef Functor::Accumulator Accumulator;
typedef SimtTile<Accumulator, TILE_ROWS, TILE_COLUMNS, TILE_DEPTH> Tile;

constexpr int TILE_PIXELS = PIXELS_ARE_COLUMNS ? TILE_COLUMNS : TILE_ROWS;
constexpr int TILE_FILTERS = PIXELS_ARE_COLUMNS ? TILE_ROWS : TILE_COLUMNS;
constexpr int PIXEL_RUN = PIXELS_ARE_COLUMNS ? RUN : 1;
constexpr int OUTSIDE = -(1 << 30);  // a first position from which no displacement leads into x

struct Params {
  const X_TYPE* x;
  const W_TYPE* w;  // of tap 0, which is the last one in memory where the filter is flipped
  i64 x_strides[SPATIAL + 2];  // of n, c, spatial axes
  i64 w_strides[SPATIAL + 2];  // of k, c, taps
  i32 x_extents[SPATIAL];
  i32 y_extents[SPATIAL];
  i32 taps[SPATIAL];
  i32 strides[SPATIAL];
  i32 dilations[SPATIAL];
  i32 paddings[SPATIAL];  // before the first element
  i32 group_channels;     // Cg
  i32 group_filters;      // filters of a group
  i32 tap_count;          // product of taps
  i32 depth;              // Cg * tap_count
  i32 pixel_count;        // n * o, the last extent rounded up to PIXEL_RUN
  i32 pixel_tiles;
  i32 filter_tiles;
  Functor::Args epilogue;
};

// An output pixel: image, and position in the image. Invalid where it only fills a run or a tile.
struct Pixel {
  i32 image;
  i32 position[SPATIAL];
  bool exists;

  __device__ __forceinline__ Pixel(const Params& p, u32 number) {
    exists = number < u32(p.pixel_count);
#pragma unroll
    for (int s = SPATIAL - 1; s >= 0; --s) {
      u32 extent = p.y_extents[s];
      if (s == SPATIAL - 1) extent = (extent + PIXEL_RUN - 1) / PIXEL_RUN * PIXEL_RUN;
      position[s] = number % extent;
      number /= extent;
    }
    exists = exists && position[SPATIAL - 1] < p.y_extents[SPATIAL - 1];
    image = number;
  }
};

// The entries' arrays fill whole 8-byte words, all of them written: the compiler reads entries in wide accesses.
constexpr int ENTRY_AXES = (SPATIAL + 1) / 2 * 2;

struct PixelEntry {
  i64 offset;  // of x[n, 0, first]
  i32 first[ENTRY_AXES];
};

struct DepthEntry {
  i64 x_offset;
  i64 w_offset;
  i32 displacement[ENTRY_AXES];
};

struct alignas(16) Shared {
  Tile::Shared tile;
  PixelEntry pixels[TILE_PIXELS];
  DepthEntry depths[2][TILE_DEPTH];
};

__device__ __forceinline__ PixelEntry pixel_entry(const Params& p, u32 number) {
  const Pixel pixel(p, number);
  PixelEntry entry = {};
  entry.offset = pixel.image * p.x_strides[0];
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) {
    entry.first[s] = pixel.exists ? pixel.position[s] * p.strides[s] - p.paddings[s] : OUTSIDE;
    entry.offset += entry.first[s] * p.x_strides[2 + s];
  }
  return entry;
}

__device__ __forceinline__ DepthEntry depth_entry(const Params& p, u32 kk) {
  const u32 fast_extent = CHANNELS_FASTEST ? p.group_channels : p.tap_count;
  const u32 fast = kk % fast_extent;
  const u32 slow = kk / fast_extent;
  const u32 channel = CHANNELS_FASTEST ? fast : slow;
  u32 tap = CHANNELS_FASTEST ? slow : fast;
  DepthEntry entry = {};
  entry.x_offset = channel * p.x_strides[1];
  entry.w_offset = channel * p.w_strides[1];
#pragma unroll
  for (int s = SPATIAL - 1; s >= 0; --s) {
    const i32 r = tap % p.taps[s];
    tap /= p.taps[s];
    entry.displacement[s] = r * p.dilations[s];
    entry.x_offset += entry.displacement[s] * p.x_strides[2 + s];
    entry.w_offset += r * p.w_strides[2 + s];
  }
  return entry;
}

// How a thread's COUNT elements of an EXTENT x TILE_DEPTH operand tile lie in it.
template <int EXTENT, bool ALONG_DEPTH> struct Share {
  static constexpr int COUNT = EXTENT * TILE_DEPTH / Tile::THREADS;
  static_assert(COUNT * Tile::THREADS == EXTENT * TILE_DEPTH, "even shares");

  static __device__ __forceinline__ int level(int thread, int i) {
    const int element = thread + i * Tile::THREADS;
    return ALONG_DEPTH ? element % TILE_DEPTH : element / EXTENT;
  }
  static __device__ __forceinline__ int position(int thread, int i) {
    const int element = thread + i * Tile::THREADS;
    return ALONG_DEPTH ? element / TILE_DEPTH : element % EXTENT;
  }
  template <class T>
  static __device__ __forceinline__ void put(int thread, const T (&staged)[COUNT],
                                             Accumulator (&tile)[TILE_DEPTH][EXTENT + Tile::GROUP]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) tile[level(thread, i)][position(thread, i)] = convert<Accumulator>(staged[i]);
  }
};
typedef Share<TILE_PIXELS, X_ALONG_DEPTH> XShare;
typedef Share<TILE_FILTERS, W_ALONG_DEPTH> WShare;

// Reads a thread's elements of x for one step, of whose reduction indices `levels` exist.
__device__ __forceinline__ void fetch_x(const Params& p, const X_TYPE* base, const Shared& shared,
                                        const DepthEntry (&depths)[TILE_DEPTH], int levels, int thread,
                                        X_TYPE (&staged)[XShare::COUNT]) {
#pragma unroll
  for (int i = 0; i < XShare::COUNT; ++i) {
    const int level = XShare::level(thread, i);
    const DepthEntry& depth = depths[level];
    const PixelEntry& pixel = shared.pixels[XShare::position(thread, i)];
    bool exists = level < levels;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) {
      const u32 position = pixel.first[s] + depth.displacement[s];
      exists = exists && position < u32(p.x_extents[s]);
    }
    staged[i] = exists ? base[pixel.offset + depth.x_offset] : X_TYPE{};
  }
}

// Reads a thread's elements of w for one step; `filters` of the tile exist.
__device__ __forceinline__ void fetch_w(const Params& p, const W_TYPE* base, const DepthEntry (&depths)[TILE_DEPTH],
                                        int levels, int filters, int thread, W_TYPE (&staged)[WShare::COUNT]) {
#pragma unroll
  for (int i = 0; i < WShare::COUNT; ++i) {
    const int level = WShare::level(thread, i);
    const int filter = WShare::position(thread, i);
    const bool exists = level < levels && filter < filters;
    staged[i] = exists ? base[filter * p.w_strides[0] + depths[level].w_offset] : W_TYPE{};
  }
}

__device__ __forceinline__ auto& pixel_tile(Shared& shared, int buffer) {
  if constexpr (PIXELS_ARE_COLUMNS) return shared.tile.columns[buffer];
  else return shared.tile.rows[buffer];
}

__device__ __forceinline__ auto& filter_tile(Shared& shared, int buffer) {
  if constexpr (PIXELS_ARE_COLUMNS) return shared.tile.rows[buffer];
  else return shared.tile.columns[buffer];
}

// Hands RUN consecutive elements along y's vector axis to the epilogue; `left` exist from the first one on.
__device__ __forceinline__ void finish(const Params& p, const Pixel& pixel, i32 filter, i32 column, i32 left,
                                       const Accumulator* values) {
  i64 coordinate[SPATIAL + 2] = {pixel.image, filter};
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) coordinate[2 + s] = pixel.position[s];
  Accumulator run[RUN];
#pragma unroll
  for (int i = 0; i < RUN; ++i) run[i] = values[i];
  const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
  Functor::apply<RUN>(p.epilogue, cursor, column, min(left, RUN), run);
}

extern "C" __global__ void __launch_bounds__(Tile::THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Shared shared;
  const int thread = threadIdx.x;

  // Which tile of which group.
  u32 rest = blockIdx.x;
  const int filter_start = int(rest % p.filter_tiles) * TILE_FILTERS;  // in the group
  rest /= p.filter_tiles;
  const u32 pixel_start = rest % p.pixel_tiles * TILE_PIXELS;
  const int group = rest / p.pixel_tiles;
  const int filters = p.group_filters - filter_start;               // left in the group
  const int first_filter = group * p.group_filters + filter_start;  // in y
  const X_TYPE* x = p.x + i64(group) * p.group_channels * p.x_strides[1];
  const W_TYPE* w = p.w + first_filter * p.w_strides[0];

  // The tables of the tile's pixels and of the first two steps, then the first step's operands.
  for (int i = thread; i < TILE_PIXELS; i += Tile::THREADS) shared.pixels[i] = pixel_entry(p, pixel_start + i);
  if (thread < 2 * TILE_DEPTH) shared.depths[thread / TILE_DEPTH][thread % TILE_DEPTH] = depth_entry(p, thread);
  __syncthreads();
  X_TYPE x_staged[XShare::COUNT];
  W_TYPE w_staged[WShare::COUNT];
  fetch_x(p, x, shared, shared.depths[0], p.depth, thread, x_staged);
  fetch_w(p, w, shared.depths[0], p.depth, filters, thread, w_staged);
  XShare::put(thread, x_staged, pixel_tile(shared, 0));
  WShare::put(thread, w_staged, filter_tile(shared, 0));
  __syncthreads();

  // The product: fetch step t + 1, multiply step t, put step t + 1 into the other buffer. The table of step t + 2
  // takes the place of step t's, which was last read before the barrier at the end of step t - 1.
  Tile tile(thread);
  int buffer = 0;
  for (int done = 0; done < p.depth; done += TILE_DEPTH) {
    const int left = p.depth - done - TILE_DEPTH;
    if (left > 0) {
      fetch_x(p, x, shared, shared.depths[buffer ^ 1], left, thread, x_staged);
      fetch_w(p, w, shared.depths[buffer ^ 1], left, filters, thread, w_staged);
    }
    tile.multiply(shared.tile, buffer);
    if (thread < TILE_DEPTH) shared.depths[buffer][thread] = depth_entry(p, done + 2 * TILE_DEPTH + thread);
    if (left > 0) {
      XShare::put(thread, x_staged, pixel_tile(shared, buffer ^ 1));
      WShare::put(thread, w_staged, filter_tile(shared, buffer ^ 1));
    }
    __syncthreads();
    buffer ^= 1;
  }

  // The epilogue, RUN columns at a time.
  tile.for_each_row([&](int row, const Accumulator(&values)[Tile::THREAD_COLUMNS]) {
    if constexpr (PIXELS_ARE_COLUMNS) {
      if (row >= filters) return;
#pragma unroll
      for (int j = 0; j < Tile::THREAD_COLUMNS; j += RUN) {
        const Pixel pixel(p, pixel_start + tile.column(j / Tile::GROUP) + j % Tile::GROUP);
        const i32 column = pixel.position[SPATIAL - 1];
        if (!pixel.exists) continue;
        finish(p, pixel, first_filter + row, column, p.y_extents[SPATIAL - 1] - column, &values[j]);
      }
    } else {
      const Pixel pixel(p, pixel_start + row);
      if (!pixel.exists) return;
#pragma unroll
      for (int j = 0; j < Tile::THREAD_COLUMNS; j += RUN) {
        const i32 column = tile.column(j / Tile::GROUP) + j % Tile::GROUP;
        if (column < filters) finish(p, pixel, 0, first_filter + column, filters - column, &values[j]);
      }
    }
  });
}
