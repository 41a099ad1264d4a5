// conv_grouped:
//     y[n, k, o] = epilogue(sum over c, r of x[n, g * channels + c, o * stride + r * dilation - padding] * w[k, c, r])
// with g = k / (filters of a group), for groups of few channels; depthwise where a group has one.
//
// Layouts: x, w and y have any strides; positions outside x count as 0. A flipped filter comes with negative tap
// strides and the last tap's address. With CHANNELS > 1 y's vector axis is the channels (channels-last), with CHANNELS
// = 1 it is the last spatial axis.
// Thread: a patch, CHANNELS neighbouring channels of ROWS x STRIP neighbouring outputs along the last two spatial axes
// (rows and columns). If the filter's last extent TAPS and the last stride STEP are compile-time values, and the last
// dilation is 1, a row of x is read once into a window of registers, for all outputs of the patch that need it. ROWS >
// 1 needs a dilation of 1 along the rows, too. Otherwise TAPS = 0 and an element is read once for each tap.
// Block: blockIdx.x = (set of patches) * channel blocks + channel block. It has LANES channel groups and THREADS /
// LANES patches side by side, and `repeats` such sets of patches one after the other, so that the weights are fetched
// once. Patches are numbered over (n, o, row, column).
// Shared memory (dynamic): weights [channels of a group][taps][LANES * CHANNELS] of the accumulator's type.
// Launch: THREADS threads.
// Macros: X_TYPE W_TYPE SPATIAL (1 to 3) CHANNELS ROWS STRIP LANES THREADS TAPS STEP; SHARES_X: 1 if the CHANNELS of a
// thread are filters of one group and so need the same element of x; X_WIDTH: channels of x in one access (1 if they
// are not aligned, 0 if they are shared or not contiguous).

#include "include/numeric.cuh"
#include "include/vector.cuh"
#include "generated.cuh"

typedef Functor::Accumulator Accumulator;

constexpr int LAST = SPATIAL - 1;
constexpr bool HAS_ROWS = SPATIAL > 1;
constexpr int ROW_AXIS = HAS_ROWS ? SPATIAL - 2 : 0;
constexpr int RUN = CHANNELS > 1 ? CHANNELS : STRIP;  // sums that the epilogue gets at a time
constexpr int RUNS = ROWS * STRIP * CHANNELS / RUN;
static_assert(ROWS == 1 || (HAS_ROWS && TAPS > 0), "a patch of rows needs rows, and a window");
constexpr int BLOCK_CHANNELS = LANES * CHANNELS;
constexpr int X_CHANNELS = SHARES_X ? 1 : CHANNELS;
constexpr int SLOTS = THREADS / LANES;

struct Params {
  const X_TYPE* x;
  const W_TYPE* w;  // at tap 0, the last one in memory if the filter is flipped
  i64 x_strides[SPATIAL + 2];  // strides of n, c, spatial axes
  i64 w_strides[SPATIAL + 2];  // strides of k, c, taps
  i32 x_extents[SPATIAL];
  i32 y_extents[SPATIAL];
  i32 taps[SPATIAL];
  i32 strides[SPATIAL];
  i32 dilations[SPATIAL];
  i32 paddings[SPATIAL];  // at the front
  i32 filters;            // channels of y
  i32 group_filters;  // filters of a group
  i32 group_channels;  // channels of a group
  i32 tap_count;
  i32 patch_count;  // patches of the whole tensor
  i32 row_patches;  // patches side by side along the last axis
  i32 channel_blocks;
  i32 repeats;
  Functor::Args epilogue;
};

// A thread's sums, [ROWS][STRIP][CHANNELS] in one array, so that the epilogue can walk over them.
struct Sums {
  Accumulator values[ROWS * STRIP * CHANNELS];

  __device__ __forceinline__ void add(int row, int output, const Accumulator (&x)[X_CHANNELS],
                                      const Accumulator (&w)[CHANNELS]) {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v)
      values[(row * STRIP + output) * CHANNELS + v] += x[SHARES_X ? 0 : v] * w[v];
  }
};

