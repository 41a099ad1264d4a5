// conv_depthwise_filter_planes:
//     slices[s, t, k] = sum over a share s of (n, o) of x[n, k, position(o, t)] * dy[n, k, o]
// the filter gradient of convolutions with one channel in each group and one filter for each channel, over planes with
// stride 1, in shares that conv_depthwise_filter_sum adds up; positions outside x count as 0.
//
// Layouts: neighbouring channels of x and dy in words of 4 bytes, otherwise any strides; slices [shares][plane, row,
// column taps][filters] of f32.
// Thread: the channels of a word, all taps, whose sums it keeps in registers, and ROWS x COLUMNS neighbouring positions
// of each plane of dy. It walks along the planes of x: the block reads each plane of x and dy from memory once; a plane
// of dy is widened once and stays in registers until the last of its planes of x has been multiplied with it.
// Block: LANES words of channels, the positions of p.units such threads, and every p.shares-th image; blockIdx.x =
// (share, tile of rows, tile of columns, block of channels), the last one fastest. At the end the threads of the same
// channels are added pairwise, in a fixed order.
// Shared memory (dynamic): the planes of x, those of dy (depthwise_planes.cuh); at the end [taps][half the
// units][LANES] of f32.
// Launch: THREADS threads, the last of which may have no work; it may be a dependent launch (dependent_launch.cuh).
// Macros: X_TYPE DY_TYPE ROWS COLUMNS PLANE_TAPS ROW_TAPS COLUMN_TAPS ROW_STEP COLUMN_STEP STAGES (planes of x and of
// dy in shared memory) X_COPIES X_COPY_BYTES X_IS_DENSE DY_COPIES DY_COPY_BYTES DY_IS_DENSE, those of
// depthwise_planes.cuh, and CLASSES of depthwise.cuh.

#include "include/ptx/dependent_launch.cuh"
#include "depthwise_planes.cuh"

typedef StagedPlanes<X_TYPE, STAGES, X_COPIES, X_COPY_BYTES, X_IS_DENSE> XPlanes;
typedef StagedPlanes<DY_TYPE, STAGES, DY_COPIES, DY_COPY_BYTES, DY_IS_DENSE> DyPlanes;
constexpr int CHANNELS = XPlanes::WORD_CHANNELS;
typedef PlaneAxis<ROWS, ROW_TAPS, ROW_WINDOW, ROW_STEP, 1, ROW_PHASE> RowAxis;
typedef PlaneAxis<COLUMNS, COLUMN_TAPS, COLUMN_WINDOW, COLUMN_STEP, 1, COLUMN_PHASE> ColumnAxis;

struct Params {
  const X_TYPE* x;
  const DY_TYPE* dy;
  f32* slices;
  i64 x_strides[2], dy_strides[2];  // strides of images and planes
  i32 x_planes, dy_planes, padding;
  i32 steps;  // steps of the walk through an image; step s reads planes s of dy and s - padding of x, if any
  i32 x_first[2];  // the row and column of x that tap (0, 0) reads for position (0, 0) of dy
  i32 x_box_steps[2];  // rows and columns of x from one block's box to the next block's
  XPlanes::Box x_box;
  DyPlanes::Box dy_box;
  i32 tap_first[3], tap_steps[3];  // tap 0's index in the filter along each axis; step to the next tap
  Divider unit_columns;
  i32 units;
  i32 images, shares;
  Digits<4> blocks;
};

// The first step of the walk over a share's images whose copies have not been started.
struct Coming {
  i32 image, step;

  __device__ __forceinline__ void copy(const Params& p, const XPlanes& x, const DyPlanes& dy, int stage) {
    if (image < p.images) {
      const i32 x_plane = step - p.padding;
      if (u32(x_plane) < u32(p.x_planes)) x.copy(p.x + image * p.x_strides[0] + x_plane * p.x_strides[1], stage);
      if (step < p.dy_planes) dy.copy(p.dy + image * p.dy_strides[0] + step * p.dy_strides[1], stage);
    }
    cp_async_commit();
    if (++step == p.steps) step = 0, image += p.shares;
  }
};

// dy at a thread's ROWS x COLUMNS positions of one plane, widened.
struct Response {
  f32 values[ROWS][COLUMNS][CHANNELS];

  __device__ __forceinline__ void read(u32 at, u32 row_pitch) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) read_window<DY_TYPE>(values[i], at + i * row_pitch);
  }
};

struct Sums {
  f32 values[PLANE_TAPS][ROW_TAPS][COLUMN_TAPS][CHANNELS];
  static constexpr int COUNT = PLANE_TAPS * ROW_TAPS * COLUMN_TAPS * CHANNELS;

  // Adds the products of a plane of x, at `window` in shared memory, with the last PLANE_TAPS planes of dy, which are
  // in registers. The latest one, for tap 0, is met[newest]. first_row: the window's first row in the plane. rows: rows
  // of the plane.
  __device__ __forceinline__ void add(const Response (&met)[PLANE_TAPS], int newest, u32 window, u32 row_pitch,
                                      i32 first_row, i32 rows) {
#pragma unroll
    for (int j = 0; j < RowAxis::WINDOW; ++j) {
      if (SKIPS_ROWS && u32(first_row + j) >= u32(rows)) continue;
      f32 x[ColumnAxis::WINDOW][CHANNELS];
      read_window<X_TYPE>(x, window + j * row_pitch);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        if (!RowAxis::meets(i, j)) continue;
#pragma unroll
        for (int s = 0; s < PLANE_TAPS; ++s) {
          add_row(values[s][RowAxis::tap(i, j)], x, met[(newest + PLANE_TAPS - s) % PLANE_TAPS].values[i]);
        }
      }
    }
  }

  template <class Visit> __device__ __forceinline__ void each(Visit visit) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) visit(i, (&values[0][0][0][0])[i]);
  }

 private:
  static __device__ __forceinline__ void add_row(f32 (&sums)[COLUMN_TAPS][CHANNELS],
                                                 const f32 (&x)[ColumnAxis::WINDOW][CHANNELS],
                                                 const f32 (&dy)[COLUMNS][CHANNELS]) {
#pragma unroll
    for (int o = 0; o < COLUMNS; ++o) {
#pragma unroll
      for (int j = 0; j < ColumnAxis::WINDOW; ++j) {
        if (!ColumnAxis::meets(o, j)) continue;
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) sums[ColumnAxis::tap(o, j)][v] += x[j][v] * dy[o][v];
      }
    }
  }
};

