// Loaders of a convolution's operands for the main loop of tile_wgmma.cuh: pixels by im2col maps, filters by tiled
// maps.
//
// Pixels form classes: the pixels of a class have the same taps of the filter. A convolution forward and a data
// gradient of stride 1 have one class; a data gradient with strides has one for each residue of a pixel's position.
// Pixels near the edges may be in separate classes, without the taps that read padding.
// One k block is a row of a stage, 128 or 64 bytes of channels, at one tap of the filter, or at a run of taps that are
// neighbours along the last axis. The taps of a block of channels follow each other, so that the same pixels are read
// again while they are in L2.
//
// The taps of a run share one window of pixels: each tap reads `distance` pixels after the tap before it. For that, a
// class has more pixels in a line than there are outputs; where a window runs on into the next line, a tap of an output
// reads padding there. The last run of a line of taps may have fewer: what is loaded of a filter's further taps is not
// multiplied.

#pragma once

#include "include/math/division.cuh"
#include "include/tile/tile_operands.cuh"

// The pixels of one class and their taps. Axes are the spatial ones, outermost first.
//
// Pixel (image, o) is at o * stride + lower in the im2col map's box. Tap t of the class is first_offset + t *
// offset_step positions further on, and is tap first_filter + sum of t * filter_step of the filter. taps, tap_count: a
// run counts as one tap.
template <int AXES> struct PixelClass {
  Divider extent[AXES];  // pixels of an image
  u32 pixels;  // pixels of all images
  u32 map;  // index of the im2col map
  i32 stride[AXES], lower[AXES];
  Divider tap_count, taps[AXES];
  i32 first_filter, filter_step[AXES];
  i32 first_offset[AXES], offset_step[AXES];
  i32 first_channel;  // past the last channel in a class without taps: its k block is all zeros

  // A pixel's position in the box, and its image, which is past the last image for pixels past the end.
  __device__ __forceinline__ u32 locate(u32 pixel, i32 (&position)[AXES]) const {
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 outer = extent[axis].divide(pixel);
      position[axis] = i32(pixel - outer * extent[axis].divisor) * stride[axis] + lower[axis];
      pixel = outer;
    }
    return pixel;
  }
};

// The current k block of a class: block of channels, and tap along each axis, or the number of its run of RUN taps along
// the last one.
template <int AXES, int K, int RUN = 1> struct TapWalk {
  i32 tap[AXES];
  i32 channel;

  __device__ __forceinline__ void begin(const PixelClass<AXES>& pixels, i32 block) {
    const u32 chunk = pixels.tap_count.divide(u32(block));
    u32 rest = block - chunk * pixels.tap_count.divisor;
    channel = pixels.first_channel + chunk * K;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 outer = pixels.taps[axis].divide(rest);
      tap[axis] = rest - outer * pixels.taps[axis].divisor;
      rest = outer;
    }
  }

  __device__ __forceinline__ void advance(const PixelClass<AXES>& pixels) {
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      if (++tap[axis] < i32(pixels.taps[axis].divisor)) return;
      tap[axis] = 0;
    }
    channel += K;
  }

  __device__ __forceinline__ i32 filter_tap(const PixelClass<AXES>& pixels) const {
    i32 found = pixels.first_filter;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) found += first_tap(axis) * pixels.filter_step[axis];
    return found;
  }

  __device__ __forceinline__ u16 offset(const PixelClass<AXES>& pixels, int axis) const {
    return u16(pixels.first_offset[axis] + first_tap(axis) * pixels.offset_step[axis]);
  }

 private:
  __device__ __forceinline__ i32 first_tap(int axis) const { return tap[axis] * (axis == AXES - 1 ? RUN : 1); }
};

