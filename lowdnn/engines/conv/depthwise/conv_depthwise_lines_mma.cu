// conv_depthwise_lines_mma:
//     target[n, c, o] = epilogue(sum over t of source[n, c, position(o, t)] * w[c, tap(t)])
// the function of conv_depthwise_lines.cu on tensor cores, for x and w of the same 16-bit type, summed in f32.
//
// Eight neighbouring targets of a channel are one row of a matrix product, whose second operand is a banded (Toeplitz)
// matrix of weights: sums[s, o] = sum over k of samples[8 * s * step + k] * band[k, o],   band[k, o] = w[k - o * step -
// behind], where s numbers the strips of eight targets, `behind` is the distance from the first sample to the one that
// tap 0 reads, and w is 0 outside the filter. A sample or weight that is not finite gives NaN with one of these zeros,
// even in a sum that does not need it. Each sum that is NaN is therefore computed again, tap by tap.
//
// Layouts: neighbouring channels of the source (LANES > 1), or neighbouring positions (LANES 1); otherwise any strides.
// Warp: takes tasks of TILES x 16 strips of one line; m = 16 strips, n = 8 targets, k = 16 samples. Block: several
// batches (images, or positions of the other axes), for LANES channels or, with LANES 1, several channels; blockIdx.x
// as in depthwise_line_targets.cuh. Shared memory (dynamic): lines of samples [batch][channel][pitch] of 16 bits;
// weights [channel][pitch] of 16 bits, padded with zeros on both sides; the sums in the epilogue's order, of f32; the
// rows' offsets in the source, of i64.
// Launch: THREADS threads; it may be a dependent launch (dependent_launch.cuh).
// Macros: X_TYPE LANES VECTOR (elements of the source in one access) CLASSES (at most) TILES THREADS; RUN as in
// depthwise_line_targets.cuh.

#include "include/cp_async.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "depthwise_line_targets.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"
#include "include/ptx/shared_memory.cuh"

constexpr int STRIP = 8, M = 16, K = 16;
constexpr int SUMS_PITCH = LANES > 1 ? LANES + 1 : 1;  // words from one target to the next
constexpr int SKEW = 16;  // elements that separate groups of 8 lanes, so that these write to different banks

struct Params {
  const X_TYPE* source;
  const X_TYPE* w;
  i64 w_strides[2];  // strides of filters and taps
  Lines lines;
  i32 batch_pitch, line_pitch;  // pitches of the samples, in elements
  i32 weights_pitch, zeros;  // elements from one channel's weights to the next; zeros before a channel's weights
  i32 depth;  // steps of K samples
  Digits<3> task_radices;       // the digits of a task: group of TILES tiles of a line, channel, batch
  i32 tasks;
  i32 weights_place, sums_place, offsets_place;  // offsets in shared memory, in units of f32
  LineTargets line;
};

__device__ __forceinline__ u32 line_place(const Params& p, u32 batch, u32 channel) {
  return batch * p.batch_pitch + channel * p.line_pitch + (LANES > 1 ? channel / 8 * SKEW : 0);
}

// The copy of the block's samples, from position `first` on, unconverted; with LANES channels, words hold two
// positions. Samples outside the lines are 0. WORKERS threads copy a row, vector by vector.
struct Copy {
  static constexpr bool IS_ASYNC = LANES == 1 && VECTOR > 1;
  static constexpr int POSITIONS = LANES > 1 ? 2 : 1, AT_A_TIME = 4;
  static constexpr int WORKERS = LANES > 1 ? THREADS : WARP_SIZE;
  static_assert(WORKERS * VECTOR % LANES == 0, "a worker stays with its lanes");
  static constexpr int STEP = WORKERS * VECTOR / LANES * POSITIONS;  // samples from one vector of a worker to the next

  const Params& p;
  const i64* offsets;
  i32 first, rows, samples;
  u32 lane, sample;  // lane and sample of the worker's first vector
  bool has_lane;
  X_TYPE* to;

  __device__ __forceinline__ Copy(const Params& p_, const BlockTargets& block, const i64* offsets_, i32 first_,
                                  X_TYPE* to_)
      : p(p_), offsets(offsets_), first(first_), rows(p_.line.rows.count()), samples(p_.line_pitch), to(to_) {
    const u32 element = threadIdx.x % WORKERS * VECTOR;
    lane = element % LANES;
    sample = element / LANES * POSITIONS;
    has_lane = i32(lane) < p.line.rows.channel_count - block.first_channel;
  }

