// conv_stem_wgrad_mma: a convolution of few channels backward in the filter, on tensor cores with mma.sync, its image
// read in place:
//     slices[s][k][column of (taps r, c)] = sum over the tiles t = s, s + splits, ... over their outputs o of
//         dy[n, k, o] * x[n, c, o * stride + r * gap + origin]
// in each spatial axis.
//
// Layouts: x as in stem_rows.cuh; dy dense channels-last; slices [splits][filters][pitch] of f32, columns in the order
// (taps, channels) of cross-correlation, or with all taps FLIPPED. There are always three spatial axes, with extents of
// 1 in front.
// Product: m = 16 filters, n = 8 words of an output, first their low elements, then their high ones, k = 16 outputs of
// a row and a class. From two outputs' words a lane makes its operands of two blocks of n.
// Block: SLAB filters (those of one slab) of a split's tiles of TILE_H rows of TILE_W outputs of a plane, while the
// next one is copied (STAGES = 2). A team is WARPS_M * WARPS_N warps with BLOCKS_M blocks of filters and BLOCKS_N of 8
// words each; it takes every TEAMS-th run of 16 outputs of each class.
// Shared memory (dynamic): stages of (box of x, dy [place][DY_PITCH], the places of a run of outputs class by class);
// afterwards the teams' sums [team][filter][column].
// Launch: THREADS threads, splits * slabs blocks; it may be a dependent launch (dependent_launch.cuh).
// Macros: as in stem_rows.cuh, and FLIPPED; SLAB, DY_COPY elements; BLOCKS_M, BLOCKS_N, WARPS_M, WARPS_N; STAGES;
// MIN_BLOCKS on a multiprocessor.

#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"
#include "stem_rows.cuh"

typedef Mma<TYPE> Product;
static_assert(WORD == 2, "two elements of a word");

constexpr int WARPS = THREADS / int(WARP_SIZE), TEAMS = WARPS / (WARPS_M * WARPS_N);
constexpr int RUN = 16;                                  // outputs of one class
constexpr int RUNS = TILE_H * TILE_W / (RUN * CLASSES);  // runs of a tile
constexpr int TEAM_FILTERS = WARPS_M * BLOCKS_M * 16;
constexpr int DY_PITCH = TEAM_FILTERS * SIZE + 16;  // bytes; eight neighbouring places lie in different banks
constexpr int STAGE_BYTES = BOX_BYTES + TILE_H * TILE_W * DY_PITCH;
constexpr int COLUMNS = TAP_ROWS * ROW_TAPS;
static_assert(TILE_W % (RUN * CLASSES) == 0, "runs are in one row");
static_assert(TEAMS * WARPS_M * WARPS_N == WARPS, "every warp is in a team");
static_assert(TEAM_FILTERS >= SLAB && BLOCKS_N * WARPS_N * 8 >= WORDS, "a team has all sums");

struct Params {
  StemImage image;
  const TYPE* dy;
  f32* slices;
  i64 pitch, slice_stride;  // elements
  i32 outputs[AXES];
  Divider tiles[1 + AXES];  // (image, axes)
  i32 tile_count, splits, filters;
  Divider slabs;
};

// Copies the slab's elements of dy of a tile (image, axes); elements that do not exist become 0.
__device__ __forceinline__ void stage_response(const Params& p, const i32 (&tile)[1 + AXES], i32 first_filter, u8* to) {
  constexpr int PIECES = TEAM_FILTERS / DY_COPY;  // pieces of an output
  const i32 plane = tile[0] * p.outputs[0] + tile[1];
  const TYPE* const first = p.dy + i64(plane) * p.outputs[1] * p.outputs[2] * p.filters;
  stage_rows<DY_COPY, TILE_H, TILE_W * PIECES>(
      to,
      [&](i32 row, const TYPE*& from) {
        const i32 of_plane = tile[2] * TILE_H + row;
        from = first + i64(of_plane) * p.outputs[2] * p.filters;
        return of_plane < p.outputs[1];
      },
      [&](i32 piece, i32& element) {
        const i32 column = tile[3] * TILE_W + piece / PIECES, filter = first_filter + piece % PIECES * DY_COPY;
        element = column * p.filters + filter;
        return column < p.outputs[2] && filter < p.filters;
      },
      [](i32 row, i32 piece) {
        const u32 column = piece / PIECES, run = column / (RUN * CLASSES), in_run = column % (RUN * CLASSES);
        const u32 place = row * TILE_W + run * (RUN * CLASSES) + in_run % CLASSES * RUN + in_run / CLASSES;
        return place * DY_PITCH + piece % PIECES * (DY_COPY * SIZE);
      });
}

// The sums of a warp.
struct Sums {
  f32 values[CLASSES][BLOCKS_M][BLOCKS_N][2][4];

