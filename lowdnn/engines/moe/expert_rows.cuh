// Sums over the rows of an expert for the main loop of tile_wgmma.cuh: the extent of k comes from offsets on the
// device.
//
// The k blocks of an expert are those of its groups, one after the other; the last block of a group continues into rows
// of the next group. Before consumers multiply such a stage they zero these rows in both operands, so that no foreign
// value, not even NaN, gets into the sum.

#pragma once

#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_wgmma.cuh"
#include "token_groups.cuh"

// The first row of a k block, and the number of its rows that are the expert's.
struct RowBlock {
  u32 row, valid;
};

// Walks through the k blocks of an expert, DEPTH rows each; an expert without rows has one empty block.
template <class Groups, int DEPTH> struct ExpertRows {
  const Groups& groups;
  u32 group;
  RowRange left;

  __device__ __forceinline__ explicit ExpertRows(const Groups& groups) : groups(groups) {}

  __device__ __forceinline__ void begin(u32 expert) {
    group = expert;
    left = groups.range(group);
    skip();
  }

  __device__ __forceinline__ RowBlock next() {
    const RowBlock block = {left.first, min(left.size(), u32(DEPTH))};
    left.first += block.valid;
    skip();
    return block;
  }

  static __device__ __forceinline__ i32 blocks(const Groups& groups, u32 expert) {
    u32 blocks = 0;
    for (u32 group = expert; group < groups.count; group += groups.experts.divisor) {
      blocks += (groups.range(group).size() + DEPTH - 1) / DEPTH;
    }
    return max(i32(blocks), 1);
  }

 private:
  __device__ __forceinline__ void skip() {
    while (left.size() == 0 && group + groups.experts.divisor < groups.count) {
      group += groups.experts.divisor;
      left = groups.range(group);
    }
  }
};

// The tiles of a TileSchedule whose batches are experts, with as many k blocks as the expert has.
template <class Tiles, class Groups, int DEPTH> struct ExpertSchedule {
  const Tiles& tiles;
  const Groups& groups;
  const u32 items;

  __device__ __forceinline__ ExpertSchedule(const Tiles& tiles, const Groups& groups)
      : tiles(tiles), groups(groups), items(tiles.items) {}

  __device__ __forceinline__ TileWork work(u32 item, u32 rank) const {
    TileWork work = tiles.work(item, rank);
    work.blocks = ExpertRows<Groups, DEPTH>::blocks(groups, work.batch);
    return work;
  }
};

// A loader for the k blocks of the tile's expert; its map has one batch.
template <class Loader, class Groups, int DEPTH> struct RowsOperand : Loader {
  ExpertRows<Groups, DEPTH> rows;

  template <class... Arguments>
  __device__ __forceinline__ RowsOperand(const Groups& groups, const Arguments&... arguments)
      : Loader(arguments...), rows(groups) {}

  __device__ __forceinline__ void begin(const TileWork& work) {
    TileWork here = work;
    here.batch = 0;
    Loader::begin(here);
    rows.begin(work.batch);
  }

  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    this->k = i32(rows.next().row);
    Loader::load(stage, barrier);
  }
};

// The sum that TileWgmma::consume_by calls: it multiplies the k blocks of an expert, and zeroes rows past the end of a
// group first. multiply(d, a, b, accumulate) is as in TileWgmma::consume.
template <class Tile, class Groups, class Multiply> struct ExpertSum {
  typedef typename Tile::Accumulator Accumulator;
  typedef typename Tile::StageA StageA;
  typedef typename Tile::StageB StageB;
  static_assert(StageA::MN_MAJOR && StageB::MN_MAJOR && !Tile::A_IS_RESIDENT, "a row of memory is one k");
  static constexpr u32 TEAM_THREADS = Tile::TEAM_WARPGROUPS * WARPGROUP_SIZE;
  static constexpr u32 CLEAR_BARRIER = 3;  // barriers below are those of teams; only the active team clears

  const Tile& tile;
  const Groups& groups;
  const Multiply multiply;

  template <class Issued>
  __device__ __forceinline__ void operator()(Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const TileWork& work,
                                             u32 first_row, typename Tile::Position& at, const Issued& issued) const {
    ExpertRows<Groups, Tile::K> rows(groups);
    rows.begin(work.batch);
    u32 previous = at.stage;
    for (i32 block = 0; block < work.blocks; ++block) {
      const u32 stage = tile.wait_full(at), valid = rows.next().valid;
      if (valid < Tile::K) clear_tail(stage, valid);
      const u64 a = StageA::descriptor(stage + first_row * StageA::ROW_BYTES);
      const u64 b = StageB::descriptor(stage + StageA::BYTES);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < Tile::STEPS; ++step) {
#pragma unroll
        for (int part = 0; part < Tile::PARTS; ++part) {
          multiply(d[part], a + StageA::offset(part * 64, step), b + StageB::offset(0, step), block > 0 || step > 0);
        }
      }
      wgmma_commit();
      if (block > 0) {
        wgmma_wait<1>();
        tile.release(previous);
      }
      previous = at.stage;
      at.advance();
    }
    issued();
    wgmma_wait<0>();
    tile.release(previous);
  }

 private:
  // Called by the team's threads: zeroes the rows from `valid` on of both operands, in blocks of 64 columns and Tile::K
  // rows.
  __device__ __forceinline__ void clear_tail(u32 stage, u32 valid) const {
    constexpr u32 BLOCKS = (StageA::BYTES + StageB::BYTES) / StageA::BLOCK_BYTES;
    const u32 pieces = (Tile::K - valid) * (StageA::ROW_BYTES / 16), thread = threadIdx.x % TEAM_THREADS;
    for (u32 block = 0; block < BLOCKS; ++block) {
      const u32 tail = stage + block * StageA::BLOCK_BYTES + valid * StageA::ROW_BYTES;
      for (u32 piece = thread; piece < pieces; piece += TEAM_THREADS) store_shared_16(tail + piece * 16, 0, 0, 0, 0);
    }
    fence_async_shared();
    named_barrier(CLEAR_BARRIER, TEAM_THREADS);
  }
};
