// conv_depthwise_lines:
//     target[n, c, o] = epilogue(sum over t of source[n, c, position(o, t)] * w[c, tap(t)])
// the forward pass (source x, target y) and the data gradient (source dy, target dx) of convolutions with one channel
// in each group, one filter for each channel and taps along one axis. Positions and taps are those of depthwise.cuh's
// residue classes; positions outside the source count as 0.
//
// Layouts: neighbouring threads have neighbouring channels of the source (LANES > 1), or neighbouring positions (LANES
// 1); otherwise any strides.
// Thread: STRIP neighbouring targets of a class. The source lies in shared memory as f32; the thread slides a window of
// registers along it, a chunk of four samples and four weights at a time. Every phase of the class's step is a separate
// line: the samples that taps phase, phase + step, ... read.
// Block: LANES channels, or those of its rows, of several batches; p.strips such threads along a line; blockIdx.x as in
// depthwise_line_targets.cuh. At the end the sums go through shared memory to the epilogue.
// Shared memory (dynamic): rows of samples (depthwise_lines.cuh), later of sums; weights [rows' channels][pitch], or
// [taps][LANES], of f32; the rows' offsets in the source, of i64.
// Launch: at most 320 threads, whole warps, the last of which may have no targets; it may be a dependent launch
// (dependent_launch.cuh).
// Macros: X_TYPE W_TYPE LANES STRIP VECTOR (elements of the source in one access) CLASSES (at most); RUN as in
// depthwise_line_targets.cuh.

#include "include/ptx/dependent_launch.cuh"
#include "depthwise_line_targets.cuh"

constexpr int MAX_THREADS = 320;
constexpr int MIN_BLOCKS = STRIP > 20 ? 2 : 3;  // blocks on a multiprocessor that registers allow

struct Params {
  const X_TYPE* source;
  const W_TYPE* w;
  i64 w_strides[2];  // strides of filters and taps
  Lines lines;
  StagedRows<VECTOR, X_TYPE> staged;
  Divider strips;  // strips of a row
  i32 weights_pitch;  // words from one channel's weights to the next channel's
  i32 weights_place, offsets_place;  // offsets in shared memory, in units of f32
  LineTargets line;
};

// Copies `taps` weights of each of the block's channels, those of taps phase, phase + step, ..., to index `shift` and
// on.
__device__ __forceinline__ void copy_weights(const Params& p, const BlockTargets& block, i32 phase, i32 taps, i32 shift,
                                             f32* to) {
  const Axis& axis = p.line.axis;
  const i32 channels = p.line.rows.block_channels();
#pragma unroll 4
  for (i32 number = threadIdx.x; number < channels * taps; number += blockDim.x) {
    const i32 channel = LANES > 1 ? number % LANES : number / taps;
    const i32 t = LANES > 1 ? number / LANES : number - channel * taps;
    const i32 tap = block.one.tap + (phase + t * axis.step) * axis.tap_step, filter = block.first_channel + channel;
    f32 weight = 0.0f;
    if (filter < p.line.rows.channel_count) weight = convert<f32>(p.w[filter * p.w_strides[0] + tap * p.w_strides[1]]);
    to[LANES > 1 ? number : channel * p.weights_pitch + shift + t] = weight;
  }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  f32* const samples = reinterpret_cast<f32*>(shared);
  f32* const weights = samples + p.weights_place;
  i64* const offsets = reinterpret_cast<i64*>(samples + p.offsets_place);
  const Axis& axis = p.line.axis;
  const BlockTargets block = p.line.block();
  const i32 rows = p.line.rows.count(), step = axis.step;
  for (i32 row = threadIdx.x; row < rows; row += blockDim.x) {
    offsets[row] = p.line.rows.offset(p.lines, block.first_batch, block.first_channel, row);
  }
  wait_for_previous_kernel();
  allow_next_kernel();

  // The thread's strip; a thread past the last row idles on row 0's data.
  const u32 lane = threadIdx.x % LANES, unit = threadIdx.x / LANES, unit_row = p.strips.divide(unit);
  const i32 strip = unit - unit_row * p.strips.divisor;
  const u32 row = unit_row < u32(rows) ? unit_row : 0;
  f32 sums[STRIP] = {};
#pragma unroll 1
  for (i32 phase = 0; phase < min(step, block.one.taps); ++phase) {
    // The phase's samples and weights. Accesses begin at whole vectors, so tap 0's samples may come after the first
    // one.
    const i32 taps = (block.one.taps - phase + step - 1) / step;
    const i32 first = block.one.source + (block.first * step + phase) * axis.spacing;
    const i32 behind = LANES > 1 ? 0 : first & (VECTOR - 1), shift = behind % CHUNK;
    __syncthreads();
    copy_weights(p, block, phase, taps, shift, weights);
    p.staged.copy(p.source, p.lines, offsets, rows, {first - behind, step * axis.spacing},
                  p.line.rows.channel_count - block.first_channel, samples);
    __syncthreads();

    const f32* x = samples + row * p.staged.pitch + (strip * STRIP + behind - shift) * LANES + lane;
    const f32* w = weights + (LANES > 1 ? lane : p.line.rows.channel_of(row) * p.weights_pitch);
    i32 end = shift + taps;
    if (shift > 0) {
      add_part(sums, x, w, shift, end);
      x += CHUNK * LANES, w += CHUNK * LANES, end -= CHUNK;
    }
    const i32 chunks = max(end, 0) / CHUNK;
    add_products(sums, x, w, chunks);
    const i32 rest = end - chunks * CHUNK;
    if (rest > 0) add_part(sums, x + chunks * (CHUNK * LANES), w + chunks * (CHUNK * LANES), 0, rest);
  }

  // Writes the sums in the order of memory.
  __syncthreads();
  if (unit_row < u32(rows)) write_samples(samples + unit * (STRIP * LANES) + lane, sums);
  __syncthreads();
  p.line.finish<LANES>(block, samples);
}
