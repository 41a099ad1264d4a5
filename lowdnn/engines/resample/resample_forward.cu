// resample_forward: y[n, c, o] = functor(maximum, average or weighted sum over the taps of o of x[n, c, tap]), and for
// maxima where in their windows they lie.
//
// Layouts: any strides of x, y and index. A thread has CHANNELS neighbouring channels (16-byte accesses where x is
// channels-last) of TILE neighbouring outputs along the columns. Where x is contiguous along the columns, poolings have
// CHANNELS 1, and a row is read in aligned accesses of COLUMNS elements, each inside the image or outside of it.
// Windows that overlap along the columns are read once: with a STRIDE, the tile's windows are one run of positions.
// Block: THREADS threads, neighbouring ones neighbouring groups of y, in the order of its memory.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks.
// Macros: X_TYPE, COMPUTE: types of x and of the arithmetic. MAXIMUM, LINEAR: 1 for largest values, weighted sums.
//   PADDING, DIVISOR, NAN_WINS: see resample.cuh. INDEX_TYPE, INDEX_WIDTH: of the index, which HAS_INDEX says exists;
//   elements of an access, 0 where its strides are any.
//   PAIRS: 1 where maxima are taken of pairs of 16-bit floats. CHANNELS_LAST: channels are the innermost axis of
//   groups, otherwise columns. CONTIGUOUS: 1 where neighbouring columns of x lie side by side.
//   WINDOW: taps along the columns, 0 where only the parameters say. STRIDE: between the columns of two outputs, 0
//   where only the parameters say. SHIFT: elements of the first access before the first tap.
//   INDEX: u32 up to 2^31 groups, otherwise i64. THREADS.

#include "include/resample.cuh"
#include "generated.cuh"

struct Params {
  i64 groups;
  Divider radices[5];  // of groups, the first not used
  const X_TYPE* x;
  i64 x_strides[5];  // n, c, planes, rows, columns
  TapAxis axes[3];   // planes, rows, columns
  COMPUTE divisor;   // of every output where DIVISOR is ALL
#if HAS_INDEX
  INDEX_TYPE* index;
  i64 index_strides[5];
#endif
  Functor::Args pointwise;
};

constexpr int TAPS_AT_ONCE = WINDOW ? WINDOW : 1;
constexpr int POSITIONS = STRIDE ? (TILE - 1) * STRIDE + TAPS_AT_ONCE : TILE * TAPS_AT_ONCE;
constexpr int ACCESSES = (SHIFT + POSITIONS + COLUMNS - 1) / COLUMNS;

// What a thread computes with: numbers of the compute type, or pairs of stored ones.
#if PAIRS
typedef Pair<X_TYPE> Value;
#else
typedef COMPUTE Value;
#endif
constexpr int LANES = CHANNELS / (1 + PAIRS);

#if MAXIMUM
typedef Maximum<Value, LANES, NAN_WINS, HAS_INDEX> Result;
__device__ __forceinline__ COMPUTE result_of(const Result& result, int channel) {
#if PAIRS
  return convert<COMPUTE>(result.value[channel / 2].half(channel % 2));
#else
  return result.value[channel];
#endif
}
#else
typedef Sum<COMPUTE, CHANNELS, LINEAR> Result;
__device__ __forceinline__ COMPUTE result_of(const Result& result, int channel) { return result.value[channel]; }
#endif

// What a position outside the image holds.
__device__ __forceinline__ Value outside() {
  if constexpr (MAXIMUM && PADDING == SKIP) {
    return lowest<Value>();
  } else {
    return Value{};
  }
}

__device__ __forceinline__ Value value_of(const X_TYPE (&stored)[CHANNELS], int lane) {
#if PAIRS
  return {stored[2 * lane].bits | u32(stored[2 * lane + 1].bits) << 16};
#else
  return convert<COMPUTE>(stored[lane]);
#endif
}

// The image along the columns, at one row.
struct Row {
  const X_TYPE* at;  // of column 0
  i64 stride, channel_stride;
  i32 extent;
  bool exists;

