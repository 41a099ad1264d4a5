// From q k^T to scores: Scores(q k^T), and minus infinity for keys that a query does not attend to.
// Macros: as in attention_forward.cuh.

#pragma once

#include "attention_forward_place.cuh"

// scores = Scores(q k^T). Its results for keys that do not exist are not used.
template <class Functor>
__device__ __forceinline__ void apply_scores(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                             ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const typename Functor::Cursor cursor = Functor::cursor(args_of<Functor>(p.parts), coordinate);
#pragma unroll
      for (int block = 0; block < SCORE_BLOCKS; ++block) {
        const i32 column = tile * TILE_KV + block * 8 + threadIdx.x % 4 * 2;
        f32* const pair = scores[part][block] + half * 2;
        const f32 products[2] = {pair[0], pair[1]};
        f32 results[2] = {};
        Functor::template apply<2>(args_of<Functor>(p.parts), cursor, column, count_among<2>(p.keys - column), products,
                                   results);
        pair[0] = results[0];
        pair[1] = results[1];
      }
    }
  }
}

// Returns a mask of this thread's columns that are less than `end`, in 16 blocks: bits 2 b and 2 b + 1 stand for
// columns 8 b and 8 b + 1. From one word, the compiler makes eight predicates with one instruction.
__device__ __forceinline__ u32 bits_before(i32 end) {
  const i32 count = max((end >> 3) * 2 + min(end & 7, 2), 0);
  return __funnelshift_lc(~0u, 0, count);
}

// Sets scores of keys after the band to minus infinity, with HAS_LEFT also those of keys before it.
template <bool HAS_LEFT>
__device__ __forceinline__ void mask_scores(const Place& place, const Rows& rows, i32 tile, ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 query = rows.at(part, half) / PACK, first = tile * TILE_KV + threadIdx.x % 4 * 2;
      const bool exists = !HAS_QUERY_LENGTHS || query < place.band.queries;
      const i32 begin = HAS_LEFT ? place.band.keys_begin(query) - first : 0;
      const i32 end = exists ? place.band.keys_end_of(query) - first : -TILE_KV;
#pragma unroll
      for (int first_block = 0; first_block < SCORE_BLOCKS; first_block += 16) {
        u32 seen = bits_before(end - first_block * 8);
        if (HAS_LEFT) seen &= ~bits_before(begin - first_block * 8);
#pragma unroll
        for (int bit = 0; bit < 32 && first_block + bit / 2 < SCORE_BLOCKS; ++bit) {
          f32& score = scores[part][first_block + bit / 2][half * 2 + bit % 2];
          score = seen >> bit & 1 ? score : -INFINITE;
        }
      }
    }
  }
}

// Sets scores of keys that the block mask hides to minus infinity. A tile of keys lies inside one block of the mask.
__device__ __forceinline__ void mask_blocks(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                            ScoreTile& scores) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const bool sees = p.sees(coordinate[0], coordinate[1], i32(coordinate[2]), tile * TILE_KV);
#pragma unroll
      for (int block = 0; block < SCORE_BLOCKS; ++block) {
        f32* const pair = scores[part][block] + half * 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) pair[i] = sees ? pair[i] : -INFINITE;
      }
    }
  }
}

// Replaces q k^T by scores before score_scale() is applied. IS_WHOLE: the tile lies inside the band of every query and
// is not masked.
template <bool IS_WHOLE = false>
__device__ __forceinline__ void make_scores(const Forward& p, const Place& place, const Rows& rows, i32 tile,
                                            ScoreTile& scores) {
  if constexpr (HAS_SCORES) apply_scores<Scores>(p, place, rows, tile, scores);
  if constexpr (!IS_WHOLE) {
    if (tile < place.whole_begin()) {
      mask_scores<true>(place, rows, tile, scores);
    } else if (tile >= place.whole_end()) {
      mask_scores<false>(place, rows, tile, scores);
    }
  }
  if constexpr (HAS_BLOCKS) mask_blocks(p, place, rows, tile, scores);
}

