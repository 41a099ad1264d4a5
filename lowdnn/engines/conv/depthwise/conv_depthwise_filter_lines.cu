// conv_depthwise_filter_lines:
//     slices[s, t, k] = sum over a share s of (n, o) of x[n, k, position(o, t)] * dy[n, k, o]
// the filter gradient of convolutions with one channel in each group, one filter for each channel and taps along one
// axis, in shares that conv_depthwise_filter_sum adds up. Positions and taps are those of depthwise.cuh's residue
// classes; positions outside x count as 0.
//
// Layouts: neighbouring threads have neighbouring channels of x and dy (LANES > 1), or neighbouring positions (LANES
// 1); otherwise any strides; slices [shares][taps][filters] of f32.
// Thread: STRIP neighbouring taps of one phase, whose sums it keeps in registers, and p.segment neighbouring positions
// of dy. It slides a window of registers along x, four positions of x and of dy at a time.
// Block: LANES channels, or those of its rows, and one phase: the taps phase, phase + step, ... It takes every
// p.shares-th item: a class, a tile of the line, a block of batches; blockIdx.x = (phase, block of channels, share),
// the first one fastest. At the end the sums of the same taps and channel are added in a fixed order.
// Shared memory (dynamic): rows of x and of dy (depthwise_lines.cuh), later the sums [units][STRIP, LANES], or
// [units][STRIP] to an odd pitch, of f32; the rows' offsets in x and dy, of i64.
// Launch: at most 320 threads, whole warps, the last of which may have no work; it may be a dependent launch
// (dependent_launch.cuh).
// Macros: X_TYPE DY_TYPE LANES STRIP X_VECTOR DY_VECTOR (elements of one access) CLASSES (at most).

#include "include/ptx/dependent_launch.cuh"
#include "depthwise_lines.cuh"

constexpr int MAX_THREADS = 320;
constexpr int SUMS_PITCH = LANES > 1 ? STRIP * LANES : STRIP + 1;  // pitch of a unit's sums

struct Params {
  const X_TYPE* x;
  const DY_TYPE* dy;
  f32* slices;
  Lines x_lines, dy_lines;
  Axis axis;
  Rows rows;
  StagedRows<X_VECTOR, X_TYPE> x_staged;
  StagedRows<DY_VECTOR, DY_TYPE> dy_staged;
  i32 dy_place, offsets_place;  // offsets in shared memory, in units of f32
  i32 taps;  // taps of a filter
  i32 segment;
  Divider segments;  // segments of a row
  Divider units;  // segments of all rows, which is the number of threads with the same taps
  i32 strips;  // strips of taps
  Digits<3> blocks;
  Digits<3> items;
  i32 item_count, shares;
};

// Copies the next item's rows to shared memory. Returns the distance from the first sample to the one that tap 0 reads.
__device__ __forceinline__ i32 stage(const Params& p, i32 item, i32 phase, i32 first_channel, f32* x, i64* offsets) {
  u32 digits[3];
  p.items.split(item, digits);
  const AxisClass& one = p.axis.classes[digits[0]];
  const i32 rows = p.rows.count(), k = digits[1] * (p.segments.divisor * p.segment);
  const i32 first_batch = digits[2] * p.rows.own_batches;
  for (i32 row = threadIdx.x; row < rows; row += blockDim.x) {
    offsets[row] = p.rows.offset(p.x_lines, first_batch, first_channel, row);
    offsets[rows + row] = p.rows.offset(p.dy_lines, first_batch, first_channel, row);
  }
  __syncthreads();
  const i32 first = one.source + (k * p.axis.step + phase) * p.axis.spacing;
  const i32 behind = LANES > 1 ? 0 : first & (X_VECTOR - 1), lanes = p.rows.channel_count - first_channel;
  p.x_staged.copy(p.x, p.x_lines, offsets, rows, {first - behind, p.axis.step * p.axis.spacing}, lanes, x);
  p.dy_staged.copy(p.dy, p.dy_lines, offsets + rows, rows, {one.target + k * p.axis.target_step, p.axis.target_step},
                   lanes, x + p.dy_place);
  __syncthreads();
  return behind;
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  f32* const x = reinterpret_cast<f32*>(shared);
  i64* const offsets = reinterpret_cast<i64*>(x + p.offsets_place);
  u32 digits[3];
  p.blocks.split(blockIdx.x, digits);
  const i32 phase = digits[0], share = digits[2];
  const i32 first_channel = digits[1] * p.rows.block_channels();
  wait_for_previous_kernel();
  allow_next_kernel();

  // The thread's taps, row and segment; a thread past the last one idles on unit 0's data.
  const u32 lane = threadIdx.x % LANES, number = threadIdx.x / LANES, units = p.units.divisor;
  const u32 strip = p.units.divide(number), unit = strip < u32(p.strips) ? number - strip * units : 0;
  const u32 row = p.segments.divide(unit), begin = (unit - row * p.segments.divisor) * p.segment;
  const u32 x_place = row * p.x_staged.pitch + (begin + (strip < u32(p.strips) ? strip : 0) * STRIP) * LANES + lane;
  const u32 dy_place = p.dy_place + row * p.dy_staged.pitch + begin * LANES + lane;
  f32 sums[STRIP] = {};
  i32 shift = 0;
#pragma unroll 1
  for (i32 item = share; item < p.item_count; item += p.shares) {
    const i32 behind = stage(p, item, phase, first_channel, x, offsets);
    shift = behind % CHUNK;
    add_products(sums, x + x_place + (behind - shift) * LANES, x + dy_place, p.segment / CHUNK);
    __syncthreads();
  }

  // Adds the sums of all units for each tap and channel. The first `shift` sums of a lane belong to no tap.
  if (strip < u32(p.strips)) {
#pragma unroll
    for (int o = 0; o < STRIP; ++o) x[number * SUMS_PITCH + o * LANES + lane] = sums[o];
  }
  __syncthreads();
  const i32 channels = p.rows.block_channels(), taps = (p.taps - phase + p.axis.step - 1) / p.axis.step;
  f32* const slice = p.slices + i64(share) * p.taps * p.rows.channel_count + first_channel;
#pragma unroll 1
  for (i32 element = threadIdx.x; element < taps * channels; element += blockDim.x) {
    const i32 tap = element / channels, channel = element - tap * channels, o = tap + shift;
    if (first_channel + channel >= p.rows.channel_count) continue;
    const f32* from = x + o / STRIP * units * SUMS_PITCH + o % STRIP * LANES;
    f32 sum = 0.0f;
    if constexpr (LANES > 1) {
#pragma unroll 8
      for (u32 i = 0; i < units; ++i) sum += from[i * SUMS_PITCH + channel];
    } else {
      const i32 segments = p.segments.divisor;
#pragma unroll 1
      for (i32 batch = 0; batch < p.rows.own_batches; ++batch) {
        const f32* const at = from + (batch * channels + channel) * segments * SUMS_PITCH;
#pragma unroll 8
        for (i32 i = 0; i < segments; ++i) sum += at[i * SUMS_PITCH];
      }
    }
    const i32 place = p.axis.classes[0].tap + (phase + tap * p.axis.step) * p.axis.tap_step;
    slice[i64(place) * p.rows.channel_count + channel] = sum;
  }
}
