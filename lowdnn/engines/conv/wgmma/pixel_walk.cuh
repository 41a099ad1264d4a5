// Loader of an MN-major operand of channels-last pixels for the main loop of tile_wgmma.cuh.
//
// k walks over pixels: images outermost, the last spatial axis innermost; a k block is 64 positions of the walk, or 32
// of 32-bit types. A box is 64 channels of neighbouring positions. One row of 128 bytes for each position makes it a
// block of 64 rows or columns of an MN-major stage; of 32-bit types, two blocks of 32 channels follow each other.

#pragma once

#include "include/math/division.cuh"
#include "include/tile/tile_operands.cuh"

constexpr int BOX_CHANNELS = 64, WALK_ROW_BYTES = 128;

// A walk of AXES spatial axes (outermost first) through an im2col map: position `at` of an axis lies at first + step *
// at.
template <int AXES> struct PixelWalk {
  Divider extent[AXES];
  i32 first[AXES], step[AXES];
};

// A walk through pixels that follow each other evenly: a tiled map of (channels, pixels).
template <> struct PixelWalk<0> {};

// 64 channels from `channel` on; offset: how far from the walk a filter tap sees them, by axis.
struct PixelBox {
  i32 channel;
  u16 offset[3];
};

// BOXES boxes of each k block, PIXELS positions each; `boxes(work, box)` names them for a tile and says which of the
// walks, each with a map of its own, they are of. A tiled map has no walks. SHARERS blocks of the cluster load PIXELS /
// SHARERS positions of every box, as many as the maps' copies take, and send them to all.
template <class T, int AXES, int BOXES, int PIXELS, int SHARERS, class Boxes> struct PixelOperand {
  static constexpr int OWN = PIXELS / SHARERS;
  static constexpr int K = WALK_ROW_BYTES / sizeof(T);  // positions of a k block, and channels of a row
  static constexpr int BLOCKS = BOX_CHANNELS / K;
  static_assert(OWN % 8 == 0, "whole groups of 1024 bytes");

  const TensorMap* maps;
  const PixelWalk<AXES>* walks;
  const Boxes& boxes;
  Share share;
  u32 which;  // of the walks
  PixelBox box[BOXES];
  u32 position;

  __device__ __forceinline__ PixelOperand(const TensorMap* maps, const PixelWalk<AXES>* walks, const Boxes& boxes,
                                          Share share)
      : maps(maps), walks(walks), boxes(boxes), share(share) {}

  __device__ __forceinline__ void begin(const TileWork& work) {
    which = boxes(work, box);
    position = work.first_block * K + share.part * OWN;
  }

  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    i32 at[AXES + 1];  // the image, then the spatial axes
    u32 rest = position;
    if constexpr (AXES > 0) {
      const PixelWalk<AXES>& walk = walks[which];
#pragma unroll
      for (int axis = AXES - 1; axis >= 0; --axis) {
        const u32 outer = walk.extent[axis].divide(rest);
        at[axis + 1] = walk.first[axis] + walk.step[axis] * i32(rest - outer * walk.extent[axis].divisor);
        rest = outer;
      }
    }
    at[0] = rest;
#pragma unroll
    for (int i = 0; i < BOXES; ++i) {
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        const u32 to = stage + ((i * BLOCKS + block) * PIXELS + share.part * OWN) * WALK_ROW_BYTES;
        load_block(to, barrier, box[i].channel + block * K, at, box[i].offset);
      }
    }
    position += K;
  }

 private:
  __device__ __forceinline__ void load_block(u32 to, u32 barrier, i32 c, const i32 (&at)[AXES + 1],
                                             const u16 (&offset)[3]) const {
    const TensorMap& map = maps[which];
    const u16 blocks = share.blocks;
    if constexpr (AXES == 0) {
      tma_load<SHARERS>(to, map, barrier, blocks, c, at[0]);
    } else if constexpr (AXES == 1) {
      tma_load_im2col<SHARERS>(to, map, barrier, blocks, c, at[1], at[0], offset[0]);
    } else if constexpr (AXES == 2) {
      tma_load_im2col<SHARERS>(to, map, barrier, blocks, c, at[2], at[1], at[0], offset[1], offset[0]);
    } else {
      tma_load_im2col<SHARERS>(to, map, barrier, blocks, c, at[3], at[2], at[1], at[0], offset[2], offset[1],
                               offset[0]);
    }
  }
};
