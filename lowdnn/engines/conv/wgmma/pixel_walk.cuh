// Loader of an MN-major operand of channels-last pixels for the main loop of tile_wgmma.cuh.
//
// k walks over pixels: images outermost, the last spatial axis innermost; a k block is 64 positions of the walk, or 32
// for 32-bit types. A box is 64 channels of neighbouring positions. With one row of 128 bytes for each position it is a
// block of 64 rows or columns of an MN-major stage; for 32-bit types, it is two such blocks of 32 channels.

#pragma once

#include "include/math/division.cuh"
#include "include/tile/tile_operands.cuh"

constexpr int BOX_CHANNELS = 64, WALK_ROW_BYTES = 128;

// A walk of AXES spatial axes (outermost first) through an im2col map: position `at` of an axis is first + step * at.
template <int AXES> struct PixelWalk {
  Divider extent[AXES];
  i32 first[AXES], step[AXES];
};

// A walk through pixels of constant stride: a tiled map of (channels, pixels).
template <> struct PixelWalk<0> {};

// A box of 64 channels from `channel` on. offset: positions along each axis from the walk to those that the filter tap
// reads.
struct PixelBox {
  i32 channel;
  u16 offset[3];
};

// BOXES boxes of each k block, with PIXELS positions each. `boxes(work, box)` sets them for a tile and returns the
// index of their walk; each walk has its own map. A tiled map has no walks. Each of SHARERS blocks of the cluster loads
// PIXELS / SHARERS positions of every box, as many as a map's copy has, and sends them to all.
template <class T, int AXES, int BOXES, int PIXELS, int SHARERS, class Boxes> struct PixelOperand {
  static constexpr int OWN = PIXELS / SHARERS;
  static constexpr int K = WALK_ROW_BYTES / sizeof(T);  // positions of a k block; channels of a row
  static constexpr int BLOCKS = BOX_CHANNELS / K;
  static_assert(OWN % 8 == 0, "whole groups of 1024 bytes");

  const TensorMap* maps;
  const PixelWalk<AXES>* walks;
  const Boxes& boxes;
  Share share;
  u32 which;  // index of the tile's walk and of its map
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
