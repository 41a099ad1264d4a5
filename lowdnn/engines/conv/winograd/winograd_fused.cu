// winograd_fused: y[n, k, row, column] = epilogue(x * w), a convolution of 3 x 3 taps by Winograd's filtering F(2x2, 3x3)
// in one kernel: the factors of x, their products with those of w, and the results (transforms.cuh), with mma.sync.
//
// Layouts: x and y have any strides; t, the factors of w, is [plane of 16][chunk][filter][64 bytes of channels] with
// zeros up to whole tiles (winograd_transform.cu). tile = (n, tile row, tile column), of 2 x 2 pixels of y and 4 x 4 of x.
// Block: 32 tiles by TILE_N filters. Warp w of 16 has the products of plane w in registers. Channels come in chunks of
// 64 bytes. A thread has a patch of x: the word thread % 16 of the channels of tile thread / 16. It copies its pixels to
// shared memory one chunk ahead, and puts their factors into one of two stages; a barrier for each chunk publishes one
// stage and frees the other. Half of the warps transform before they multiply, the others after.
// Product: m = 16 tiles, n = 8 filters, k = 32 bytes of channels. Lane % 4 = t has the words 4t .. 4t + 3 of a chunk, in
// two steps of k, whose order both factors share: so it reads 16 bytes at once.
// Shared memory (dynamic): factors [stage][plane][tile][64 bytes], then patches [pixel][thread][4 bytes]. In the end
// sums [plane][tile][32 filters] of f32 take the place of the factors, with filters exchanged by 8 times tile % 4, so
// that accesses meet no bank twice.
// Launch: a block for each 32 tiles and TILE_N filters, 512 threads, 96 KiB of shared memory.
// Macros: TYPE of x, w and t; PRODUCT, how it is multiplied; TILE_N; WHOLE: a word of channels of x is one word of
// memory, which is copied at once.

#include "include/cp_async.cuh"
#include "include/math/division.cuh"
#include "include/optional.cuh"
#include "include/ptx/mma.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/tile/mma_tf32x3.cuh"
#include "include/vector.cuh"
#include "generated.cuh"
#include "transforms.cuh"

typedef Mma<PRODUCT> Product;

constexpr int PLANES = 16, THREADS = 512;
constexpr int CHUNK_BYTES = 64, WORDS = CHUNK_BYTES / 4;
constexpr int WORD = 4 / int(sizeof(TYPE)), CHANNELS = CHUNK_BYTES / int(sizeof(TYPE));
constexpr int TILES = THREADS / WORDS, PIXELS = 16;
constexpr int PLANE_BYTES = TILES * CHUNK_BYTES, STAGE_BYTES = PLANES * PLANE_BYTES, PIXEL_BYTES = THREADS * 4;
constexpr int BLOCKS_M = TILES / 16, BLOCKS_N = TILE_N / 8;
constexpr int RUN = 32;  // filters of which sums are exchanged at a time
static_assert(TILE_N % RUN == 0, "runs are whole");
static_assert(PLANES * TILES * RUN * 4 == 2 * STAGE_BYTES, "sums take the place of the factors");

// Blocks of 8 filters that are read ahead; three products leave registers for one.
template <class T> constexpr int AHEAD_OF = 2;
template <> constexpr int AHEAD_OF<tf32x3> = 1;
constexpr int AHEAD = AHEAD_OF<PRODUCT>;

struct Source {
  const TYPE* x;
  const TYPE* t;
  i64 image_stride, channel_stride, row_stride, column_stride;  // strides of x
  i64 plane_stride, chunk_stride;  // strides of t
  i32 channels, rows, columns;  // extents of x
  i32 first_row, first_column;  // where tile 0 begins
  i32 filters, out_rows, out_columns;  // extents of y
  Divider tiles[3];  // images, tile rows, tile columns
  i32 tile_count, chunks;
  Divider filter_blocks;
};
struct Params : Source, ArgsOf<Functor> {};

// A patch of 4 x 4 pixels of a word of channels.
struct Patch {
  const TYPE* from;
  u32 exists;  // a bit for each pixel
  u32 held;  // the shared-memory address of its first pixel

  __device__ __forceinline__ void place(const Params& p, u32 tile, u32 address) {
    i32 at[3];
    digits<3>(p.tiles, tile, at);
    const i32 row = at[1] * 2 + p.first_row, column = at[2] * 2 + p.first_column;
    from = p.x + at[0] * p.image_stride + row * p.row_stride + column * p.column_stride;
    held = address;
    exists = 0;
#pragma unroll
    for (int pixel = 0; pixel < PIXELS; ++pixel) {
      const bool is_inside = u32(row + pixel / 4) < u32(p.rows) && u32(column + pixel % 4) < u32(p.columns);
      if (is_inside && tile < u32(p.tile_count)) exists |= 1u << pixel;
    }
  }

