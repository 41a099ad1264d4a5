// Which rows a warp has, and which tiles of keys they see.
// Macros: as in attention_forward.cuh.

#pragma once

#include "attention_forward.cuh"

// How many queries and keys of a batch count.
struct Sequence {
  i32 queries, keys;

  __device__ __forceinline__ Sequence(i32 queries, i32 keys) : queries(queries), keys(keys) {}
  __device__ __forceinline__ Sequence(const Forward& p, i32 batch) : queries(p.stored_queries(batch)), keys(p.keys) {
    if constexpr (HAS_LENGTHS) keys = args_of<KeyLengths>(p.parts).count(batch, keys);
    if constexpr (HAS_QUERY_LENGTHS) queries = args_of<QueryLengths>(p.parts).count(batch, queries);
  }
};

// Where a warp's rows are, and the keys that any of the block's see.
struct Place {
  i32 batch, head;  // the first of PACK heads
  i32 block_row, warp_row;
  Band band;
  i32 begin, end;  // tiles of keys

  Place() = default;

  // The tiles of a head follow each other.
  __device__ __forceinline__ explicit Place(const Forward& p)
      : Place(p, p.tiles.divide(blockIdx.x), blockIdx.x % p.tiles.divisor) {}

  // tile: counted from the last one on, which has the most keys under a causal mask.
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

  // The first tile from this one on of which any of the block's rows sees a key, at most the end: there is none beyond
  // the last.
  __device__ __forceinline__ i32 next(const Forward& p, i32 tile) const {
    while (tile < end && !sees_any(p, tile)) ++tile;
    return tile;
  }

  // From which tile on no key lies before the band of any of the block's queries, and from which on some lie behind it:
  // between these, each query sees every key of the band.
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

  // Whether the mask lets any of the block's rows see a key of the tile.
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

// The rows of this thread, two of each part: four neighbouring lanes share one.
struct Rows {
  i32 first;  // the warp's

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

