// conv_stem_mma: a convolution forward of few channels on tensor cores with mma.sync, its image read in place:
//     y[n, k, o] = epilogue(sum over c, taps r of x[n, c, o * stride + r * gap + origin] * w(k, c, r))
// in each spatial axis.
//
// Layouts: x as in stem_rows.cuh; y dense channels-last; w any strides. There are always three spatial axes, with
// extents of 1 in front.
// Product: m = 16 output pixels, n = 8 filters, k = 32 bytes. For one row of taps an output reads ROW_TAPS neighbouring
// elements of x: in shared memory, in whole words, they are the product's k in place. If pixels are an odd number of
// 16-bit elements from one to the next, every second one begins inside a word. Then there are two classes of pixels,
// whose filters are shifted by an element, and a block of 16 is of one class. n may number the filters in any order:
// lane % 4 = t has RUN neighbouring ones, and writes them at once.
// Block: every gridDim.x-th tile of TILE_H * TILE_W outputs of a plane, while the box of x of the next one is copied
// (STAGES = 2). A warp computes UNIT neighbouring outputs of a tile at a time, PASS filters at a time.
// Shared memory (dynamic): filters [class][pass][step][pair of blocks][lane] of 16 bytes, offsets [step][t][half],
// masks [class] of the same shape, boxes [stage][depth tap, row][PITCH], and, if WRITE_WIDTH is less than a word, the
// outputs of each warp's unit.
// Launch: THREADS threads, any number of blocks; it may be a dependent launch (dependent_launch.cuh).
// Macros: as in stem_rows.cuh, and OUT filters; BLOCKS_M of 16 pixels; RUN_BLOCKS, PASS_RUNS; STAGES; MIN_BLOCKS on a
// multiprocessor; OUTPUT_RANK of the functor, which hands back the stored values.

#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/mma.cuh"
#include "include/epilogue/output_map.cuh"
#include "stem_rows.cuh"
#include "conv/whole_part.cuh"
#include "generated.cuh"

typedef Mma<TYPE> Product;
typedef Product::Accumulator Accumulator;
typedef Functor::Result Result;
typedef OutputMap<OUTPUT_RANK, OUTPUT_RANK - 1> Map;

constexpr int WARPS = THREADS / int(WARP_SIZE);
constexpr int STEPS = (WORDS + 7) / 8, STEPS_AT_ONCE = CLASSES == 1 && OUT <= 64 ? 2 : 1;
constexpr bool HAS_IDLE = STEPS * 8 * WORD != TAP_ROWS * ROW_TAPS;
constexpr int UNIT = BLOCKS_M * 16, TILE = TILE_H * TILE_W, UNITS = (TILE + UNIT - 1) / UNIT;
constexpr int RUN = 2 * RUN_BLOCKS, PASS_BLOCKS = PASS_RUNS * RUN_BLOCKS, PASS = 8 * PASS_BLOCKS;
constexpr int PASSES = (OUT + PASS - 1) / PASS;
static_assert(PASS_BLOCKS % 2 == 0, "filters are read for two blocks at a time");
static_assert(BLOCKS_M % CLASSES == 0, "a unit has as many blocks of all classes");
static_assert(CLASSES == 1 || TILE_H == 1 || TILE_W % 2 == 0, "neighbours in a tile are of different classes");

constexpr int VECTOR = whole_part(RUN, 8);  // outputs of a functor call
constexpr int WRITE_WIDTH = whole_part(OUT, VECTOR);
constexpr bool IS_STAGED = WRITE_WIDTH * int(sizeof(Result)) < 4;
static_assert(!IS_STAGED || PASSES == 1, "outputs leave through shared memory when they are complete");

constexpr int FILTER_BYTES = CLASSES * PASSES * STEPS * PASS_BLOCKS / 2 * int(WARP_SIZE) * 16;
constexpr int TABLE_BYTES = STEPS * 32, OUT_BYTES = UNIT * OUT * int(sizeof(Result));
constexpr int OFFSETS_AT = FILTER_BYTES, MASKS_AT = OFFSETS_AT + TABLE_BYTES;
constexpr int BOXES_AT = MASKS_AT + CLASSES * TABLE_BYTES;
constexpr int OUTPUTS_AT = BOXES_AT + STAGES * BOX_BYTES;

