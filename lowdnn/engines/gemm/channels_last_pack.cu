// channels_last_pack: packed[p, g, c] = x[p, g * group_channels + c], 0 for c from group_channels to padded_channels.
//
// Layouts: x has any strides over its positions p = (image, SPATIAL_AXES spatial axes) and its channels; packed is
// dense with c innermost. The filter of a convolution is packed likewise, with filters as images, and a matrix with k
// as channels.
// Block: TILE_CHANNELS channels (g, c) of 2048 / TILE_CHANNELS positions: read with neighbouring threads along the axis
// that is contiguous in x (POSITIONS_FIRST or not), written CHUNK channels at a time.
// Shared memory: the tile, [channel][position], with a padding of one word for each row.
// Launch: 256 threads; blockIdx.x = position tile * channel_tiles + channel tile.

#include "include/division.cuh"
#include "include/vector.cuh"

constexpr int THREADS = 256;
constexpr int ELEMENTS = 8;  // of each thread
constexpr int TILE_POSITIONS = THREADS * ELEMENTS / TILE_CHANNELS;
constexpr int PADDING = 4 / sizeof(TYPE);

struct Params {
  const TYPE* x;
  TYPE* packed;
  i64 image_stride, spatial_stride[3], channel_stride;  // of x; of the spatial axes the last SPATIAL_AXES count
  Divider spatial[3];                                   // extents
  i32 positions, group_channels;
  Divider padded_channels;  // of one group
  i32 channels;             // of packed: groups * padded channels
  i32 channel_tiles;
};

// Element offset of a position in x.
__device__ __forceinline__ i64 offset_of(const Params& p, u32 position) {
  i64 offset = 0;
#pragma unroll
  for (int axis = 2; axis >= 3 - SPATIAL_AXES; --axis) {
    const u32 rest = p.spatial[axis].divide(position);
    offset += (position - rest * p.spatial[axis].divisor) * p.spatial_stride[axis];
    position = rest;
  }
  return offset + position * p.image_stride;
}

// Where in the tile a thread's element i is.
__device__ __forceinline__ u32 position_in_tile(int i) {
  const u32 element = threadIdx.x + i * THREADS;
  return POSITIONS_FIRST ? element % TILE_POSITIONS : element / TILE_CHANNELS;
}
__device__ __forceinline__ u32 channel_in_tile(int i) {
  const u32 element = threadIdx.x + i * THREADS;
  return POSITIONS_FIRST ? element / TILE_POSITIONS : element % TILE_CHANNELS;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ TYPE tile[TILE_CHANNELS][TILE_POSITIONS + PADDING];
  const u32 first_position = blockIdx.x / p.channel_tiles * TILE_POSITIONS;
  const u32 first_channel = blockIdx.x % p.channel_tiles * TILE_CHANNELS;

  // Read: all elements of a thread are in flight at once.
  TYPE values[ELEMENTS];
#pragma unroll
  for (int i = 0; i < ELEMENTS; ++i) {
    const u32 position = first_position + position_in_tile(i), channel = first_channel + channel_in_tile(i);
    const u32 group = p.padded_channels.divide(channel), c = channel - group * p.padded_channels.divisor;
    values[i] = {};
    if (position < u32(p.positions) && channel < u32(p.channels) && c < u32(p.group_channels)) {
      values[i] = p.x[offset_of(p, position) + (i64(group) * p.group_channels + c) * p.channel_stride];
    }
  }
#pragma unroll
  for (int i = 0; i < ELEMENTS; ++i) tile[channel_in_tile(i)][position_in_tile(i)] = values[i];
  __syncthreads();

  // Write.
  constexpr u32 CHUNKS = TILE_CHANNELS / CHUNK;
  for (u32 item = threadIdx.x; item < TILE_POSITIONS * CHUNKS; item += THREADS) {
    const u32 at_position = item / CHUNKS, at_channel = item % CHUNKS * CHUNK;
    const u32 position = first_position + at_position, channel = first_channel + at_channel;
    if (position >= u32(p.positions) || channel >= u32(p.channels)) continue;
    TYPE chunk[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) chunk[i] = tile[at_channel + i][at_position];
    store<CHUNK>(p.packed + i64(position) * p.channels + channel, chunk);
  }
}
