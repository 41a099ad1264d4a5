// Parts of the kernels of attention's gradients on mma.sync: the arithmetic on a warp's scores between products.
//
// Accumulators have queries along the rows and keys along the columns, or the other way round. Three functors of
// generated.cuh are optional. HAS_SCORES: score = Scores(scale * q k^T). HAS_GRADIENT: Gradient(ds, scale * q k^T) is
// the gradient of scale * q k^T, with ds that of the score. HAS_FACTORS: weights and their gradients are multiplied by
// Factors(1), as in dropout. Their results for queries and keys that do not exist are not used. IS_FP8: operands are
// fp16, widened by attention_backward_widen.cu. Weights and gradients of scores are multiplied by their scales and
// rounded to WEIGHT_TYPE and GRADIENT_TYPE before they become fp16 operands; the largest magnitudes are stored.
// Macros: HAS_SCORES HAS_GRADIENT HAS_FACTORS HAS_RAGGED; IS_FP8 WEIGHT_TYPE GRADIENT_TYPE; ROW_AXIS: 2, queries are
// along the rows, or 3, keys are.

#pragma once

#include "attention_backward_rows.cuh"
#include "attention_backward_scaling.cuh"
#include "attention_mma.cuh"
#include "include/optional.cuh"
#include "generated.cuh"

// Functors that a kernel may be without.
struct Scores;
struct Gradient;
struct Factors;

struct Operands : Backward {
  Rows<const TYPE> q, k, v, d_o;
};

// No base class has tail padding, so the layout is that of one struct with all these members, as the host writes it.
struct Problem : Operands, ArgsOf<Scores, HAS_SCORES>, ArgsOf<Gradient, HAS_GRADIENT>, ArgsOf<Factors, HAS_FACTORS> {};

// Starts copies of a tile's rows from `row` on, of those before `end` that exist in the batch.
template <int THREADS, class Tile, class From>
__device__ __forceinline__ void copy_rows(const Tile& tile, const From& from, i32 batch, i32 head, i32 row, i32 end,
                                          i32 size) {
  const i32 rows = existing_rows(from, batch, end) - row;
  tile.template copy<THREADS>(from.at(batch, head, row), row_stride(from), rows, size);
}

// Whether pairs of a query and a key are zeroed where the query does not exist. Such queries are zeros, from which
// Scores may make any number. The kernel with queries along the rows also stores the largest magnitude of the fp8
// gradients of scores, which these pairs must not raise.
constexpr bool MASKS_QUERIES = HAS_SCORES || (IS_FP8 && ROW_AXIS == 2);

// Calls f(part, block, i) for each accumulator of the thread.
template <int ROW_PARTS, int COLUMN_BLOCKS, class Function>
__device__ __forceinline__ void for_each(const Function& f) {
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(part, block, i);
}

// Stores a gradient from its sums of products, for the rows from `row` on.
template <class To, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void store_results(const Problem& p, Result result, const To& to, i32 batch, i32 head,
                                              i32 row, i32 rows, i32 column, i32 size,
                                              const f32 (&sums)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  const f32 factor = factor_of(p, result, sums);
  store_gradients(to.at(batch, head, 0), row_stride(to), row, existing_rows(to, batch, rows), column, size, factor,
                  sums);
}

// The first query and key of a warp's scores.
struct Corner {
  i32 batch, head, query, key;

  __device__ __forceinline__ i32 row() const { return ROW_AXIS == 2 ? query : key; }
  __device__ __forceinline__ i32 column() const { return ROW_AXIS == 2 ? key : query; }
};

// results = Functor(operands...), element by element; `results` may be one of the operands.
template <class Functor, int ROW_PARTS, int COLUMN_BLOCKS, class... Operands>
__device__ __forceinline__ void apply(const Problem& p, const Corner& corner,
                                      f32 (&results)[ROW_PARTS][COLUMN_BLOCKS][4], const Operands&... operands) {
  const typename Functor::Args& args = args_of<Functor>(p);
  const i32 rows = ROW_AXIS == 2 ? p.queries : p.keys, columns = ROW_AXIS == 2 ? p.keys : p.queries;
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4] = {corner.batch, corner.head, 0, 0};
      coordinate[ROW_AXIS] = min(corner.row() + part * 16 + half * 8 + i32(threadIdx.x) % WARP_SIZE / 4, rows - 1);
      const typename Functor::Cursor cursor = Functor::cursor(args, coordinate);
