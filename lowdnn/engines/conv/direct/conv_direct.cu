// conv_direct: the three convolutions as implicit matrix products in the accumulator's type, without tensor cores:
//     output[map, place] = epilogue(sum over depth of weights[map, depth] * image[place + depth])
//
//     direction    output  image  weights  maps        places         depth
//     FORWARD      y       x      w        filters k   pixels (n, o)  taps (c, r)
//     DATA         dx      dy     w        channels c  pixels (n, i)  taps (k, r)
//     FILTER       dw      x      dy       filters k   taps (c, r)    pixels (n, o)
//
// An image element's position is the sum of a pixel's part and a tap's part, o * stride - padding and r * dilation
// (forward); elements outside count as 0. In backward data the pixels i of one residue class modulo the stride read
// every `period`-th tap, and within the class the problem is a forward one of stride 1 (see Axis). In backward filter
// the depth may be cut into slices, whose sums gemm/split_k_reduce.cu adds.
//
// Layouts: image, weights and output have any strides. A flipped filter comes with negative tap strides and the last
// tap's address; in backward filter with a negative dilation and the last tap's padding. The product is places by maps
// or, with PLACES_ARE_COLUMNS (the output's vector axis is one of the places'), maps by places. Taps are numbered with
// the channel fastest if CHANNELS_FASTEST, otherwise slowest; pixels with the last axis fastest.
// Block: blockIdx.x = (((class or slice) * groups + group) * place tiles + place tile) * map tiles + map tile; it
// computes TILE_ROWS x TILE_COLUMNS elements of the output. The extent of the places along the vector axis is rounded
// up to PLACE_RUN, so that a run of places never crosses its end.
// Shared memory (static): the two operand tiles, twice (SimtTile::Shared); for the tile's places, offset and position
// in the image; for the depths of two steps, offsets in image and weights and position in the image; the axes.
// Launch: Tile::THREADS threads.
// Macros: DIRECTION ACCUMULATOR IMAGE_TYPE WEIGHTS_TYPE SPATIAL (1 to 3) TILE_ROWS TILE_COLUMNS TILE_DEPTH
// PLACES_ARE_COLUMNS CHANNELS_FASTEST; RUN: columns that the epilogue gets at a time, 4, or 1 if fours do not divide
// the vector axis; IMAGE_ALONG_DEPTH, WEIGHTS_ALONG_DEPTH: 1 if neighbouring threads read neighbouring depths; SPLIT: 1
// if sums go to slices[slice][map][place] and not through the epilogue.

#include "include/numeric.cuh"
#include "include/optional.cuh"
#include "include/tile/tile_simt.cuh"
#include "generated.cuh"

// With SPLIT the kernel has no functor.
struct Functor;

typedef ACCUMULATOR Accumulator;
typedef SimtTile<Accumulator, TILE_ROWS, TILE_COLUMNS, TILE_DEPTH> Tile;

enum Direction : int { FORWARD, DATA, FILTER };
constexpr int TILE_PLACES = PLACES_ARE_COLUMNS ? TILE_COLUMNS : TILE_ROWS;
constexpr int TILE_MAPS = PLACES_ARE_COLUMNS ? TILE_ROWS : TILE_COLUMNS;
constexpr int PLACE_RUN = PLACES_ARE_COLUMNS ? RUN : 1;
constexpr int LAST = SPATIAL - 1;
constexpr int OUTSIDE = -(1 << 30);  // a position from which every depth stays outside the image

struct Numbers {
  const IMAGE_TYPE* image;
  const WEIGHTS_TYPE* weights;  // at tap 0, the last one in memory if the filter is flipped
  i64 image_strides[SPATIAL + 2];  // strides of n, channel, spatial axes
  i64 weights_strides[SPATIAL + 2];  // the map; then channel and taps or, in backward filter, n and pixels
  i64 image_group_stride;
  i64 weights_group_stride;
  i32 image_extents[SPATIAL];
  i32 pixel_extents[SPATIAL];  // extents of y, or of dx in backward data
  i32 taps[SPATIAL];
  i32 strides[SPATIAL];
  i32 dilations[SPATIAL];
  i32 paddings[SPATIAL];  // at the front
  i32 periods[SPATIAL];   // in backward data: stride / gcd(stride, dilation)
  i32 images;
  i32 group_channels;  // channels of the image in a group
  i32 group_maps;
  i32 groups;
  i32 place_tiles;
  i32 map_tiles;
};
struct Slices {
  i32 slice_depth;
  i64 pitch, slice_stride;  // elements
  Accumulator* slices;
};

