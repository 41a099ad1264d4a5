// The tiles of queries that a block takes, one in each turn.
//
// Tiles are counted from the end of a head of the greatest length (`Place`): tile 0 has the last queries.

#pragma once

#include "attention_forward_place.cuh"
#include "include/math/search.cuh"
#include "include/ptx/shared_memory.cuh"

// A tile of queries of a head. If `tile` is the number of tiles of a head or more, there is no work.
struct Work {
  u32 head, tile;
};

// The order where all heads have equally many tiles. With sections of heads: the sections follow each other; in one,
// the last tiles of all heads, which have the most keys under a causal mask, come first, and are dealt to blocks in
// serpentine order. Without sections: a block takes pairs of tiles, one from either end of a head, head by head.
struct Order {
  typedef Order Args;

  u32 turns;          // tiles of queries of one block
  u32 tiles, heads;   // tiles of one head; heads of q in all batches
  u32 section_heads;  // heads of a section; 0: pairs
  Divider section;    // tiles of a section, or pairs of a head

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

  __device__ __forceinline__ u32 behind(u32 count) const { return address + count * 4; }
  __device__ __forceinline__ u32 operator[](u32 index) const { return load_shared_32(behind(index)); }
  __device__ __forceinline__ void set(u32 index, u32 word) const { store_shared_32(behind(index), word); }
};

// The order of packed sequences, which have different numbers of tiles. A unit is one tile, or a pair of tiles as
// above; the units of one sequence cost about the same. Sequences with the most expensive units come first, each head
// by head, and units are dealt to blocks in serpentine order. Middle tiles, which have no partner, come last.
struct PackedOrder {
  struct Args {
    u32 count, heads;  // batches; heads of a batch
    u32 unit_tiles;    // 1 or 2
  };

  const Forward& p;
  const Args& batches;
  const SharedWords batch_at, units_before, rests_before;  // by rank; the last two end with the total
  const u32 tiles, turns;

  // shared: address of the tables that `make` has written, 20 bytes for each batch and 8 more.
  __device__ __forceinline__ PackedOrder(const Forward& p, const Args& batches, u32 shared)
      : p(p),
        batches(batches),
        batch_at{shared},
        units_before{batch_at.behind(batches.count)},
        rests_before{units_before.behind(batches.count + 1)},
        tiles(p.tiles.divisor),
        turns(rounds() * batches.unit_tiles) {}

  // Writes the tables to shared memory. All threads of the block call it; it has barriers.
  static __device__ __forceinline__ void make(const Forward& p, const Args& batches, u32 shared) {
    const SharedWords batch_at = {shared}, units_before = {batch_at.behind(batches.count)};
    const SharedWords rests_before = {units_before.behind(batches.count + 1)};
    const SharedWords tiles_each = {rests_before.behind(batches.count + 1)};
    const SharedWords costs = {tiles_each.behind(batches.count)};
    for (u32 batch = threadIdx.x; batch < batches.count; batch += blockDim.x) {
      const u32 own = tiles_of(p, batch);
      const Place last(p, batch * batches.heads, p.tiles.divisor - max(own, 1));
      tiles_each.set(batch, own);
      costs.set(batch, max(last.end - last.begin, 0));
    }
    __syncthreads();
    for (u32 batch = threadIdx.x; batch < batches.count; batch += blockDim.x) {
      const u32 cost = costs[batch], own = tiles_each[batch];
      u32 rank = 0, units = 0, rests = 0;
      for (u32 other = 0; other < batches.count; ++other) {
        const u32 other_cost = costs[other], others = tiles_each[other];
        if (other_cost < cost || (other_cost == cost && other >= batch)) continue;
        ++rank;
        units += others / batches.unit_tiles;
        rests += others % batches.unit_tiles;
      }
      batch_at.set(rank, batch);
      units_before.set(rank, units * batches.heads);
      rests_before.set(rank, rests * batches.heads);
      if (rank + 1 == batches.count) {
        units_before.set(rank + 1, (units + own / batches.unit_tiles) * batches.heads);
        rests_before.set(rank + 1, (rests + own % batches.unit_tiles) * batches.heads);
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ Work at(u32 turn) const {
    const u32 round = turn / batches.unit_tiles, units = units_before[batches.count];
    const u32 unit = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const bool is_second = turn % batches.unit_tiles, is_rest = unit >= units;
    if (is_rest && (is_second || unit - units >= rests_before[batches.count])) return {0, tiles};
    const SharedWords before = {is_rest ? rests_before.address : units_before.address};
    const u32 index = is_rest ? unit - units : unit;
    const u32 rank = last_not_above(before, batches.count, index), batch = batch_at[rank], own = tiles_of(p, batch);
    const u32 inside = index - before[rank], of_head = is_rest ? 1 : own / batches.unit_tiles;
    const u32 head = inside / of_head, first = is_rest ? own / 2 : inside - head * of_head;
    return {batch * batches.heads + head, tiles - (is_second ? first + 1 : own - first)};
  }

 private:
  __device__ __forceinline__ u32 rounds() const {
    return (units_before[batches.count] + rests_before[batches.count] + gridDim.x - 1) / gridDim.x;
  }
  static __device__ __forceinline__ u32 tiles_of(const Forward& p, u32 batch) {
    return (p.stored_queries(batch) + TILE_Q - 1) / TILE_Q;
  }
};

// Returns the order for a kernel's parameters. shared: address of the tables that `make_order` has written.
__device__ __forceinline__ const Order& order_of(const Forward&, const Order& order, u32) { return order; }
__device__ __forceinline__ PackedOrder order_of(const Forward& p, const PackedOrder::Args& batches, u32 shared) {
  return PackedOrder(p, batches, shared);
}

// Writes the tables that the order needs; all threads of the block call it.
__device__ __forceinline__ void make_order(const Forward&, const Order&, u32) {}
__device__ __forceinline__ void make_order(const Forward& p, const PackedOrder::Args& batches, u32 shared) {
  PackedOrder::make(p, batches, shared);
}
