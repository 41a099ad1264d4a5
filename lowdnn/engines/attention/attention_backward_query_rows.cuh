// Parts of the kernels of attention's gradients on mma.sync whose accumulators have queries along the rows: the Terms
// of a warp's queries, and the gradients of their scores.

#pragma once

#define ROW_AXIS 2
#include "attention_backward_mma.cuh"

// The exponent and centre of each query whose row of accumulators this thread holds: rows lane / 4 and lane / 4 + 8 of
// each part of 16.
template <int ROW_PARTS> struct RowTerms {
  Term terms[ROW_PARTS][2];

  // Loads the Terms of the queries from `row` on, the warp's first; past the end, at `rows`, the last query's.
  __device__ __forceinline__ void load(const Term* head, i32 row, i32 rows) {
#pragma unroll
    for (int i = 0; i < ROW_PARTS * 2; ++i)
      terms[i / 2][i % 2] = head[min(row + i * 8 + i32(threadIdx.x) % WARP_SIZE / 4, rows - 1)];
  }

  // Replace q k^T by weights and d_o v^T by gradients of scores, as TermTile does.
  template <int COLUMN_BLOCKS>
  __device__ __forceinline__ void make_weights(f32 factor, f32 (&scores)[ROW_PARTS][COLUMN_BLOCKS][4]) const {
    for_each<ROW_PARTS, COLUMN_BLOCKS>([&](int part, int block, int i) {
      f32& score = scores[part][block][i];
      score = power_of_two(score * factor - terms[part][i / 2].exponent);
    });
  }
  template <int COLUMN_BLOCKS>
  __device__ __forceinline__ void make_gradients(const f32 (&weights)[ROW_PARTS][COLUMN_BLOCKS][4],
                                                 f32 (&products)[ROW_PARTS][COLUMN_BLOCKS][4]) const {
    for_each<ROW_PARTS, COLUMN_BLOCKS>([&](int part, int block, int i) {
      f32& product = products[part][block][i];
      product = weights[part][block][i] * (product - terms[part][i / 2].centre);
    });
  }
};

// ds = gradients of the scores of a warp's queries with all keys of the tile. The queries are the rows of the tiles q
// and d_o from `row` on.
template <class Queries, class OutputGradients, class Keys, class Values, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void make_score_gradients(const Problem& p, const Band& band, const Corner& corner,
                                                     const Queries& q, const OutputGradients& d_o, int row,
                                                     const Keys& k, const Values& v, const RowTerms<ROW_PARTS>& terms,
                                                     const Scaling& scaling,
                                                     f32 (&ds)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  ScoreSteps<ROW_PARTS, COLUMN_BLOCKS> steps;
  multiply_rows(q, row, k, steps.weights);
  multiply_rows(d_o, row, v, ds);
  steps.make_weights(p, band, corner, terms, scaling);
  steps.make_gradients(p, band, corner, terms, scaling, ds);
}
