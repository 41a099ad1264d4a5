// conv_depthwise_filter:
//     slices[s, t, k] = sum over a share s of (n, o) of x[n, k / fan, position(o, t)] * dy[n, k, o]
// the filter gradient of convolutions with one channel in each group, in shares that conv_depthwise_filter_sum adds up.
// Positions are those of depthwise.cuh's residue classes of a forward pass; positions outside x and dy count as 0
// and are multiplied: an infinity of x times such a 0 gives a NaN.
//
// Layouts: x and dy have any strides; slices [shares][plane, row, column taps][filters] of f32.
// Thread: CHANNELS neighbouring filters, one tap along the planes, all taps along rows and columns, in registers. It
// takes items one after the other: STRIP neighbouring columns of a class and a segment of the steps down the rows. In a
// step one row of dy and ROW_STEP rows of x arrive; a row of x is multiplied with the last rows of dy, which stay in
// registers. The rows of PREFETCH further steps are in flight.
// Block: LANES groups of filters side by side, THREADS / LANES slots that share the items; blockIdx.x = (share * plane
// taps + plane tap) * channel blocks + channel block. At the end the slots are added pairwise, in a fixed order.
// Shared memory (dynamic): [taps][CHANNELS][THREADS / 2] of f32 if there are several slots.
// Launch: THREADS threads; it may be a dependent launch (dependent_launch.cuh).
// Macros: X_TYPE DY_TYPE CHANNELS STRIP ROW_TAPS COLUMN_TAPS ROW_STEP COLUMN_STEP CLASSES (the most of any axis)
// CLIP_FRONT CLIP_BACK (positions of a window that lie outside x for all threads) PREFETCH UNROLL (steps of the loop's
// body) LANES THREADS.

#include "include/ptx/dependent_launch.cuh"
#include "depthwise.cuh"

constexpr int SLOTS = THREADS / LANES;
constexpr int DEPTH = (ROW_TAPS + ROW_STEP - 1) / ROW_STEP;  // rows of dy that a row of x is multiplied with
// After the loop's body each window in flight must be in the same registers again: a move would wait for its load.
static_assert(UNROLL % PREFETCH == 0, "a whole number of rounds over the windows");
constexpr int WINDOW = (STRIP - 1) * COLUMN_STEP + COLUMN_TAPS - CLIP_FRONT - CLIP_BACK;

struct Params {
  const X_TYPE* x;
  const DY_TYPE* dy;
  f32* slices;
  i64 x_strides[5], dy_strides[5];  // strides of n, c, planes, rows, columns
  i32 dy_extents[3];
  Axis planes, rows, columns;
  Digits<7> items;  // the digits of an item: strip, segment, plane, image, class of columns, of rows, of planes
  i32 item_count;
  i32 segment;  // steps of an item down the rows
  i32 filters, fan;
  Divider channel_blocks, plane_taps;
  i32 shares;
};

struct Sums {
  f32 values[ROW_TAPS][COLUMN_TAPS][CHANNELS];

  // Adds the products of row `phase` of a step's ROW_STEP rows of x with the last DEPTH rows of dy.
  __device__ __forceinline__ void add(const f32 (&x)[WINDOW][CHANNELS], const f32 (&met)[DEPTH][STRIP][CHANNELS],
                                      int phase) {
#pragma unroll
    for (int o = 0; o < STRIP; ++o) {
#pragma unroll
      for (int i = 0; i < DEPTH; ++i) {
        const int r = i * ROW_STEP + phase;
        if (r >= ROW_TAPS) continue;
#pragma unroll
        for (int t = 0; t < COLUMN_TAPS; ++t) {
          const int j = o * COLUMN_STEP + t - CLIP_FRONT;
          if (j < 0 || j >= WINDOW) continue;
#pragma unroll
          for (int v = 0; v < CHANNELS; ++v) values[r][t][v] += x[j][v] * met[i][o][v];
        }
      }
    }
  }

  // Adds the sums of the block's slots in a tree; slot 0 gets the result.
  __device__ __forceinline__ void add_slots(f32* shared) {
    const u32 slot = threadIdx.x / LANES;
#pragma unroll 1
    for (u32 half = SLOTS / 2; half > 0; half /= 2) {
      f32* const mine = shared + threadIdx.x % (half * LANES);
      if (slot >= half && slot < 2 * half) each([&](int i, f32& value) { mine[i * (THREADS / 2)] = value; });
      __syncthreads();
      if (slot < half) each([&](int i, f32& value) { value += mine[i * (THREADS / 2)]; });
      __syncthreads();
    }
  }

  template <class Visit> __device__ __forceinline__ void each(Visit visit) {
#pragma unroll
    for (int r = 0; r < ROW_TAPS; ++r) {
#pragma unroll
      for (int t = 0; t < COLUMN_TAPS; ++t) {
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) visit((r * COLUMN_TAPS + t) * CHANNELS + v, values[r][t][v]);
      }
    }
  }
};

typedef RowReader<X_TYPE, WINDOW, CHANNELS, ROW_STEP, 1, 1> XReader;
typedef RowReader<DY_TYPE, STRIP, CHANNELS, 1, 1, 1> DyReader;

