// Channels-last pixels of 32-bit elements for the tensor cores, which read these from shared memory along k only. k is
// the pixels, while the copies bring rows of 32 channels, one for each pixel (pixel_walk.cuh).
//
// A passes through registers. B is transposed in shared memory: the warps of a team share that work, while the tensor
// cores multiply the previous stage. A k block is 32 pixels, in any order that A and B share: step i of the
// multiplication has pixels 16 * (i / 2) + i % 2 + (0, 2, ... 14). Pixels at distance two are in different banks, as
// the swizzle moves the 16-byte chunks of their rows. An odd step has the pixels next to those of the even step, as the
// next tap of a filter has.
//
// The stages of B:
//     void transpose<WARPS>(u32 stage, u32 warp)     the part of the work of one of a team's WARPS warps
//     u64 offset(int tap, int step)                  offset in a descriptor for one of TAPS taps and a step of k

#pragma once

#include "include/math/tf32_parts.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_wgmma.cuh"

constexpr u32 PIXEL_BLOCK = 32, PIXEL_BLOCK_BYTES = PIXEL_BLOCK * STAGE_ROW_BYTES, CHUNK_BYTES = 16;

// Stores 4 words, or their high parts (tf32_parts.cuh) and, LOW_BYTES after them, their low ones.
template <int LOW_BYTES> __device__ __forceinline__ void store_turned(u32 to, u32 x, u32 y, u32 z, u32 w) {
  if constexpr (LOW_BYTES == 0) {
    store_shared_16(to, x, y, z, w);
  } else {
    const Tf32Parts a = tf32_parts(x), b = tf32_parts(y), c = tf32_parts(z), d = tf32_parts(w);
    store_shared_16(to, a.high, b.high, c.high, d.high);
    store_shared_16(to + LOW_BYTES, a.low, b.low, c.low, d.low);
  }
}

// Transposes 4 words at each of 4 addresses: word j of from(i) becomes word i of to(j), when all lanes have read
// theirs.
template <int LOW_BYTES = 0, class From, class To>
__device__ __forceinline__ void turn_words(const From& from, const To& to) {
  uint4 words[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) words[i] = load_shared_128(from(i));
  __syncwarp();
  store_turned<LOW_BYTES>(to(0), words[0].x, words[1].x, words[2].x, words[3].x);
  store_turned<LOW_BYTES>(to(1), words[0].y, words[1].y, words[2].y, words[3].y);
  store_turned<LOW_BYTES>(to(2), words[0].z, words[1].z, words[2].z, words[3].z);
  store_turned<LOW_BYTES>(to(3), words[0].w, words[1].w, words[2].w, words[3].w);
}

// A stage of COLUMNS columns that do not share windows of pixels, transposed in place in blocks of 32 by 32. IS_SPLIT:
// in parts, with the low parts after all high ones.
template <int COLUMNS, bool IS_SPLIT = false>
struct TransposedColumns : OperandStage<f32, COLUMNS * (1 + IS_SPLIT), false, 1 + IS_SPLIT, IS_SPLIT * COLUMNS> {
  typedef OperandStage<f32, COLUMNS * (1 + IS_SPLIT), false, 1 + IS_SPLIT, IS_SPLIT * COLUMNS> Base;
  static constexpr int TAPS = 1, COPIED_BYTES = COLUMNS * STAGE_ROW_BYTES;

  template <u32 WARPS> static __device__ __forceinline__ void transpose(u32 stage, u32 warp) {
    constexpr u32 HALVES = 2 * (COLUMNS / PIXEL_BLOCK);
#pragma unroll
    for (u32 first = 0; first < HALVES; first += WARPS) {
      const u32 half = first + warp;
      const bool has_one = first + WARPS <= HALVES || half < HALVES;
      if (has_one) transpose_half(stage + half / 2 * PIXEL_BLOCK_BYTES, half % 2);
    }
  }

  static constexpr u64 offset(int, int step) { return Base::offset(0, step); }

 private:
  // A lane transposes a square of 4 pixels by 4 channels; the squares of a half exchange their positions. Eight
  // neighbouring lanes read from, and write to, all banks.
  static __device__ __forceinline__ void transpose_half(u32 block, u32 half) {
    const u32 lane = threadIdx.x % WARP_SIZE, pixels = lane % 8;
    const u32 pixel = pixels / 4 * 16 + pixels % 2 * 8 + pixels / 2 % 2;
    const u32 channels = (pixels / 4 ^ half) * 4 + (pixels % 2 ^ lane / 16) * 2 + lane / 8 % 2;
    const u32 from = block + pixel * STAGE_ROW_BYTES + (channels ^ pixel % 2) * CHUNK_BYTES;
    const u32 to = block + channels * 4 * STAGE_ROW_BYTES + (pixels ^ (channels % 2 * 4)) * CHUNK_BYTES;
    turn_words<IS_SPLIT * COPIED_BYTES>([&](u32 i) { return (from ^ (2 * i * CHUNK_BYTES)) + 2 * i * STAGE_ROW_BYTES; },
                                        [&](u32 i) { return (to ^ (i * CHUNK_BYTES)) + i * STAGE_ROW_BYTES; });
  }
};

