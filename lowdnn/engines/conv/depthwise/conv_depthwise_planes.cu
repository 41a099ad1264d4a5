// conv_depthwise_planes:
//     target[n, c, o] = epilogue(sum over t of source[n, c, position(o, t)] * w[c, tap(t)])
// the forward pass (source x, target y) and the data gradient (source dy, target dx) of convolutions with one channel
// in each group and one filter for each channel, over planes with stride 1; positions outside the source count as 0.
//
// Layouts: neighbouring channels of the source in words of 4 bytes; otherwise any strides.
// Thread: the channels of a word, ROWS x COLUMNS neighbouring targets of each plane. It keeps in registers its weights
// and the sums of the PLANE_TAPS unfinished planes of targets. It walks along the planes of the source: the block reads
// each plane from memory once; the thread widens it once and adds it to every sum that needs it. Then the oldest plane
// of sums goes to the epilogue and the others move up.
// Block: LANES words of channels, the targets of p.unit_rows x p.unit_columns such threads; blockIdx.x = (image,
// segment of planes, tile of rows, tile of columns, block of channels), the last one fastest.
// Shared memory (dynamic): the planes of depthwise_planes.cuh, then weights [LANES][channels of a word, taps] of f32 to
// an odd pitch, so that neighbouring threads read different banks.
// Launch: THREADS threads, the last of which may have no targets; it may be a dependent launch (dependent_launch.cuh).
// Macros: X_TYPE W_TYPE IMAGES_AS_PLANES (which have one tap) ROWS COLUMNS PLANE_TAPS ROW_TAPS COLUMN_TAPS ROW_STEP
// COLUMN_STEP ROW_UP COLUMN_UP ROW_PHASE COLUMN_PHASE STAGES (planes in shared memory) COPIES COPY_BYTES IS_DENSE,
// those of depthwise_planes.cuh, and CLASSES of depthwise.cuh.

#include "include/ptx/dependent_launch.cuh"
#include "depthwise_planes.cuh"
#include "generated.cuh"

constexpr int RANK = 5;  // n, c, planes, rows, columns
typedef StagedPlanes<X_TYPE, STAGES, COPIES, COPY_BYTES, IS_DENSE> Planes;
constexpr int CHANNELS = Planes::WORD_CHANNELS;
constexpr int TAPS = PLANE_TAPS * ROW_TAPS * COLUMN_TAPS;
constexpr int WEIGHTS_PITCH = CHANNELS * TAPS | 1;
typedef PlaneAxis<ROWS, ROW_TAPS, ROW_WINDOW, ROW_STEP, ROW_UP, ROW_PHASE> RowAxis;
typedef PlaneAxis<COLUMNS, COLUMN_TAPS, COLUMN_WINDOW, COLUMN_STEP, COLUMN_UP, COLUMN_PHASE> ColumnAxis;

struct Params {
  const X_TYPE* source;
  const W_TYPE* w;
  i64 image_stride, plane_stride;  // strides of the source
  i32 planes;  // planes of the source
  i32 first[3];  // plane, row and column of the source that target (0, 0, 0) reads with its first tap
  i32 box_steps[2];  // rows and columns of the source from one block's box to the next block's
  Planes::Box box;
  i64 w_first, w_strides[4];  // offset of tap 0 of filter 0; strides of filters, planes, rows, columns
  i32 target_extents[3];
  Divider unit_columns;
  i32 unit_rows;
  i32 segment;  // planes of targets that a block computes
  Digits<5> blocks;
  Functor::Args epilogue;
};

// Copies the block's weights, widened, to shared memory.
__device__ __forceinline__ void copy_weights(const Params& p, i32 first_channel, f32* to) {
#pragma unroll 4
  for (u32 number = threadIdx.x; number < LANES * CHANNELS * TAPS; number += THREADS) {
    const u32 channel = number / TAPS, tap = number % TAPS;
    const u32 column = tap % COLUMN_TAPS, row = tap / COLUMN_TAPS % ROW_TAPS, plane = tap / (COLUMN_TAPS * ROW_TAPS);
    const i64 offset = p.w_first + (first_channel + i32(channel)) * p.w_strides[0] + plane * p.w_strides[1] +
                       row * p.w_strides[2] + column * p.w_strides[3];
    f32* const place = to + channel / CHANNELS * WEIGHTS_PITCH + channel % CHANNELS * TAPS + tap;
    *place = first_channel + i32(channel) < p.box.channels ? convert<f32>(p.w[offset]) : 0.0f;
  }
}