struct Params : Numbers, Either<SPLIT, Slices, ArgsOf<Functor>>::Type {};

// One spatial axis of the block's class of pixels. Pixel j is at start + j * step in the output. Its tap t is tap
// first_tap + t * tap_step of the filter and reads position first + j * stride + t * dilation of the image. The fields
// fill whole 16-byte words, since the compiler reads them in wide accesses.
struct alignas(16) Axis {
  i32 extent;  // pixels
  i32 start, step;
  i32 first, stride;
  i32 taps, dilation;
  i32 first_tap;
};

__device__ __forceinline__ i32 tap_step(const Params& p, int s) { return DIRECTION == DATA ? p.periods[s] : 1; }

// Returns the axis for the pixels of one residue modulo the stride. In backward data, pixel i reads tap r if i +
// padding - r * dilation is a multiple of the stride, which selects the taps of one residue modulo the period, or none.
__device__ __forceinline__ Axis axis_of(const Params& p, int s, i32 residue) {
  const i32 stride = p.strides[s];
  if (DIRECTION != DATA)
    return {p.pixel_extents[s], 0, 1, -p.paddings[s], stride, p.taps[s], p.dilations[s], 0};
  const i32 period = p.periods[s];
  const i32 candidates = min(period, p.taps[s]);
  i32 tap = 0;
  while (tap < candidates && (residue + p.paddings[s] - tap * p.dilations[s]) % stride != 0) ++tap;
  const i32 taps = tap < candidates ? (p.taps[s] - tap + period - 1) / period : 0;
  const i32 first = (residue + p.paddings[s] - tap * p.dilations[s]) / stride;
  const i32 extent = (p.pixel_extents[s] - residue + stride - 1) / stride;
  return {extent, residue, stride, first, 1, taps, -p.dilations[s] / (stride / period), tap};
}

// A pixel of the block's class. exists: false for numbers that pad a run or a tile.
struct Pixel {
  i32 image;
  i32 position[SPATIAL];
  bool exists;

  __device__ __forceinline__ Pixel(const Params& p, const Axis* axes, u32 number, i32 run) {
#pragma unroll
    for (int s = LAST; s >= 0; --s) {
      u32 extent = axes[s].extent;
      if (s == LAST) extent = (extent + run - 1) / run * run;
      position[s] = number % extent;
      number /= extent;
    }
    image = number;
    exists = image < p.images && position[LAST] < axes[LAST].extent;
  }
};

// A channel and a tap of the block's class.
struct Tap {
  i32 channel;
  i32 position[SPATIAL];
  bool exists;

  __device__ __forceinline__ Tap(const Params& p, const Axis* axes, u32 number, i32 run) {
    if (CHANNELS_FASTEST) {
      const u32 channels = (p.group_channels + run - 1) / run * run;
      channel = number % channels;
      number /= channels;
    }
#pragma unroll
    for (int s = LAST; s >= 0; --s) {
      u32 taps = axes[s].taps;
      if (s == LAST && !CHANNELS_FASTEST) taps = (taps + run - 1) / run * run;
      position[s] = number % taps;
      number /= taps;
    }
    if (!CHANNELS_FASTEST) channel = number;
    exists = channel < p.group_channels && (CHANNELS_FASTEST ? number == 0 : position[LAST] < axes[LAST].taps);
  }

  // The tap's index among the group's taps, without the padding of runs.
  __device__ __forceinline__ i64 index(const Params& p, const Axis* axes) const {
    i64 tap = 0;
    i64 taps = 1;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) {
      tap = tap * axes[s].taps + position[s];
      taps *= axes[s].taps;
    }
    return CHANNELS_FASTEST ? tap * p.group_channels + channel : channel * taps + tap;
  }
};

// The entries' arrays fill whole 8-byte words, all of them written: the compiler reads entries in wide accesses.
constexpr int ENTRY_AXES = (SPATIAL + 1) / 2 * 2;

// The part of an image element's address and position that a pixel or a tap adds.
struct Entry {
  i64 image_offset;
  i32 position[ENTRY_AXES];
};

struct DepthEntry : Entry {
  i64 weights_offset;
};

struct alignas(16) Shared {
  Tile::Shared tile;
  Entry places[TILE_PLACES];
  DepthEntry depths[2][TILE_DEPTH];
  Axis axes[SPATIAL];
};

__device__ __forceinline__ void locate(const Params& p, const Axis* axes, const Pixel& pixel, Entry& entry) {
  entry.image_offset = pixel.image * p.image_strides[0];
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) {
    entry.position[s] = axes[s].first + pixel.position[s] * axes[s].stride;
    entry.image_offset += entry.position[s] * p.image_strides[2 + s];
  }
}

