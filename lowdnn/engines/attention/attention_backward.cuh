// Parts of the kernels of attention's gradients: their parameters, the two numbers of each query that its weights and
// gradients of scores are computed from (Term), and stores of gradients.

#pragma once

#include "attention.cuh"
#include "include/math/division.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/vector.cuh"

// Two numbers of a query. Its weights are 2^(score * factor - exponent); `centre` is the sum of d_o * o over its head's
// elements, which is subtracted from the gradients of the weights. A query without keys has exponent infinity and
// centre 0. In fp8 the scales are folded in: weights are multiplied by scale_s and gradients of scores by scale_dp.
struct alignas(8) Term {
  f32 exponent, centre;
};

// Reads the length of each batch from memory; if `first` is null, every length is the whole extent.
struct Lengths {
  const void* first;
  i64 stride;
  i32 is_i64;

  __device__ __forceinline__ i32 of(i32 batch, i32 extent) const {
    if (!first) return extent;
    const i64 index = batch * stride;
    const i64 length = is_i64 ? static_cast<const i64*>(first)[index] : static_cast<const i32*>(first)[index];
    return i32(clamped<i64>(length, 0, extent));
  }
};

// A number in device memory or, if `first` is null, in the parameters.
struct Factor {
  const f32* first;
  f32 given;

  __device__ __forceinline__ f32 value() const { return first ? *first : given; }
};

// Indices of the scales and descales of fp8 tensors.
enum Number {
  DESCALE_Q, DESCALE_K, DESCALE_V, DESCALE_O, DESCALE_D_O, DESCALE_S, DESCALE_DP,
  SCALE_S, SCALE_DQ, SCALE_DK, SCALE_DV, SCALE_DP, NUMBERS
};
// The operand whose gradient is stored; the values are those of Largest.
enum Result { OF_Q, OF_K, OF_V };
enum Largest { LARGEST_DQ, LARGEST_DK, LARGEST_DV, LARGEST_DP, LARGEST };

struct Fp8Numbers {
  const f32* numbers[NUMBERS];
  u32* largest[LARGEST];  // or null

  __device__ __forceinline__ f32 value(int number) const { return *numbers[number]; }
  __device__ __forceinline__ f32 product(Number left, Number right) const { return value(left) * value(right); }

  // Returns the factor from a gradient's sum of products to the gradient before its own scale (scale_dq, scale_dk,
  // scale_dv). The softmax scale is already in the gradients of scores.
  __device__ __forceinline__ f32 factor(Result result) const {
    return result == OF_V ? product(DESCALE_S, DESCALE_D_O)
                          : product(DESCALE_DP, result == OF_Q ? DESCALE_K : DESCALE_Q);
  }

  // Return the factors of the sums of d_o * o and of d_o v^T. A weight that is multiplied by scale_s, times their
  // difference, is the gradient of a product q k^T, multiplied by scale_dp.
  __device__ __forceinline__ f32 centre(const Factor& scale) const { return unit(scale, DESCALE_O); }
  __device__ __forceinline__ f32 d_weights(const Factor& scale) const { return unit(scale, DESCALE_V); }

 private:
  __device__ __forceinline__ f32 unit(const Factor& scale, Number descale) const {
    return product(DESCALE_D_O, descale) * scale.value() * value(SCALE_DP) / value(SCALE_S);
  }
};

// The parameters except the operands q, k, v and d_o.
struct Backward {
  const Term* terms;  // [batch][head][term_rows]: the first `queries` rows of a head are used
  i32 heads, queries, keys, size_qk, size_v, term_rows;
  i32 left, right, is_bottom_right;  // bounds of the band; if bottom right, from the last query and key
  Lengths query_lengths, key_lengths;
  Factor scale;
#if IS_FP8
  Fp8Numbers fp8;
#endif

  __device__ __forceinline__ Band band(i32 batch) const {
    const i32 existing_queries = query_lengths.of(batch, queries), existing_keys = key_lengths.of(batch, keys);
    const i32 shift = is_bottom_right ? existing_keys - existing_queries : 0;
    return {left - shift, right + shift, existing_queries, existing_keys};
  }

  __device__ __forceinline__ const Term* terms_of(i32 batch, i32 head) const {
    return terms + (i64(batch) * heads + head) * term_rows;
  }
};

// ---- scores formed transposed: keys along the rows, queries along the columns of accumulators -----------------------

// The Terms of a tile of queries in shared memory, in the order of the queries.
struct TermTile {
  u32 address;

  // Replaces q k^T by softmax weights.
  template <int ROW_PARTS, int COLUMN_BLOCKS>
  __device__ __forceinline__ void make_weights(f32 factor, f32 (&scores)[ROW_PARTS][COLUMN_BLOCKS][4]) const {
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block) {
      Term terms[2];
      load(block, terms);
#pragma unroll
      for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          scores[part][block][i] = power_of_two(scores[part][block][i] * factor - terms[i % 2].exponent);
    }
  }

  // Replaces d_o v^T by gradients of the scores.
  template <int ROW_PARTS, int COLUMN_BLOCKS>
  __device__ __forceinline__ void make_gradients(const f32 (&weights)[ROW_PARTS][COLUMN_BLOCKS][4],
                                                 f32 (&products)[ROW_PARTS][COLUMN_BLOCKS][4]) const {
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block) {
      Term terms[2];
      load(block, terms);
#pragma unroll
      for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          products[part][block][i] = weights[part][block][i] * (products[part][block][i] - terms[i % 2].centre);
    }
  }

 private:
  // Loads the Terms of the two queries whose columns this thread holds in block `block` of the accumulators.
  __device__ __forceinline__ void load(int block, Term (&own)[2]) const {
    const uint4 words = load_shared_128(address + (block * 8 + threadIdx.x % 4 * 2) * sizeof(Term));
    own[0] = {__uint_as_float(words.x), __uint_as_float(words.y)};
    own[1] = {__uint_as_float(words.z), __uint_as_float(words.w)};
  }
};

