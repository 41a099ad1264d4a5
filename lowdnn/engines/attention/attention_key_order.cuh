// In which order blocks of attention_backward_wgmma.cu take tiles of keys, and which of them several blocks share.

#pragma once

#include "include/tile/raster.cuh"

// A block's share of a tile: all its queries, or one of `splits` parts of them.
struct KeyShare {
  u32 tile, split, splits;
};

// The order of keys: `heads_at_once` heads' equal tiles come together, the first keys first. Behind `whole_tiles` tiles
// each has `splits` shares, side by side: blocks wait for others with fewer keys, whichever share they have.
struct KeyOrder {
  u32 heads, head_tiles;  // heads of k of all batches; tiles of a head
  u32 heads_at_once, whole_tiles, splits;

  __device__ __forceinline__ u32 split_tiles() const { return heads * head_tiles - whole_tiles; }
  __device__ __forceinline__ u32 share_count() const { return whole_tiles + split_tiles() * splits; }

  // Without HAS_SPLITS all tiles are whole.
  template <bool HAS_SPLITS> __device__ __forceinline__ KeyShare share(u32 index) const {
    if (!HAS_SPLITS || index < whole_tiles) return {index, 0, 1};
    const u32 behind = index - whole_tiles;
    return {whole_tiles + behind / splits, behind % splits, splits};
  }

  // Its head among all, and its place there.
  __device__ __forceinline__ TileIndex tile(u32 index) const {
    return grouped_tile(index, heads, head_tiles, heads_at_once);
  }
};