  // Elements of the tile's windows; `first`: the first tap of each output.
  template <bool ALL_INSIDE>
  __device__ __forceinline__ void read_tile(const i32 (&first)[TILE], Value (&values)[POSITIONS][LANES]) const {
    if constexpr (COLUMNS > 1) {
      X_TYPE stored[ACCESSES][COLUMNS];
#pragma unroll
      for (int i = 0; i < ACCESSES; ++i) {
        const i32 column = first[0] - SHIFT + i * COLUMNS;
        load_lanes<true>(stored[i], at + column, 1, is_inside<ALL_INSIDE>(column));
      }
#pragma unroll
      for (int k = 0; k < POSITIONS; ++k) {
        const int i = (SHIFT + k) / COLUMNS;
        const bool inside = is_inside<ALL_INSIDE>(first[0] - SHIFT + i * COLUMNS);
        const X_TYPE element[CHANNELS] = {stored[i][(SHIFT + k) % COLUMNS]};
        values[k][0] = inside ? value_of(element, 0) : outside();
      }
    } else {
      X_TYPE stored[POSITIONS][CHANNELS];
#pragma unroll
      for (int k = 0; k < POSITIONS; ++k) {
        const i32 position = column(first, k);
        const X_TYPE* place = at + placed(position) * (CONTIGUOUS ? 1 : stride);
        load_lanes<CHANNELS_LAST>(stored[k], place, channel_stride, is_inside<ALL_INSIDE>(position));
      }
#pragma unroll
      for (int k = 0; k < POSITIONS; ++k) {
        const bool inside = is_inside<ALL_INSIDE>(column(first, k));
#pragma unroll
        for (int v = 0; v < LANES; ++v) values[k][v] = inside ? value_of(stored[k], v) : outside();
      }
    }
  }

  // Whether all of them lie inside the image, or have a stand-in there.
  __device__ __forceinline__ bool holds(const i32 (&first)[TILE]) const {
    if (PADDING == CLAMP) return true;
    const i32 last = COLUMNS > 1 ? first[0] - SHIFT + ACCESSES * COLUMNS - 1 : column(first, POSITIONS - 1);
    return exists && first[0] - (COLUMNS > 1 ? SHIFT : 0) >= 0 && last < extent;
  }

  static __device__ __forceinline__ i32 column(const i32 (&first)[TILE], int k) {
    return STRIDE ? first[0] + k : first[k / TAPS_AT_ONCE] + k % TAPS_AT_ONCE;
  }

 private:
  template <bool ALL_INSIDE> __device__ __forceinline__ bool is_inside(i32 position) const {
    return ALL_INSIDE || PADDING == CLAMP || (exists && u32(position) < u32(extent));
  }
  __device__ __forceinline__ i64 placed(i32 position) const {
    return PADDING == CLAMP ? clamp(position, extent) : position;
  }
};

// Adds one row of the image to the tile's results.
__device__ __forceinline__ void add_row(const TapAxis& columns, const Row& row, const i32 (&first)[TILE], i32 output,
                                        COMPUTE weight, i32 place, Result (&results)[TILE]) {
  if constexpr (WINDOW == 0) {
    const Range walked = columns.walked<PADDING>(output);
#pragma unroll 4
    for (i32 column = walked.begin; column < walked.end; ++column) {
      const i32 at[TILE] = {column};
      Value values[POSITIONS][LANES];
      row.read_tile<false>(at, values);
      results[0].take(values[0], weight, place + column - first[0]);
    }
  } else {
    Value values[POSITIONS][LANES];
    if (row.holds(first)) {
      row.read_tile<true>(first, values);
    } else {
      row.read_tile<false>(first, values);
    }
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
      const COMPUTE share = LINEAR ? columns.share<COMPUTE>(output + j) : COMPUTE(0);
#pragma unroll
      for (int t = 0; t < WINDOW; ++t) {
        const COMPUTE part = t ? share : COMPUTE(1) - share;
        results[j].take(values[STRIDE ? j * STRIDE + t : j * WINDOW + t], LINEAR ? weight * part : weight, place + t);
      }
    }
  }
}

