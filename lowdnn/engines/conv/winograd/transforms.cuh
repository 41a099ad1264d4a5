// The matrices of Winograd's minimal filtering F(M, 3): M results of 3 taps by EXTENT = M + 2 products.
//
//     y = RESULTS^T ((TAPS w) * (DATA x))     results from EXTENT elements of x and 3 taps
//     dw = TAPS^T ((RESULTS dy) * (DATA x))   the gradient of the taps, by the same products
//
// They follow from interpolation at 0, 1, -1 and infinity, for EXTENT = 6 at 0, 2/3, -2/3, 3/2, -3/2 and infinity: those
// points give half the error of the usual 1, -1, 2, -2. In two dimensions each matrix is applied along both.
// Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016.

#pragma once

#include "include/numeric.cuh"

template <int EXTENT> struct Filtering;

template <> struct Filtering<4> {
  static constexpr f32 DATA[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
  static constexpr f32 TAPS[4][3] = {{1, 0, 0}, {0.5f, 0.5f, 0.5f}, {0.5f, -0.5f, 0.5f}, {0, 0, 1}};
  static constexpr f32 RESULTS[4][2] = {{1, 0}, {1, 1}, {1, -1}, {0, -1}};
};

template <> struct Filtering<6> {
  static constexpr f32 DATA[6][6] = {{1, 0, -97 / 36.0f, 0, 1, 0},         {0, -3 / 2.0f, -9 / 4.0f, 2 / 3.0f, 1, 0},
                                     {0, 3 / 2.0f, -9 / 4.0f, -2 / 3.0f, 1, 0}, {0, -2 / 3.0f, -4 / 9.0f, 3 / 2.0f, 1, 0},
                                     {0, 2 / 3.0f, -4 / 9.0f, -3 / 2.0f, 1, 0}, {0, 1, 0, -97 / 36.0f, 0, 1}};
  static constexpr f32 TAPS[6][3] = {{1, 0, 0},
                                     {-81 / 130.0f, -54 / 130.0f, -36 / 130.0f},
                                     {-81 / 130.0f, 54 / 130.0f, -36 / 130.0f},
                                     {16 / 130.0f, 24 / 130.0f, 36 / 130.0f},
                                     {16 / 130.0f, -24 / 130.0f, 36 / 130.0f},
                                     {0, 0, 1}};
  static constexpr f32 RESULTS[6][4] = {{1, 0, 0, 0},
                                        {1, 2 / 3.0f, 4 / 9.0f, 8 / 27.0f},
                                        {1, -2 / 3.0f, 4 / 9.0f, -8 / 27.0f},
                                        {1, 3 / 2.0f, 9 / 4.0f, 27 / 8.0f},
                                        {1, -3 / 2.0f, 9 / 4.0f, -27 / 8.0f},
                                        {0, 0, 0, 1}};
};

// sum += factor * x with a factor known to the compiler, for which a factor of 0 is no operation: an infinity that does
// not count makes no NaN.
__device__ __forceinline__ void add_multiple(f32& sum, f32 factor, f32 x) {
  if (factor != 0) sum = factor == 1 ? sum + x : factor == -1 ? sum - x : fmaf(factor, x, sum);
}

// y = row `row` of matrix x matrix^T.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void row_along_both(const f32 (&matrix)[ROWS][COLUMNS], int row,
                                               const f32 (&x)[COLUMNS][COLUMNS], f32 (&y)[ROWS]) {
  f32 line[COLUMNS] = {};
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) add_multiple(line[j], matrix[row][i], x[i][j]);
  }
#pragma unroll
  for (int column = 0; column < ROWS; ++column) {
    y[column] = 0;
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) add_multiple(y[column], matrix[column][j], line[j]);
  }
}

// y = matrix x matrix^T.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void along_both(const f32 (&matrix)[ROWS][COLUMNS], const f32 (&x)[COLUMNS][COLUMNS],
                                           f32 (&y)[ROWS][ROWS]) {
#pragma unroll
  for (int row = 0; row < ROWS; ++row) row_along_both(matrix, row, x, y[row]);
}

// y = matrix^T x matrix.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void back_along_both(const f32 (&matrix)[ROWS][COLUMNS], const f32 (&x)[ROWS][ROWS],
                                                f32 (&y)[COLUMNS][COLUMNS]) {
#pragma unroll
  for (int row = 0; row < COLUMNS; ++row) {
    f32 line[ROWS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < ROWS; ++j) add_multiple(line[j], matrix[i][row], x[i][j]);
    }
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) {
      y[row][column] = 0;
#pragma unroll
      for (int j = 0; j < ROWS; ++j) add_multiple(y[row][column], matrix[j][column], line[j]);
    }
  }
}
