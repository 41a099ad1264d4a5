// Extreme rows (rows.cuh) have finite elements whose squares leave the range of f32. From about 2^63 on their sum is
// infinite; below 2^-45 it vanishes, which matters only if epsilon is smaller still. The passes over rows skip such a
// row and all later rows of the same threads. At the kernel's end the whole block normalises the skipped rows one by
// one, from x times the power of two that brings a row's largest element near 1.
//
// Rows with infinity or NaN are treated alike, since their variance looks the same. If blocks share a row, the first of
// them normalises it. Sums are added in a fixed order.
// Shared memory: one number for each warp, at an address that the kernel gives.

#pragma once

#include "include/pointwise.cuh"
#include "include/rows/row_team.cuh"

// The largest finite number. (The compiler would compute 1.0f / 0.0f at run time, by a call.)
#define MAX_F32 0x1.fffffep127f

// Whether a variance plus epsilon shows that no squares overflowed or vanished in its sum.
__device__ __forceinline__ bool is_in_range(f32 variance) { return variance >= 0x1p-90f && variance <= MAX_F32; }

// The power of two whose product with `largest` lies between 1/2 and 4, or 2^63 if that is less, since epsilon times
// its square must stay finite. It is 1 for 0, infinity and NaN.
__device__ __forceinline__ f32 scale_to_one(f32 largest) {
  if (!(largest > 0.0f) || !(largest <= MAX_F32)) return 1.0f;
  const int exponent = int(__float_as_uint(largest) >> 23) - 127;  // -127 for subnormal numbers
  const int wanted = -exponent, most = 63, least = -126;
  return __uint_as_float(u32((wanted > most ? most : wanted < least ? least : wanted) + 127) << 23);
}

// The rows that a thread skips: those of its walk from a step on. All threads of a row agree on them.
template <class Tile> struct SkippedRows {
  static constexpr u32 NONE = 0xffffffff;

  u32 from = NONE;

  // Whether to skip the rows at the walk's position. variance: their variances plus epsilon.
  __device__ __forceinline__ bool skips(const RowWalk<Tile>& walk, const f32 (&variance)[Tile::WIDTH]) {
    bool in_range = true;
#pragma unroll
    for (int w = 0; w < Tile::WIDTH; ++w) in_range = in_range && is_in_range(variance[w]);
    if (!in_range && from == NONE && walk.exists) from = walk.step();
    return from != NONE;
  }
};

// Reduces the numbers of all threads of a block: the lanes of each warp as a tree, then the warps one after the other.
// parts: shared memory for one number for each warp.
template <class Operator> __device__ __forceinline__ f32 joined_by_block(f32 value, f32* parts) {
  const int thread = threadIdx.x + threadIdx.y * blockDim.x, threads = blockDim.x * blockDim.y;
#pragma unroll
  for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
    const f32 other = __shfl_down_sync(0xffffffffu, value, offset);
    if (thread + offset < threads) value = Operator::join(value, other);
  }
  __syncthreads();  // the parts of the last call have been read
  if (thread % WARP_SIZE == 0) parts[thread / WARP_SIZE] = value;
  __syncthreads();
  f32 joined = parts[0];
  for (int part = 1; part * WARP_SIZE < threads; ++part) joined = Operator::join(joined, parts[part]);
  return joined;
}

// The statistics of x * scale over the rows of a normalisation group. The mean is mean + correction, in two numbers:
// one would round it by more than the deviations of rows far from 0. inverse: 1 / sqrt(variance + epsilon).
struct ScaledStatistics {
  f32 scale, mean, correction, variance, inverse;

  __device__ __forceinline__ f32 deviation(f32 x) const { return x * scale - mean - correction; }
};

// Calls `use(column, x)` for this thread's share of the elements of a row, with the walk at the element.
// row: its number among the WIDTH rows at the walk.
template <class Source, class Tile, class Use>
__device__ __forceinline__ void each_element(const typename Source::Args& args, RowWalk<Tile>& walk, int row, Use use) {
  const i64 thread = threadIdx.x + threadIdx.y * blockDim.x, threads = blockDim.x * blockDim.y;
#pragma unroll 1
  for (i64 element = thread; element < walk.elements(); element += threads) {
    const i64 column = walk.locate_element(element, row);
    const auto cursor = Source::cursor(args, walk.coordinate);
    typename Source::template Loaded<1> in;
    f32 x[1];
    Source::template load<1>(args, cursor, column, 1, in);
    Source::template finish<1>(args, cursor, column, 1, in, x);
    use(column, x[0]);
  }
}

// The statistics of the normalisation group that `row` belongs to. share: 1 / its elements.  parts: for
// joined_by_block. If all elements are equal, the variance is 0 and the scaled epsilon could vanish, so the statistics
// are those of x itself.
template <bool IS_CENTRED, class Source, class Tile>
__device__ __forceinline__ ScaledStatistics scaled_statistics(const typename Source::Args& args, RowWalk<Tile> walk,
                                                              i64 row, f32 share, f32 epsilon, f32* parts) {
  auto each = [&](auto use) {
    const i64 first = row - row % Tile::GROUP_ROWS;
#pragma unroll 1
    for (i64 member = first; member < first + Tile::GROUP_ROWS; ++member) {
      walk.move_to_row(member / Tile::WIDTH);
      each_element<Source>(args, walk, int(member % Tile::WIDTH), [&](i64, f32 x) { use(x); });
    }
  };
  f32 largest = 0.0f, squares = 0.0f;
  each([&](f32 x) { largest = maximum(largest, fabs(x)); });
  ScaledStatistics of = {scale_to_one(joined_by_block<Largest>(largest, parts)), 0.0f, 0.0f, 0.0f, 0.0f};
  const auto average = [&] {
    f32 total = 0.0f;
    each([&](f32 x) { total += of.deviation(x); });
    return joined_by_block<Plus>(total, parts) * share;
  };
  if (IS_CENTRED) {
    of.mean = average();
    if (of.mean - of.mean == 0.0f) of.correction = average();  // deviations from infinity would be NaN
  }
  each([&](f32 x) { squares += of.deviation(x) * of.deviation(x); });
  of.variance = joined_by_block<Plus>(squares, parts) * share;
  if (of.variance == 0.0f) return {1.0f, of.mean / of.scale, of.correction / of.scale, 0.0f, inverse_sqrt(epsilon)};
  of.inverse = inverse_sqrt(of.variance + epsilon * of.scale * of.scale);
  return of;
}

// Calls `normalise(walk, position)` for each group of WIDTH rows that a thread skipped, one by one. All threads of the
// block must call this.
template <class Tile, class Normalise>
__device__ __forceinline__ void each_skipped(RowWalk<Tile> walk, const SkippedRows<Tile>& skipped,
                                             Normalise normalise) {
  constexpr int POSITIONS = Tile::SLOTS * Tile::SIDE_SIZE;
  if (!__syncthreads_or(skipped.from != SkippedRows<Tile>::NONE)) return;
  const int slot = threadIdx.x / (Tile::TEAM_SIZE * Tile::SIDE_SIZE), side = threadIdx.x % Tile::SIDE_SIZE;
#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
#pragma unroll 1
    for (int position = 0; position < POSITIONS; ++position) {
      const bool is_own = position == slot * Tile::SIDE_SIZE + side;
      const bool is_skipped = is_own && skipped.from != SkippedRows<Tile>::NONE && walk.step() >= skipped.from;
      if (!__syncthreads_or(is_skipped) || !walk.is_first_block()) continue;
      RowWalk<Tile> there = walk;
      normalise(there, walk.first + position);
    }
  }
}