struct Weights {
  f32 values[PLANE_TAPS][ROW_TAPS][COLUMN_TAPS][CHANNELS];

  __device__ __forceinline__ explicit Weights(const f32* lane) {
#pragma unroll
    for (int i = 0; i < CHANNELS * TAPS; ++i) {
      const int tap = i % TAPS, column = tap % COLUMN_TAPS, row = tap / COLUMN_TAPS % ROW_TAPS;
      values[tap / (COLUMN_TAPS * ROW_TAPS)][row][column][i / TAPS] = lane[i];
    }
  }
};

// The epilogue's cursors for a thread's targets, and how many targets exist.
struct Targets {
  Functor::Cursor first, next_plane, next_row, next_column;  // cursor of the first target; steps to the next
  i32 channel;
  i32 rows, columns;  // rows and columns from the first target to the end of the plane; may exceed ROWS and COLUMNS

  __device__ __forceinline__ Targets(const Params& p, bool exists, i32 image, i32 channel_, i32 plane, i32 row,
                                     i32 column)
      : channel(channel_) {
    const i64 coordinate[RANK] = {IMAGES_AS_PLANES ? plane : image, channel, IMAGES_AS_PLANES ? 0 : plane, row, column};
    const i64 plane_step[RANK] = {IMAGES_AS_PLANES, 0, !IMAGES_AS_PLANES};
    const i64 row_step[RANK] = {0, 0, 0, 1}, column_step[RANK] = {0, 0, 0, 0, 1};
    first = Functor::cursor(p.epilogue, coordinate);
    next_plane = Functor::cursor(p.epilogue, plane_step);
    next_row = Functor::cursor(p.epilogue, row_step);
    next_column = Functor::cursor(p.epilogue, column_step);
    rows = exists && channel < p.box.channels ? p.target_extents[1] - row : 0;
    columns = p.target_extents[2] - column;
  }
};

// Sums of the unfinished planes of targets: values[i] is the plane whose tap i reads the walk's plane.
struct Sums {
  f32 values[PLANE_TAPS][ROWS][COLUMNS][CHANNELS];

