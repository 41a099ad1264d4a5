// Loaders of a matrix operand for the main loop of tile_wgmma.cuh: boxes of a tiled tensor map.
//
// The map's dimensions are (contiguous dimension, other dimension, batch axes from the last to the first). Where
// several blocks of the cluster compute with the same rows of an operand, each loads one part of a stage and sends it
// to all.

#pragma once

#include "include/tile/tile_schedule.cuh"
#include "include/ptx/tma.cuh"

// The part of an operand that this block loads, and the blocks that get it.
struct Share {
  u32 part;
  u16 blocks;
};

// Ranks run down the rows of the cluster first.
template <int CLUSTER_ROWS, int CLUSTER_COLUMNS> __device__ __forceinline__ Share share_of_a(u32 rank) {
  u32 blocks = 0;
  for (int column = 0; column < CLUSTER_COLUMNS; ++column) blocks |= 1u << column * CLUSTER_ROWS;
  return {rank / CLUSTER_ROWS, u16(blocks << rank % CLUSTER_ROWS)};
}
template <int CLUSTER_ROWS> __device__ __forceinline__ Share share_of_b(u32 rank) {
  return {rank % CLUSTER_ROWS, u16(((1u << CLUSTER_ROWS) - 1) << rank / CLUSTER_ROWS * CLUSTER_ROWS)};
}

// The axes that make up the batches of a product.
template <int AXES> struct BatchAxes { Divider extent[AXES]; };

// Rows or columns in a box of a K-major operand, of which a block loads `own`: a box has at most 256.
constexpr int boxed_lines(int own) { return own > 256 ? own / 2 : own; }

// IS_A: the operand has the tile's EXTENT rows, otherwise its EXTENT columns. SHARERS blocks load a part of each stage.
// K-major: EXTENT / SHARERS lines, in boxes of (128 bytes of k, BOX lines). MN-major: all lines of K / SHARERS elements
// of k, in boxes of (64 elements, OWN_K).
template <class Stage, bool IS_A, int EXTENT, int K, int SHARERS, int AXES> struct TiledOperand {
  static constexpr int OWN = EXTENT / SHARERS;
  static constexpr int BOX = boxed_lines(OWN), OWN_K = K / SHARERS;
  static_assert(!Stage::MN_MAJOR || OWN_K % 8 == 0, "MN-major: each block shares whole groups of 1024 bytes");

  const TensorMap& map;
  const BatchAxes<AXES>& axes;
  Share share;
  i32 line, k;
  i64 batch[AXES];

  __device__ __forceinline__ TiledOperand(const TensorMap& map, const BatchAxes<AXES>& axes, Share share)
      : map(map), axes(axes), share(share) {}

  __device__ __forceinline__ void begin(const TileWork& work) {
    line = IS_A ? work.row : work.column;
    k = work.first_block * K;
    digits<AXES>(axes.extent, work.batch, batch);
  }

  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    if constexpr (Stage::MN_MAJOR) {
#pragma unroll
      for (int i = 0; i < EXTENT; i += 64) {
        load_box(stage + (i / 64 * K + share.part * OWN_K) * 128, barrier, line + i, k + share.part * OWN_K);
      }
    } else {
#pragma unroll
      for (int i = 0; i < OWN; i += BOX) {
        const u32 first = share.part * OWN + i;
        load_box(stage + first * 128, barrier, k, line + first);
      }
    }
    k += K;
  }

 private:
  __device__ __forceinline__ void load_box(u32 to, u32 barrier, i32 c0, i32 c1) const {
    const u16 blocks = share.blocks;
    if constexpr (AXES == 1) {
      tma_load<SHARERS>(to, map, barrier, blocks, c0, c1, i32(batch[0]));
    } else if constexpr (AXES == 2) {
      tma_load<SHARERS>(to, map, barrier, blocks, c0, c1, i32(batch[1]), i32(batch[0]));
    } else {
      tma_load<SHARERS>(to, map, barrier, blocks, c0, c1, i32(batch[2]), i32(batch[1]), i32(batch[0]));
    }
  }
};