struct Params {
  StemImage image;
  const TYPE* w;
  Result* y;
  i64 w_first, w_filter, w_channel, w_taps[AXES];  // offset of w's first tap; strides of w
  i32 out_extents[AXES];
  Divider tiles[1 + AXES];  // (image, axes)
  i32 tile_count;
  Map map;
  Functor::Args epilogue;
};

// ---- staging --------------------------------------------------------------------------------------------------------

// Writes the filters of every lane to shared memory, in the order in which they are read.
__device__ __forceinline__ void stage_filters(const Params& p, u32 filters) {
#pragma unroll 2
  for (u32 item = threadIdx.x; item < u32(FILTER_BYTES / 16); item += THREADS) {
    const u32 lane = item % WARP_SIZE, pair = item / WARP_SIZE % (PASS_BLOCKS / 2);
    const u32 step = item / (WARP_SIZE * PASS_BLOCKS / 2) % STEPS;
    const u32 pass = item / (WARP_SIZE * PASS_BLOCKS / 2 * STEPS) % PASSES;
    const u32 of_class = item / (WARP_SIZE * PASS_BLOCKS / 2 * STEPS * PASSES), column = lane / 4;
    union {
      TYPE values[4 * WORD];
      u32 words[4];
    } own;
#pragma unroll
    for (int i = 0; i < 4 * WORD; ++i) {
      const u32 block = pair * 2 + i / (2 * WORD), half = i / WORD % 2;
      const u32 in_run = column / 2 * RUN + block % RUN_BLOCKS * 2 + column % 2;
      const u32 k = pass * PASS + block / RUN_BLOCKS * (4 * RUN) + in_run;
      const TapWord word(step * 8 + half * 4 + lane % 4, of_class);
      const i32 tap = (word.element + i % WORD) / CHANNELS, channel = (word.element + i % WORD) % CHANNELS;
      const i64 at = p.w_first + k * p.w_filter + channel * p.w_channel + word.row / TAPS_1 * p.w_taps[0] +
                     word.row % TAPS_1 * p.w_taps[1] + tap * p.w_taps[2];
      own.values[i] = k < OUT && word.has(i % WORD) ? p.w[at] : TYPE{};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) own.words[i] = Product::operand(own.words[i]);
    store_shared_16(filters + item * 16, own.words[0], own.words[1], own.words[2], own.words[3]);
  }
}

// Writes for each word of k its offset from a pixel's first word, and a mask of its elements that the pixel reads.
__device__ __forceinline__ void stage_tables(u32 memory) {
  for (u32 index = threadIdx.x; index < u32(STEPS * 8); index += THREADS) {
    const u32 step = index / 8, t = index / 2 % 4, half = index % 2, word = step * 8 + half * 4 + t;
    store_shared_32(memory + OFFSETS_AT + index * 4, word_offset(word));
#pragma unroll
    for (int of_class = 0; of_class < CLASSES; ++of_class) {
      u32 mask = 0;
#pragma unroll
      for (int i = 0; i < WORD; ++i)
        if (TapWord(word, of_class).has(i)) mask |= (~0u >> (32 - 8 * SIZE)) << (8 * SIZE * i);
      store_shared_32(memory + MASKS_AT + of_class * TABLE_BYTES + index * 4, mask);
    }
  }
}

// ---- product --------------------------------------------------------------------------------------------------------

// The sums of a warp's unit; a lane has two pixels of each block of 16.
struct Sums {
  Accumulator values[BLOCKS_M][PASS_BLOCKS][4];

