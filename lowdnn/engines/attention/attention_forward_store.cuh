// Stores of each query's statistics and output.
// Macros: as in attention_forward.cuh.

#pragma once

#include "attention_forward_softmax.cuh"

// Numbers of queries of a batch whose outputs, and whose statistics (rows), are stored; and the distances, in elements,
// from the address in a padded tensor to the address in the packed one.
struct Destination {
  i32 outputs, rows;
  i64 output_shift = 0, row_shift = 0;

  __device__ __forceinline__ Destination(const Forward& p, i32 batch) : outputs(p.queries), rows(p.queries) {
    if constexpr (STORES_PACKED) {
      const Offsets &of_output = args_of<OutputOffsets>(p.parts), &of_rows = args_of<StatisticsOffsets>(p.parts);
      outputs = of_output.rows(batch, p.queries);
      rows = of_rows.rows(batch, p.queries);
      output_shift = of_output.shift(batch);
      row_shift = of_rows.shift(batch);
    }
  }
};

// Returns the address of a statistic of a row.
template <class Statistic>
__device__ __forceinline__ f32& statistic(const Forward& p, const Destination& to, const i64 (&coordinate)[4]) {
  return (&args_of<Statistic>(p.parts).at(coordinate))[to.row_shift];
}

// Stores the statistics of a row, by one thread.
__device__ __forceinline__ void store_statistics(const Forward& p, const Destination& to, const i64 (&coordinate)[4],
                                                 f32 largest, f32 sum) {
  if (STORES_PACKED && coordinate[2] >= to.rows) return;
  if constexpr (STATS) {
    const f32 exponent = largest * p.score_scale() + __log2f(sum) * LN_2;
    statistic<Stats>(p, to, coordinate) = exponent * args_of<StatsFactor>(p.parts);
  }
  if constexpr (MAX) statistic<Max>(p, to, coordinate) = largest * p.score_scale();
  if constexpr (SUM_EXP) statistic<SumExp>(p, to, coordinate) = sum;
}

// Loads and stores one row of the output. own: this thread's first column; its other columns are at distances from it
// that are equal in all threads.
struct OutputRow {
  const Forward& p;
  const Output::Cursor cursor;
  const i32 own;
  const i64 shift;
  const bool exists;

  __device__ __forceinline__ OutputRow(const Forward& p, const Destination& to, const i64 (&coordinate)[4], i32 own,
                                       bool exists)
      : p(p),
        cursor(Output::cursor(args_of<Output>(p.parts), coordinate)),
        own(own),
        shift(to.output_shift + own),
        exists(exists && !(STORES_PACKED && coordinate[2] >= to.outputs)) {}

  // Loads the other tensors that the epilogue reads for V outputs. further: columns from `own` to the first of these.
  template <int V> __device__ __forceinline__ void load(i32 further, Output::Loaded<V>& in) const {
    if (stores(further)) Output::load<V>(args_of<Output>(p.parts), cursor, shift + further, V, in);
  }
  template <int V>
  __device__ __forceinline__ void store(i32 further, const Output::Loaded<V>& in, const f32 (&values)[V]) const {
    if (stores(further)) Output::finish<V>(args_of<Output>(p.parts), cursor, shift + further, V, in, values);
  }

 private:
  __device__ __forceinline__ bool stores(i32 further) const {
    return exists && (own + further < HEAD_V - 16 || own + further < p.size_v);  // sizes are padded to 16
  }
};

// Exchanges values between neighbouring lanes. Before, each lane holds two columns in each of two blocks; afterwards,
// even lanes hold four neighbouring columns of the first block and odd lanes of the second.
__device__ __forceinline__ void exchange_blocks(f32 (&values)[4]) {
  const bool is_odd = threadIdx.x % 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const f32 other = __shfl_xor_sync(~0u, is_odd ? values[i] : values[2 + i], 1);
    values[i] = is_odd ? other : values[i];
    values[2 + i] = is_odd ? values[2 + i] : other;
  }
}