  // Begins to copy the pixels' channels from `channel` on. Its loop over rows stays one: unrolled, it keeps an offset for
  // each pixel in registers.
  __device__ __forceinline__ void load(const Params& p, i32 channel) const {
    const TYPE* first = from + channel * p.channel_stride;
#pragma unroll 1
    for (int row = 0; row < 4; ++row, first += p.row_stride) {
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        const bool is_pixel = exists >> (row * 4 + column) & 1;
        const TYPE* const own = first + column * p.column_stride;
        const u32 to = held + (row * 4 + column) * PIXEL_BYTES;
        if constexpr (WHOLE) {
          cp_async<4>(to, own, is_pixel && channel < p.channels);
        } else {
          alignas(4) TYPE values[WORD];
#pragma unroll
          for (int i = 0; i < WORD; ++i) {
            TYPE value[1] = {};
            load_where<1>(is_pixel && channel + i < p.channels, value, own + i * p.channel_stride);
            values[i] = value[0];
          }
          store_shared_32(to, *reinterpret_cast<const u32*>(&values));
        }
      }
    }
    cp_async_commit();
  }

  // Stores the factors of what was loaded, one word for each plane, from the shared-memory address `to` on. It reads
  // rows of pixels when their factors are next, since there are no registers for all.
  __device__ __forceinline__ void put(u32 to) const {
    cp_async_wait<0>();
    f32 x[WORD][4][4];
    read_row(x, 0), read_row(x, 2);
    put_row(x, 0, to);
    read_row(x, 1);
    put_row(x, 1, to), put_row(x, 2, to);
    read_row(x, 3);
    put_row(x, 3, to);
  }

 private:
  __device__ __forceinline__ void read_row(f32 (&x)[WORD][4][4], int row) const {
#pragma unroll
    for (int column = 0; column < 4; ++column) {
      const u32 word = load_shared_32(held + (row * 4 + column) * PIXEL_BYTES);
      const TYPE* const values = reinterpret_cast<const TYPE*>(&word);
#pragma unroll
      for (int channel = 0; channel < WORD; ++channel) x[channel][row][column] = widen(values[channel]);
    }
  }

  __device__ __forceinline__ void put_row(const f32 (&x)[WORD][4][4], int row, u32 to) const {
    f32 t[WORD][4];
#pragma unroll
    for (int channel = 0; channel < WORD; ++channel) row_along_both(Filtering<4>::DATA, row, x[channel], t[channel]);
#pragma unroll
    for (int column = 0; column < 4; ++column) {
      alignas(4) TYPE values[WORD];
#pragma unroll
      for (int channel = 0; channel < WORD; ++channel) values[channel] = convert<TYPE>(t[channel][column]);
      const u32 word = Product::operand(*reinterpret_cast<const u32*>(&values));
      store_shared_32(to + (row * 4 + column) * PLANE_BYTES, word);
    }
  }
};

// A warp's sums: those of its plane, for all tiles and filters of the block.
struct Sums {
  f32 values[BLOCKS_M][BLOCKS_N][4];
  uint4 ahead[AHEAD];  // the factors of w that are multiplied next: 16 bytes of a lane for each 8 filters

  // filters: the plane's and the lane's factors of w in a chunk.
  __device__ __forceinline__ void read(const TYPE* filters, int block) {
    ahead[block % AHEAD] = __ldg(reinterpret_cast<const uint4*>(filters + block * 8 * CHANNELS));
  }

  // factors: the plane's in shared memory.  filters: this chunk's factors of w, and on return the next one's.
  // goes_on: whether there is a next one.
  __device__ __forceinline__ void add(u32 factors, const TYPE*& filters, i64 chunk_stride, bool goes_on) {
    const u32 lane = threadIdx.x % WARP_SIZE, own = factors + lane * 16;
    u32 a[BLOCKS_M][2][4];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
      const uint4 low = load_shared_128(own + i * 16 * CHUNK_BYTES);
      const uint4 high = load_shared_128(own + (i * 16 + 8) * CHUNK_BYTES);
      a[i][0][0] = low.x, a[i][0][1] = high.x, a[i][0][2] = low.y, a[i][0][3] = high.y;
      a[i][1][0] = low.z, a[i][1][1] = high.z, a[i][1][2] = low.w, a[i][1][3] = high.w;
    }
#pragma unroll
    for (int block = 0; block < BLOCKS_N; ++block) {
      const uint4 b = ahead[block % AHEAD];
      if (block + AHEAD == BLOCKS_N) filters += chunk_stride;
      if (block + AHEAD < BLOCKS_N || goes_on) read(filters, (block + AHEAD) % BLOCKS_N);
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i) Product::apply(values[i][block], a[i][0], Product::operand(b.x), Product::operand(b.y));
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i) Product::apply(values[i][block], a[i][1], Product::operand(b.z), Product::operand(b.w));
    }
  }

  // Writes the sums of RUN filters.  to: the plane's, [tile][filter].
  __device__ __forceinline__ void put(f32* to, int run) const {
    const u32 lane = threadIdx.x % WARP_SIZE, row = lane / 4, turned = row % 4 * 8;
#pragma unroll
    for (int block = 0; block < RUN / 8; ++block) {
      const u32 column = (block * 8 + lane % 4 * 2) ^ turned;
#pragma unroll
      for (int half = 0; half < 2 * BLOCKS_M; ++half) {
        const f32(&sum)[4] = values[half / 2][run * (RUN / 8) + block];
        const f32 pair[2] = {sum[half % 2 * 2], sum[half % 2 * 2 + 1]};
        *reinterpret_cast<Vector<f32, 2>*>(to + (half * 8 + row) * RUN + column) = {pair[0], pair[1]};
      }
    }
  }
};