// A stage of 64 channels of TAPS_ neighbouring filter taps, which read one window of PIXELS pixels; each tap reads
// DISTANCE pixels after the previous one. The transposed pixels follow the window: for each 16 positions four groups of
// eight, which begin at the first, second, third and fourth pixel, so that the pixels of each tap are contiguous.
template <int PIXELS, int TAPS_, int DISTANCE> struct TransposedWindow {
  static constexpr bool MN_MAJOR = false;
  static constexpr int TAPS = TAPS_, CHANNELS = 64, HALF_BYTES = PIXELS * STAGE_ROW_BYTES;
  static constexpr int COPIED_BYTES = CHANNELS / PIXEL_BLOCK * HALF_BYTES;
  static constexpr int SIXTEEN_BYTES = CHANNELS * STAGE_ROW_BYTES, BYTES = COPIED_BYTES + 2 * SIXTEEN_BYTES;
  static_assert(PIXELS % 8 == 0 && PIXELS >= 40 && (TAPS - 1) * DISTANCE <= 2, "no tap beyond the fourth pixel");

  template <u32 WARPS> static __device__ __forceinline__ void transpose(u32 stage, u32 warp) {
    // Eight neighbouring lanes read from, and write to, all banks.
    const u32 lane = threadIdx.x % WARP_SIZE, half = lane % 2;
    const u32 channels = (half ^ lane / 16) * 4 + (lane / 2 ^ lane / 8) % 2 * 2 + lane / 4 % 2;
#pragma unroll
    for (u32 part = warp; part < 8; part += WARPS) {
      const u32 sixteen = part % 2, box = part / 2 % 2, eight = part / 4 * 2 + lane / 2 % 2;
      const u32 rows = stage + box * HALF_BYTES, first = sixteen * 16 + half * 8 + eight;
      const u32 to = stage + COPIED_BYTES + sixteen * SIXTEEN_BYTES +
                     (box * PIXEL_BLOCK + channels * 4) * STAGE_ROW_BYTES +
                     ((eight * 2 + half) ^ (channels % 2 * 4)) * CHUNK_BYTES;
      turn_words(
          [&](u32 i) {
            const u32 pixel = first + 2 * i;
            return rows + pixel * STAGE_ROW_BYTES + (channels ^ pixel % 8) * CHUNK_BYTES;
          },
          [&](u32 i) { return (to ^ (i * CHUNK_BYTES)) + i * STAGE_ROW_BYTES; });
    }
  }

  static __device__ __forceinline__ u64 descriptor(u32 stage) { return swizzled_operand(stage + COPIED_BYTES); }
  static constexpr u64 offset(int tap, int step) {
    return u64(step / 2 * SIXTEEN_BYTES + (step % 2 + tap * DISTANCE) * 2 * CHUNK_BYTES) >> 4;
  }
};

// A as pixels by rows, in blocks of 32 by 32.
struct RowsOfPixels {
  // Reads the words of the warp for step `step` of k, in 64 rows of the stage at shared-memory address `stage` from
  // `first_row` on, in the order of wgmma's registers.
  static __device__ __forceinline__ void read(u32 (&words)[4], u32 stage, u32 first_row, u32 step) {
    const u32 lane = threadIdx.x % WARP_SIZE, row = threadIdx.x / WARP_SIZE % 4 * 16 + lane / 4, pixel = lane % 4 * 2;
    const u32 chunk = row % PIXEL_BLOCK / 4, block = stage + (first_row + row) / PIXEL_BLOCK * PIXEL_BLOCK_BYTES;
    const u32 first = block + pixel * STAGE_ROW_BYTES + (chunk ^ pixel) * CHUNK_BYTES + row % 4 * 4;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      // 8 rows are two chunks; this lane's is the even one or the one after it.
      const u32 from = first ^ ((i % 2 * 2 + step % 2) * CHUNK_BYTES), pixels = step / 2 * 16 + step % 2 + i / 2 * 8;
      words[i] = load_shared_32(from + pixels * STAGE_ROW_BYTES);
    }
  }
};