__device__ __forceinline__ void locate(const Params& p, const Axis* axes, const Tap& tap, Entry& entry) {
  entry.image_offset = tap.channel * p.image_strides[1];
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) {
    entry.position[s] = tap.position[s] * axes[s].dilation;
    entry.image_offset += entry.position[s] * p.image_strides[2 + s];
  }
}

template <class Place>
__device__ __forceinline__ Entry place_entry(const Params& p, const Axis* axes, const Place& place) {
  Entry entry = {};
  locate(p, axes, place, entry);
  if (!place.exists) {
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) entry.position[s] = OUTSIDE;
  }
  return entry;
}

__device__ __forceinline__ DepthEntry depth_entry(const Params& p, const Axis* axes, u32 number) {
  DepthEntry entry = {};
  if constexpr (DIRECTION == FILTER) {
    const Pixel pixel(p, axes, number, 1);
    locate(p, axes, pixel, entry);
    entry.weights_offset = pixel.image * p.weights_strides[1];
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) entry.weights_offset += pixel.position[s] * p.weights_strides[2 + s];
  } else {
    const Tap tap(p, axes, number, 1);
    locate(p, axes, tap, entry);
    entry.weights_offset = tap.channel * p.weights_strides[1];
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) {
      const i32 position = axes[s].first_tap + tap.position[s] * tap_step(p, s);
      entry.weights_offset += position * p.weights_strides[2 + s];
    }
  }
  return entry;
}

// Positions of a thread's COUNT elements in an EXTENT x TILE_DEPTH operand tile.
template <int EXTENT, bool ALONG_DEPTH> struct Share {
  static constexpr int COUNT = EXTENT * TILE_DEPTH / Tile::THREADS;
  static_assert(COUNT * Tile::THREADS == EXTENT * TILE_DEPTH, "even shares");

  static __device__ __forceinline__ int level(int thread, int i) {
    const int element = thread + i * Tile::THREADS;
    return ALONG_DEPTH ? element % TILE_DEPTH : element / EXTENT;
  }
  static __device__ __forceinline__ int position(int thread, int i) {
    const int element = thread + i * Tile::THREADS;
    return ALONG_DEPTH ? element / TILE_DEPTH : element % EXTENT;
  }
  template <class T>
  static __device__ __forceinline__ void put(int thread, const T (&staged)[COUNT],
                                             Accumulator (&tile)[TILE_DEPTH][EXTENT + Tile::GROUP]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) tile[level(thread, i)][position(thread, i)] = convert<Accumulator>(staged[i]);
  }
};
typedef Share<TILE_PLACES, IMAGE_ALONG_DEPTH> ImageShare;
typedef Share<TILE_MAPS, WEIGHTS_ALONG_DEPTH> WeightsShare;

// Reads a thread's elements of the image for one step, of which `levels` depths exist.
__device__ __forceinline__ void fetch_image(const Params& p, const IMAGE_TYPE* base, const Shared& shared,
                                            const DepthEntry (&depths)[TILE_DEPTH], int levels, int thread,
                                            IMAGE_TYPE (&staged)[ImageShare::COUNT]) {
#pragma unroll
  for (int i = 0; i < ImageShare::COUNT; ++i) {
    const int level = ImageShare::level(thread, i);
    const DepthEntry& depth = depths[level];
    const Entry& place = shared.places[ImageShare::position(thread, i)];
    bool exists = level < levels;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) {
      const u32 position = place.position[s] + depth.position[s];
      exists = exists && position < u32(p.image_extents[s]);
    }
    staged[i] = exists ? base[place.image_offset + depth.image_offset] : IMAGE_TYPE{};
  }
}

// Reads a thread's elements of the weights for one step; `maps` of the tile's maps exist.
__device__ __forceinline__ void fetch_weights(const Params& p, const WEIGHTS_TYPE* base,
                                              const DepthEntry (&depths)[TILE_DEPTH], int levels, int maps, int thread,
                                              WEIGHTS_TYPE (&staged)[WeightsShare::COUNT]) {
#pragma unroll
  for (int i = 0; i < WeightsShare::COUNT; ++i) {
    const int level = WeightsShare::level(thread, i);
    const int map = WeightsShare::position(thread, i);
    const bool exists = level < levels && map < maps;
    staged[i] = exists ? base[map * p.weights_strides[0] + depths[level].weights_offset] : WEIGHTS_TYPE{};
  }
}

__device__ __forceinline__ auto& place_tile(Shared& shared, int buffer) {
  if constexpr (PLACES_ARE_COLUMNS) return shared.tile.columns[buffer];
  else return shared.tile.rows[buffer];
}