// Stores the statistics of a part's rows, whose softmax has ended.
__device__ __forceinline__ void store_statistics(const Forward& p, const Destination& to, const Place& place,
                                                 const Rows& rows, const RunningSoftmax& softmax, int part) {
  const int own = threadIdx.x % 4;  // lanes 0 and 1 of four store rows lane / 4 and 8 more
  if (own >= 2 || rows.at(part, own) >= p.queries * PACK) return;
  const f32 (&largest)[2] = softmax.largest[part], (&sum)[2] = softmax.sum[part];
  i64 coordinate[4];
  rows.coordinate(p, place, part, own, coordinate);
  store_statistics(p, to, coordinate, own ? largest[1] : largest[0], own ? sum[1] : sum[0]);
}

// Returns scale / sum, the factor of a row of outputs whose weights add up to `sum`; 0 where there are no weights.
__device__ __forceinline__ f32 share_of(f32 scale, f32 sum) { return sum == 0 ? 0 : __fdividef(scale, sum); }

// Stores the statistics of rows whose softmax has ended, and sets `shares` to the factors of their outputs.
__device__ __forceinline__ void store_rows(const Forward& p, const Destination& to, const Place& place,
                                           const Rows& rows, const RunningSoftmax& softmax, f32 (&shares)[PARTS][2]) {
  const f32 scale = p.value_scale() / softmax.ONE;
  u32 largest_weight = 0;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shares[part][half] = share_of(scale, softmax.sum[part][half]);
      if (AMAX_S && rows.at(part, half) < p.queries * PACK) {
        largest_weight = ::max(largest_weight, __float_as_uint(softmax.largest_weight(part, half)));
      }
    }
    store_statistics(p, to, place, rows, softmax, part);
  }
  if constexpr (AMAX_S) join_largest(args_of<LargestWeight>(p.parts), largest_weight);
}

// Stores outputs, already multiplied by `shares`, as the columns from `first` on.
template <int BLOCKS>
__device__ __forceinline__ void store_output(const Forward& p, const Destination& to, const Place& place,
                                             const Rows& rows, const f32 (&o)[PARTS][BLOCKS][4], int first = 0) {
  static_assert(BLOCKS % 2 == 0, "pairs of blocks");
  u32 largest_output = 0;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      i64 coordinate[4];
      rows.coordinate(p, place, part, half, coordinate);
      const OutputRow row(p, to, coordinate, threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4,
                          rows.at(part, half) < p.queries * PACK);
      f32 values[BLOCKS / 2][4];
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[block / 2][i] = o[part][block + i / 2][half * 2 + i % 2];
          if (AMAX_O && row.exists) {
            largest_output = ::max(largest_output, __float_as_uint(fabsf(values[block / 2][i])));
          }
        }
        exchange_blocks(values[block / 2]);
      }
      if (!row.exists) continue;  // with one branch for each store, addresses would be computed again
      Output::Loaded<4> loaded[BLOCKS / 2];  // all at once: otherwise each would wait for the store before it
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) row.load(first + block * 8, loaded[block / 2]);
#pragma unroll
      for (int block = 0; block < BLOCKS; block += 2) {
        row.store(first + block * 8, loaded[block / 2], values[block / 2]);
      }
    }
  }
  if constexpr (AMAX_O) join_largest(args_of<LargestOutput>(p.parts), largest_output);
}

// Stores statistics and outputs of rows whose softmax has ended.
__device__ __forceinline__ void store_rows_and_output(const Forward& p, const Place& place, const Rows& rows,
                                                      const RunningSoftmax& softmax, OutputTile& o) {
  const Destination to(p, place.batch);
  f32 shares[PARTS][2];
  store_rows(p, to, place, rows, softmax, shares);
  scale_rows(o, shares);
  store_output(p, to, place, rows, o);
}