// The Terms of a tile of queries in groups of 16: the group's exponents, then its centres. The four exponents (or
// centres) that a thread needs for two blocks of accumulators are neighbours, so that one access loads them.
struct GroupedTermTile {
  static constexpr int GROUP = 16, GROUP_BYTES = GROUP * sizeof(Term), CENTRES = GROUP_BYTES / 2;

  u32 address;

  // Index of a query's exponent in the tile, in words.
  static __device__ __forceinline__ u32 place(u32 row) {
    return row / GROUP * (2 * GROUP) + row % 8 / 2 * 4 + row % GROUP / 8 * 2 + row % 2;
  }

  template <int COLUMN_BLOCKS>
  __device__ __forceinline__ void make_weights(f32 factor, f32 (&scores)[1][COLUMN_BLOCKS][4]) const {
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; block += 2) {
      f32 exponents[4];
      load(block, 0, exponents);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        f32& score = scores[0][block + i / 4][i % 4];
        score = power_of_two(score * factor - exponents[i / 4 * 2 + i % 2]);
      }
    }
  }

  template <int COLUMN_BLOCKS>
  __device__ __forceinline__ void make_gradients(const f32 (&weights)[1][COLUMN_BLOCKS][4],
                                                 f32 (&products)[1][COLUMN_BLOCKS][4]) const {
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; block += 2) {
      f32 centres[4];
      load(block, CENTRES, centres);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        f32& product = products[0][block + i / 4][i % 4];
        product = weights[0][block + i / 4][i % 4] * (product - centres[i / 4 * 2 + i % 2]);
      }
    }
  }

 private:
  // Loads the exponents (offset 0) or centres (offset CENTRES) of four queries: this thread's two columns in blocks
  // `block` and `block` + 1 of the accumulators.
  __device__ __forceinline__ void load(int block, u32 offset, f32 (&own)[4]) const {
    const uint4 words = load_shared_128(address + block / 2 * GROUP_BYTES + offset + threadIdx.x % 4 * 16);
    own[0] = __uint_as_float(words.x);
    own[1] = __uint_as_float(words.y);
    own[2] = __uint_as_float(words.z);
    own[3] = __uint_as_float(words.w);
  }
};

// Zeroes the values of pairs in which the query does not attend to the key. The queries begin at first_query, the keys
// at first_key. Queries are along the columns, with HAS_QUERY_ROWS along the rows. CHECKS_QUERIES: also zeroes pairs
// whose query does not exist.
template <bool HAS_QUERY_ROWS = false, bool CHECKS_QUERIES = false, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void mask(const Band& band, i32 first_query, i32 first_key,
                                     f32 (&values)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  constexpr int ROWS = ROW_PARTS * 16, COLUMNS = COLUMN_BLOCKS * 8, QUERIES = HAS_QUERY_ROWS ? ROWS : COLUMNS;
  const bool exist = !CHECKS_QUERIES || first_query + QUERIES <= band.queries;
  if (exist && band.sees_all(first_query, QUERIES, first_key, HAS_QUERY_ROWS ? COLUMNS : ROWS)) return;
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const i32 row = part * 16 + i / 2 * 8 + threadIdx.x % WARP_SIZE / 4;
        const i32 column = block * 8 + threadIdx.x % 4 * 2 + i % 2;
        const i32 query = first_query + (HAS_QUERY_ROWS ? row : column);
        const i32 key = first_key + (HAS_QUERY_ROWS ? column : row);
        const bool exists = !CHECKS_QUERIES || query < band.queries;
        if (!exists || !band.sees(query, key)) values[part][block][i] = 0;
      }
}

// ---- results --------------------------------------------------------------------------------------------------------

// Stores factor * values. values[0][0] is at (row, column); rows from `rows` on and columns from `size` on do not
// exist.
template <class Out, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void store_gradients(Out* head, i64 stride, i32 row, i32 rows, i32 column, i32 size,
                                                f32 factor, const f32 (&values)[ROW_PARTS][COLUMN_BLOCKS][4]) {
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 own_row = row + part * 16 + half * 8 + threadIdx.x % WARP_SIZE / 4;
      if (own_row >= rows) continue;
#pragma unroll
      for (int block = 0; block < COLUMN_BLOCKS; ++block) {
        const i32 own_column = column + block * 8 + threadIdx.x % 4 * 2;
        const f32* const pair = values[part][block] + half * 2;
        const Out results[2] = {convert<Out>(pair[0] * factor), convert<Out>(pair[1] * factor)};
        if (own_column < size) store<2>(head + own_row * stride + own_column, results);
      }
    }
  }
}