__device__ __forceinline__ auto& map_tile(Shared& shared, int buffer) {
  if constexpr (PLACES_ARE_COLUMNS) return shared.tile.rows[buffer];
  else return shared.tile.columns[buffer];
}

// Adds the products of depths `begin` to `end`, at least one; `maps` of the tile's maps exist.
__device__ __forceinline__ void multiply(const Params& p, const IMAGE_TYPE* image, const WEIGHTS_TYPE* weights,
                                         Shared& shared, u32 begin, u32 end, int maps, int thread, Tile& tile) {
  // Writes the tables of the first two steps, then fetches the first step's operands.
  if (thread < 2 * TILE_DEPTH)
    shared.depths[thread / TILE_DEPTH][thread % TILE_DEPTH] = depth_entry(p, shared.axes, begin + thread);
  __syncthreads();
  IMAGE_TYPE image_staged[ImageShare::COUNT];
  WEIGHTS_TYPE weights_staged[WeightsShare::COUNT];
  fetch_image(p, image, shared, shared.depths[0], end - begin, thread, image_staged);
  fetch_weights(p, weights, shared.depths[0], end - begin, maps, thread, weights_staged);
  ImageShare::put(thread, image_staged, place_tile(shared, 0));
  WeightsShare::put(thread, weights_staged, map_tile(shared, 0));
  __syncthreads();

  // Fetch step t + 1, multiply step t, put step t + 1 into the other buffer. The table of step t + 2 replaces that of
  // step t, which was last read before the barrier at the end of step t - 1.
  int buffer = 0;
  for (u32 done = begin; done < end; done += TILE_DEPTH) {
    const int left = int(end - done) - TILE_DEPTH;
    if (left > 0) {
      fetch_image(p, image, shared, shared.depths[buffer ^ 1], left, thread, image_staged);
      fetch_weights(p, weights, shared.depths[buffer ^ 1], left, maps, thread, weights_staged);
    }
    tile.multiply(shared.tile, buffer);
    if (thread < TILE_DEPTH)
      shared.depths[buffer][thread] = depth_entry(p, shared.axes, done + 2 * TILE_DEPTH + thread);
    if (left > 0) {
      ImageShare::put(thread, image_staged, place_tile(shared, buffer ^ 1));
      WeightsShare::put(thread, weights_staged, map_tile(shared, buffer ^ 1));
    }
    __syncthreads();
    buffer ^= 1;
  }
}

// Coordinates of the first of RUN consecutive elements of the output, and how many exist along the vector axis.
struct Target {
  i64 coordinate[SPATIAL + 2];
  i32 column;
  i32 left;

  __device__ __forceinline__ Target(const Params& p, const Axis* axes, const Pixel& pixel, i32 map, i32 maps_left) {
    coordinate[0] = pixel.image;
    coordinate[1] = map;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) coordinate[2 + s] = axes[s].start + pixel.position[s] * axes[s].step;
    column = PLACES_ARE_COLUMNS ? coordinate[2 + LAST] : map;
    left = PLACES_ARE_COLUMNS ? axes[LAST].extent - pixel.position[LAST] : maps_left;
  }

  __device__ __forceinline__ Target(const Params& p, const Axis* axes, const Tap& tap, i32 map, i32 maps_left) {
    coordinate[0] = map;
    coordinate[1] = tap.channel;
#pragma unroll
    for (int s = 0; s < SPATIAL; ++s) coordinate[2 + s] = tap.position[s];
    column = CHANNELS_FASTEST ? tap.channel : tap.position[LAST];
    left = (CHANNELS_FASTEST ? p.group_channels : axes[LAST].taps) - column;
  }
};

template <int V, class Functor>
__device__ __forceinline__ void store(const ArgsOf<Functor>& p, const Target& target, int valid,
                                      const Accumulator (&values)[V]) {
  const typename Functor::Cursor cursor = Functor::cursor(p.args, target.coordinate);
  Functor::template apply<V>(p.args, cursor, target.column, valid, values);
}

// Passes RUN neighbouring sums, the first one at a place and a map, to the epilogue, or with SPLIT stores them in the
// slice.
template <class Params, class Place>
__device__ __forceinline__ void finish(const Params& p, const Axis* axes, const Place& place, i32 map, i32 maps_left,
                                       u32 slice, const Accumulator* values) {
  const Target target(p, axes, place, map, maps_left);
  const int valid = min(target.left, RUN);
  Accumulator run[RUN];
#pragma unroll
  for (int i = 0; i < RUN; ++i) run[i] = values[i];
  if constexpr (SPLIT) {
    Accumulator* to = p.slices + slice * p.slice_stride + map * p.pitch + place.index(p, axes);
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
      if (i < valid) to[i] = run[i];
    }
  } else {
    store<RUN, Functor>(p, target, valid, run);
  }
}