// A patch: its image, the position in y of its first output, and the position in x that this output's tap 0 reads.
struct Patch {
  i32 image;
  i32 position[SPATIAL];
  i32 origin[SPATIAL];

  __device__ __forceinline__ Patch(const Params& p, u32 number) {
    position[LAST] = number % p.row_patches * STRIP;
    number /= p.row_patches;
#pragma unroll
    for (int s = LAST - 1; s >= 0; --s) {
      const int step = s == ROW_AXIS ? ROWS : 1;
      const u32 extent = (p.y_extents[s] + step - 1) / step;
      position[s] = number % extent * step;
      number /= extent;
    }
    image = number;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) origin[s] = position[s] * p.strides[s] - p.paddings[s];
  }
};

// A thread's output channels. offsets: elements of x from what group 0 reads to what each channel reads.
struct Channels {
  i32 first;  // in y
  i32 valid;  // channels from `first` to the end of y; may be negative
  i64 offsets[X_CHANNELS];

  __device__ __forceinline__ Channels(const Params& p, i32 first_channel) {
    first = first_channel;
    valid = p.filters - first_channel;
#pragma unroll
    for (int v = 0; v < X_CHANNELS; ++v) {
      const i64 channel = (first + v) / p.group_filters * p.group_channels;
      offsets[v] = X_WIDTH > 0 ? first + v : channel * p.x_strides[1];
    }
  }
};

// Reads a thread's elements of x at one position; `at` points to the element of group 0.
__device__ __forceinline__ void read_channels(const X_TYPE* at, const Channels& channels,
                                              Accumulator (&values)[X_CHANNELS]) {
  X_TYPE elements[X_CHANNELS];
  if (X_WIDTH > 0 && channels.valid >= CHANNELS) {
    load<Plain, X_WIDTH ? X_WIDTH : 1>(elements, at + channels.first);
  } else {
#pragma unroll
    for (int v = 0; v < X_CHANNELS; ++v) elements[v] = v < channels.valid ? at[channels.offsets[v]] : X_TYPE{};
  }
#pragma unroll
  for (int v = 0; v < X_CHANNELS; ++v) values[v] = convert<Accumulator>(elements[v]);
}

// The elements of x along one spatial axis; the line does not exist if the position along an earlier axis is outside x.
struct Line {
  const X_TYPE* first;
  u32 extent;
  bool exists;

  __device__ __forceinline__ bool has(i32 position) const { return exists && u32(position) < extent; }
};

// The line along the axis after `axis`, at `position` of `axis`.
__device__ __forceinline__ Line next_line(const Params& p, const Line& from, int axis, i32 position) {
  return {from.first + position * p.x_strides[2 + axis], u32(p.x_extents[axis + 1]), from.has(position)};
}

// Reads the elements at `position` of a row of x (a line along the last axis); 0 outside the row.
__device__ __forceinline__ void read_position(const Params& p, const Line& row, i32 position,
                                              const Channels& channels, Accumulator (&values)[X_CHANNELS]) {
  if (row.has(position)) {
    read_channels(row.first + position * p.x_strides[2 + LAST], channels, values);
    return;
  }
#pragma unroll
  for (int v = 0; v < X_CHANNELS; ++v) values[v] = Accumulator(0);
}

// Adds one filter row to the patch's only row of outputs, tap by tap; `weights` points to the row's first tap.
__device__ __forceinline__ void add_taps(const Params& p, const Line& row, const Patch& patch,
                                         const Channels& channels, const Accumulator* weights, Sums& sums) {
#pragma unroll 1  // not unrolled: with the loads of two taps in flight, registers spill
  for (int t = 0; t < p.taps[LAST]; ++t) {
    Accumulator w[CHANNELS];
    load<Plain, CHANNELS>(w, weights + t * BLOCK_CHANNELS);
#pragma unroll
    for (int o = 0; o < STRIP; ++o) {
      Accumulator x[X_CHANNELS];
      const i32 position = patch.origin[LAST] + o * p.strides[LAST] + t * p.dilations[LAST];
      read_position(p, row, position, channels, x);
      sums.add(0, o, x, w);
    }
  }
}

