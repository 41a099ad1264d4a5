// resample_forward: y[n, c, o] = functor(maximum, average or weighted sum of x[n, c, tap] over the taps of o) and, for
// maxima, their argmaxes: the index of each maximum in its window or, with IMAGE_INDEX, in the image.
//
// Layouts: any strides of x, y and index. A thread has CHANNELS channels, contiguous if x is channels-last, of ROWS x
// COLUMNS neighbouring outputs. If IS_TILED, the taps of the tile are known at compile time, relative to its first one.
// Each position is read once, all reads may be in flight together, and each row is added to the results of all windows
// that contain it. Otherwise a thread has one output and loops over its taps.
// Block: THREADS threads; neighbouring threads have neighbouring groups of y, in the order of its memory.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks.
// Macros: X_TYPE, COMPUTE: types of x and of the arithmetic. LINEAR: 1 for weighted sums. RESULT: the type that reduces
// a window's values, see window_results.cuh. PADDING, DIVISOR: see resample.cuh. HAS_PLANES: 0 for two axes or one.
// HAS_INDEX: whether argmaxes are stored. IMAGE_INDEX: whether they are places in the image. INDEX_TYPE: their type.
// INDEX_WIDTH: elements of an access to them, 0 for any strides. CHANNELS_LAST: whether channels are the innermost axis
// of groups; otherwise columns are. CONTIGUOUS: whether neighbouring columns of x are contiguous. ACCESS: elements of
// an access along a row. SHIFT: elements that the first access reads before the first tap. ROW_WINDOWS, COLUMN_WINDOWS:
// the tile, see window_tile.cuh; unless IS_TILED, one window. INDEX: u32 up to 2^31 groups, otherwise i64. THREADS.

#include "include/optional.cuh"
#include "window_tile.cuh"
#include "generated.cuh"

// The tensor of argmaxes, with HAS_INDEX.
template <bool IS_THERE> struct IndexOutput {
  INDEX_TYPE* index;
  i64 index_strides[5];
};
template <> struct IndexOutput<false> {};

struct Image {
  i64 groups;
  Divider radices[5];  // the radices of a group's number; the first is not used
  const X_TYPE* x;
  i64 x_strides[5];  // n, c, planes, rows, columns
  TapAxis axes[3];   // planes, rows, columns
  COMPUTE divisor;   // the divisor of every output, if DIVISOR is ALL
};

struct Params : Image, IndexOutput<HAS_INDEX>, ArgsOf<Functor> {};

typedef RESULT Result;
typedef ImagePlane<X_TYPE, CHANNELS, CHANNELS_LAST, CONTIGUOUS, ACCESS, SHIFT, PADDING> Plane;
typedef ROW_WINDOWS RowWindows;
typedef COLUMN_WINDOWS ColumnWindows;
typedef Codes<RowWindows, ColumnWindows> TileCodes;
constexpr int ROWS = RowWindows::COUNT, COLUMNS = ColumnWindows::COUNT;

// The plane z of the image.
__device__ __forceinline__ Plane plane_of(const Params& p, i64 n, i64 c, i32 z) {
  const i64(&strides)[5] = p.x_strides;
  const TapAxis& planes = p.axes[0];
  const i32 plane = PADDING == CLAMP ? clamp(z, planes.inputs) : z;
  return {p.x + n * strides[0] + c * strides[1] + plane * strides[2], strides[1], strides[3], strides[4],
          p.axes[1].inputs, p.axes[2].inputs, u32(plane) < u32(planes.inputs)};
}

// Adds the taps of a plane to the result of one output, in sequence.
__device__ __forceinline__ void walk_plane(const Params& p, const Plane& plane, const i32 (&output)[3], COMPUTE weight,
                                           i32 plane_tap, Result& result) {
  const TapAxis& rows = p.axes[1];
  const TapAxis& columns = p.axes[2];
  const Range row_taps = rows.walked<PADDING>(output[1]), column_taps = columns.walked<PADDING>(output[2]);
  const i32 first_row = rows.first(output[1]), first_column = columns.first(output[2]);
  for (i32 row = row_taps.begin; row < row_taps.end; ++row) {
    const COMPUTE row_weight = LINEAR ? weight * rows.weight<COMPUTE>(output[1], row) : COMPUTE(1);
#pragma unroll 4
    for (i32 column = column_taps.begin; column < column_taps.end; ++column) {
      const i32 code = window_index(p.axes, plane_tap, row - first_row, column - first_column);
      Result::Value values[1][Result::LANES];
      plane.read_row<Result>(values, row, 0, column, code);
      result.take(values[0], LINEAR ? row_weight * columns.weight<COMPUTE>(output[2], column) : COMPUTE(1), code);
    }
  }
}

