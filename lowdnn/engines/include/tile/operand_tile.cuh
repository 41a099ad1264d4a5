// Operand tiles in shared memory: EXTENT rows (of A) or columns (of B) by DEPTH, and how a warp reads its fragments.
//
// A K-major tile has one memory row for each of the EXTENT, DEPTH elements long; an MN-major tile has one memory row
// for each of the DEPTH, EXTENT elements long: the orientation the operand has in device memory, so that 16-byte
// chunks travel unchanged. Chunk c of row r lies at position c ^ key(r): the 8 rows of one ldmatrix phase, or the lanes
// of one gather, then fall into different banks.
//
// A fragment of A is what mma.cuh calls a[0..3] for a block of 16 rows and 32 bytes of K. A fragment of B holds 16
// columns: b[0..1] of the first 8, then b[0..1] of the last 8, each pair in neighbouring registers as mma.sync wants.

#pragma once

#include "include/cp_async.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"

constexpr int CHUNK_BYTES = 16;
constexpr int STEP_BYTES = 32;  // bytes of K in one mma.sync

template <class T, int EXTENT_, int DEPTH_, bool K_MAJOR_> struct OperandTile {
  static constexpr int EXTENT = EXTENT_;
  static constexpr int DEPTH = DEPTH_;
  static constexpr bool K_MAJOR = K_MAJOR_;
  static constexpr int ROWS = K_MAJOR ? EXTENT : DEPTH;
  static constexpr int ROW_BYTES = (K_MAJOR ? DEPTH : EXTENT) * int(sizeof(T));
  static constexpr int CHUNKS = ROW_BYTES / CHUNK_BYTES;
  static constexpr int BYTES = ROWS * ROW_BYTES;
  static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "a row is 64 bytes or a multiple of 128");

  static __device__ __forceinline__ u32 offset(u32 row, u32 chunk) {
    return row * ROW_BYTES + ((chunk ^ key(row)) * CHUNK_BYTES);
  }

 private:
  static __device__ __forceinline__ u32 key(u32 row) {
    if constexpr (K_MAJOR || sizeof(T) == 2) return CHUNKS == 4 ? (row >> 1) & 3 : row & 7;
    if constexpr (sizeof(T) == 4) return (row & 3) << 1;
    return (row >> 2) & (CHUNKS == 4 ? 3 : 7);
  }
};

enum class Side { A, B };

// Reads the fragments of one warp, whose part of the tile begins at row or column `first` (a multiple of 16).
template <class T, class Tile, Side SIDE> struct FragmentReader {
  static constexpr bool GATHERS = !Tile::K_MAJOR && sizeof(T) != 2;  // ldmatrix transposes 16-bit elements only
  static constexpr int STEP_K = STEP_BYTES / int(sizeof(T));

  u32 base[GATHERS ? 2 : 1];  // offsets of this lane in block 0, step 0; a gather has one for each half of the K bytes

  __device__ __forceinline__ FragmentReader(u32 first, u32 lane) {
    // Which of the four 8 x 8 parts of a block this lane addresses: its half along the rows (columns), and along K.
    const u32 slow = lane / 16, fast = lane / 8 % 2;
    const u32 line = SIDE == Side::A ? fast : slow, depth = SIDE == Side::A ? slow : fast;
    if constexpr (Tile::K_MAJOR) {
      base[0] = Tile::offset(first + lane % 8 + line * 8, depth);
    } else if constexpr (sizeof(T) == 2) {
      base[0] = Tile::offset(lane % 8 + depth * 8, first / 8 + line);
    } else {
      constexpr u32 WORD = 4 / sizeof(T);
      const u32 byte = (first + lane / 4) * u32(sizeof(T));
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        base[half] = Tile::offset((lane % 4 + 4 * half) * WORD, byte / CHUNK_BYTES) + byte % CHUNK_BYTES;
      }
    }
  }

  // The fragment of block `block` (16 rows or columns) at K step `step`, both compile-time values after unrolling.
  __device__ __forceinline__ void read(u32 (&fragment)[4], u32 tile_address, int block, int step) const {
    if constexpr (Tile::K_MAJOR) {
      const u32 address = (tile_address + base[0]) ^ u32(step * STEP_BYTES);
      ldmatrix_x4(fragment, address + block * 16 * Tile::ROW_BYTES);
    } else if constexpr (sizeof(T) == 2) {
      const u32 address = tile_address + base[0] + step * STEP_K * Tile::ROW_BYTES;
      ldmatrix_x4_transposed(fragment, moved(address, block * 2));
    } else {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int line = SIDE == Side::A ? word % 2 : word / 2, depth = SIDE == Side::A ? word / 2 : word % 2;
        const u32 address = tile_address + base[depth] + step * STEP_K * Tile::ROW_BYTES;
        fragment[word] = gathered(address, block * 16 + line * 8);
      }
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) fragment[word] = Mma<T>::operand(fragment[word]);
  }

 private:
  // The address `chunks` further along a memory row: a carry never leaves the bits that the XOR key touches.
  static __device__ __forceinline__ u32 moved(u32 address, int chunks) {
    return (address ^ u32(chunks % 8 * CHUNK_BYTES)) + chunks / 8 * 8 * CHUNK_BYTES;
  }

  static __device__ __forceinline__ u32 gathered(u32 address, int elements) {
    const int bytes = elements * int(sizeof(T));
    const u32 start = moved(address, bytes / CHUNK_BYTES) + bytes % CHUNK_BYTES;
    if constexpr (sizeof(T) == 4) {
      return load_shared_32(start);
    } else {
      return load_shared_8(start) | load_shared_8(start + Tile::ROW_BYTES) << 8 |
             load_shared_8(start + 2 * Tile::ROW_BYTES) << 16 | load_shared_8(start + 3 * Tile::ROW_BYTES) << 24;
    }
  }
};