// The part of x's row that a patch needs for a filter row of TAPS_ taps: read once, used for every row of outputs.
template <int TAPS_> struct Window {
  static constexpr int EXTENT = (STRIP - 1) * STEP + TAPS_;
  Accumulator x[EXTENT][X_CHANNELS];

  __device__ __forceinline__ Window(const Params& p, const Line& row, const Patch& patch, const Channels& channels) {
    // Hiding values from the compiler decides which addresses it computes before the loop over rows and keeps. With
    // several channels it keeps none, since up to 13 x 4 addresses of 64 bits would spill; with one channel and many
    // taps it keeps the offsets in the row.
    i32 origin = patch.origin[LAST];
    Line line = row;
    if constexpr (X_CHANNELS > 1) asm volatile("" : "+r"(origin));
    if constexpr (X_CHANNELS == 1 && HAS_ROWS && TAPS_ >= 7) asm volatile("" : "+l"(line.first));
#pragma unroll
    for (int j = 0; j < EXTENT; ++j) read_position(p, line, origin + j, channels, x[j]);
  }

  // Adds the products of the window with one filter row to one row of outputs.
  __device__ __forceinline__ void add_to(Sums& sums, int row, const Accumulator* weights) const {
#pragma unroll
    for (int t = 0; t < TAPS_; ++t) {
      Accumulator w[CHANNELS];
      load<Plain, CHANNELS>(w, weights + t * BLOCK_CHANNELS);
#pragma unroll
      for (int o = 0; o < STRIP; ++o) sums.add(row, o, x[o * STEP + t], w);
    }
  }
};

// Adds the products of one row of x, `reach` filter rows after the patch's origin. Filter row `reach` reads it if the
// patch has one row of outputs, filter row `reach - i * stride` for row i of several.
template <int TAPS_>
__device__ __forceinline__ void add_row(const Params& p, const Line& row, const Patch& patch,
                                        const Channels& channels, const Accumulator* weights, int reach, Sums& sums) {
  const int row_weights = p.taps[LAST] * BLOCK_CHANNELS;
  if constexpr (TAPS_ == 0) {
    add_taps(p, row, patch, channels, weights + reach * row_weights, sums);
  } else {
    const Window<TAPS_> window(p, row, patch, channels);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const int tap = ROWS > 1 ? reach - i * p.strides[ROW_AXIS] : reach;
      if (ROWS == 1 || (tap >= 0 && tap < p.taps[ROW_AXIS])) window.add_to(sums, i, weights + tap * row_weights);
    }
  }
}

// Adds to the sums the products of the taps along the last two axes, or the only one. `plane`: x along the first of
// these axes.
__device__ __forceinline__ void add_plane(const Params& p, const Line& plane, const Patch& patch,
                                          const Channels& channels, const Accumulator* weights, Sums& sums) {
  if constexpr (HAS_ROWS) {
    const int reach = ROWS > 1 ? (ROWS - 1) * p.strides[ROW_AXIS] + p.taps[ROW_AXIS] : p.taps[ROW_AXIS];
#pragma unroll 1  // one window of registers at a time
    for (int j = 0; j < reach; ++j) {
      const i32 position = patch.origin[ROW_AXIS] + (ROWS > 1 ? j : j * p.dilations[ROW_AXIS]);
      add_row<TAPS>(p, next_line(p, plane, ROW_AXIS, position), patch, channels, weights, j, sums);
    }
  } else {
    add_row<TAPS>(p, plane, patch, channels, weights, 0, sums);
  }
}

