// Tiles of rows of heads in shared memory, as operands of mma.sync, and products of them.
//
// The pitch of rows is PITCH_BYTES. If rows are whole lines of 128 bytes, piece i (16 bytes) of row r lies at piece i ^
// r % 8; other rows are padded by 16 bytes. Either way the eight rows that one ldmatrix reads lie in different banks.
// Padding whole lines, too, would make copies write lines in two halves, which is 5 % slower. Elements that do not
// exist are zeros.

#pragma once

#include "attention.cuh"
#include "include/cp_async.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"

// Rows in memory with a constant stride in elements. Each such type has at(row), a row's address, and below(from, row,
// rows), the address of the row that is `rows` after the one at `from`.
template <class T> struct StridedRows {
  const T* first;
  i64 stride;

  __device__ __forceinline__ const T* at(int row) const { return first + row * stride; }
  __device__ __forceinline__ const T* below(const T* from, int row, int rows) const { return from + rows * stride; }
};

// A tile of ROWS_ rows of a head in shared memory.
template <class T_, int ROWS_, int SIZE_> struct HeadRows {
  typedef T_ T;
  static constexpr int ROWS = ROWS_, SIZE = SIZE_, PIECES = SIZE / 8;
  static constexpr bool IS_SWIZZLED = SIZE * sizeof(T) % 128 == 0;
  static constexpr u32 PITCH_BYTES = SIZE * sizeof(T) + (IS_SWIZZLED ? 0 : 16), BYTES = ROWS * PITCH_BYTES;
  static constexpr bool IN_LINES = SIZE * sizeof(T) >= 128;
  static_assert(sizeof(T) == 2 && SIZE % 16 == 0 && ROWS % 16 == 0, "of whole fragments");

  u32 address;  // a multiple of 128

  __device__ __forceinline__ u32 piece(int row, int piece) const {
    return address + row * PITCH_BYTES + (IS_SWIZZLED ? piece ^ row % 8 : piece) * 16;
  }

  // Starts copies of rows of `size` elements, from `from` on, with a stride in elements; `rows` of them exist.
  template <int THREADS> __device__ __forceinline__ void copy(const T* from, i64 stride, i32 rows, i32 size) const {
    copy_each<THREADS>(StridedRows<T>{from, stride}, rows, size);
  }

  // Starts copies of rows with any addresses, with THREADS neighbouring threads. All addresses are computed first, so
  // that loads of a page table overlap.
  template <int THREADS, class From>
  __device__ __forceinline__ void copy_each(const From& all, i32 rows, i32 size) const {
    const int thread = threadIdx.x % THREADS;
    if constexpr (THREADS % PIECES == 0) {  // a thread has the same piece of each of its rows
      constexpr int BESIDE = THREADS / PIECES, STEPS = (ROWS + BESIDE - 1) / BESIDE;
      const int first = thread / PIECES, piece = thread % PIECES;
      const T* from[STEPS] = {all.at(first)};
#pragma unroll
      for (int step = 1; step < STEPS; ++step) {
        from[step] = all.below(from[step - 1], first + (step - 1) * BESIDE, BESIDE);
      }
      const bool exists = piece * 8 < size;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (ROWS % BESIDE != 0 && step * BESIDE >= ROWS - first) break;
        const bool is_row = step * BESIDE < rows - first;
        cp_async<16, IN_LINES>(this->piece(first + step * BESIDE, piece), from[step] + piece * 8, exists && is_row);
      }
    } else {
      constexpr int ALL = ROWS * PIECES, STEPS = (ALL + THREADS - 1) / THREADS;
      const T* from[STEPS];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) from[step] = all.at((step * THREADS + thread) / PIECES);
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const int i = step * THREADS + thread, row = i / PIECES, piece = i % PIECES;
        if (ALL % THREADS != 0 && i >= ALL) break;
        const bool exists = row < rows && piece * 8 < size;
        cp_async<16, IN_LINES>(this->piece(row, piece), from[step] + piece * 8, exists);
      }
    }
  }

  // Loads the 16 x 16 elements from (row, column) on as an A operand.
  __device__ __forceinline__ void load_a(u32 (&a)[4], int row, int column) const {
    const int lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4(a, piece(row + lane % 16, column / 8 + lane / 16));
  }

  // Loads the 16 x 16 elements from (row, column) on as two B operands whose n runs along these rows: b[0] and b[1] are
  // the first 8 rows.
  __device__ __forceinline__ void load_b(u32 (&b)[4], int row, int column) const {
    const int lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4(b, piece(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
  }

  // Loads these elements as two B operands whose k runs along the rows.
  __device__ __forceinline__ void load_b_transposed(u32 (&b)[4], int row, int column) const {
    const int lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4_transposed(b, piece(row + lane % 16, column / 8 + lane / 16));
  }
};

// A operands of 16 * ROW_PARTS rows of a head, in registers.
template <int ROW_PARTS, int SIZE_> struct HeldRows {
  static constexpr int SIZE = SIZE_;

  u32 fragments[ROW_PARTS][SIZE / 16][4];

  template <class Rows> __device__ __forceinline__ explicit HeldRows(const Rows& rows) {
#pragma unroll
    for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
      for (int step = 0; step < SIZE / 16; ++step) rows.load_a(fragments[part][step], part * 16, step * 16);
  }

  __device__ __forceinline__ void load_a(u32 (&a)[4], int row, int column) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = fragments[row / 16][column / 16][i];
  }
};

// c = a b^T, for 16 * ROW_PARTS rows of a from `row` on and 8 * COLUMN_BLOCKS rows of b.
template <class A, class B, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_rows(const A& a, int row, const B& b, f32 (&c)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  static_assert(A::SIZE == B::SIZE && COLUMN_BLOCKS * 8 == B::ROWS, "the whole of b");
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[part][block][i] = 0;
#pragma unroll
  for (int step = 0; step < A::SIZE; step += 16) {
    u32 of_a[ROW_PARTS][4];
#pragma unroll
    for (int part = 0; part < ROW_PARTS; ++part) a.load_a(of_a[part], row + part * 16, step);
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; block += 2) {
      u32 of_b[4];
      b.load_b(of_b, block * 8, step);
#pragma unroll
      for (int part = 0; part < ROW_PARTS; ++part) {
        Mma<typename B::T>::apply(c[part][block], of_a[part], of_b[0], of_b[1]);
        Mma<typename B::T>::apply(c[part][block + 1], of_a[part], of_b[2], of_b[3]);
      }
    }
  }
}

// c += a b, for all rows of b and 8 * COLUMN_BLOCKS of its columns from `column` on. operand(part, block, half) returns
// this thread's two elements of `a` in a block of 8 columns, at the positions that accumulators have.
template <class Operand, class B, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_columns(const Operand& operand, const B& b, int column,
                                                 f32 (&c)[ROW_PARTS][COLUMN_BLOCKS][4]) {
#pragma unroll
  for (int step = 0; step < B::ROWS / 8; step += 2) {
    u32 of_a[ROW_PARTS][4];
#pragma unroll
    for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
      for (int i = 0; i < 4; ++i) of_a[part][i] = operand(part, step + i / 2, i % 2);
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; block += 2) {
      u32 of_b[4];
      b.load_b_transposed(of_b, step * 8, column + block * 8);
#pragma unroll
      for (int part = 0; part < ROW_PARTS; ++part) {
        Mma<typename B::T>::apply(c[part][block], of_a[part], of_b[0], of_b[1]);
        Mma<typename B::T>::apply(c[part][block + 1], of_a[part], of_b[2], of_b[3]);
      }
    }
  }
}
