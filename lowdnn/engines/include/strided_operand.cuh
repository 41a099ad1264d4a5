// Loader of a matrix operand: element (row, k) lies at row * stride + k (K-major) or k * stride + row (MN-major).
//
// Rows are rows of A or columns of B. Rows past the end and k past the end become zeros: nothing outside the matrix is
// read, and the tail of K adds nothing.
// ACCESS_BYTES is what base address and stride * sizeof(T) are multiples of: 16, 8 or 4 bytes by cp.async; below that by
// plain loads.

#pragma once

#include "include/operand_tile.cuh"

__device__ __forceinline__ u32 bits_of(f16 x) { return x.bits; }
__device__ __forceinline__ u32 bits_of(bf16 x) { return x.bits; }
__device__ __forceinline__ u32 bits_of(f32 x) { return __float_as_uint(x); }
__device__ __forceinline__ u32 bits_of(i8 x) { return u8(x); }

// Copies the first `valid_bytes` (any value; clamped to 0..16) of a chunk, and zeros behind them.
template <class T, int ACCESS_BYTES>
__device__ __forceinline__ void copy_chunk(u32 destination, const T* source, i32 valid_bytes) {
  if constexpr (ACCESS_BYTES >= 4) {
#pragma unroll
    for (int at = 0; at < CHUNK_BYTES; at += ACCESS_BYTES) {
      const i32 valid = min(max(valid_bytes - at, 0), ACCESS_BYTES);
      cp_async<ACCESS_BYTES>(destination + at, source + at / int(sizeof(T)), valid);
    }
  } else {
    u32 words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int at = 0; at < CHUNK_BYTES; at += int(sizeof(T))) {
      if (at < valid_bytes) words[at / 4] |= bits_of(source[at / int(sizeof(T))]) << (at % 4 * 8);
    }
    store_shared_16(destination, words[0], words[1], words[2], words[3]);
  }
}

template <class T, class Tile, int ACCESS_BYTES, int THREADS> struct StridedOperand {
  static constexpr int CHUNK = CHUNK_BYTES / int(sizeof(T));
  static constexpr int ROW_STEP = THREADS / Tile::CHUNKS;  // memory rows that the block copies at once
  static constexpr int COPIES = Tile::ROWS / ROW_STEP;     // of each thread
  static_assert(THREADS % Tile::CHUNKS == 0 && COPIES * ROW_STEP == Tile::ROWS && COPIES >= 1, "whole rows for a thread");

  // matrix: the operand's element (first row of the tile, k = first_k).  rows: how many rows exist from there.
  // depth: how many k exist from first_k.
  __device__ __forceinline__ StridedOperand(const T* matrix, i64 stride, i32 rows, i32 depth)
      : row(threadIdx.x / Tile::CHUNKS), chunk(threadIdx.x % Tile::CHUNKS), step(stride * ROW_STEP) {
    source = matrix + row * stride + chunk * CHUNK;
    if constexpr (Tile::K_MAJOR) {
      advance = Tile::DEPTH;
      remaining = (depth - i32(chunk) * CHUNK) * i32(sizeof(T));
      present = 0;
#pragma unroll
      for (int copy = 0; copy < COPIES; ++copy) present |= u32(i32(row) + copy * ROW_STEP < rows) << copy;
    } else {
      advance = stride * Tile::DEPTH;
      remaining = depth - i32(row);
      present = max(0, min(rows - i32(chunk) * CHUNK, CHUNK)) * sizeof(T);
    }
  }

  __device__ __forceinline__ void load(u32 stage) {
    const T* from = source;
#pragma unroll
    for (int copy = 0; copy < COPIES; ++copy, from += step) {
      const bool exists = Tile::K_MAJOR ? present >> copy & 1 : copy * ROW_STEP < remaining;
      const i32 bytes = Tile::K_MAJOR ? max(min(remaining, CHUNK_BYTES), 0) : i32(present);
      copy_chunk<T, ACCESS_BYTES>(stage + Tile::offset(row + copy * ROW_STEP, chunk), from, exists ? bytes : 0);
    }
    source += advance;
    remaining -= Tile::K_MAJOR ? Tile::DEPTH * i32(sizeof(T)) : Tile::DEPTH;
  }

 private:
  u32 row, chunk;  // this thread's first memory row, and its chunk in every row
  i64 step;        // elements from one of its rows to the next
  i64 advance;     // elements from one k tile to the next
  const T* source;
  i32 remaining;   // K-major: bytes of its chunk and behind it that exist; MN-major: k from its first row on
  u32 present;     // K-major: one bit for each of its rows that exists; MN-major: bytes of its chunk that exist
};
