// Loader of a matrix operand: element (row, k) lies at row * stride + k (K-major) or k * stride + row (MN-major).
//
// Rows are rows of A or columns of B. Rows past the end and k past the end become zeros: nothing outside the matrix is
// read, and the tail of K adds nothing.
// ACCESS_BYTES divides the base address, and the extent and stride along memory, in bytes. 16, 8 or 4
// bytes are copied by cp.async; with fewer, elements are copied one by one. So a piece of ACCESS_BYTES exists as a
// whole or not at all.

#pragma once

#include "include/tile/operand_tile.cuh"

__device__ __forceinline__ u32 bits_of(f16 x) { return x.bits; }
__device__ __forceinline__ u32 bits_of(bf16 x) { return x.bits; }
__device__ __forceinline__ u32 bits_of(f32 x) { return __float_as_uint(x); }
__device__ __forceinline__ u32 bits_of(i8 x) { return u8(x); }

template <class T, class Tile, int ACCESS_BYTES, int THREADS> struct StridedOperand {
  static constexpr int CHUNK = CHUNK_BYTES / int(sizeof(T));
  static constexpr int PIECES = CHUNK_BYTES / ACCESS_BYTES;  // pieces of one chunk
  static constexpr int PIECE = ACCESS_BYTES / int(sizeof(T));
  static constexpr int ROW_STEP = THREADS / Tile::CHUNKS;  // memory rows that the block copies at once
  static constexpr int COPIES = Tile::ROWS / ROW_STEP;  // copies of each thread for one stage
  static_assert(THREADS % Tile::CHUNKS == 0 && COPIES * ROW_STEP == Tile::ROWS && COPIES >= 1, "whole rows each");

  // matrix: the operand's element (first row of the tile, first k). rows, depth: rows and elements of k that exist from
  // there on.
  __device__ __forceinline__ StridedOperand(const T* matrix, i64 stride, i32 rows, i32 depth)
      : row(threadIdx.x / Tile::CHUNKS), chunk(threadIdx.x % Tile::CHUNKS), step(stride * ROW_STEP) {
    source = matrix + row * stride + chunk * CHUNK;
    advance = Tile::K_MAJOR ? Tile::DEPTH : stride * Tile::DEPTH;
    across = (Tile::K_MAJOR ? rows : depth) - i32(row);
    along = (Tile::K_MAJOR ? depth : rows) - i32(chunk) * CHUNK;
  }

  // Address of this thread's first copy.
  __device__ __forceinline__ u64 place() const { return u64(source); }

  // Issues part `part` of `parts` of the next k tile's copies.
  __device__ __forceinline__ void load(u32 stage, int part, int parts) {
    if (part == 0) from = source;
#pragma unroll
    for (int copy = COPIES * part / parts; copy < COPIES * (part + 1) / parts; ++copy, from += step) {
      copy_chunk(stage + Tile::offset(row + copy * ROW_STEP, chunk), copy * ROW_STEP < across ? along : 0);
    }
    if (part < parts - 1) return;
    source += advance;
    (Tile::K_MAJOR ? along : across) -= Tile::DEPTH;
  }

 private:
  u32 row, chunk;      // this thread's first memory row, and its chunk in every row
  i64 step, advance;   // elements from one of its rows to the next, and from one k tile to the next
  i32 across, along;   // memory rows from its first one, and elements of a row from its chunk, that exist
  const T* source;     // its first chunk of the next k tile
  const T* from;       // its next chunk

  // Copies the chunk at `from`, of which the first `elements` exist (any number).
  __device__ __forceinline__ void copy_chunk(u32 destination, i32 elements) {
    if constexpr (ACCESS_BYTES >= 4) {
#pragma unroll
      for (int piece = 0; piece < PIECES; ++piece) {
        cp_async<ACCESS_BYTES>(destination + piece * ACCESS_BYTES, from + piece * PIECE, piece * PIECE < elements);
      }
    } else {
      u32 words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < CHUNK; ++i) {
        const int byte = i * int(sizeof(T));
        if (i < elements) words[byte / 4] |= bits_of(from[i]) << (byte % 4 * 8);
      }
      store_shared_16(destination, words[0], words[1], words[2], words[3]);
    }
  }
};