  // Copies all rows; asynchronous copies are started, not awaited.
  __device__ __forceinline__ void copy() const {
#pragma unroll 1
    for (i32 row = threadIdx.x / WORKERS; row < rows; row += THREADS / WORKERS) {
      const u32 batch = LANES > 1 ? row : p.line.rows.batch_of(row);
      X_TYPE* const place = to + line_place(p, batch, LANES > 1 ? lane : p.line.rows.channel_of(row));
      const i64 offset = offsets[row];
      const i32 extent = offset >= 0 && has_lane ? p.lines.extent : 0;
      copy_row(place, p.source + offset + lane, extent);
    }
    if constexpr (IS_ASYNC) cp_async_commit();
  }

 private:
  __device__ __forceinline__ void copy_row(X_TYPE* place, const X_TYPE* line, i32 extent) const {
    const i32 spacing = p.line.axis.spacing;
    if constexpr (IS_ASYNC) {
#pragma unroll 1
      for (i32 i = sample; i < samples; i += STEP) {
        const bool exists = u32(first + i) < u32(extent);
        cp_async<VECTOR * sizeof(X_TYPE)>(shared_address(place + i), exists ? line + first + i : p.source, exists);
      }
    } else {
#pragma unroll 1
      for (i32 i = sample; i < samples; i += AT_A_TIME * STEP) {
        X_TYPE values[AT_A_TIME][POSITIONS][VECTOR] = {};
#pragma unroll
        for (int u = 0; u < AT_A_TIME; ++u) {
#pragma unroll
          for (int j = 0; j < POSITIONS; ++j) {
            const i32 at = i + u * STEP + j, position = first + at * spacing;
            const bool exists = u32(position) < u32(extent) && at < samples;
            load_where<VECTOR>(exists, values[u][j], line + position * p.lines.stride);
          }
        }
#pragma unroll
        for (int u = 0; u < AT_A_TIME; ++u) {
          if (i + u * STEP < samples) store_vectors(place + i + u * STEP, values[u]);
        }
      }
    }
  }

  __device__ __forceinline__ void store_vectors(X_TYPE* place, const X_TYPE (&values)[POSITIONS][VECTOR]) const {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      if constexpr (LANES > 1) {
        *reinterpret_cast<Vector<X_TYPE, 2>*>(place + v * p.line_pitch) = {values[0][v], values[1][v]};
      } else {
        place[v] = values[0][v];
      }
    }
  }
};

__device__ __forceinline__ void copy_weights(const Params& p, const BlockTargets& block, X_TYPE* to) {
  const i32 channels = p.line.rows.block_channels(), lane = threadIdx.x % WARP_SIZE;
#pragma unroll 1
  for (i32 channel = threadIdx.x / WARP_SIZE; channel < channels; channel += THREADS / WARP_SIZE) {
    const i32 filter = block.first_channel + channel;
    const u32 taps = filter < p.line.rows.channel_count ? block.one.taps : 0;
    const X_TYPE* const from = p.w + filter * p.w_strides[0] + block.one.tap * p.w_strides[1];
    const i64 step = p.line.axis.tap_step * p.w_strides[1];
#pragma unroll 4
    for (i32 i = lane; i < p.weights_pitch; i += WARP_SIZE) {
      const i32 t = i - p.zeros;
      to[channel * p.weights_pitch + i] = u32(t) < taps ? from[t * step] : X_TYPE{};
    }
  }
}

// Returns two neighbouring elements of a column of the band as one word of the B operand.
__device__ __forceinline__ u32 band_pair(const X_TYPE* weights) {
  const Vector<X_TYPE, 2> pair = {weights[0], weights[1]};
  return *reinterpret_cast<const u32*>(&pair);
}

// Whether a sum is computed again. Sums that are rightly NaN, from infinities of both signs, stay NaN then.
__device__ __forceinline__ bool is_nan(f32 x) { return x != x; }

// The sum of the target whose samples begin at x.
__device__ __forceinline__ f32 sum_by_taps(const X_TYPE* x, const X_TYPE* weights, i32 taps) {
  f32 sum = 0.0f;
#pragma unroll 1
  for (i32 t = 0; t < taps; ++t) sum += convert<f32>(x[t]) * convert<f32>(weights[t]);
  return sum;
}

// The sums of two neighbouring targets; step: samples from the first target's to the second's.
__device__ __forceinline__ void sum_pair(const X_TYPE* x, const X_TYPE* weights, i32 step, i32 taps, f32 (&pair)[2]) {
  pair[0] = sum_by_taps(x, weights, taps);
  pair[1] = sum_by_taps(x + step, weights, taps);
}