// Adds the products of the steps from `begin` to `end`; x is read from `begin` on, dy from DEPTH - 1 rows earlier.
__device__ __forceinline__ void add_steps(XReader& x, DyReader& dy, i32 begin, i32 end, Sums& sums) {
  RowWindow<DY_TYPE, STRIP, CHANNELS> before[DEPTH], coming_dy[PREFETCH];
  RowWindow<X_TYPE, WINDOW, CHANNELS> coming_x[PREFETCH * ROW_STEP];
#pragma unroll
  for (int i = DEPTH - 2; i >= 0; --i) {
    dy.load(before[i], 0);
  }
#pragma unroll
  for (int i = 0; i < PREFETCH; ++i) {
    dy.load(coming_dy[i], 0);
#pragma unroll
    for (int phase = 0; phase < ROW_STEP; ++phase) {
      x.load(coming_x[i * ROW_STEP + phase], phase);
    }
  }
  f32 met[DEPTH][STRIP][CHANNELS];  // met[i] is dy's row step - i
#pragma unroll
  for (int i = DEPTH - 2; i >= 0; --i) before[i].widen_to(met[i]);

  i32 step = begin;
#pragma unroll 1
  while (step < end) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (u > 0 && step >= end) break;
#pragma unroll
      for (int i = DEPTH - 1; i > 0; --i) {
#pragma unroll
        for (int o = 0; o < STRIP; ++o) {
#pragma unroll
          for (int v = 0; v < CHANNELS; ++v) met[i][o][v] = met[i - 1][o][v];
        }
      }
      coming_dy[u % PREFETCH].widen_to(met[0]);
      dy.load(coming_dy[u % PREFETCH], 0);
#pragma unroll
      for (int phase = 0; phase < ROW_STEP; ++phase) {
        RowWindow<X_TYPE, WINDOW, CHANNELS>& arrived = coming_x[u % PREFETCH * ROW_STEP + phase];
        f32 values[WINDOW][CHANNELS];
        arrived.widen_to(values);
        x.load(arrived, phase);
        sums.add(values, met, phase);
      }
      ++step;
    }
  }
}

// Adds one item's products.
__device__ __forceinline__ void add_item(const Params& p, u32 item, i32 plane_tap, i32 filter, Sums& sums) {
  u32 digits[7];
  p.items.split(item, digits);
  const AxisClass& column = p.columns.classes[digits[4]];
  const AxisClass& row = p.rows.classes[digits[5]];
  const AxisClass& plane = p.planes.classes[digits[6]];
  const i32 first_column = i32(digits[0]) * STRIP, k = digits[2];
  const i32 x_plane = plane.source + (k * p.planes.step + plane_tap) * p.planes.spacing;
  const i32 begin = row.first_step + i32(digits[1]) * p.segment;
  const i32 end = min(min(begin + p.segment, row.end_step), row.count + DEPTH - 1);
  const bool exists = first_column < column.count && k < plane.count && u32(x_plane) < u32(p.planes.extent);
  if (!exists || begin >= end) return;

  // Readers of x from the segment's first step on, and of dy from DEPTH - 1 rows earlier.
  XReader x(
      p.x + digits[3] * p.x_strides[0] + filter / p.fan * p.x_strides[1], p.x_strides);
  x.set_planes(x_plane, 1, p.planes.extent, 1);
  x.set_rows(row.source + begin * ROW_STEP * p.rows.spacing, p.rows.spacing, p.rows.extent);
  const i32 position = first_column * COLUMN_STEP + CLIP_FRONT;
  x.set_columns(column.source + position * p.columns.spacing, p.columns.spacing, p.columns.extent);
  DyReader dy(
      p.dy + digits[3] * p.dy_strides[0] + filter * p.dy_strides[1], p.dy_strides);
  dy.set_planes(plane.target + k * p.planes.target_step, 1, p.dy_extents[0], 1);
  dy.set_rows(row.target + (begin - DEPTH + 1) * p.rows.target_step, p.rows.target_step, p.dy_extents[1]);
  dy.set_columns(column.target + first_column * p.columns.target_step, p.columns.target_step, p.dy_extents[2]);

  add_steps(x, dy, begin, end, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const u32 part = p.channel_blocks.divide(blockIdx.x);
  const u32 channel_block = blockIdx.x - part * p.channel_blocks.divisor;
  const u32 share = p.plane_taps.divide(part), plane_tap = part - share * p.plane_taps.divisor;
  const u32 lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
  const i32 filter = i32(channel_block * LANES + lane) * CHANNELS;

  wait_for_previous_kernel();
  allow_next_kernel();
  Sums sums = {};
  if (filter < p.filters) {
    for (u32 item = share * SLOTS + slot; item < u32(p.item_count); item += p.shares * SLOTS) {
      add_item(p, item, plane_tap, filter, sums);
    }
  }
  sums.add_slots(reinterpret_cast<f32*>(shared));
  if (slot > 0 || filter >= p.filters) return;

  // The taps of a flipped filter are stored in reverse.
  const i32 plane = p.planes.classes[0].tap + i32(plane_tap) * p.planes.tap_step;
  f32* const slice = p.slices + (i64(share) * p.plane_taps.divisor + plane) * (ROW_TAPS * COLUMN_TAPS) * p.filters;
#pragma unroll
  for (int r = 0; r < ROW_TAPS; ++r) {
#pragma unroll
    for (int t = 0; t < COLUMN_TAPS; ++t) {
      const i32 row = p.rows.classes[0].tap + r * p.rows.tap_step;
      const i32 column = p.columns.classes[0].tap + t * p.columns.tap_step;
      store<CHANNELS>(slice + i64(row * COLUMN_TAPS + column) * p.filters + filter, sums.values[r][t]);
    }
  }
}
