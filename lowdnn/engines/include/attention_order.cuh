// Which tiles of queries a block takes, one each turn.
//
// Tiles are counted from the last one of as many as a head may have (`Place`).
// Before it, the kernel includes attention_forward.cuh.

#pragma once

#include "include/attention_forward.cuh"
#include "include/search.cuh"
#include "include/shared_memory.cuh"

// A tile of queries of a head; the number of tiles or more: none.
struct Work {
  u32 head, tile;
};

// Of heads with as many tiles each. In sections of heads the last tiles, which have the most keys under a causal mask,
// come first, and blocks take them in turns, forth and back. In pairs, one tile from either end of a head, they come head
// by head.
struct Order {
  u32 turns;          // of a block
  u32 tiles, heads;   // of a head, of all batches
  u32 section_heads;  // 0: in pairs
  Divider section;    // tiles of one, or pairs of a head

  __device__ __forceinline__ Work at(u32 turn) const {
    const bool is_second = turn % 2;
    if (section_heads == 0) {
      const u32 unit = turn / 2 * gridDim.x + blockIdx.x, head = section.divide(unit);
      const u32 first = unit - head * section.divisor, second = tiles - 1 - first;
      const bool exists = head < heads && !(is_second && first == second);
      return {head, !exists ? tiles : is_second ? second : first};
    }
    const u32 index = turn * gridDim.x + (is_second ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const u32 before = section.divide(index) * section_heads, inside = index - before * tiles;
    if (before >= heads) return {0, tiles};
    const u32 here = min(section_heads, heads - before);
    return {before + inside % here, inside / here};
  }
};

// Words in shared memory.
struct SharedWords {
  u32 address;

  __device__ __forceinline__ u32 operator[](u32 index) const { return load_shared_32(address + index * 4); }
  __device__ __forceinline__ void set(u32 index, u32 word) const { store_shared_32(address + index * 4, word); }
};

// Of sequences, which have as many tiles as their lengths say. Units, which are tiles or, in pairs, two of them as above,
// cost about as much within a sequence; the sequences where they cost the most come first, each head by head, and blocks
// take units in turns, forth and back.
struct PackedOrder {
  struct Batches {
    u32 count, heads;  // heads of each
    u32 unit_tiles;    // 2: in pairs, 1: not
  };

  const Forward& p;
  const Batches batches;
  const u32 tiles;
  const SharedWords batch_at, units_before;  // by rank, the latter with the sum of all behind them
  u32 turns;

  // All threads, which meet here. `shared`: 16 bytes for each batch, and 4.
  __device__ __forceinline__ PackedOrder(const Forward& p, const Batches& batches, u32 shared)
      : p(p),
        batches(batches),
        tiles(p.tiles.divisor),
        batch_at{shared},
        units_before{shared + batches.count * 4} {
    const SharedWords units = {units_before.address + (batches.count + 1) * 4};
    const SharedWords costs = {units.address + batches.count * 4};
    for (u32 batch = threadIdx.x; batch < batches.count; batch += blockDim.x) {
      const u32 own = tiles_of(batch);
      const Place last(p, batch * batches.heads, tiles - max(own, 1));
      units.set(batch, units_of(own) * batches.heads);
      costs.set(batch, max(last.end - last.begin, 0));
    }
    __syncthreads();
    for (u32 batch = threadIdx.x; batch < batches.count; batch += blockDim.x) {
      const u32 cost = costs[batch];
      u32 rank = 0, before = 0;
      for (u32 other = 0; other < batches.count; ++other) {
        const bool is_first = costs[other] > cost || (costs[other] == cost && other < batch);
        rank += is_first;
        before += is_first ? units[other] : 0;
      }
      batch_at.set(rank, batch);
      units_before.set(rank, before);
      if (rank == batches.count - 1) units_before.set(batches.count, before + units[batch]);
    }
    __syncthreads();
    turns = (units_before[batches.count] + gridDim.x - 1) / gridDim.x * batches.unit_tiles;
  }

  __device__ __forceinline__ Work at(u32 turn) const {
    const u32 round = turn / batches.unit_tiles;
    const u32 unit = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    if (unit >= units_before[batches.count]) return {0, tiles};
    const u32 rank = last_not_above(units_before, batches.count, unit), batch = batch_at[rank];
    const u32 own = tiles_of(batch), inside = unit - units_before[rank];
    const u32 head = inside / units_of(own), first = inside % units_of(own), second = own - 1 - first;
    if (turn % batches.unit_tiles == 0) return {batch * batches.heads + head, tiles - own + first};
    return {batch * batches.heads + head, first == second ? tiles : tiles - own + second};
  }

 private:
  __device__ __forceinline__ u32 tiles_of(u32 batch) const { return (p.stored_queries(batch) + TILE_Q - 1) / TILE_Q; }
  __device__ __forceinline__ u32 units_of(u32 own) const {
    return (own + batches.unit_tiles - 1) / batches.unit_tiles;
  }
};
