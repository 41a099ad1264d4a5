// The work of a block of attention's gradients on wgmma: the kernels' parameters, the block's tile of keys, and its
// walk over the tiles of queries that attend to some of these keys. With IS_SPLIT several blocks divide the walk of one
// tile of keys (attention_backward_wgmma.cuh).

#pragma once

#include "attention_backward.cuh"
#include "attention_key_order.cuh"
#include "include/ptx/tma.cuh"
#include "include/ptx/warpgroup.cuh"

struct Operands {
  TensorMap q, k, v, d_o;
};

struct Results {
  Backward problem;
  Heads<OUT> dk, dv;
  f32* sums;      // (batch, head, tile of queries)
  u32* turns;     // as `sums`: 0 until a block has stored; then 1, or with IN_ORDER the next turn
  u32* tickets;   // the counter from which blocks take tickets
  KeyOrder keys;
  Divider heads;    // heads of k in a batch
  i32 query_tiles;  // tiles of a head
};

// Workspace for the partial dk and dv, in fp32, of tiles of keys that several blocks share.
template <bool IS_THERE> struct SplitSums {
  f32 *key_sums, *value_sums;  // [split][shared tile of keys]
};
template <> struct SplitSums<false> {};

// Each base class begins with a member of at least 8 bytes, so none lies in the tail padding of another: the layout is
// that of one struct, as the host writes it.
struct Params : Operands, Results, SplitSums<IS_SPLIT> {};

// The steps of one split: the blocks that share a tile of keys divide its steps evenly.
template <bool IS_THERE> struct SplitSteps {
  i32 steps_before;  // steps of the splits before this one

  // Returns the number of steps of this split, out of `all` steps of its tile of keys.
  __device__ __forceinline__ i32 share_steps(const KeyShare& share, i32 all) {
    const u32 fewest = all / share.splits, with_more = all % share.splits;
    steps_before = share.split * fewest + min(share.split, with_more);
    return fewest + (share.split < with_more);
  }

  // Moves (head, tile) from the first step of the tile of keys to the first step of this split; a head has `tiles`
  // steps.
  __device__ __forceinline__ void skip_steps(i32 tiles, i32& head, i32& tile) const {
    head += steps_before / tiles;
    tile -= steps_before % tiles;
  }
};
template <> struct SplitSteps<false> {
  __device__ __forceinline__ i32 share_steps(const KeyShare&, i32 all) { return all; }
  __device__ __forceinline__ void skip_steps(i32, i32&, i32&) const {}
};

// Position of the block's tile of keys, and the tiles of queries that the block multiplies with it.
struct Place : SplitSteps<IS_SPLIT> {
  i32 batch, head;  // the first head of q
  i32 key_tile;
  Band band;
  i32 begin, end;  // tiles of queries
  i32 steps;
  u32 first_step;  // steps that the block has done for earlier tiles of keys

  __device__ __forceinline__ Place(const Params& p, u32 ticket, u32 first_step) : first_step(first_step) {
    const KeyShare share = p.keys.share<IS_SPLIT>(ticket);
    const TileIndex index = p.keys.tile(share.tile);
    batch = i32(p.heads.divide(index.row));
    head = i32(index.row - batch * p.heads.divisor) * p.dk.sharing;
    key_tile = i32(index.column);
    band = p.problem.band(batch);
    begin = band.queries_begin(first_key()) / TILE_Q;
    end = max(begin, (band.queries_end(first_key(), TILE_KV) + TILE_Q - 1) / TILE_Q);
    steps = share_steps(share, (end - begin) * p.dk.sharing);
  }

  // Tells the compiler that every field is equal in all threads of the warp, so that it can use uniform registers. All
  // threads of the warp call it.
  __device__ __forceinline__ void make_uniform() {
    u32* const words = reinterpret_cast<u32*>(this);
#pragma unroll
    for (int i = 0; i < sizeof(Place) / sizeof(u32); ++i) words[i] = uniform(words[i]);
  }

  __device__ __forceinline__ i32 first_key() const { return key_tile * TILE_KV; }

  // Number of blocks that add to dq of a tile of queries before this one: one for each earlier tile of keys that it
  // attends to.
  __device__ __forceinline__ u32 turn(i32 tile) const { return key_tile - band.keys_begin(tile * TILE_Q) / TILE_KV; }
};

// A block's walk over the tiles of queries: the last tile of a head first, head after head.
struct Walk {
  const Place& place;
  i32 head, tile;

  __device__ __forceinline__ Walk(const Place& place) : place(place), head(place.head), tile(place.end - 1) {
    place.skip_steps(max(1, place.end - place.begin), head, tile);
  }

  __device__ __forceinline__ void advance() {
    if (tile-- == place.begin) {
      tile = place.end - 1;
      ++head;
    }
  }
};
