// A block of rnn_persistent_backward: what it is of the grid, its extents, its shared memory. Macros: as there.

#pragma once

#include "include/ptx/mbarrier.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/ptx/warpgroup.cuh"
#include "resident_pair.cuh"
#include "resident_weights.cuh"

constexpr int GATES = CELL::GATES, BLOCKS = CELL::BLOCKS;
constexpr int CONSUMERS = WARPGROUPS * WARPGROUP_SIZE, THREADS = CONSUMERS + WARPGROUP_SIZE, WARPS = CONSUMERS / 32;
constexpr int ROWS = WARPGROUPS * 64, ALL_CHUNKS = CLUSTER * CHUNKS;
constexpr int SHARE = WARPS / CLUSTER;                   // warps whose rows a block finishes
constexpr int UNITS = SHARE * 16;                        // units that a block finishes
constexpr int ARRIVALS = 32;                             // words of a part
constexpr int HISTORY = 3;                               // steps whose gradients are kept
constexpr int SHARED_CHUNKS = CHUNKS - REGISTER_CHUNKS;  // chunks of a warpgroup's weights in shared memory
constexpr int CHUNK_BYTES = COLUMNS * LINE_BYTES;
constexpr int TILES = COLUMNS / 8;                      // tiles of 16 rows and 8 columns in a warp's accumulators
constexpr int TILE_BYTES = 16 * 8 * int(sizeof(f32));
constexpr int SENT_BYTES = SHARE * TILES * TILE_BYTES;  // bytes that a block sends to another
constexpr int QUADS = SHARE * COLUMNS / 4;              // parts of 16 units and 4 columns that a block finishes
constexpr int PAIRS = (QUADS + WARPS - 1) / WARPS;      // pairs of units that a thread finishes
constexpr int PIECES = UNITS * int(sizeof(TYPE)) / 16;  // pieces of 16 bytes in the new gradients of a column and gate
constexpr int ITEMS = BLOCKS * COLUMNS * PIECES, ITEM_WARPS = (ITEMS + 31) / 32;
constexpr int WRITERS = ITEM_WARPS < 3 ? ITEM_WARPS : 3;     // warps of a block that write new gradients
constexpr int WRITERS_OF_CHUNK = WRITERS * (CHUNK / UNITS);  // warps of all blocks that write one chunk
constexpr int RING_AT = WARPGROUPS * SHARED_CHUNKS * WEIGHT_BYTES;
constexpr int SUMS_AT = RING_AT + SLOTS * CHUNK_BYTES;
constexpr int OWN_AT = SUMS_AT + CLUSTER * SENT_BYTES;
constexpr int BARRIERS_AT = OWN_AT + ITEMS * 16;
static_assert(WARPS % CLUSTER == 0 && CHUNK % UNITS == 0 && CHUNKS <= ARRIVALS, "whole warps of rows for each block");
static_assert(SLOTS > 1 || CHUNKS == 1, "a chunk is released when the next one is being multiplied");

constexpr u32 WRITTEN = 1;                                 // barrier: the consumers have written new gradients
constexpr u32 READ = 2;                                    // barrier: the writers have read them
constexpr u32 WRITTEN_THREADS = CONSUMERS + WRITERS * 32;  // threads of either barrier

struct Params {
  Layer layer;
  u8* exchange;
  u32* arrivals;
  i32 groups, clusters;  // groups of a direction, clusters of a group
};

// The block's place in the grid, and its part of the arguments.
struct Place {
  const Params& p;
  u32 direction, group, cluster, rank;

  __device__ __forceinline__ explicit Place(const Params& params) : p(params) {
    const u32 of_all = blockIdx.x / CLUSTER, of_groups = of_all / p.clusters;
    rank = blockIdx.x % CLUSTER, cluster = of_all % p.clusters;
    direction = of_groups / p.groups, group = of_groups % p.groups;
  }
  __device__ __forceinline__ u32 team(u32 part) const { return (direction * p.groups + group) * PARTS + part; }
  __device__ __forceinline__ u8* exchange(u32 part, u32 step, u32 chunk) const {
    return p.exchange + (i64(team(part) * HISTORY + step % HISTORY) * ALL_CHUNKS + chunk) * CHUNK_BYTES;
  }
  __device__ __forceinline__ u32* arrivals(u32 part) const { return p.arrivals + team(part) * ARRIVALS; }
  __device__ __forceinline__ u32 first_row() const { return cluster * ROWS; }
  __device__ __forceinline__ u32 first_unit() const { return first_row() + rank * UNITS; }
  __device__ __forceinline__ u32 first_sequence(u32 part) const { return (group * PARTS + part) * COLUMNS; }
  __device__ __forceinline__ i32 time(i32 step) const { return direction ? step : p.layer.steps - 1 - step; }
  // Products of a part: the one behind all steps is the gradient of the first states.
  __device__ __forceinline__ i32 products() const { return p.layer.dfirst_states ? p.layer.steps : p.layer.steps - 1; }
};

// Shared memory by address.
struct Memory {
  u32 weights, ring, sums, own;  // own: new gradients
  u32 full, free;                // barriers of slots
  u32 sums_full, sums_free;

  __device__ __forceinline__ explicit Memory(u32 memory)
      : weights(memory), ring(memory + RING_AT), sums(memory + SUMS_AT), own(memory + OWN_AT),
        full(memory + BARRIERS_AT), free(full + SLOTS * MBARRIER_BYTES), sums_full(free + SLOTS * MBARRIER_BYTES),
        sums_free(sums_full + MBARRIER_BYTES) {}
  __device__ __forceinline__ void begin() const {
    for (u32 slot = 0; slot < SLOTS; ++slot) {
      mbarrier_init(full_of(slot), 1);
      mbarrier_init(free_of(slot), WARPS);
    }
    mbarrier_init(sums_full, 1);
    mbarrier_init(sums_free, CLUSTER);
    mbarrier_fence_init();
  }
  __device__ __forceinline__ u32 full_of(u32 slot) const { return full + slot * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 free_of(u32 slot) const { return free + slot * MBARRIER_BYTES; }
  __device__ __forceinline__ u32 slot_at(u32 slot) const { return ring + slot * CHUNK_BYTES; }
  // The address of block `rank`'s accumulators of tile `tile` of warp `warp` of this block's share. Lane l's
  // accumulators lie at place l ^ l / 8 * 2, so that a warp reads two columns' of every other row from different banks.
  __device__ __forceinline__ u32 sums_of(u32 rank, u32 warp, u32 tile) const {
    return sums + ((rank * SHARE + warp) * TILES + tile) * TILE_BYTES;
  }
};

// The weights of row `row` of warpgroup `g`, of the block's chunk `chunk`, from `k` of it on.
__device__ __forceinline__ const TYPE* weights_of(const Place& place, u32 g, u32 chunk, u32 row, u32 k) {
  const Weights& weights = place.p.layer.weights;
  const u32 of_all = place.rank * CHUNKS + chunk;
  const i64 column = i64(of_all % GATES) * place.p.layer.units + of_all / GATES * CHUNK + k;
  const i64 line = place.first_row() + g * 64 + row;
  return weights.at + place.direction * weights.direction + line * weights.pitch + column;
}