// Adds to the sums the products of one channel of each group with all filter taps. `image`: x along the first spatial
// axis, for that channel of group 0.
__device__ __forceinline__ void add_channel(const Params& p, const Line& image, const Patch& patch,
                                            const Channels& channels, const Accumulator* weights, Sums& sums) {
  if constexpr (SPATIAL == 3) {
    for (int t = 0; t < p.taps[0]; ++t) {
      const i32 position = patch.origin[0] + t * p.dilations[0];
      add_plane(p, next_line(p, image, 0, position), patch, channels, weights, sums);
      weights += p.taps[1] * p.taps[2] * BLOCK_CHANNELS;
    }
  } else {
    add_plane(p, image, patch, channels, weights, sums);
  }
}

// Hands a patch's sums to the epilogue, a run at a time. The loop stays rolled and the runs rotate through the first
// one's registers, so that the epilogue is instantiated once.
__device__ __forceinline__ void finish(const Params& p, const Patch& patch, const Channels& channels, Sums& sums) {
  i64 coordinate[SPATIAL + 2] = {patch.image, channels.first};
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) coordinate[2 + s] = patch.position[s];
  const int outputs = p.y_extents[LAST] - patch.position[LAST];
#pragma unroll 1
  for (int r = 0; r < RUNS; ++r) {
    const int row = CHANNELS > 1 ? r / STRIP : r;
    const int output = CHANNELS > 1 ? r % STRIP : 0;
    Accumulator run[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) run[i] = sums.values[i];
    if constexpr (HAS_ROWS) coordinate[2 + ROW_AXIS] = patch.position[ROW_AXIS] + row;
    coordinate[2 + LAST] = patch.position[LAST] + output;
    if (output < outputs && coordinate[2 + ROW_AXIS] < p.y_extents[ROW_AXIS]) {
      const i64 column = CHANNELS > 1 ? channels.first : patch.position[LAST];
      const int valid = min(CHANNELS > 1 ? channels.valid : outputs, RUN);
      Functor::apply<RUN>(p.epilogue, Functor::cursor(p.epilogue, coordinate), column, valid, run);
    }
#pragma unroll
    for (int i = 0; i + RUN < ROWS * STRIP * CHANNELS; ++i) sums.values[i] = sums.values[i + RUN];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  Accumulator* const weights = reinterpret_cast<Accumulator*>(shared);
  const int thread = threadIdx.x;
  const int block_channel = int(blockIdx.x % p.channel_blocks) * BLOCK_CHANNELS;
  const u32 block_patches = blockIdx.x / p.channel_blocks * u32(p.repeats * SLOTS);

  // Loads the block's weights.
  const int channel_weights = p.tap_count * BLOCK_CHANNELS;
  for (int i = thread; i < p.group_channels * channel_weights; i += THREADS) {
    const i64 filter = block_channel + i % BLOCK_CHANNELS;
    const i64 channel = i / channel_weights;
    u32 tap = i / BLOCK_CHANNELS % p.tap_count;
    i64 offset = filter * p.w_strides[0] + channel * p.w_strides[1];
#pragma unroll
    for (int s = LAST; s >= 0; --s) {
      offset += tap % p.taps[s] * p.w_strides[2 + s];
      tap /= p.taps[s];
    }
    weights[i] = filter < p.filters ? convert<Accumulator>(p.w[offset]) : Accumulator(0);
  }
  __syncthreads();

  // Computes the thread's patches, for its channels.
  const int lane = CHANNELS > 1 ? thread % LANES : thread / SLOTS;
  const int slot = CHANNELS > 1 ? thread / LANES : thread % SLOTS;
  const Channels channels(p, block_channel + lane * CHANNELS);
  if (channels.valid <= 0) return;
  for (int repeat = 0; repeat < p.repeats; ++repeat) {
    const u32 number = block_patches + repeat * SLOTS + slot;
    if (number >= u32(p.patch_count)) return;
    const Patch patch(p, number);
    Sums sums = {};
    const X_TYPE* image = p.x + patch.image * p.x_strides[0];
    for (int c = 0; c < p.group_channels; ++c) {
      const Accumulator* const filter = weights + c * channel_weights + lane * CHANNELS;
      add_channel(p, {image + c * p.x_strides[1], u32(p.x_extents[0]), true}, patch, channels, filter, sums);
    }
    finish(p, patch, channels, sums);
  }
}