// PIXELS pixels from the first row (IS_A) or column of a tile on, channels along k; each of SHARERS blocks loads PIXELS
// / SHARERS of them. A map's columns are PIXELS / SHARERS pixels of a stage's row of channels.
template <class Stage, bool IS_A, int PIXELS, int K, int SHARERS, int AXES, int RUN> struct Im2colOperand {
  static constexpr int OWN = PIXELS / SHARERS;

  const TensorMap* maps;
  const PixelClass<AXES>* classes;
  i32 group_channels;
  Share share;
  const TensorMap* map;
  const PixelClass<AXES>* pixels;
  TapWalk<AXES, K, RUN> walk;
  i32 base[AXES], image, first_channel;

  __device__ __forceinline__ Im2colOperand(const TensorMap* maps, const PixelClass<AXES>* classes, i32 group_channels,
                                           Share share)
      : maps(maps), classes(classes), group_channels(group_channels), share(share) {}

  __device__ __forceinline__ void begin(const ClassWork& work) {
    pixels = classes + work.product_class;
    map = maps + pixels->map;
    walk.begin(*pixels, work.first_block);
    first_channel = work.batch * group_channels;
    image = pixels->locate((IS_A ? work.row : work.column) + share.part * OWN, base);  // past the last image: zeros
  }

  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    const u32 to = stage + share.part * OWN * Stage::ROW_BYTES;
    const i32 channel = first_channel + walk.channel;
    const u16 w = walk.offset(*pixels, AXES - 1);
    if constexpr (AXES == 1) {
      tma_load_im2col<SHARERS>(to, *map, barrier, share.blocks, channel, base[0], image, w);
    } else if constexpr (AXES == 2) {
      const u16 h = walk.offset(*pixels, 0);
      tma_load_im2col<SHARERS>(to, *map, barrier, share.blocks, channel, base[1], base[0], image, w, h);
    } else {
      const u16 h = walk.offset(*pixels, 1), d = walk.offset(*pixels, 0);
      tma_load_im2col<SHARERS>(to, *map, barrier, share.blocks, channel, base[2], base[1], base[0], image, w, h, d);
    }
    walk.advance(*pixels);
  }
};

// Filters as the EXTENT rows (IS_A) or columns of a tile. The map's dimensions are (contiguous dimension, taps, other
// dimension). In a K-major stage k is contiguous, with boxes (a row, 1, BOX); otherwise boxes are (64, 1, OWN_K
// elements of k), one for each of SHARERS blocks. Group g has the lines (rows or columns) from g * group_lines on, at k
// from g * group_depth on. The RUN taps of a run follow each other in the stage, and so do the PARTS parts of K-major
// elements, which follow each other in memory in blocks of K.
template <class Stage, bool IS_A, int EXTENT, int K, int SHARERS, int AXES, int RUN, int PARTS = 1>
struct FilterOperand {
  static constexpr int OWN = EXTENT / SHARERS;
  static constexpr int BOX = boxed_lines(OWN), OWN_K = K / SHARERS;
  static_assert(!Stage::MN_MAJOR || OWN_K % 8 == 0, "MN-major: each block shares whole groups of 1024 bytes");

  const TensorMap& map;
  const PixelClass<AXES>* classes;
  i32 group_lines, group_depth;
  Share share;
  const PixelClass<AXES>* pixels;
  TapWalk<AXES, K, RUN> walk;
  i32 line, first_k;

  __device__ __forceinline__ FilterOperand(const TensorMap& map, const PixelClass<AXES>* classes, i32 group_lines,
                                           i32 group_depth, Share share)
      : map(map), classes(classes), group_lines(group_lines), group_depth(group_depth), share(share) {}

  __device__ __forceinline__ void begin(const ClassWork& work) {
    pixels = classes + work.product_class;
    walk.begin(*pixels, work.first_block);
    line = work.batch * group_lines + (IS_A ? work.row : work.column);
    first_k = work.batch * group_depth;
  }

  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    i32 tap = walk.filter_tap(*pixels);
    const i32 k = PARTS * (first_k + walk.channel);
#pragma unroll
    for (int i = 0; i < RUN; ++i, tap += pixels->filter_step[AXES - 1]) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        load_tap(stage + (i * PARTS + part) * Stage::TAP_LINES * Stage::ROW_BYTES, barrier, tap, k + part * K);
      }
    }
    walk.advance(*pixels);
  }

 private:
  __device__ __forceinline__ void load_tap(u32 to, u32 barrier, i32 tap, i32 k) const {
    if constexpr (Stage::MN_MAJOR) {
#pragma unroll
      for (int i = 0; i < EXTENT; i += 64) {
        const u32 first = share.part * OWN_K;
        tma_load<SHARERS>(to + i * Stage::ROW_BYTES + first * 128, map, barrier, share.blocks, line + i, tap,
                          k + first);
      }
    } else {
#pragma unroll
      for (int i = 0; i < OWN; i += BOX) {
        const u32 first = share.part * OWN + i;
        tma_load<SHARERS>(to + first * Stage::ROW_BYTES, map, barrier, share.blocks, k, tap, line + first);
      }
    }
  }
};