// The code of a window's first tap that is not skipped as padding or, if all are, of its first tap. It is the argmax
// if no value exceeds the lowest of its type.
__device__ __forceinline__ i32 first_code_of(const Params& p, int i, int j, const i32 (&output)[3], i32 row,
                                             i32 column) {
  if constexpr (!IS_TILED) {
    return first_index<PADDING>(p.axes, output);
  } else {
    const bool counts = RowWindows::has_taps<PADDING>(i, row, p.axes[1].inputs) &&
                        ColumnWindows::has_taps<PADDING>(j, column, p.axes[2].inputs);
    return counts ? TileCodes::first_counted<PADDING>(i, j, row, column) : TileCodes::first(i, j);
  }
}

// The place in the image, row-major, of a tap of one output's window; for a tap outside of it, that of the nearest
// position.
__device__ __forceinline__ INDEX_TYPE place_of(const TapAxis (&axes)[3], const i32 (&output)[3], i32 tap) {
  const i32 row_tap = tap / axes[2].span, plane_tap = HAS_PLANES ? row_tap / axes[1].span : 0;
  const i32 taps[3] = {plane_tap, row_tap - plane_tap * axes[1].span, tap - row_tap * axes[2].span};
  INDEX_TYPE place = 0;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    place = INDEX_TYPE(place * axes[i].inputs + clamp(axes[i].first(output[i]) + taps[i], axes[i].inputs));
  }
  return place;
}

// Divides a sum by its output's divisor.
__device__ __forceinline__ COMPUTE divided(COMPUTE sum, const Quotient<COMPUTE>& all, i32 count) {
  if (DIVISOR == NONE) return sum;
  return DIVISOR == ALL ? all.of(sum) : Quotient<COMPUTE>(COMPUTE(max(count, 1))).of(sum);
}

// Stores the argmaxes of a row of the tile, `valid` columns of which exist.
__device__ __forceinline__ void store_argmaxes(const IndexOutput<true>& p, INDEX_TYPE* to,
                                             const INDEX_TYPE (&argmaxes)[COLUMNS][CHANNELS], int valid) {
  if constexpr (CHANNELS_LAST) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      if (j >= valid) break;
      INDEX_TYPE* at = to + j * p.index_strides[4];
      if constexpr (INDEX_WIDTH) {
        store<INDEX_WIDTH>(at, argmaxes[j]);
      } else {
        store_strided(at, argmaxes[j], p.index_strides[1], CHANNELS);
      }
    }
  } else {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
      INDEX_TYPE row[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) row[j] = argmaxes[j][v];
      INDEX_TYPE* at = to + v * p.index_strides[1];
      if constexpr (INDEX_WIDTH) {
        store_row<INDEX_WIDTH>(at, row, valid);
      } else {
        store_strided(at, row, p.index_strides[4], valid);
      }
    }
  }
}

// Computes and stores the argmaxes of a row of the tile, `valid` columns of which exist.
template <class Result>
__device__ __forceinline__ void store_maxima(const IndexOutput<true>& p, const TapAxis (&axes)[3], i64 n, i64 c,
                                             const i32 (&output)[3], i32 row, const Result (&results)[COLUMNS],
                                             const i32 (&first_code)[COLUMNS], int tile_row, int valid) {
  INDEX_TYPE* index = p.index + n * p.index_strides[0] + c * p.index_strides[1] + output[0] * p.index_strides[2] +
                      row * p.index_strides[3] + output[2] * p.index_strides[4];
  INDEX_TYPE argmaxes[COLUMNS][CHANNELS];
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
      const i32 code = results[j].argmax(v, first_code[j]);
      const i32 tap = IS_TILED ? code - TileCodes::first(tile_row, j) : code;
      argmaxes[j][v] = IMAGE_INDEX ? place_of(axes, {output[0], row, output[2] + j}, tap) : INDEX_TYPE(tap);
    }
  }
  store_argmaxes(p, index, argmaxes, valid);
}
template <class Result>
__device__ __forceinline__ void store_maxima(const IndexOutput<false>&, const TapAxis (&)[3], i64, i64,
                                             const i32 (&)[3], i32, const Result (&)[COLUMNS],
                                             const i32 (&)[COLUMNS], int, int) {}

