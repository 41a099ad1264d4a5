// Register-blocked outer-product tiles: matrix products without tensor cores.
//
//   accumulator[r][s] = sum over d of rows[d][r] * columns[d][s]
//
// A block owns ROWS x COLUMNS accumulators and consumes DEPTH of the reduction in each step, from two buffers of shared
// memory. A warp is LANES_ROWS x LANES_COLUMNS lanes; a lane owns runs of GROUP rows and of GROUP columns, the runs of
// neighbouring lanes adjacent, so that fragments are read with 16-byte accesses and without bank conflicts, and so that
// a warp's stores of one row are contiguous.

#pragma once

#include "include/numeric.cuh"

template <class T, int ROWS, int COLUMNS, int DEPTH> struct SimtTile {
  static constexpr int GROUP = 4;
  static constexpr int THREAD_ROWS = ROWS >= 128 ? 8 : 4;
  static constexpr int THREAD_COLUMNS = COLUMNS >= 128 ? 8 : 4;
  static constexpr int LANES_COLUMNS = COLUMNS / THREAD_COLUMNS < 8 ? COLUMNS / THREAD_COLUMNS
                                       : ROWS / THREAD_ROWS < 4     ? 32 / (ROWS / THREAD_ROWS)
                                                                    : 8;
  static constexpr int LANES_ROWS = 32 / LANES_COLUMNS;
  static constexpr int WARPS_ROWS = ROWS / (LANES_ROWS * THREAD_ROWS);
  static constexpr int WARPS_COLUMNS = COLUMNS / (LANES_COLUMNS * THREAD_COLUMNS);
  static constexpr int THREADS = 32 * WARPS_ROWS * WARPS_COLUMNS;
  static constexpr int RUNS = THREAD_COLUMNS / GROUP;
  static_assert(WARPS_ROWS * LANES_ROWS * THREAD_ROWS == ROWS && WARPS_COLUMNS > 0, "lanes must tile the block");

  // GROUP elements of padding keep 16-byte alignment and spread the transposing stores over the banks.
  struct alignas(16) Shared {
    T rows[2][DEPTH][ROWS + GROUP];
    T columns[2][DEPTH][COLUMNS + GROUP];
  };

  T accumulator[THREAD_ROWS][THREAD_COLUMNS];
  int first_row;
  int first_column;

  __device__ __forceinline__ explicit SimtTile(int thread) {
    const int lane = thread % 32;
    const int warp = thread / 32;
    first_row = (warp / WARPS_COLUMNS) * LANES_ROWS * THREAD_ROWS + (lane / LANES_COLUMNS) * GROUP;
    first_column = (warp % WARPS_COLUMNS) * LANES_COLUMNS * THREAD_COLUMNS + (lane % LANES_COLUMNS) * GROUP;
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; ++r) {
#pragma unroll
      for (int s = 0; s < THREAD_COLUMNS; ++s) accumulator[r][s] = T(0);
    }
  }

  // The row in the tile of this thread's `r`-th row, 0 <= r < THREAD_ROWS.
  __device__ __forceinline__ int row(int r) const { return first_row + (r / GROUP) * LANES_ROWS * GROUP + r % GROUP; }

  // The first column in the tile of this thread's `run`-th run of GROUP columns, 0 <= run < RUNS.
  __device__ __forceinline__ int column(int run) const { return first_column + run * LANES_COLUMNS * GROUP; }

  // Adds the products of one buffer to the accumulators.
  __device__ __forceinline__ void multiply(const Shared& shared, int buffer) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
      T left[THREAD_ROWS];
      T right[THREAD_COLUMNS];
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; r += GROUP) read_run(&shared.rows[buffer][d][row(r)], &left[r]);
#pragma unroll
      for (int run = 0; run < RUNS; ++run)
        read_run(&shared.columns[buffer][d][column(run)], &right[run * GROUP]);
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; ++r) {
#pragma unroll
        for (int s = 0; s < THREAD_COLUMNS; ++s) accumulator[r][s] += left[r] * right[s];
      }
    }
  }

  // Calls visit(row, values) for each of this thread's rows; values[run * GROUP + j] belongs to column(run) + j.
  // The loop stays rolled and the rows rotate through the first one's registers, so that a large epilogue is
  // instantiated once and not once for each row.
  template <class Visit> __device__ __forceinline__ void for_each_row(Visit visit) {
#pragma unroll 1
    for (int r = 0; r < THREAD_ROWS; ++r) {
      visit(row(r), accumulator[0]);
#pragma unroll
      for (int i = 0; i + 1 < THREAD_ROWS; ++i) {
#pragma unroll
        for (int s = 0; s < THREAD_COLUMNS; ++s) accumulator[i][s] = accumulator[i + 1][s];
      }
    }
  }

 private:
  struct alignas(16) Run16 {
    T v[16 / sizeof(T)];
  };

  // Reads GROUP elements from shared memory, 16 bytes at a time.
  static __device__ __forceinline__ void read_run(const T* from, T* to) {
    constexpr int WIDTH = 16 / sizeof(T);
#pragma unroll
    for (int i = 0; i < GROUP; i += WIDTH) {
      const Run16 run = *reinterpret_cast<const Run16*>(from + i);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) to[i + j] = run.v[j];
    }
  }
};