  // Adds the products of a plane of the source. window: address of the thread's window in shared memory. first_row: its
  // first row in the plane. rows: rows of the plane.
  __device__ __forceinline__ void add(const Weights& w, u32 window, u32 row_pitch, i32 first_row, i32 rows) {
#pragma unroll
    for (int j = 0; j < RowAxis::WINDOW; ++j) {
      if (SKIPS_ROWS && u32(first_row + j) >= u32(rows)) continue;
      f32 x[ColumnAxis::WINDOW][CHANNELS];
      read_window<X_TYPE>(x, window + j * row_pitch);
#pragma unroll
      for (int s = PLANE_TAPS - 1; s >= 0; --s) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
          if (!RowAxis::meets(i, j)) continue;
          add_row(values[s][i], x, w.values[s][RowAxis::tap(i, j)]);
        }
      }
    }
  }

  // Hands the oldest plane to the epilogue, its rows and columns that exist.
  __device__ __forceinline__ void finish(const Params& p, const Targets& targets, const Functor::Cursor& first) const {
    if (targets.rows >= ROWS && targets.columns >= COLUMNS) {
      finish_targets<true>(p, targets, first);
    } else {
      finish_targets<false>(p, targets, first);
    }
  }

  // Hands the oldest plane to the epilogue, and moves the cursor to the next one.
  __device__ __forceinline__ void finish_plane(const Params& p, const Targets& targets, Functor::Cursor& cursor) const {
    finish(p, targets, cursor);
    move(cursor, targets.next_plane);
  }

  // Moves the sums of each plane up by one, and begins a new plane.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int s = PLANE_TAPS - 1; s >= 0; --s) {
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int o = 0; o < COLUMNS; ++o) {
#pragma unroll
          for (int v = 0; v < CHANNELS; ++v) values[s][i][o][v] = s ? values[s - 1][i][o][v] : 0.0f;
        }
      }
    }
  }

 private:
  template <bool ALL>
  __device__ __forceinline__ void finish_targets(const Params& p, const Targets& targets, Functor::Cursor row) const {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      Functor::Cursor cursor = row;
#pragma unroll
      for (int o = 0; o < COLUMNS; ++o) {
        if (ALL || (i < targets.rows && o < targets.columns)) {
          Functor::apply<CHANNELS>(p.epilogue, cursor, targets.channel, CHANNELS, values[PLANE_TAPS - 1][i][o]);
        }
        move(cursor, targets.next_column);
      }
      move(row, targets.next_row);
    }
  }

  static __device__ __forceinline__ void add_row(f32 (&sums)[COLUMNS][CHANNELS],
                                                 const f32 (&x)[ColumnAxis::WINDOW][CHANNELS],
                                                 const f32 (&w)[COLUMN_TAPS][CHANNELS]) {
#pragma unroll
    for (int j = 0; j < ColumnAxis::WINDOW; ++j) {
#pragma unroll
      for (int o = 0; o < COLUMNS; ++o) {
        if (!ColumnAxis::meets(o, j)) continue;
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) sums[o][v] += x[j][v] * w[ColumnAxis::tap(o, j)][v];
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  f32* const shared_weights = reinterpret_cast<f32*>(shared + STAGES * Planes::STAGE_BYTES);
  u32 place[5];
  p.blocks.split(blockIdx.x, place);
  const i32 first_channel = i32(place[0]) * (LANES * CHANNELS), tile_column = place[1], tile_row = place[2];
  const i32 begin = i32(place[3]) * p.segment, end = min(begin + p.segment, p.target_extents[0]);

  // The range of source planes for these targets; copies of the first ones are started.
  const i32 first_plane = p.first[0] + begin, end_plane = min(p.first[0] + end + PLANE_TAPS - 1, p.planes);
  const X_TYPE* const image = p.source + place[4] * p.image_stride;
  const i32 box_row = p.first[1] + tile_row * p.box_steps[0];
  const Planes planes(p.box, box_row, p.first[2] + tile_column * p.box_steps[1], first_channel, shared);
  i32 coming = max(first_plane, 0);
  const auto copy_next = [&](int stage) {
    if (coming < end_plane) planes.copy(image + coming * p.plane_stride, stage);
    cp_async_commit();
    ++coming;
  };
  wait_for_previous_kernel();
  allow_next_kernel();
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) copy_next(stage);
  copy_weights(p, first_channel, shared_weights);
  __syncthreads();

  // The thread's targets and its window; a thread past the last unit idles on unit 0's data.
  const u32 lane = threadIdx.x % LANES, unit = threadIdx.x / LANES;
  const i32 unit_row = p.unit_columns.divide(unit), unit_column = unit - unit_row * p.unit_columns.divisor;
  const bool exists = unit_row < p.unit_rows;
  const i32 row = (tile_row * p.unit_rows + unit_row) * ROWS;
  const i32 column = (tile_column * i32(p.unit_columns.divisor) + unit_column) * COLUMNS;
  const Targets targets(p, exists, place[4], first_channel + i32(lane) * CHANNELS, begin, row, column);
  const i32 row_of_box = (exists ? unit_row : 0) * (ROWS * ROW_STEP / ROW_UP), window_row = box_row + row_of_box;
  const u32 window = planes.word(row_of_box, unit_column * (COLUMNS * COLUMN_STEP / COLUMN_UP), lane);

  const Weights w(shared_weights + lane * WEIGHTS_PITCH);
  Functor::Cursor cursor = targets.first;
  Sums sums = {};
  i32 plane = max(first_plane, 0), finished = plane - first_plane + begin - PLANE_TAPS + 1;
  const auto finish = [&] {
    if (finished >= begin) sums.finish_plane(p, targets, cursor);
    sums.advance();
    ++finished;
  };
  int stage = 0, free_stage = STAGES - 1;
#pragma unroll 1
  for (; plane < end_plane; ++plane) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    copy_next(free_stage);
    sums.add(w, window + stage * Planes::STAGE_BYTES, planes.row_pitch, window_row, p.box.extents[0]);
    free_stage = stage;
    stage = Planes::next(stage);
    finish();
  }

  // Finishes targets whose last planes lie outside the source.
#pragma unroll 1
  while (finished < end) finish();
}