  // Adds a run of outputs of each class. dy: the lane's shared-memory address for ldmatrix. words: addresses of its
  // words of the output 2 * (lane % 4).
  __device__ __forceinline__ void add(u32 dy, const u32 (&words)[BLOCKS_N], u32 at) {
    constexpr int NEXT = CLASSES * STEP * SIZE;  // bytes from output to output
#pragma unroll
    for (int of_class = 0; of_class < CLASSES; ++of_class) {
      u32 a[BLOCKS_M][4];
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i) ldmatrix_x4_transposed(a[i], dy + of_class * (RUN * DY_PITCH) + i * 32);
#pragma unroll
      for (int block = 0; block < BLOCKS_N; ++block) {
        const u32 first = words[block] + at + output_offset(0, of_class);
        const u32 found[4] = {load_shared_32(first), load_shared_32(first + NEXT), load_shared_32(first + 8 * NEXT),
                              load_shared_32(first + 9 * NEXT)};
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          const u32 pick = high ? 0x7632 : 0x5410;
          const u32 b0 = __byte_perm(found[0], found[1], pick), b1 = __byte_perm(found[2], found[3], pick);
#pragma unroll
          for (int i = 0; i < BLOCKS_M; ++i) Product::apply(values[of_class][i][block][high], a[i], b0, b1);
        }
      }
    }
  }

  // Adds a warp's sums of one class to its team's sums in shared memory. first_filter, first_word: the first ones of
  // the warp's blocks.
  __device__ __forceinline__ void put(f32* sums, u32 of_class, u32 first_filter, u32 first_word) const {
    const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
      for (int block = 0; block < BLOCKS_N; ++block) {
#pragma unroll
        for (int v = 0; v < 8; ++v) {
          const int high = v / 4, of_row = v / 2 % 2;
          const u32 filter = first_filter + i * 16 + of_row * 8 + lane / 4;
          const TapWord word(first_word + block * 8 + lane % 4 * 2 + v % 2, of_class);
          if (filter >= SLAB || !word.has(high)) continue;
          f32& to = sums[filter * COLUMNS + word.row * ROW_TAPS + word.element + high];
          to = (of_class == 0 ? 0 : to) + values[of_class][i][block][high][v % 4];
        }
      }
    }
  }
};

// Index in a row of the slice of column (tap, channel); FLIPPED: taps in reverse order.
__device__ __forceinline__ u32 place_of(u32 column) {
  const u32 row = column / ROW_TAPS, element = column % ROW_TAPS;
  return FLIPPED ? (TAP_ROWS - 1 - row) * ROW_TAPS + (TAPS_2 - 1 - element / CHANNELS) * CHANNELS + element % CHANNELS
                 : column;
}

// Adds up the sums of all teams, in their order, and stores them in the slice of a split.
__device__ __forceinline__ void store_slice(const Params& p, const f32* all, i32 split, i32 first_filter) {
  f32* const slice = p.slices + split * p.slice_stride;
  for (u32 index = threadIdx.x; index < SLAB * COLUMNS; index += THREADS) {
    const i32 filter = first_filter + index / COLUMNS;
    f32 sum = 0;
#pragma unroll
    for (int of_team = 0; of_team < TEAMS; ++of_team) sum += all[of_team * (SLAB * COLUMNS) + index];
    if (filter < p.filters) slice[filter * p.pitch + place_of(index % COLUMNS)] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const u32 shared = shared_address(memory);
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0), lane = threadIdx.x % WARP_SIZE;
  const u32 team = warp / (WARPS_M * WARPS_N), member = warp % (WARPS_M * WARPS_N);
  const u32 warp_filter = member % WARPS_M * (BLOCKS_M * 16), warp_word = member / WARPS_M * (BLOCKS_N * 8);
  const i32 split = p.slabs.divide(blockIdx.x), first_filter = (blockIdx.x - split * p.slabs.divisor) * SLAB;
  const auto stage_tile = [&](i32 number, u32 stage) {
    i32 tile[1 + AXES];
    digits<1 + AXES>(p.tiles, u32(number), tile);
    u8* const to = memory + stage * STAGE_BYTES;
    stage_box(p.image, tile, to);
    stage_response(p, tile, first_filter, to + BOX_BYTES);
  };
  wait_for_previous_kernel();
  allow_next_kernel();
  if (split < p.tile_count) stage_tile(split, 0);
  cp_async_commit();

  u32 words[BLOCKS_N];
#pragma unroll
  for (int block = 0; block < BLOCKS_N; ++block)
    words[block] = word_offset(warp_word + block * 8 + lane / 4) + lane % 4 * (2 * CLASSES * STEP * SIZE);
  const u32 dy_lane = (lane / 16 * 8 + lane % 8) * DY_PITCH + warp_filter * SIZE + lane / 8 % 2 * 16;
  Sums sums = {};
  u32 stage = 0;
#pragma unroll 1
  for (i32 number = split; number < p.tile_count; number += p.splits) {
    if (STAGES > 1 && number + p.splits < p.tile_count) stage_tile(number + p.splits, stage ^ 1);
    cp_async_commit();
    cp_async_wait<STAGES - 1>();
    __syncthreads();
    const u32 box = shared + stage * STAGE_BYTES, dy = box + BOX_BYTES + dy_lane;
#pragma unroll 1
    for (u32 run = team; run < RUNS; run += TEAMS) {
      constexpr u32 ROW_RUNS = TILE_W / (RUN * CLASSES);
      const u32 at = run / ROW_RUNS * (STRIDE_1 * PITCH * SIZE) + run % ROW_RUNS * (RUN * CLASSES * STEP * SIZE);
      sums.add(dy + run * (RUN * CLASSES * DY_PITCH), words, box + at);
    }
    __syncthreads();
    if (STAGES > 1) {
      stage ^= 1;
    } else if (number + p.splits < p.tile_count) {
      stage_tile(number + p.splits, 0);
    }
  }

  // Combines the sums of both classes, then those of all teams.
  f32* const all = reinterpret_cast<f32*>(memory);
#pragma unroll
  for (int of_class = 0; of_class < CLASSES; ++of_class) {
    sums.put(all + team * (SLAB * COLUMNS), of_class, warp_filter, warp_word);
    __syncthreads();
  }
  store_slice(p, all, split, first_filter);
}
