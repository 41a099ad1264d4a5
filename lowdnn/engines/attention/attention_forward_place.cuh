// The rows of a warp, and the tiles of keys that they attend to.
// Macros: as in attention_forward.cuh.

#pragma once

#include "attention_forward.cuh"

// The numbers of queries and keys of a batch that are used.
struct Sequence {
  i32 queries, keys;

  __device__ __forceinline__ Sequence(i32 queries, i32 keys) : queries(queries), keys(keys) {}
  __device__ __forceinline__ Sequence(const Forward& p, i32 batch) : queries(p.stored_queries(batch)), keys(p.keys) {
    if constexpr (HAS_LENGTHS) keys = args_of<KeyLengths>(p.parts).count(batch, keys);
    if constexpr (HAS_QUERY_LENGTHS) queries = args_of<QueryLengths>(p.parts).count(batch, queries);
  }
};

// Position of a warp's rows, and the tiles of keys that some row of the block attends to.
struct Place {
  i32 batch, head;  // head: the first of the PACK heads of q
  i32 block_row, warp_row;
  Band band;
  i32 begin, end;  // tiles of keys

  Place() = default;

  // Place of the block with index blockIdx.x = head * tiles of a head + tile.
  __device__ __forceinline__ explicit Place(const Forward& p)
      : Place(p, p.tiles.divide(blockIdx.x), blockIdx.x % p.tiles.divisor) {}

  // tile: counted from the end of the head, since the last queries have the most keys under a causal mask.
  __device__ __forceinline__ Place(const Forward& p, u32 packs_before, u32 tile)
      : Place(p, packs_before, tile, Sequence(p, i32(p.packs.divide(packs_before)))) {}
  __device__ __forceinline__ Place(const Forward& p, u32 packs_before, u32 tile, const Sequence& sequence) {
    batch = i32(p.packs.divide(packs_before));
    head = i32(packs_before - batch * p.packs.divisor) * PACK;
    block_row = i32(p.tiles.divisor - 1 - tile) * TILE_Q;
    warp_row = block_row + threadIdx.x / WARP_SIZE * WARP_Q;
    band = {p.left, p.right, sequence.queries, sequence.keys};
    begin = band.keys_begin(first_query()) / TILE_KV;
    end = (band.keys_end(first_query(), query_count()) + TILE_KV - 1) / TILE_KV;
    while (begin < end && !sees_any(p, end - 1)) --end;
    begin = next(p, begin);
  }

  // Returns the first tile from `tile` on that some row of the block attends to; `end` if the block mask hides them
  // all.
  __device__ __forceinline__ i32 next(const Forward& p, i32 tile) const {
    while (tile < end && !sees_any(p, tile)) ++tile;
    return tile;
  }

  // The range of tiles that need no mask: from whole_begin() no key lies before the band of any query, and before
  // whole_end() none lies after it.
  __device__ __forceinline__ i32 whole_begin() const {
    return (band.keys_begin(first_query() + query_count() - 1) + TILE_KV - 1) / TILE_KV;
  }
  __device__ __forceinline__ i32 whole_end() const {
    if (HAS_QUERY_LENGTHS && first_query() + query_count() > band.queries) return 0;
    return band.keys_end_of(first_query()) / TILE_KV;
  }

 private:
  __device__ __forceinline__ i32 first_query() const { return block_row / PACK; }
  __device__ __forceinline__ i32 query_count() const { return (block_row + TILE_Q - 1) / PACK - first_query() + 1; }

  // Whether the block mask lets some row of the block attend to a key of the tile.
  __device__ __forceinline__ bool sees_any(const Forward& p, i32 tile) const {
    if (!HAS_BLOCKS) return true;
    static_assert(!HAS_BLOCKS || BlockMask::SIDE % TILE_KV == 0, "a tile of keys is a part of one of the mask's");
    const i32 last_query = min(first_query() + query_count(), p.queries) - 1;
    for (i32 query = first_query(); query <= last_query;
         query = query / BlockMask::SIDE * BlockMask::SIDE + BlockMask::SIDE)
      for (i32 i = 0; i < PACK; ++i)
        if (p.sees(batch, head + i, query, tile * TILE_KV)) return true;
    return false;
  }
};

// The rows of this thread, two in each part of 16; four neighbouring lanes share them.
struct Rows {
  i32 first;  // the warp's first row

  __device__ __forceinline__ i32 at(int part, int half) const {
    return first + part * 16 + half * 8 + threadIdx.x % WARP_SIZE / 4;
  }

  __device__ __forceinline__ void coordinate(const Forward& p, const Place& place, int part, int half,
                                             i64 (&coordinate)[4]) const {
    coordinate[0] = place.batch;
    coordinate[1] = place.head + at(part, half) % PACK;
    coordinate[2] = min(at(part, half) / PACK, p.queries - 1);
    coordinate[3] = 0;
  }
};

