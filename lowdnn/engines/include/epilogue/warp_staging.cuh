// Each warp's staging area in shared memory: 16 rows of accumulators, transposed from the fragments of wgmma into rows.
//
// A warp holds pairs of neighbouring columns of 16 rows: lane l has columns 2 * (l % 4) and the next one of each block
// of 8, in rows l / 4 and l / 4 + 8. Through the staging area a lane gets neighbours along a row, for wide accesses.
//
// Macro STAGING_BUFFERS: 1 or 2 buffers of STAGING_BUFFER_BYTES bytes in a warp's area.

#pragma once

#include "include/numeric.cuh"

constexpr int STAGING_BUFFER_BYTES = 2048;
constexpr int STAGING_ROWS = 16, STAGING_COLUMNS = STAGING_BUFFERS * STAGING_BUFFER_BYTES / (STAGING_ROWS * 4);

// STAGING_ROWS x STAGING_COLUMNS accumulators of 4 bytes. Pieces of 16 bytes are permuted within a row, so that neither
// writes (8 bytes, 4 rows at a time) nor reads (16 bytes, along rows) have bank conflicts.
template <class Accumulator> struct WarpStaging {
  static constexpr int BYTES = STAGING_ROWS * STAGING_COLUMNS * 4;
  Accumulator* area;

  __device__ __forceinline__ void put(u32 row, u32 column, Accumulator x, Accumulator y) const {
    struct alignas(8) Pair { Accumulator x, y; };
    *reinterpret_cast<Pair*>(area + place(row, column)) = Pair{x, y};
  }

  // Reads COUNT neighbours from `column` on, which is a multiple of COUNT.
  template <int COUNT> __device__ __forceinline__ void get(Accumulator (&values)[COUNT], u32 row, u32 column) const {
    constexpr int PIECE = COUNT < 4 ? COUNT : 4;
    struct alignas(4 * PIECE) Piece { Accumulator v[PIECE]; };
#pragma unroll
    for (int i = 0; i < COUNT; i += PIECE) {
      const Piece piece = *reinterpret_cast<const Piece*>(area + place(row, column + i));
#pragma unroll
      for (int j = 0; j < PIECE; ++j) values[i + j] = piece.v[j];
    }
  }

  // The accumulator at a row and column.
  __device__ __forceinline__ Accumulator& at(u32 row, u32 column) const { return area[place(row, column)]; }

 private:
  static __device__ __forceinline__ u32 place(u32 row, u32 column) {
    constexpr u32 CHUNKS = STAGING_COLUMNS / 8;
    const u32 chunk = column / 8 ^ row % CHUNKS, half = column / 4 % 2 ^ (CHUNKS == 8 ? chunk : row % 8) / 4;
    return row * STAGING_COLUMNS + chunk * 8 + half * 4 + column % 4;
  }
};