  // rows: shared-memory addresses of the lane's pixels. filters: that of the pass's filters for class 0 and this lane.
  template <bool IS_MASKED>
  __device__ __forceinline__ void add(const u32 (&rows)[BLOCKS_M][2], u32 filters, u32 memory) {
    const u32 t = threadIdx.x % 4;
#pragma unroll(STEPS_AT_ONCE)
    for (int step = 0; step < STEPS; ++step) {
      const uint2 offset = load_shared_64(memory + OFFSETS_AT + (step * 4 + t) * 8);
#pragma unroll
      for (int of_class = 0; of_class < CLASSES; ++of_class) {
        uint2 mask = {~0u, ~0u};
        if constexpr (IS_MASKED)
          mask = load_shared_64(memory + MASKS_AT + of_class * TABLE_BYTES + (step * 4 + t) * 8);
        u32 a[BLOCKS_M / CLASSES][4];
#pragma unroll
        for (int i = 0; i < BLOCKS_M / CLASSES; ++i) {
#pragma unroll
          for (int word = 0; word < 4; ++word) {
            const u32 found = load_shared_32(rows[i * CLASSES + of_class][word % 2] + (word < 2 ? offset.x : offset.y));
            a[i][word] = Product::operand(IS_MASKED ? found & (word < 2 ? mask.x : mask.y) : found);
          }
        }
#pragma unroll
        for (int pair = 0; pair < PASS_BLOCKS / 2; ++pair) {
          const uint4 b = load_shared_128(filters + ((of_class * PASSES * STEPS + step) * (PASS_BLOCKS / 2) + pair) *
                                                        (int(WARP_SIZE) * 16));
#pragma unroll
          for (int i = 0; i < BLOCKS_M / CLASSES; ++i) {
            Product::apply(values[i * CLASSES + of_class][2 * pair], a[i], b.x, b.y);
            Product::apply(values[i * CLASSES + of_class][2 * pair + 1], a[i], b.z, b.w);
          }
        }
      }
    }
  }

  // Whether any sum may be a NaN; infinities of both signs look like one.
  __device__ __forceinline__ bool may_have_nan() const {
    Accumulator total = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
      for (int block = 0; block < PASS_BLOCKS; ++block)
#pragma unroll
        for (int v = 0; v < 4; ++v) total += values[i][block][v];
    return total != total;
  }

  __device__ __forceinline__ void part(int i, int half, int first, Accumulator (&own)[VECTOR]) const {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) own[v] = values[i][(first + v) / 2][2 * half + (first + v) % 2];
  }
};

// ---- kernel ---------------------------------------------------------------------------------------------------------

// Position of a tile in the output.
struct Place {
  i32 plane, row, column;  // plane counted over (image, depth)

  __device__ __forceinline__ explicit Place(const Params& p, const i32 (&tile)[1 + AXES])
      : plane(tile[0] * p.out_extents[0] + tile[1]), row(tile[2] * TILE_H), column(tile[3] * TILE_W) {}

  __device__ __forceinline__ bool has(const Params& p, u32 pixel) const {
    return pixel < TILE && row + i32(pixel / TILE_W) < p.out_extents[1] &&
           column + i32(pixel % TILE_W) < p.out_extents[2];
  }

  // Number of the tile's pixels that exist, for a tile of whole rows or of a part of one row.
  __device__ __forceinline__ i32 pixels(const Params& p) const {
    return TILE_H == 1 ? min(p.out_extents[2] - column, TILE_W) : min(p.out_extents[1] - row, TILE_H) * TILE_W;
  }

  // Index of a pixel of the tile in the output, counted over (image, axes).
  __device__ __forceinline__ i32 output(const Params& p, u32 pixel) const {
    return (plane * p.out_extents[1] + row + i32(pixel / TILE_W)) * p.out_extents[2] + column + i32(pixel % TILE_W);
  }
};

// Index in its unit of a lane's pixel: row `half` * 8 + lane / 4 of block i.
__device__ __forceinline__ u32 pixel_of(int i, int half) {
  const u32 row = half * 8 + threadIdx.x % WARP_SIZE / 4;
  return CLASSES == 1 ? i * 16 + row : i / CLASSES * (16 * CLASSES) + row * CLASSES + i % CLASSES;
}