// A sum divided by what its output asks for.
__device__ __forceinline__ COMPUTE divided(COMPUTE sum, COMPUTE all, i32 count) {
  if (DIVISOR == NONE) return sum;
  return sum / (DIVISOR == ALL ? all : COMPUTE(max(count, 1)));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;

  // Where the thread's outputs lie: n, c, plane, row, column.
  i64 digit[5];
  digits<5>(p.radices, INDEX(group), digit);
  constexpr int C = CHANNELS_LAST ? 4 : 1, PLANE = CHANNELS_LAST ? 1 : 2;
  i64 output[5] = {digit[0], digit[C] * CHANNELS, digit[PLANE], digit[PLANE + 1], digit[PLANE + 2] * TILE};
  const i32 plane_output = i32(output[2]), row_output = i32(output[3]), column_output = i32(output[4]);

  // The taps of the tile's outputs along the columns.
  const TapAxis& planes = p.axes[0];
  const TapAxis& rows = p.axes[1];
  const TapAxis& columns = p.axes[2];
  i32 first[TILE];
#pragma unroll
  for (int j = 0; j < TILE; ++j) {
    first[j] = STRIDE ? columns.first(column_output) + j * STRIDE : columns.first(column_output + j);
  }

  Result results[TILE];
#pragma unroll
  for (int j = 0; j < TILE; ++j) {
    const i32 at[3] = {plane_output, row_output, column_output + j};
    results[j].begin(HAS_INDEX ? first_place<PADDING>(p.axes, at) : 0);
  }

  // Plane by plane, row by row.
  const X_TYPE* x = p.x + output[0] * p.x_strides[0] + output[1] * p.x_strides[1];
  const Range plane_range = planes.walked<PADDING>(plane_output), row_range = rows.walked<PADDING>(row_output);
  const i32 first_plane = planes.first(plane_output), first_row = rows.first(row_output);
  const COMPUTE plane_share = LINEAR ? planes.share<COMPUTE>(plane_output) : COMPUTE(0);
  const COMPUTE row_share = LINEAR ? rows.share<COMPUTE>(row_output) : COMPUTE(0);
  for (i32 z = plane_range.begin; z < plane_range.end; ++z) {
    const i32 plane = PADDING == CLAMP ? clamp(z, planes.inputs) : z;
    for (i32 r = row_range.begin; r < row_range.end; ++r) {
      const i32 y = PADDING == CLAMP ? clamp(r, rows.inputs) : r;
      const bool exists = PADDING != ZERO || (u32(z) < u32(planes.inputs) && u32(r) < u32(rows.inputs));
      const X_TYPE* at = x + plane * p.x_strides[2] + y * p.x_strides[3];
      const Row row = {at, p.x_strides[4], p.x_strides[1], columns.inputs, exists};
      const COMPUTE weight = (z == first_plane ? COMPUTE(1) - plane_share : plane_share) *
                             (r == first_row ? COMPUTE(1) - row_share : row_share);
      const i32 place = place_of(p.axes, z - first_plane, r - first_row, 0);
      add_row(columns, row, first, column_output, weight, place, results);
    }
  }

  // The results, to the functor and to the index.
  const i32 rows_counted = planes.divisor<DIVISOR>(plane_output) * rows.divisor<DIVISOR>(row_output);
  if constexpr (CHANNELS_LAST) {
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
      if (column_output + j >= columns.outputs) break;
      const i32 count = rows_counted * columns.divisor<DIVISOR>(column_output + j);
      COMPUTE values[CHANNELS];
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) values[v] = divided(result_of(results[j], v), p.divisor, count);
      output[4] = column_output + j;
      Functor::apply<CHANNELS>(p.pointwise, Functor::cursor(p.pointwise, output), output[1], CHANNELS, values);
    }
  } else {
    const int valid = min(columns.outputs - column_output, TILE);
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
      COMPUTE values[TILE];
#pragma unroll
      for (int j = 0; j < TILE; ++j) {
        const i32 count = rows_counted * columns.divisor<DIVISOR>(column_output + j);
        values[j] = divided(result_of(results[j], v), p.divisor, count);
      }
      output[1] = digit[C] * CHANNELS + v;
      Functor::apply<TILE>(p.pointwise, Functor::cursor(p.pointwise, output), column_output, valid, values);
    }
  }

#if HAS_INDEX
  INDEX_TYPE* index = p.index + output[0] * p.index_strides[0] + output[1] * p.index_strides[1] +
                      plane_output * p.index_strides[2] + row_output * p.index_strides[3];
  if constexpr (CHANNELS_LAST) {
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
      if (column_output + j >= columns.outputs) break;
      INDEX_TYPE places[CHANNELS];
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) places[v] = INDEX_TYPE(results[j].place[v]);
      INDEX_TYPE* to = index + (column_output + j) * p.index_strides[4];
      if constexpr (INDEX_WIDTH) {
        store<INDEX_WIDTH>(to, places);
      } else {
        store_strided(to, places, p.index_strides[1], CHANNELS);
      }
    }
  } else {
    INDEX_TYPE places[TILE];
#pragma unroll
    for (int j = 0; j < TILE; ++j) places[j] = INDEX_TYPE(results[j].place[0]);
    INDEX_TYPE* to = index + column_output * p.index_strides[4];
    const int valid = min(columns.outputs - column_output, TILE);
    if constexpr (INDEX_WIDTH) {
      store_row<INDEX_WIDTH>(to, places, valid);
    } else {
      store_strided(to, places, p.index_strides[4], valid);
    }
  }
#endif
}