// Adds up the units of a block; unit 0 has the result. shared: memory that the stages no longer need.
__device__ __forceinline__ void add_units(const Params& p, unsigned char* shared, Sums& sums) {
  const u32 lane = threadIdx.x % LANES, number = threadIdx.x / LANES;
  const u32 words = p.units / 2 * LANES;
  f32* const exchanged = reinterpret_cast<f32*>(shared) + lane;
#pragma unroll 1
  for (u32 count = p.units; count > 1;) {
    const u32 half = (count + 1) / 2;
    f32* const mine = exchanged + number % half * LANES;
    if (number >= half && number < count) sums.each([&](int i, f32& value) { mine[i * words] = value; });
    __syncthreads();
    if (number < count - half) sums.each([&](int i, f32& value) { value += mine[i * words]; });
    __syncthreads();
    count = half;
  }
}

// Stores the sums of the taps into the slice of a share.
__device__ __forceinline__ void store_taps(const Params& p, i64 share, i32 channel, const Sums& sums) {
  f32* const slice = p.slices + share * (PLANE_TAPS * ROW_TAPS * COLUMN_TAPS) * p.x_box.channels + channel;
#pragma unroll
  for (int s = 0; s < PLANE_TAPS; ++s) {
#pragma unroll
    for (int r = 0; r < ROW_TAPS; ++r) {
#pragma unroll
      for (int t = 0; t < COLUMN_TAPS; ++t) {
        const i32 plane = p.tap_first[0] + s * p.tap_steps[0], row = p.tap_first[1] + r * p.tap_steps[1];
        const i32 tap = (plane * ROW_TAPS + row) * COLUMN_TAPS + p.tap_first[2] + t * p.tap_steps[2];
        store<CHANNELS>(slice + i64(tap) * p.x_box.channels, sums.values[s][r][t]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  unsigned char* const shared_dy = shared + STAGES * XPlanes::STAGE_BYTES;
  u32 place[4];
  p.blocks.split(blockIdx.x, place);
  const i32 first_channel = i32(place[0]) * (LANES * CHANNELS), tile_column = place[1], tile_row = place[2];
  const i32 box_row = p.x_first[0] + tile_row * p.x_box_steps[0];
  const XPlanes x_planes(p.x_box, box_row, p.x_first[1] + tile_column * p.x_box_steps[1], first_channel, shared);
  const i32 tile_columns = p.unit_columns.divisor * COLUMNS;
  const DyPlanes dy_planes(p.dy_box, tile_row * p.dy_box.rows, tile_column * tile_columns, first_channel, shared_dy);
  Coming coming = {i32(place[3]), 0};
  wait_for_previous_kernel();
  allow_next_kernel();
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) coming.copy(p, x_planes, dy_planes, stage);

  // The thread's positions and window; a thread past the last unit idles on unit 0's data.
  const u32 lane = threadIdx.x % LANES, number = threadIdx.x / LANES, unit = number < u32(p.units) ? number : 0;
  const i32 unit_row = p.unit_columns.divide(unit), unit_column = unit - unit_row * p.unit_columns.divisor;
  const i32 window_row = box_row + unit_row * (ROWS * ROW_STEP);
  const u32 x_window = x_planes.word(unit_row * (ROWS * ROW_STEP), unit_column * (COLUMNS * COLUMN_STEP), lane);
  const u32 dy_window = dy_planes.word(unit_row * ROWS, unit_column * COLUMNS, lane);

  Sums sums = {};
  int stage = 0, free_stage = STAGES - 1;
#pragma unroll 1
  for (i32 image = place[3]; image < p.images; image += p.shares) {
    Response met[PLANE_TAPS] = {};
    i32 step = 0;
#pragma unroll 1
    while (step < p.steps) {
#pragma unroll
      for (int u = 0; u < PLANE_TAPS; ++u) {
        if (u > 0 && step >= p.steps) break;
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        coming.copy(p, x_planes, dy_planes, free_stage);
        if (step < p.dy_planes) {
          met[u].read(dy_window + stage * DyPlanes::STAGE_BYTES, dy_planes.row_pitch);
        } else {
          met[u] = Response{};
        }
        if (u32(step - p.padding) < u32(p.x_planes)) {
          sums.add(met, u, x_window + stage * XPlanes::STAGE_BYTES, x_planes.row_pitch, window_row,
                   p.x_box.extents[0]);
        }
        free_stage = stage;
        stage = XPlanes::next(stage);
        ++step;
      }
    }
  }

  cp_async_wait<0>();
  __syncthreads();
  add_units(p, shared, sums);
  const i32 channel = first_channel + i32(lane) * CHANNELS;
  if (number > 0 || channel >= p.x_box.channels) return;

  const i64 tile = i64(place[3]) * p.blocks.radices[2].divisor + tile_row;
  store_taps(p, tile * p.blocks.radices[1].divisor + tile_column, channel, sums);
}
