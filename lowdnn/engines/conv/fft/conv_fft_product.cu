// conv_fft_product: for every value u of the spectra,
//     sums[row, group, column, tile][u] = sum over piece and depth of
//         a[a_row * row + a_group * group + a_depth * depth + windows(tile + piece)][u]
//         * b[b_column * column + b_group * group + b_depth * depth + piece][u]
//
// windows(t): the sum over the axes of t_s * windows[s]; tiles and pieces have numbers with the last axis fastest.
// Thread: one u, ROWS pairs of row and tile, COLUMNS columns. A warp has 32 neighbouring u; nothing is shared but
// through caches, since operands are read in whole lines.
// Block: SLICES times WARP_ROWS x WARP_COLUMNS warps with the same u, of neighbouring pairs and columns of a group, for
// neighbouring slices of 32 u; blockIdx.x = (u / (32 * SLICES) * groups + group) * parts + part, so that blocks that run
// at the same time read the same lines.
// Launch: 32 * SLICES * WARP_ROWS * WARP_COLUMNS threads; it may be a dependent launch.
// Macros: POINTS ROWS COLUMNS WARP_ROWS WARP_COLUMNS SLICES SPATIAL.

#include "complex.cuh"
#include "include/math/division.cuh"
#include "include/ptx/dependent_launch.cuh"

// A pair's and a depth's distances, in spectra.
struct Steps {
  i64 outer, group, depth;
};

struct Params {
  const Complex* a;
  const Complex* b;
  Complex* sums;
  Steps a_steps, b_steps;  // a's outer step leads to the next row, b's to the next column
  Divider tiles;           // tiles of a row
  Divider tile_counts[SPATIAL];
  Divider piece_counts[SPATIAL];
  i32 windows[SPATIAL];
  i32 pairs, columns, depth, pieces;
  Divider groups;
  Divider parts;  // blocks of a group and 32 u
  Divider column_parts;  // blocks along the columns
};

__device__ __forceinline__ i32 window_of(const Params& p, const Divider* counts, u32 number) {
  i32 places[SPATIAL], window = 0;
  digits<SPATIAL>(counts, number, places);
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) window += places[s] * p.windows[s];
  return window;
}

extern "C" __global__ void __launch_bounds__(32 * SLICES * WARP_ROWS * WARP_COLUMNS, 2)
    KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 outer = p.parts.divide(blockIdx.x), slices = p.groups.divide(outer);
  const u32 group = outer - slices * p.groups.divisor;
  const u32 part = blockIdx.x - outer * p.parts.divisor, row_part = p.column_parts.divide(part);
  const u32 column_part = part - row_part * p.column_parts.divisor, warp = threadIdx.x / 32 / SLICES;
  const i32 first_pair = (row_part * WARP_ROWS + warp / WARP_COLUMNS) * ROWS;
  const i32 first_column = (column_part * WARP_COLUMNS + warp % WARP_COLUMNS) * COLUMNS;
  const i32 u = slices * (32 * SLICES) + threadIdx.x % (32 * SLICES);
  wait_for_previous_kernel();
  allow_next_kernel();
  if (first_pair >= p.pairs || first_column >= p.columns) return;

  // Pairs and columns past the last one repeat it and are not stored.
  const Complex *a[ROWS], *b[COLUMNS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const u32 pair = min(first_pair + i, p.pairs - 1), row = p.tiles.divide(pair);
    const i32 window = window_of(p, p.tile_counts, pair - row * p.tiles.divisor);
    a[i] = p.a + (row * p.a_steps.outer + group * p.a_steps.group + window) * POINTS + u;
  }
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) {
    b[j] = p.b + (min(first_column + j, p.columns - 1) * p.b_steps.outer + group * p.b_steps.group) * POINTS + u;
  }

  Complex sums[ROWS][COLUMNS] = {};
#pragma unroll 1
  for (i32 piece = 0; piece < p.pieces; ++piece) {
    i64 a_place = i64(window_of(p, p.piece_counts, piece)) * POINTS, b_place = i64(piece) * POINTS;
#pragma unroll 2
    for (i32 depth = 0; depth < p.depth; ++depth) {
      Complex rows[ROWS], columns[COLUMNS];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) rows[i] = a[i][a_place];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) columns[j] = b[j][b_place];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) sums[i][j] = add_product(sums[i][j], rows[i], columns[j]);
      }
      a_place += p.a_steps.depth * POINTS;
      b_place += p.b_steps.depth * POINTS;
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const u32 pair = first_pair + i, row = p.tiles.divide(pair), tile = pair - row * p.tiles.divisor;
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      const i32 column = first_column + j;
      if (i32(pair) >= p.pairs || column >= p.columns) continue;
      const i64 line = (i64(row) * p.groups.divisor + group) * p.columns + column;
      p.sums[(line * p.tiles.divisor + tile) * POINTS + u] = sums[i][j];
    }
  }
}
