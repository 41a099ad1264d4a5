// A window of pixels (im2col_operand.cuh) through a functor, in place in shared memory.
//
// Where several taps read one window, converting it there takes a fraction of the arithmetic that converting each tap's
// rows on their way through registers does. The warpgroups of a team share the window's rows: each thread converts 8
// channels of some of them, while the tensor cores work on the stage before.
// The functor (codegen) is over (images, channels) and reads the same for all images. Rows outside of the image stay
// the zeros that the copies bring.

#pragma once

#include "include/im2col_operand.cuh"
#include "include/register_operand.cuh"

// PIXELS rows of 128 bytes of a stage, by the THREADS threads that meet at `barrier`. IS_PADDED: whether taps see
// places outside of the image. ENDS_EARLY: whether the last stage may end with channels that do not exist.
template <class Functor, int PIXELS, int THREADS, int AXES, bool IS_PADDED, bool ENDS_EARLY> struct ConvertedWindow {
  typedef typename Functor::Handed0 Raw;
  typedef typename Functor::Result Element;
  static constexpr u32 CHUNK = 8, CHUNKS = REGISTER_STAGE_K / CHUNK, ROW_STEP = THREADS / CHUNKS;
  static_assert(sizeof(Raw) == 2 && sizeof(Element) == 2, "elements keep their places");

  const ConvertedInput<Functor>& input;
  const PixelClass<AXES>& pixels;
  const i32 (&extent)[AXES];  // of the image
  const i32 first_channel;    // of the group
  const u32 first_pixel;      // of the tile
  const u32 barrier;
  TapWalk<AXES, REGISTER_STAGE_K> walk;

  __device__ __forceinline__ ConvertedWindow(const ConvertedInput<Functor>& input, const PixelClass<AXES>& pixels,
                                             const i32 (&extent)[AXES], const TileWork& work, u32 first_pixel,
                                             i32 group_channels, u32 barrier)
      : input(input), pixels(pixels), extent(extent), first_channel(work.batch * group_channels),
        first_pixel(first_pixel), barrier(barrier) {
    walk.begin(pixels, work.first_block);
  }

  // The next stage's window, which has arrived at `window`; afterwards the tensor cores may read it.
  __device__ __forceinline__ void convert(u32 window) {
    const u32 thread = threadIdx.x % THREADS, chunk = thread % CHUNKS;
    const i32 column = first_channel + walk.channel + i32(chunk * CHUNK);
    const int valid = ENDS_EARLY ? max(0, min(int(CHUNK), input.depth - column)) : int(CHUNK);
    const i64 coordinate[Functor::RANK] = {};
    const auto cursor = Functor::cursor(input.arguments, coordinate);
    typename Functor::template Loaded<CHUNK> in;
    Functor::template load<CHUNK>(input.arguments, cursor, column, valid, in);
    for (u32 row = thread / CHUNKS; row < PIXELS; row += ROW_STEP) {
      if (IS_PADDED && !is_inside(first_pixel + row)) continue;
      const u32 place = window + row * STAGE_ROW_BYTES + (chunk ^ row % 8) * 16;
      const uint4 words = load_shared_128(place);
      const auto raw = *reinterpret_cast<const Vector<Raw, CHUNK>*>(&words);
      Vector<Element, CHUNK> converted;
      Functor::template finish<CHUNK>(input.arguments, cursor, column, valid, in, raw.v, converted.v);
      if constexpr (ENDS_EARLY) {
#pragma unroll
        for (int i = 0; i < int(CHUNK); ++i) converted.v[i] = i < valid ? converted.v[i] : Element{};
      }
      const uint4 done = *reinterpret_cast<const uint4*>(&converted);
      store_shared_16(place, done.x, done.y, done.z, done.w);
    }
    walk.advance(pixels);
    fence_async_shared();
    named_barrier(barrier, THREADS);
  }

 private:
  // Of the first tap of a run: the others see it from other pixels.
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
