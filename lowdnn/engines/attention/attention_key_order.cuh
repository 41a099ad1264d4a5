// The order in which blocks of attention_backward_wgmma.cu take tiles of keys, and the tiles that several blocks share.

#pragma once

#include "include/tile/raster.cuh"

// A block's share of a tile of keys: part `split` of `splits` equal parts of the queries that attend to the tile.
struct KeyShare {
  u32 tile, split, splits;
};

// The order of tiles of keys. For groups of `heads_at_once` heads, tile 0 of each head comes first, then tile 1 of
// each. After the first `whole_tiles` tiles, each tile has `splits` shares, which follow each other: a block waits only
// for blocks with earlier keys, whichever share they have.
struct KeyOrder {
  u32 heads, head_tiles;  // heads of k in all batches; tiles of keys in a head
  u32 heads_at_once, whole_tiles, splits;

  __device__ __forceinline__ u32 split_tiles() const { return heads * head_tiles - whole_tiles; }
  __device__ __forceinline__ u32 share_count() const { return whole_tiles + split_tiles() * splits; }

  // Share number `index` in the order. Without HAS_SPLITS all tiles are whole.
  template <bool HAS_SPLITS> __device__ __forceinline__ KeyShare share(u32 index) const {
    if (!HAS_SPLITS || index < whole_tiles) return {index, 0, 1};
    const u32 behind = index - whole_tiles;
    return {whole_tiles + behind / splits, behind % splits, splits};
  }

  // The tile's head (row), counted over all batches, and its index in the head (column).
  __device__ __forceinline__ TileIndex tile(u32 index) const {
    return grouped_tile(index, heads, head_tiles, heads_at_once);
  }
};
