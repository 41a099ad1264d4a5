// Applies a functor to pixels in place in shared memory: to the windows of im2col_operand.cuh and the boxes of
// pixel_walk.cuh.
//
// If several taps or rows of a tile read the same pixels, converting them in place takes a fraction of the arithmetic
// of converting each row in registers. The warpgroups of a team share the work: each thread converts 8 channels of some
// of the pixels, while the tensor cores multiply the previous stage. The functor (codegen) is over (groups, images,
// channels of a group); its other operands are the same for all images. Rows outside the image keep the zeros of the
// copies.

#pragma once

#include "im2col_operand.cuh"
#include "pixel_walk.cuh"
#include "include/tile/register_operand.cuh"

// Converts 8 channels of rows of 64, by THREADS threads that share a barrier. ENDS_EARLY: whether a row may end with
// channels that do not exist, from `depth` on: they become zeros, whatever the functor makes of zeros.
template <class Functor, int THREADS, bool ENDS_EARLY> struct RowConversion {
  typedef typename Functor::Handed0 Raw;
  typedef typename Functor::Result Element;
  static constexpr u32 CHUNK = 8, CHUNKS = REGISTER_STAGE_K / CHUNK, ROW_STEP = THREADS / CHUNKS;
  static_assert(sizeof(Raw) == 2 && sizeof(Element) == 2, "elements keep their places");

  const ConvertedInput<Functor>& input;
  u32 first_row, chunk;  // the thread's first row and its chunk

  __device__ __forceinline__ explicit RowConversion(const ConvertedInput<Functor>& input)
      : input(input), first_row(threadIdx.x % THREADS / CHUNKS), chunk(threadIdx.x % CHUNKS) {}

  // Converts those of the `rows` rows at shared-memory address `place` for which exists(row) is true; their first
  // channel is `channel` of `group`.
  template <class Exists>
  __device__ __forceinline__ void convert(u32 place, u32 rows, u32 group, i32 channel, const Exists& exists) const {
    const i32 column = channel + i32(chunk * CHUNK);
    const int valid = ENDS_EARLY ? count_among<CHUNK>(input.depth - column) : int(CHUNK);
    const i64 coordinate[Functor::RANK] = {group};
    const auto cursor = Functor::cursor(input.arguments, coordinate);
    typename Functor::template Loaded<CHUNK> in;
    Functor::template load<CHUNK>(input.arguments, cursor, column, valid, in);
    for (u32 row = first_row; row < rows; row += ROW_STEP) {
      if (!exists(row)) continue;
      const u32 at = place + row * STAGE_ROW_BYTES + (chunk ^ row % 8) * 16;
      const uint4 words = load_shared_128(at);
      const auto raw = *reinterpret_cast<const Vector<Raw, CHUNK>*>(&words);
      Vector<Element, CHUNK> converted;
      Functor::template finish<CHUNK>(input.arguments, cursor, column, valid, in, raw.v, converted.v);
      if constexpr (ENDS_EARLY) {
#pragma unroll
        for (int i = 0; i < int(CHUNK); ++i) converted.v[i] = i < valid ? converted.v[i] : Element{};
      }
      const uint4 done = *reinterpret_cast<const uint4*>(&converted);
      store_shared_16(at, done.x, done.y, done.z, done.w);
    }
  }

  // Called by all threads; afterwards the tensor cores may read the converted rows.
  static __device__ __forceinline__ void finish(u32 barrier) {
    fence_async_shared();
    named_barrier(barrier, THREADS);
  }
};

// Converts windows of PIXELS pixels of a class. IS_PADDED: whether taps read outside the image, at pixels that must
// stay 0.
template <class Functor, int PIXELS, int THREADS, int AXES, bool IS_PADDED, bool ENDS_EARLY> struct ConvertedWindow {
  const RowConversion<Functor, THREADS, ENDS_EARLY> rows;
  const PixelClass<AXES>& pixels;
  const i32 (&extent)[AXES];  // extents of the image
  const u32 group;
  const u32 first_pixel;  // first pixel of the tile
  TapWalk<AXES, REGISTER_STAGE_K> walk;

  __device__ __forceinline__ ConvertedWindow(const ConvertedInput<Functor>& input, const PixelClass<AXES>& pixels,
                                             const i32 (&extent)[AXES], const TileWork& work, u32 first_pixel)
      : rows(input), pixels(pixels), extent(extent), group(work.batch), first_pixel(first_pixel) {
    walk.begin(pixels, work.first_block);
  }

  // Converts the next stage's window, which has arrived at `window`.
  __device__ __forceinline__ void convert(u32 window, u32 barrier) {
    const auto exists = [&](u32 row) { return !IS_PADDED || is_inside(first_pixel + row); };
    rows.convert(window, PIXELS, group, walk.channel, exists);
    walk.advance(pixels);
    rows.finish(barrier);
  }

 private:
  // Whether a pixel's first tap of the run reads inside the image. The run's other taps read pixels that other pixels'
  // first taps read.
  __device__ __forceinline__ bool is_inside(u32 pixel) const {
    i32 position[AXES];
    pixels.locate(pixel, position);
    bool found = true;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      found &= u32(position[axis] + walk.offset(pixels, axis)) < u32(extent[axis]);
    }
    return found;
  }
};

// Converts BOXES boxes of PIXELS positions of a walk, each at the offset of its filter tap.
template <class Functor, int BOXES, int PIXELS, int THREADS, int AXES, bool ENDS_EARLY> struct ConvertedBoxes {
  const RowConversion<Functor, THREADS, ENDS_EARLY> rows;
  const PixelWalk<AXES>* walk;  // not read without axes
  const i32 (&extent)[AXES + 1];  // extents of the image; the last counts images, or pixels without axes
  const u32 group;
  const i32 first_channel;  // first channel of the group
  PixelBox box[BOXES];
  u32 position;

  // boxes: sets the boxes of a tile and returns their walk, as in PixelOperand.
  template <class Boxes>
  __device__ __forceinline__ ConvertedBoxes(const ConvertedInput<Functor>& input, const PixelWalk<AXES>* walk,
                                            const i32 (&extent)[AXES + 1], const TileWork& work, const Boxes& boxes,
                                            i32 group_channels)
      : rows(input), walk(walk), extent(extent), group(work.batch), first_channel(work.batch * group_channels),
        position(work.first_block * REGISTER_STAGE_K) {
    boxes(work, box);
  }

  // Converts the next stage's boxes, which have arrived at `place`.
  __device__ __forceinline__ void convert(u32 place, u32 barrier) {
#pragma unroll
    for (int i = 0; i < BOXES; ++i) {
      if (box[i].channel < 0) continue;  // a box past the last column, or of an empty tap, stays 0
      const auto exists = [&](u32 row) { return is_inside(position + row, box[i].offset); };
      rows.convert(place + i * PIXELS * WALK_ROW_BYTES, PIXELS, group, box[i].channel - first_channel, exists);
    }
    position += REGISTER_STAGE_K;
    rows.finish(barrier);
  }

 private:
  __device__ __forceinline__ bool is_inside(u32 at, const u16 (&offset)[3]) const {
    bool found = true;
    if constexpr (AXES > 0) {
#pragma unroll
      for (int axis = AXES - 1; axis >= 0; --axis) {
        const u32 outer = walk->extent[axis].divide(at);
        const i32 place = walk->first[axis] + walk->step[axis] * i32(at - outer * walk->extent[axis].divisor);
        found &= u32(place + offset[axis]) < u32(extent[axis]);
        at = outer;
      }
    }
    return found && at < u32(extent[AXES]);
  }
};
