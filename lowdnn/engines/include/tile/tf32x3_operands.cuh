// Operands of a wgmma tile whose products of fp32 are three products of TF32 (include/math/tf32_parts.cuh).
//
// A's stages hold fp32 as it is in memory. A warp reads its 16 rows in the order in which wgmma takes A from registers,
// and splits them there. B comes split (gemm/tf32_split.cu), or is when its stage has arrived: a stage has the high parts
// of its columns, then the low ones.
// Tensor cores cut off bits of a sum instead of rounding it. So they sum one stage, 32 of k, beginning with the products
// of low parts; fp32 units add the stages up, and errors grow with the root of their number.

#pragma once

#include "include/math/tf32_parts.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/tile/tile_operands.cuh"
#include "include/tile/tile_wgmma.cuh"

DEFINE_WGMMA_K_MAJOR_A_IN_REGISTERS(wgmma_tf32, TILE_N, 8, f32.tf32.tf32)

// LINES columns, first their high parts, then their low ones.
template <int LINES> using SplitStage = OperandStage<f32, 2 * LINES, false, 2, LINES>;

// Loads both parts of a tiled operand, which follow each other along k in blocks of K: `Loader` is its TiledOperand.
template <class Loader, int LINES> struct SplitOperand : Loader {
  using Loader::Loader;

  __device__ __forceinline__ void begin(const TileWork& work) {
    Loader::begin(work);
    this->k *= 2;
  }
  __device__ __forceinline__ void load(u32 stage, u32 barrier) {
    Loader::load(stage, barrier);
    Loader::load(stage + LINES * STAGE_ROW_BYTES, barrier);
  }
};

// A as rows of a stage in the 128-byte swizzle, k along them.
struct RowsOfK {
  // Reads the words of the warp for step `step` of k, in 64 rows of the stage at shared-memory address `stage` from
  // `first_row` on.
  static __device__ __forceinline__ void read(u32 (&words)[4], u32 stage, u32 first_row, u32 step) {
    const u32 lane = threadIdx.x % WARP_SIZE, row = lane % 16, rows = first_row + threadIdx.x / WARP_SIZE % 4 * 16;
    ldmatrix_x4(words, stage + (rows + row) * STAGE_ROW_BYTES + (2 * step + lane / 16 ^ row % 8) * 16);
  }
};

// The arrival of a tile's stages, in the order in which they are multiplied: as the copies bring them.
template <class Tile> struct Copied {
  const Tile& tile;

  // The tile has `blocks` stages from `at` on.
  __device__ __forceinline__ void begin(const typename Tile::Position&, i32) {}
  // Waits for the stage at `at`, and returns its address.
  __device__ __forceinline__ u32 wait(const typename Tile::Position& at) { return tile.wait_full(at); }
};

// The sums of a warpgroup, for Tile::consume_by.  Rows: reads A.  Arrival: see Copied.
template <class Tile, class Rows = RowsOfK, class Arrival = Copied<Tile>> struct Tf32x3Sum {
  static constexpr int STEPS = Tile::STEPS, PARTS = Tile::PARTS, ROW_BYTES = Tile::StageA::ROW_BYTES;
  static constexpr int SUMS = Tile::COLUMNS / 2;
  static_assert(ROW_BYTES == STAGE_ROW_BYTES && (PARTS == 1 || PARTS % 2 == 0), "whole rows, fragments by turns");
  typedef typename Tile::Position Position;

  struct Fragments { u32 high[STEPS][4], low[STEPS][4]; };

  const Tile& tile;

  // Two sets of fragments alternate: the tensor cores read one while the other is written.
  template <class Issued>
  __device__ __forceinline__ void operator()(f32 (&d)[PARTS][SUMS], i32 blocks, u32 first_row, Position& at,
                                             const Issued& issued) const {
#pragma unroll
    for (int i = 0; i < PARTS * SUMS; ++i) d[0][i] = 0;
    Arrival arrival{tile};
    arrival.begin(at, blocks);
    Fragments even, odd;
    fetch(even, arrival.wait(at), first_row);
    i32 left = blocks;
    if constexpr (PARTS == 1) {
      // Whether a stage was not the last one.
      const auto turn = [&](const Fragments& own, Fragments& next) {
        const u32 stage = at.stage;
        at.advance();
        const bool goes_on = --left > 0;
        add(d[0], own, stage, [&] {
          if (goes_on) fetch(next, arrival.wait(at), first_row);
          else issued();
        });
        tile.release(stage);
        return goes_on;
      };
      while (turn(even, odd) && turn(odd, even)) {}
    } else {
      for (; left > 0; --left) {
        const u32 stage = at.stage, address = tile.stages + stage * Tile::STAGE_BYTES;
        at.advance();
#pragma unroll
        for (int part = 0; part < PARTS; part += 2) {
          add(d[part], even, stage, [&] { fetch(odd, address, first_row + (part + 1) * 64); });
          add(d[part + 1], odd, stage, [&] {
            if (part + 2 < PARTS) fetch(even, address, first_row + (part + 2) * 64);
            else if (left > 1) fetch(even, arrival.wait(at), first_row);
            else issued();
          });
        }
        tile.release(stage);
      }
    }
  }

 private:
  // Adds the products of 64 rows and the ring's stage `stage` to d, and calls meanwhile() while they are computed.
  template <class Meanwhile>
  __device__ __forceinline__ void add(f32 (&d)[SUMS], const Fragments& a, u32 stage, const Meanwhile& meanwhile) const {
    const u64 high = Tile::StageB::descriptor(tile.stages + stage * Tile::STAGE_BYTES + Tile::STAGE_A_BYTES);
    constexpr u64 LOW = Tile::StageB::offset(0, STEPS);
    f32 sum[SUMS];
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const u64 b = high + Tile::StageB::offset(0, step);
      wgmma_tf32(sum, a.low[step], b, step > 0);
      wgmma_tf32(sum, a.high[step], b + LOW, true);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) wgmma_tf32(sum, a.high[step], high + Tile::StageB::offset(0, step), true);
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < SUMS; ++i) d[i] += sum[i];
  }

  // Reads and splits the warp's 16 of 64 rows of the stage at shared-memory address `stage`.
  static __device__ __forceinline__ void fetch(Fragments& a, u32 stage, u32 first_row) {
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
      u32 words[4];
      Rows::read(words, stage, first_row, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Tf32Parts parts = tf32_parts(words[i]);
        a.high[step][i] = parts.high;
        a.low[step][i] = parts.low;
      }
    }
    // Keeps the compiler from moving arithmetic to after the wgmma_fence that makes these registers ready.
#pragma unroll
    for (int i = 0; i < 4 * STEPS; ++i) asm volatile("" : "+r"(a.high[i / 4][i % 4]), "+r"(a.low[i / 4][i % 4]));
  }
};
