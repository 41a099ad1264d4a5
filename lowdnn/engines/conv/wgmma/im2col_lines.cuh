// A convolution's operands as the rows of register_operand.cuh: pixels of an image, or filters.
//
// Their functor's index space is (groups, images, channels) or (groups, filters, channels), with the channels of a
// group: its other operands are the same for all pixels of an image, and for all taps of a filter.

#pragma once

#include "im2col_operand.cuh"
#include "include/tile/register_operand.cuh"

// The pixels of a class. IS_PADDED: whether taps read outside the image. Such elements are zeros after the functor,
// whatever it makes of the zeros of the copies.
template <int AXES, bool IS_PADDED> struct PixelLines {
  const PixelClass<AXES>& pixels;
  const i32 (&extent)[AXES];  // extents of the image
  const u32 images, group;
  TapWalk<AXES, REGISTER_STAGE_K> walk;
  i32 position[2][AXES];

  __device__ __forceinline__ PixelLines(const PixelClass<AXES>& pixels, const i32 (&extent)[AXES], const TileWork& work,
                                        u32 images)
      : pixels(pixels), extent(extent), images(images), group(work.batch) {
    walk.begin(pixels, work.first_block);
  }

  __device__ __forceinline__ void place(int i, u32 row, i64 (&coordinate)[3]) {
    coordinate[0] = group;
    coordinate[1] = min(pixels.locate(row, position[i]), images - 1);
  }
  __device__ __forceinline__ i32 column() const { return walk.channel; }
  __device__ __forceinline__ bool reads(int i) const {
    bool is_inside = true;
    if constexpr (IS_PADDED) {
#pragma unroll
      for (int axis = 0; axis < AXES; ++axis) {
        is_inside &= u32(position[i][axis] + walk.offset(pixels, axis)) < u32(extent[axis]);
      }
    }
    return is_inside;
  }
  __device__ __forceinline__ void advance() { walk.advance(pixels); }
};

// The filters of a group, at the taps of a class.
template <int AXES> struct FilterLines {
  const PixelClass<AXES>& pixels;
  const u32 filters, group;
  TapWalk<AXES, REGISTER_STAGE_K> walk;

  __device__ __forceinline__ FilterLines(const PixelClass<AXES>& pixels, const TileWork& work, u32 filters)
      : pixels(pixels), filters(filters), group(work.batch) {
    walk.begin(pixels, work.first_block);
  }

  __device__ __forceinline__ void place(int, u32 row, i64 (&coordinate)[3]) const {
    coordinate[0] = group;
    coordinate[1] = min(row, filters - 1);
  }
  __device__ __forceinline__ i32 column() const { return walk.channel; }
  __device__ __forceinline__ bool reads(int) const { return true; }
  __device__ __forceinline__ void advance() { walk.advance(pixels); }
};
