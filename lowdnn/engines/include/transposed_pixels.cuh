// Channels-last pixels of 32-bit elements for the tensor cores, which read those from shared memory along k only: here k
// are pixels, and a stage has rows of 32 channels, one for each of 32 pixels (pixel_walk.cuh).
//
// A goes through registers. B is transposed where it lies, in blocks of 32 pixels by 32 channels: the warps of a team
// share the blocks, while the tensor cores work on the stage before.
// Any order of k will do that A and B have in common: step i of the multiplication has pixels 8 * i + (0, 2, 4, 6, 1, 3,
// 5, 7). A lane's rows, two apart, then lie in different banks, as the swizzle moves their 16-byte chunks.

#pragma once

#include "include/shared_memory.cuh"
#include "include/tile_wgmma.cuh"

constexpr u32 PIXEL_BLOCK = 32, PIXEL_BLOCK_BYTES = PIXEL_BLOCK * STAGE_ROW_BYTES;

// One warp: rows of channels, one for each pixel, become rows of pixels in k's order, one for each channel. `block`:
// 1024-byte aligned.
//
// A lane turns a square of 4 pixels of k and 4 channels in each of two rounds, the squares of a round being the places
// that they go to. Eight neighbouring lanes read from, and write to, all banks.
__device__ __forceinline__ void transpose_pixels(u32 block) {
  constexpr u32 ROW = STAGE_ROW_BYTES, CHUNK = 16;
  const u32 lane = threadIdx.x % WARP_SIZE, half = lane / 8 % 2;
  const u32 pixels = lane % 8 ^ half;  // which four along k
#pragma unroll
  for (u32 round = 0; round < 2; ++round) {
    const u32 channels = (lane / 2 % 4 ^ (lane / 16 + 2 * round)) * 2 + half;  // which four
    const u32 from = block + (pixels / 2 * 8 + pixels % 2) * ROW + (channels ^ pixels % 2) * CHUNK;
    const u32 to = block + channels * 4 * ROW + (pixels ^ channels % 2 * 4) * CHUNK;
    uint4 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words[i] = load_shared_128((from ^ 2 * i * CHUNK) + 2 * i * ROW);
    __syncwarp();
    const auto store = [&](u32 i, u32 x, u32 y, u32 z, u32 w) {
      store_shared_16((to ^ i * CHUNK) + i * ROW, x, y, z, w);
    };
    store(0, words[0].x, words[1].x, words[2].x, words[3].x);
    store(1, words[0].y, words[1].y, words[2].y, words[3].y);
    store(2, words[0].z, words[1].z, words[2].z, words[3].z);
    store(3, words[0].w, words[1].w, words[2].w, words[3].w);
  }
}

// multiply(d, a, b, accumulate) is a wgmma of TF32 with A in registers.
template <class Tile, class Multiply> struct TransposedPixels {
  typedef typename Tile::Accumulator Accumulator;
  typedef u32 Fragments[Tile::STEPS][Tile::PARTS][4];
  static constexpr u32 TEAM_WARPS = Tile::TEAM_WARPGROUPS * 4, BLOCKS = Tile::COLUMNS / PIXEL_BLOCK;
  static_assert(sizeof(typename Tile::T) == 4 && Tile::K == PIXEL_BLOCK, "32-bit types");

  const Tile& tile;
  u32 warp, barrier;  // of the team
  Multiply multiply;

  // `warpgroup`: of all consumers.
  __device__ __forceinline__ TransposedPixels(const Tile& tile, u32 warpgroup)
      : tile(tile), warp(__shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0) % TEAM_WARPS),
        barrier(Tile::FREE_BARRIER + warpgroup / Tile::TEAM_WARPGROUPS) {}

  // See TileWgmma::consume_by.
  template <class Issued>
  __device__ __forceinline__ void sum(Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], i32 blocks, u32 first_row,
                                      typename Tile::Position& at, const Issued& issued) const {
    // Two sets of fragments in turn: the tensor cores read one while the other is written.
    Fragments even, odd;
    u32 previous = at.stage;
    fetch(even, first_row, at);
    issue(d, even, at, false);
    const auto next = [&](Fragments& a) {
      fetch(a, first_row, at);
      const u32 stage = at.stage;
      issue(d, a, at, true);
      wgmma_wait<1>();
      tile.release(previous);
      previous = stage;
    };
    // Two ways out, so that behind each it is known which set the tensor cores still read.
    for (i32 block = 1;; block += 2) {
      if (block == blocks) break;
      next(odd);
      if (block + 1 == blocks) break;
      next(even);
    }
    issued();
    wgmma_wait<0>();
    tile.release(previous);
  }

 private:
  // Of the stage at `at`: the fragments of the warpgroup's rows, and the team's B.
  __device__ __forceinline__ void fetch(Fragments& a, u32 first_row, const typename Tile::Position& at) const {
    const u32 stage = tile.wait_full(at);
    const u32 first = stage + Tile::STAGE_A_BYTES + warp * PIXEL_BLOCK_BYTES;
#pragma unroll
    for (u32 block = 0; block < BLOCKS; block += TEAM_WARPS) {
      if (block + TEAM_WARPS <= BLOCKS || warp < BLOCKS - block) transpose_pixels(first + block * PIXEL_BLOCK_BYTES);
    }
    load(a, stage + first_row / PIXEL_BLOCK * PIXEL_BLOCK_BYTES);
    fence_async_shared();
    named_barrier(barrier, TEAM_WARPS * WARP_SIZE);
    // Keeps the compiler from moving what it does with these registers behind the wgmma_fence that makes them ready.
#pragma unroll
    for (int i = 0; i < Tile::STEPS * Tile::PARTS * 4; ++i) asm volatile("" : "+r"(a[0][0][i]));
  }

  // The order of wgmma's registers: row g or g + 8, k j or j + 4, for g = lane / 4, j = lane % 4.
  static __device__ __forceinline__ void load(Fragments& a, u32 blocks) {
    const u32 lane = threadIdx.x % WARP_SIZE, row = threadIdx.x / WARP_SIZE % 4 * 16 + lane / 4, pixel = lane % 4 * 2;
    const u32 chunk = row % PIXEL_BLOCK / 4, block = blocks + row / PIXEL_BLOCK * PIXEL_BLOCK_BYTES;
    const u32 first = block + pixel * STAGE_ROW_BYTES + (chunk ^ pixel) * 16 + row % 4 * 4;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      // 8 rows are two chunks, of which the second bit is free; the next pixel's chunks differ in the first bit.
      const u32 from = (first ^ (i % 2 * 2 + i / 2) * 16) + i / 2 * STAGE_ROW_BYTES;
#pragma unroll
      for (u32 step = 0; step < Tile::STEPS; ++step) {
#pragma unroll
        for (u32 part = 0; part < Tile::PARTS; ++part) {
          a[step][part][i] = load_shared_32(from + part * 2 * PIXEL_BLOCK_BYTES + step * 8 * STAGE_ROW_BYTES);
        }
      }
    }
  }

  __device__ __forceinline__ void issue(Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const Fragments& a,
                                        typename Tile::Position& at, bool accumulate) const {
    const u64 b = Tile::StageB::descriptor(tile.stages + at.stage * Tile::STAGE_BYTES + Tile::STAGE_A_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tile::STEPS; ++step) {
#pragma unroll
      for (int part = 0; part < Tile::PARTS; ++part) {
        multiply(d[part], a[step][part], b + Tile::StageB::offset(0, step), accumulate || step);
      }
    }
    wgmma_commit();
    at.advance();
  }
};
