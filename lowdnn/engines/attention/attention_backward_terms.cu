// attention_backward_terms: the Term of each query for the other kernels of attention's gradients,
//
//     exponent = stats * log2(e)        centre = sum over the elements of a head of d_o * o
//
// and (infinity, 0) where stats is minus infinity, or where the query lies past its batch's length, does not exist, or
// has no d_o in packed sequences. Missing o or d_o count as 0. In fp8 both include the scales of Term; otherwise the
// centre may be multiplied by scalars.
//
// LANES lanes compute the Term of one query; each lane reads every LANES-th piece of 8 elements of its rows.
// Memory: o and d_o with elements of a head contiguous, rows at multiples of 16 bytes; terms [batch][head][row], where
// the first rows of a head are its queries. The turns and tickets of the next kernels are set to 0.
// Launch: WARPS warps, enough blocks for LANES lanes for each row of terms; there are at most as many turns and tickets
// as rows.
// Macros: TYPE, GRADIENT_TYPE (of o, d_o: f16, bf16; with IS_FP8 e4m3, e5m2, which are descaled), LANES (a power of two
// up to 32), WARPS, HAS_RAGGED, IS_GROUPED (terms as GroupedTermTile has them, of whole groups for each head),
// CENTRE_SCALES (number of scalars that centres are multiplied by).

#include "attention_backward.cuh"
#include "attention_backward_rows.cuh"

constexpr int THREADS = WARPS * WARP_SIZE;

struct Params {
  Rows<const TYPE> o;
  Rows<const GRADIENT_TYPE> d_o;
  Rows<const f32> stats;
  Lengths lengths;
  Term* terms;
  u32* cleared;
  i32 rows, cleared_words, size, queries;
  Divider rows_of_head, heads;
#if IS_FP8
  Fp8Numbers fp8;
  Factor scale;
#endif
#if CENTRE_SCALES
  Factor centre_scales[CENTRE_SCALES];
#endif
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 thread = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (thread < p.cleared_words) p.cleared[thread] = 0;
  const i64 index = thread / LANES;
  const u32 row = u32(min(index, p.rows - i64(1)));  // every lane takes part in the shuffles
  const u32 heads_before = p.rows_of_head.divide(row), query = row - heads_before * p.rows_of_head.divisor;
  const i32 batch = i32(p.heads.divide(heads_before)), head = i32(heads_before - batch * p.heads.divisor);

  const TYPE* const o = p.o.at(batch, head, query);
  const GRADIENT_TYPE* const d_o = p.d_o.at(batch, head, query);
  f32 centre = 0;
  const i32 products = existing_rows(p.d_o, batch, existing_rows(p.o, batch, p.queries));
  const i32 size = i32(query) < products ? p.size : 0;
  for (i32 column = threadIdx.x % LANES * 8; column < size; column += LANES * 8) {
    TYPE of_o[8];
    GRADIENT_TYPE of_d_o[8];
    load<Stream, 8>(of_o, o + column);
    load<Stream, 8>(of_d_o, d_o + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) centre += widen(of_o[i]) * widen(of_d_o[i]);
  }
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) centre += __shfl_xor_sync(~0u, centre, distance);

  if (index >= p.rows || threadIdx.x % LANES != 0) return;
  f32 stats = -INFINITE;
  // A query without d_o adds nothing to the gradients. It lacks statistics, too, so its weights might be infinite, and
  // infinity * 0 is NaN.
  const i32 length = existing_rows(p.d_o, batch, p.lengths.of(batch, p.queries));
  if (i32(query) < length) {
    stats = i32(query) < existing_rows(p.stats, batch, length) ? *p.stats.at(batch, head, query) : 0;
  }
  const bool has_weights = stats != -INFINITE;
#if IS_FP8
  const f32 shift = log2f(p.fp8.value(SCALE_S));
  centre *= p.fp8.centre(p.scale);
#else
  const f32 shift = 0;
#endif
#if CENTRE_SCALES
#pragma unroll
  for (int i = 0; i < CENTRE_SCALES; ++i) centre *= p.centre_scales[i].value();
#endif
  const Term term = has_weights ? Term{stats * LOG2_E - shift, centre} : Term{INFINITE, 0};
  if constexpr (IS_GROUPED) {
    f32* const exponent = reinterpret_cast<f32*>(p.terms) + GroupedTermTile::place(row);
    exponent[0] = term.exponent;
    exponent[GroupedTermTile::GROUP] = term.centre;
  } else {
    p.terms[row] = term;
  }
}