// Transforms and stores the results of two filters of a tile.  sums: [plane][tile of the block][filter].
__device__ __forceinline__ void finish(const Params& p, const f32* sums, u32 own_tile, u32 column, u32 tile, i32 filter) {
  f32 m[2][4][4], y[2][2][2];
  const f32* const from = sums + own_tile * RUN + (column ^ own_tile % 4 * 8);
#pragma unroll
  for (int plane = 0; plane < PLANES; ++plane) {
    const auto pair = *reinterpret_cast<const Vector<f32, 2>*>(from + plane * (TILES * RUN));
    m[0][plane / 4][plane % 4] = pair.v[0], m[1][plane / 4][plane % 4] = pair.v[1];
  }
  back_along_both(Filtering<4>::RESULTS, m[0], y[0]);
  back_along_both(Filtering<4>::RESULTS, m[1], y[1]);
  i32 place[3];
  digits<3>(p.tiles, tile, place);
#pragma unroll
  for (int pixel = 0; pixel < 4; ++pixel) {
    const i64 at[4] = {place[0], 0, place[1] * 2 + pixel / 2, place[2] * 2 + pixel % 2};
    if (at[2] >= p.out_rows || at[3] >= p.out_columns) continue;
    const f32 own[2] = {y[0][pixel / 2][pixel % 2], y[1][pixel / 2][pixel % 2]};
    const Functor::Cursor cursor = Functor::cursor(args_of<Functor>(p), at);
    Functor::apply<2>(args_of<Functor>(p), cursor, filter, count_among<2>(p.filters - filter), own);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const u32 block = p.filter_blocks.divide(blockIdx.x);
  const u32 tile = block * TILES;
  const i32 filter = (blockIdx.x - block * p.filter_blocks.divisor) * TILE_N;

  const u32 stage = shared_address(memory), own_factors = stage + threadIdx.x * 4;
  Patch patch;
  patch.place(p, tile + threadIdx.x / WORDS, own_factors + 2 * STAGE_BYTES);
  const i32 own_channel = i32(threadIdx.x % WORDS) * WORD;
  const auto load = [&](i32 chunk) {
    if (chunk < p.chunks) patch.load(p, chunk * CHANNELS + own_channel);
  };
  const auto put = [&](i32 chunk) {
    if (chunk < p.chunks) patch.put(own_factors + chunk % 2 * STAGE_BYTES);
  };
  load(0);
  put(0);
  load(1);

  Sums sums = {};
  const TYPE* filters = p.t + warp * p.plane_stride + (i64(filter) * 4 + lane) * (CHANNELS / 4);
#pragma unroll
  for (int block = 0; block < AHEAD; ++block) sums.read(filters, block);
  __syncthreads();
  const bool is_early = warp / 4 % 2;
#pragma unroll 1
  for (i32 chunk = 0; chunk < p.chunks; ++chunk) {
    if (is_early) put(chunk + 1), load(chunk + 2);
    sums.add(stage + chunk % 2 * STAGE_BYTES + warp * PLANE_BYTES, filters, p.chunk_stride, chunk + 1 < p.chunks);
    if (!is_early) put(chunk + 1), load(chunk + 2);
    __syncthreads();
  }

  f32* const exchanged = reinterpret_cast<f32*>(memory);
#pragma unroll
  for (int run = 0; run < TILE_N / RUN; ++run) {
    if (run > 0) __syncthreads();  // the sums of the run before have been read
    sums.put(exchanged + warp * (TILES * RUN), run);
    __syncthreads();
#pragma unroll 1
    for (u32 item = threadIdx.x; item < TILES * (RUN / 2); item += THREADS) {
      const u32 own_tile = item / (RUN / 2), column = item % (RUN / 2) * 2;
      const i32 own_filter = filter + run * RUN + column;
      if (tile + own_tile < u32(p.tile_count) && own_filter < p.filters)
        finish(p, exchanged, own_tile, column, tile + own_tile, own_filter);
    }
  }
}