// Adds the taps of all planes, plane by plane.
__device__ __forceinline__ void add_planes(const Params& p, i64 n, i64 c, const i32 (&output)[3], i32 first_row,
                                           i32 first_column, Result (&results)[ROWS][COLUMNS]) {
  const TapAxis& planes = p.axes[0];
  const Range range = HAS_PLANES ? planes.walked<PADDING>(output[0]) : Range{0, 1};
  for (i32 z = range.begin; z < range.end; ++z) {
    const Plane plane = plane_of(p, n, c, z);
    const COMPUTE weight = LINEAR ? planes.weight<COMPUTE>(output[0], z) : COMPUTE(1);
    if constexpr (IS_TILED) {
      add_plane<RowWindows, ColumnWindows, LINEAR>(plane, first_row, first_column, weight, results);
    } else {
      walk_plane(p, plane, output, weight, z - planes.first(output[0]), results[0][0]);
    }
  }
}

// Passes the values of a row of the tile to the functor. rows_counted: the divisor's factors for planes and the row.
__device__ __forceinline__ void store_values(const Params& p, i64 n, i64 c, const i32 (&output)[3], i32 row,
                                             const Quotient<COMPUTE>& all, i32 rows_counted,
                                             const Result (&results)[COLUMNS]) {
  const Functor::Args& pointwise = args_of<Functor>(p);
  const TapAxis& columns = p.axes[2];
  i64 position[5] = {n, c, output[0], row, output[2]};
  if constexpr (CHANNELS_LAST) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      if (output[2] + j >= columns.outputs) break;
      const i32 count = rows_counted * columns.divisor<DIVISOR>(output[2] + j);
      COMPUTE values[CHANNELS];
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) values[v] = divided(convert<COMPUTE>(results[j].number(v)), all, count);
      position[4] = output[2] + j;
      Functor::apply<CHANNELS>(pointwise, Functor::cursor(pointwise, position), c, CHANNELS, values);
    }
  } else {
    const int valid = min(columns.outputs - output[2], COLUMNS);
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
      COMPUTE values[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        const i32 count = rows_counted * columns.divisor<DIVISOR>(output[2] + j);
        values[j] = divided(convert<COMPUTE>(results[j].number(v)), all, count);
      }
      position[1] = c + v;
      Functor::apply<COLUMNS>(pointwise, Functor::cursor(pointwise, position), output[2], valid, values);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;

  // The coordinates of the thread's outputs: n, c, plane, row, column.
  i64 digit[5];
  digits<5>(p.radices, INDEX(group), digit);
  constexpr int C = CHANNELS_LAST ? 4 : 1, PLANE = CHANNELS_LAST ? 1 : 2;
  const i64 n = digit[0], c = digit[C] * CHANNELS;
  const i32 output[3] = {i32(digit[PLANE]), i32(digit[PLANE + 1]) * ROWS, i32(digit[PLANE + 2]) * COLUMNS};
  const TapAxis& rows = p.axes[1];
  const i32 first_row = rows.first(output[1]), first_column = p.axes[2].first(output[2]);

  Result results[ROWS][COLUMNS];
  i32 first_code[ROWS][COLUMNS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      first_code[i][j] = HAS_INDEX ? first_code_of(p, i, j, output, first_row, first_column) : 0;
      results[i][j].begin(first_code[i][j]);
    }
  }
  add_planes(p, n, c, output, first_row, first_column, results);

  const Quotient<COMPUTE> all(p.divisor);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const i32 row = output[1] + i;
    if (row >= rows.outputs) break;
    const i32 rows_counted = p.axes[0].divisor<DIVISOR>(output[0]) * rows.divisor<DIVISOR>(row);
    store_values(p, n, c, output, row, all, rows_counted, results[i]);
    const int valid = min(p.axes[2].outputs - output[2], COLUMNS);
    store_maxima(p, p.axes, n, c, output, row, results[i], first_code[i], i, valid);
  }
}