// Restricts the depths to those of a slice.
__device__ __forceinline__ void take_slice(const Slices& p, u32 slice, u32& begin, u32& end) {
  begin = slice * p.slice_depth;
  end = min(end, begin + p.slice_depth);
}
template <class Functor>
__device__ __forceinline__ void take_slice(const ArgsOf<Functor>&, u32, u32&, u32&) {}

template <int D> struct PlaceOf { typedef Pixel Type; };
template <> struct PlaceOf<FILTER> { typedef Tap Type; };
typedef PlaceOf<DIRECTION>::Type Place;

// Stores a block's tile, RUN columns at a time.
__device__ __forceinline__ void finish_tile(const Params& p, const Axis* axes, Tile& tile, u32 place_start,
                                            i32 first_map, i32 maps, u32 part) {
  tile.for_each_row([&](int row, const Accumulator(&values)[Tile::THREAD_COLUMNS]) {
    if constexpr (PLACES_ARE_COLUMNS) {
      if (row >= maps) return;
#pragma unroll
      for (int j = 0; j < Tile::THREAD_COLUMNS; j += RUN) {
        const u32 number = place_start + tile.column(j / Tile::GROUP) + j % Tile::GROUP;
        const Place place(p, axes, number, PLACE_RUN);
        if (place.exists) finish(p, axes, place, first_map + row, maps - row, part, &values[j]);
      }
    } else {
      const Place place(p, axes, place_start + row, PLACE_RUN);
      if (!place.exists) return;
#pragma unroll
      for (int j = 0; j < Tile::THREAD_COLUMNS; j += RUN) {
        const i32 column = tile.column(j / Tile::GROUP) + j % Tile::GROUP;
        if (column < maps) finish(p, axes, place, first_map + column, maps - column, part, &values[j]);
      }
    }
  });
}

// Most registers of a thread. By default ptxas aims at more blocks on a multiprocessor than registers allow, and
// spills.
constexpr bool IS_NARROW = TILE_MAPS < 32 || sizeof(Accumulator) == 8;
constexpr bool IS_LEAN = TILE_MAPS == 64 && DIRECTION != DATA && sizeof(IMAGE_TYPE) > 1;
constexpr int REGISTERS = TILE_MAPS >= 128 || IS_NARROW ? 256 : IS_LEAN ? 85 : 128;
constexpr int MIN_BLOCKS = 65536 / REGISTERS / Tile::THREADS;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Shared shared;
  const int thread = threadIdx.x;

  // The block's tile, its group, and its class or slice.
  u32 rest = blockIdx.x;
  const int map_start = int(rest % p.map_tiles) * TILE_MAPS;  // in the group
  rest /= p.map_tiles;
  const u32 place_start = rest % p.place_tiles * TILE_PLACES;
  rest /= p.place_tiles;
  const int group = rest % p.groups;
  const u32 part = rest / p.groups;
  const int maps = p.group_maps - map_start;  // maps left in the group
  const int first_map = group * p.group_maps + map_start;  // in the output
  const IMAGE_TYPE* image = p.image + group * p.image_group_stride;
  const WEIGHTS_TYPE* weights = p.weights + group * p.weights_group_stride + map_start * p.weights_strides[0];

  // Computes the axes, then the table of the tile's places.
  if (thread == 0) {
    u32 residues = part;
#pragma unroll
    for (int s = LAST; s >= 0; --s) {
      const u32 classes = min(p.strides[s], p.pixel_extents[s]);
      shared.axes[s] = axis_of(p, s, residues % classes);
      residues /= classes;
    }
  }
  __syncthreads();
  const Axis* const axes = shared.axes;
  for (int i = thread; i < TILE_PLACES; i += Tile::THREADS)
    shared.places[i] = place_entry(p, axes, Place(p, axes, place_start + i, PLACE_RUN));

  // Sums over the depth, or over the slice of it.
  u32 begin = 0;
  u32 end = DIRECTION == FILTER ? p.images : p.group_channels;
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) end *= DIRECTION == FILTER ? axes[s].extent : axes[s].taps;
  take_slice(p, part, begin, end);
  Tile tile(thread);
  if (begin < end) multiply(p, image, weights, shared, begin, end, maps, thread, tile);

  finish_tile(p, axes, tile, place_start, first_map, maps, part);
}