// Writes the outputs of a unit in one pass over the filters: to `memory` if they are staged, otherwise to y.
__device__ __forceinline__ void put(const Params& p, const Place& place, const Sums& sums, u32 unit, int pass,
                                    u8* memory) {
  const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * BLOCKS_M; ++i) {
    const u32 in_unit = pixel_of(i / 2, i % 2), pixel = unit * UNIT + in_unit;
    if (!place.has(p, pixel)) continue;
    const i32 output = place.output(p, pixel);
    i64 coordinate[Map::RANK];
    p.map.locate_row(output, coordinate);
    coordinate[Map::RANK - 1] = 0;
    const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
    Result* const staged = reinterpret_cast<Result*>(memory + OUTPUTS_AT + warp * OUT_BYTES) + in_unit * OUT;
    Result* const to = IS_STAGED ? staged : p.y + i64(output) * OUT;
#pragma unroll
    for (int first = 0; first < PASS_RUNS * RUN; first += VECTOR) {
      const i32 column = pass * PASS + first / RUN * (4 * RUN) + lane % 4 * RUN + first % RUN;
      if (column >= OUT) continue;
      Accumulator own[VECTOR];
      Result results[VECTOR];
      sums.part(i / 2, i % 2, first, own);
      const i32 valid = OUT % VECTOR == 0 ? VECTOR : count_among<VECTOR>(OUT - column);
      Functor::apply<VECTOR>(p.epilogue, cursor, column, valid, own, results);
#pragma unroll
      for (int v = 0; v < VECTOR; v += WRITE_WIDTH) {
        Result part[WRITE_WIDTH];
#pragma unroll
        for (int j = 0; j < WRITE_WIDTH; ++j) part[j] = results[v + j];
        if (v < valid) store<WRITE_WIDTH>(to + column + v, part);
      }
    }
  }
}

// Stores a unit's staged outputs to y.
__device__ __forceinline__ void store_unit(const Params& p, const Place& place, u32 unit, u32 shared) {
  const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  __syncwarp();
  const i32 bytes = min(place.pixels(p) - i32(unit * UNIT), UNIT) * (OUT * i32(sizeof(Result)));
  u8* const to = reinterpret_cast<u8*>(p.y + i64(place.output(p, unit * UNIT)) * OUT);
  for (i32 at = lane * 16; at < bytes; at += WARP_SIZE * 16)
    store_whole(to + at, load_shared_128(shared + OUTPUTS_AT + warp * OUT_BYTES + at));
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const u32 shared = shared_address(memory);
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0), lane = threadIdx.x % WARP_SIZE;
  const auto stage_tile = [&](i32 number, u32 stage) {
    i32 tile[1 + AXES];
    digits<1 + AXES>(p.tiles, u32(number), tile);
    stage_box(p.image, tile, memory + BOXES_AT + stage * BOX_BYTES);
  };
  stage_tables(shared);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (i32(blockIdx.x) < p.tile_count) stage_tile(blockIdx.x, 0);
  cp_async_commit();
  stage_filters(p, shared);

  u32 stage = 0;
#pragma unroll 1
  for (i32 number = blockIdx.x; number < p.tile_count; number += gridDim.x) {
    if (STAGES > 1 && number + i32(gridDim.x) < p.tile_count) stage_tile(number + gridDim.x, stage ^ 1);
    cp_async_commit();
    cp_async_wait<STAGES - 1>();
    __syncthreads();

    i32 tile[1 + AXES];
    digits<1 + AXES>(p.tiles, u32(number), tile);
    const Place place(p, tile);
    const u32 box = shared + BOXES_AT + stage * BOX_BYTES;
#pragma unroll 1
    for (u32 unit = warp; unit < UNITS && place.row + i32(unit * UNIT / TILE_W) < p.out_extents[1]; unit += WARPS) {
      u32 rows[BLOCKS_M][2];
#pragma unroll
      for (int i = 0; i < 2 * BLOCKS_M; ++i) {
        const u32 pixel = unit * UNIT + pixel_of(i / 2, i % 2), own = pixel < TILE ? pixel : 0;
        rows[i / 2][i % 2] = box + output_offset(own / TILE_W, own % TILE_W);
      }
#pragma unroll 1
      for (int pass = 0; pass < PASSES; ++pass) {
        const u32 filters = shared + (pass * STEPS * (PASS_BLOCKS / 2) * int(WARP_SIZE) + lane) * 16;
        Sums sums = {};
        sums.add<false>(rows, filters, shared);
        // An infinity or a NaN next to a pixel's elements, times a zero of the filter, gives a NaN that the sum does
        // not have.
        if constexpr (HAS_IDLE) {
          if (__any_sync(~0u, sums.may_have_nan())) {
            sums = {};
            sums.add<true>(rows, filters, shared);
          }
        }
        put(p, place, sums, unit, pass, memory);
      }
      if constexpr (IS_STAGED) store_unit(p, place, unit, shared);
    }
    __syncthreads();
    if (STAGES > 1) {
      stage ^= 1;
    } else if (number + i32(gridDim.x) < p.tile_count) {
      stage_tile(number + gridDim.x, 0);
    }
  }
}