#pragma unroll
      for (int block = 0; block < COLUMN_BLOCKS; ++block) {
        const i32 column = corner.column() + block * 8 + threadIdx.x % 4 * 2;
        f32 made[2] = {};
        Functor::template apply<2>(args, cursor, column, count_among<2>(columns - column),
                                   reinterpret_cast<const f32(&)[2]>(operands[part][block][half * 2])..., made);
        results[part][block][half * 2] = made[0];
        results[part][block][half * 2 + 1] = made[1];
      }
    }
  }
}

// The scaled products that Gradient reads, and the factors of weights; without these functors they take no registers.
template <class Tile, bool IS_THERE> struct KeptScores {
  Tile scores;
};
template <class Tile> struct KeptScores<Tile, false> {};

template <class Tile, bool IS_THERE> struct KeptFactors {
  Tile factors;
};
template <class Tile> struct KeptFactors<Tile, false> {};

template <int ROW_PARTS, int COLUMN_BLOCKS> using ScoreTile = f32[ROW_PARTS][COLUMN_BLOCKS][4];

// The steps from a warp's scores to their weights and gradients.
template <int ROW_PARTS, int COLUMN_BLOCKS>
struct ScoreSteps : KeptScores<ScoreTile<ROW_PARTS, COLUMN_BLOCKS>, HAS_GRADIENT>,
                    KeptFactors<ScoreTile<ROW_PARTS, COLUMN_BLOCKS>, HAS_FACTORS> {
  typedef ScoreTile<ROW_PARTS, COLUMN_BLOCKS> Tile;

  Tile weights;  // before make_weights: q k^T

  template <class Terms>
  __device__ __forceinline__ void make_weights(const Problem& p, const Band& band, const Corner& corner,
                                               const Terms& terms, const Scaling& scaling) {
    f32 scale = scaling.scores;
    if constexpr (HAS_SCORES || HAS_GRADIENT) {
      for_each<ROW_PARTS, COLUMN_BLOCKS>([&](int part, int block, int i) {
        weights[part][block][i] *= scale;
        if constexpr (HAS_GRADIENT) this->scores[part][block][i] = weights[part][block][i];
      });
      scale = 1;
    }
    if constexpr (HAS_SCORES) apply<Scores>(p, corner, weights, weights);
    terms.make_weights(scale * LOG2_E, weights);
    mask<ROW_AXIS == 2, MASKS_QUERIES>(band, corner.query, corner.key, weights);
    if constexpr (HAS_FACTORS) {
      for_each<ROW_PARTS, COLUMN_BLOCKS>([&](int part, int block, int i) { this->factors[part][block][i] = 1; });
      apply<Factors>(p, corner, this->factors, this->factors);
    }
  }

  // Replaces d_o v^T in `ds` by gradients of the scaled products.
  template <class Terms>
  __device__ __forceinline__ void make_gradients(const Problem& p, const Band& band, const Corner& corner,
                                                 const Terms& terms, const Scaling& scaling, Tile& ds) const {
    multiply_all(ds, scaling.of_d_weights());
    if constexpr (HAS_FACTORS) {
      for_each<ROW_PARTS, COLUMN_BLOCKS>(
          [&](int part, int block, int i) { ds[part][block][i] *= this->factors[part][block][i]; });
    }
    terms.make_gradients(weights, ds);
    if constexpr (HAS_GRADIENT) apply<Gradient>(p, corner, ds, ds, this->scores);
    // Masks once more: the centre of a query without keys may be NaN, and 0 * NaN is NaN.
    mask<ROW_AXIS == 2, MASKS_QUERIES>(band, corner.query, corner.key, ds);
  }

  // Returns two neighbouring weights, multiplied by their factors, as one word of an operand.
  __device__ __forceinline__ u32 operand(int part, int block, int half) const {
    const f32* const pair = weights[part][block] + half * 2;
    if constexpr (HAS_FACTORS) {
      const f32* const own_factors = this->factors[part][block] + half * 2;
      const f32 dropped[2] = {pair[0] * own_factors[0], pair[1] * own_factors[1]};
      return operand_word<WEIGHT_TYPE>(dropped);
    } else {
      return operand_word<WEIGHT_TYPE>(pair);
    }
  }
};

// Returns a function of (part, block, half) that gives two neighbouring gradients of scores as one word of an operand.
template <int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ auto operand_of(const f32 (&ds)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  return [&ds](int part, int block, int half) { return operand_word<GRADIENT_TYPE>(ds[part][block] + half * 2); };
}