// Writes two neighbouring targets to shared memory.
__device__ __forceinline__ void write_pair(f32* to, const f32 (&pair)[2]) {
  if constexpr (LANES > 1) {
    to[0] = pair[0], to[SUMS_PITCH] = pair[1];
  } else {
    write_neighbours(to, pair);
  }
}

// Shared-memory addresses of the lane's rows of the operand in each tile; rows past the last strip get its address.
__device__ __forceinline__ void rows_of_tiles(const X_TYPE* line, i32 first_strip, i32 strips, i32 strip_samples,
                                              u32 (&rows_at)[TILES]) {
  const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const i32 strip = min(first_strip + i * M + i32(lane % M), strips - 1);
    rows_at[i] = shared_address(line + strip * strip_samples + lane / M * (K / 2));
  }
}

// Adds the products of K samples of each tile with the band, and moves on to the next samples.
__device__ __forceinline__ void multiply(f32 (&d)[TILES][4], u32 (&rows_at)[TILES], u32 b0, u32 b1) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    u32 a[4];
    ldmatrix_x4(a, rows_at[i]);
    Mma<X_TYPE>::apply(d[i], a, b0, b1);
    rows_at[i] += K * sizeof(X_TYPE);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  X_TYPE* const samples = reinterpret_cast<X_TYPE*>(shared);
  X_TYPE* const weights = reinterpret_cast<X_TYPE*>(shared + p.weights_place * 4);
  f32* const sums = reinterpret_cast<f32*>(shared) + p.sums_place;
  i64* const offsets = reinterpret_cast<i64*>(shared + p.offsets_place * 4);
  const Axis& axis = p.line.axis;
  const Rows& rows = p.line.rows;
  const BlockTargets block = p.line.block();
  for (i32 row = threadIdx.x; row < rows.count(); row += THREADS)
    offsets[row] = rows.offset(p.lines, block.first_batch, block.first_channel, row);
  wait_for_previous_kernel();
  allow_next_kernel();
  __syncthreads();

  // With vector accesses the first sample is at a whole vector, up to VECTOR - 1 before the sample of tap 0.
  const i32 first = block.one.source + block.first * axis.step * axis.spacing;
  const i32 behind = LANES > 1 ? 0 : first & (VECTOR - 1);
  Copy(p, block, offsets, first - behind, samples).copy();
  copy_weights(p, block, weights);
  if constexpr (Copy::IS_ASYNC) cp_async_wait<0>();
  __syncthreads();

  const u32 lane = threadIdx.x % WARP_SIZE, g = lane / 4, t = lane % 4;
  const i32 strips = p.line.targets / STRIP, strip_samples = STRIP * axis.step;
#pragma unroll 1
  for (i32 task = threadIdx.x / WARP_SIZE; task < p.tasks; task += THREADS / WARP_SIZE) {
    u32 place[3];  // group of tiles, channel, batch
    p.task_radices.split(task, place);
    const i32 first_strip = place[0] * (TILES * M), channel = place[1];
    const X_TYPE* const line = samples + line_place(p, place[2], channel);
    const X_TYPE* const filter = weights + channel * p.weights_pitch + p.zeros;
    const X_TYPE* band = filter + 2 * t - i32(g) * axis.step - behind;
    u32 rows_at[TILES];
    rows_of_tiles(line, first_strip, strips, strip_samples, rows_at);
    f32 d[TILES][4] = {};
#pragma unroll 2
    for (i32 k = 0; k < p.depth; ++k) {
      const u32 b0 = band_pair(band), b1 = band_pair(band + K / 2);
      multiply(d, rows_at, b0, b1);
      band += K;
    }

    // The lane's sums: strips g and g + 8, targets 2t and 2t + 1.
    const i32 row = LANES > 1 ? place[2] : place[2] * rows.block_channels() + channel;
    f32* const to = sums + (row * p.line.targets + first_strip * STRIP + g * STRIP + 2 * t) * SUMS_PITCH +
                    (LANES > 1 ? channel : 0);
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
      const i32 strip = first_strip + i * (M / 2) + i32(g);
      if (strip >= strips) break;
      f32 pair[2] = {d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]};
      if (is_nan(pair[0] + pair[1]))
        sum_pair(line + strip * strip_samples + 2 * t * axis.step + behind, filter, axis.step, block.one.taps, pair);
      write_pair(to + i * (M / 2 * STRIP * SUMS_PITCH), pair);
    }
  }
  __syncthreads();
  p.line.finish<SUMS_PITCH>(block, sums);
}