template <int COLUMNS> constexpr bool is_prepared<TransposedColumns<COLUMNS, true>> = true;

// multiply(d, a, b, accumulate) is a wgmma of TF32 with A in registers, over a tap's columns.
template <class Tile, class Multiply> struct PixelProduct {
  typedef typename Tile::Accumulator Accumulator;
  typedef typename Tile::StageB StageB;
  typedef u32 Fragments[Tile::STEPS][Tile::PARTS][4];
  static constexpr u32 TEAM_WARPS = Tile::TEAM_WARPGROUPS * 4;
  static_assert(sizeof(typename Tile::T) == 4 && Tile::K == PIXEL_BLOCK, "32-bit types");

  const Tile& tile;
  const u32 warp, barrier;  // the warp's index in its team; the team's barrier
  const Multiply multiply = {};

  // warpgroup: index among all consumers.
  __device__ __forceinline__ PixelProduct(const Tile& tile, u32 warpgroup)
      : tile(tile), warp(__shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0) % TEAM_WARPS),
        barrier(Tile::FREE_BARRIER + warpgroup / Tile::TEAM_WARPGROUPS) {}

  // See TileWgmma::consume_by.
  template <class Issued>
  __device__ __forceinline__ void sum(Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], i32 blocks, u32 first_row,
                                      typename Tile::Position& at, const Issued& issued) const {
    // Two sets of fragments alternate: the tensor cores read one while the other is written.
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
    // The loop has two exits, so that ptxas knows after each which set the tensor cores still read.
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
  // Fetches the fragments of the warpgroup's rows, and transposes the team's B, of the stage at `at`.
  __device__ __forceinline__ void fetch(Fragments& a, u32 first_row, const typename Tile::Position& at) const {
    const u32 stage = tile.wait_full(at);
    StageB::template transpose<TEAM_WARPS>(stage + Tile::STAGE_A_BYTES, warp);
#pragma unroll
    for (u32 step = 0; step < Tile::STEPS; ++step) {
#pragma unroll
      for (u32 part = 0; part < Tile::PARTS; ++part) RowsOfPixels::read(a[step][part], stage, first_row + part * 64, step);
    }
    fence_async_shared();
    named_barrier(barrier, TEAM_WARPS * WARP_SIZE);
    // Keeps the compiler from moving uses of these registers to after the wgmma_fence that makes them ready.
#pragma unroll
    for (int i = 0; i < Tile::STEPS * Tile::PARTS * 4; ++i) asm volatile("" : "+r"(a[0][0][i]));
  }

  __device__ __forceinline__ void issue(Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const Fragments& a,
                                        typename Tile::Position& at, bool accumulate) const {
    constexpr int TAPS = StageB::TAPS, TAP_SUMS = Tile::COLUMNS / 2 / TAPS;
    const u64 b = StageB::descriptor(tile.stages + at.stage * Tile::STAGE_BYTES + Tile::STAGE_A_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tile::STEPS; ++step) {
#pragma unroll
      for (int part = 0; part < Tile::PARTS; ++part) {
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
          auto& sums = reinterpret_cast<Accumulator(&)[TAP_SUMS]>(d[part][tap * TAP_SUMS]);
          multiply(sums, a[step][part], b + StageB::offset(tap, step), accumulate || step);
        }
      }
    }
    wgmma_commit();
    at.advance();
  }
};

// The arrival of stages (tf32x3_operands.cuh) whose B the warps of a team transpose and split, each a part of it. They do
// so two stages before they multiply, so that no warpgroup waits for another one that still multiplies.
template <class Tile> struct TransposedArrival {
  static constexpr u32 TEAM_WARPS = Tile::TEAM_WARPGROUPS * 4;
  static constexpr int AHEAD = Tile::RING > 2 ? 2 : 1;
  typedef typename Tile::Position Position;

  const Tile& tile;
  Position next = {};  // the next stage to transpose
  i32 left = 0;        // stages of the tile from there on

  __device__ __forceinline__ void begin(const Position& at, i32 blocks) {
    next = at, left = blocks;
    if (AHEAD > 1) transpose_next();
  }
  __device__ __forceinline__ u32 wait(const Position& at) {
    transpose_next();
    mbarrier_wait(tile.ready(at.stage), at.parity);
    return tile.stages + at.stage * Tile::STAGE_BYTES;
  }

 private:
  __device__ __forceinline__ void transpose_next() {
    if (left == 0) return;
    const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0) % TEAM_WARPS;
    Tile::StageB::template transpose<TEAM_WARPS>(tile.wait_full(next) + Tile::STAGE_A_BYTES, warp);
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(tile.ready(next.stage));
    next.advance();
    --left;
  }
};
