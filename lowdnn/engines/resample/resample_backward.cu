// resample_backward: dx[n, c, i] = functor(sum of dy[n, c, o] * weight(o, i) over the outputs o that read position i).
//
// The weight is 1 / divisor(o) for averages, the interpolation's weight, or 1 if o's maximum lies at i and 0 otherwise.
// `index` says where the maximum lies, or x is searched for it again. Each position gathers its outputs in an order
// that depends only on the plan; no two threads add to the same element.
//
// Layouts: any strides. A thread has CHANNELS channels, contiguous if dy is channels-last, of ROWS x COLUMNS
// neighbouring positions. If IS_TILED, the outputs that read the tile, and their taps, are known at compile time: each
// output is read once, and in a search for maxima so is each position of its windows, as in resample_forward. Otherwise
// a thread has one position or, if dy is channels-last, COLUMNS of them in sequence, and loops over the outputs that
// read it.
// Block: THREADS threads; neighbouring threads have neighbouring groups of dx, in the order of its memory.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks.
// Macros: DY_TYPE, X_TYPE, INDEX_TYPE, COMPUTE: types of dy, x, index and the arithmetic. MAXIMUM, LINEAR: 1 for
// maxima, for interpolation. HAS_INDEX: whether maxima come from the index. INDEX_WIDTH: elements of its accesses, 0 if
// its channels are not contiguous. RESULT: the type that searches for maxima, see window_results.cuh. PADDING, DIVISOR:
// see resample.cuh. HAS_PLANES: 0 for two axes or one. REPEATS: whether an output may read a position several times.
// CHANNELS_LAST: whether channels are the innermost axis of groups. CONTIGUOUS: whether neighbouring columns are
// contiguous in all that is read. ACCESS and X_ACCESS: elements of an access along a row of dy and index, and of x.
// SHIFT and X_SHIFT: elements that the first of these accesses reads before the first one needed. ROW_READERS,
// COLUMN_READERS: the tile, see window_tile.cuh; unless IS_TILED, one position. INDEX: u32 up to 2^31 groups, otherwise
// i64. THREADS.

#include "include/optional.cuh"
#include "window_tile.cuh"
#include "generated.cuh"

// Where argmaxes come from: none are needed, they are stored in `index`, or a search in x finds them.
struct NoMaxima {};
struct IndexedMaxima {
  const INDEX_TYPE* index;
  i64 index_strides[5];
};
struct SearchedMaxima {
  const X_TYPE* x;
  i64 x_strides[5];
};
typedef Either<MAXIMUM, Either<HAS_INDEX, IndexedMaxima, SearchedMaxima>::Type, NoMaxima>::Type Maxima;

struct Gradients {
  i64 groups;
  Divider radices[5];  // the radices of a group's number; the first is not used
  const DY_TYPE* dy;
  i64 dy_strides[5];  // n, c, planes, rows, columns
  TapAxis axes[3];    // planes, rows, columns
  COMPUTE divisor;    // the divisor of every output, if DIVISOR is ALL
};

struct Params : Gradients, Maxima, ArgsOf<Functor> {};

typedef ROW_READERS RowReaders;
typedef COLUMN_READERS ColumnReaders;
constexpr int ROWS = RowReaders::COUNT, COLUMNS = ColumnReaders::COUNT;
constexpr bool HAS_OWN_DIVISORS = DIVISOR == TAPS || DIVISOR == INSIDE;

typedef Sum<COMPUTE, CHANNELS> Gradient;
typedef ImagePlane<DY_TYPE, CHANNELS, CHANNELS_LAST, CONTIGUOUS, ACCESS, SHIFT, SKIP> GradientPlane;

// The tensor that gives the argmaxes of a plane of outputs, at the thread's channels: `index`, or x for a search.
template <class Maxima> struct ArgmaxPlane {
  __device__ __forceinline__ ArgmaxPlane(const Maxima&, const TapAxis (&)[3], i64, i64, i32) {}
};
template <> struct ArgmaxPlane<IndexedMaxima> {
  ImagePlane<INDEX_TYPE, CHANNELS, (CHANNELS_LAST && INDEX_WIDTH), CONTIGUOUS, ACCESS, SHIFT, SKIP> index;

  __device__ __forceinline__ ArgmaxPlane(const IndexedMaxima& maxima, const TapAxis (&axes)[3], i64 n, i64 c, i32 z) {
    const i64(&strides)[5] = maxima.index_strides;
    index = {maxima.index + n * strides[0] + c * strides[1] + z * strides[2],
             strides[1], strides[3], strides[4], axes[1].outputs, axes[2].outputs, true};
  }
};
template <> struct ArgmaxPlane<SearchedMaxima> {
  ImagePlane<X_TYPE, CHANNELS, CHANNELS_LAST, CONTIGUOUS, X_ACCESS, X_SHIFT, PADDING> x;  // plane 0
  i64 x_plane_stride;

  __device__ __forceinline__ ArgmaxPlane(const SearchedMaxima& maxima, const TapAxis (&axes)[3], i64 n, i64 c, i32) {
    const i64(&strides)[5] = maxima.x_strides;
    x = {maxima.x + n * strides[0] + c * strides[1], strides[1], strides[3], strides[4], axes[1].inputs,
         axes[2].inputs, true};
    x_plane_stride = strides[2];
  }
};

// One plane of dy at the thread's channels, and the tensor that gives its argmaxes.
struct OutputPlane {
  GradientPlane dy;
  i32 number;
  ArgmaxPlane<Maxima> maxima;

  __device__ __forceinline__ OutputPlane(const Params& p, i64 n, i64 c, i32 z)
      : dy{p.dy + n * p.dy_strides[0] + c * p.dy_strides[1] + z * p.dy_strides[2],
           p.dy_strides[1], p.dy_strides[3], p.dy_strides[4], p.axes[1].outputs, p.axes[2].outputs, true},
        number(z), maxima(p, p.axes, n, c, z) {}
};

// Finds the argmax of one window by a loop over its taps, or reads it from the index.
template <class Result = RESULT>
__device__ __forceinline__ void find_maximum(const TapAxis (&axes)[3], const ArgmaxPlane<SearchedMaxima>& plane,
                                             i32 number, i32 row, i32 column, i32 (&argmax)[CHANNELS]) {
  const i32 output[3] = {number, row, column};
  const i32 first[3] = {axes[0].first(number), axes[1].first(row), axes[2].first(column)};
  const Range planes = axes[0].walked<PADDING>(number), rows = axes[1].walked<PADDING>(row);
  const Range columns = axes[2].walked<PADDING>(column);
  const i32 first_code = first_index<PADDING>(axes, output);
  Result result;
  result.begin(first_code);
  for (i32 z = planes.begin; z < planes.end; ++z) {
    auto x = plane.x;
    const i32 depth = PADDING == CLAMP ? clamp(z, axes[0].inputs) : z;
    x.at += depth * plane.x_plane_stride;
    x.exists = u32(depth) < u32(axes[0].inputs);
    for (i32 r = rows.begin; r < rows.end; ++r) {
#pragma unroll 4
      for (i32 k = columns.begin; k < columns.end; ++k) {
        const i32 code = window_index(axes, z - first[0], r - first[1], k - first[2]);
        typename Result::Value values[1][Result::LANES];
        x.template read_row<Result>(values, r, 0, k, code);
        result.take(values[0], COMPUTE(1), code);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < CHANNELS; ++v) argmax[v] = result.argmax(v, first_code);
}
__device__ __forceinline__ void find_maximum(const TapAxis (&)[3], const ArgmaxPlane<IndexedMaxima>& plane, i32,
                                             i32 row, i32 column, i32 (&argmax)[CHANNELS]) {
  plane.index.read_row<Sum<i32, CHANNELS>>(reinterpret_cast<i32(&)[1][CHANNELS]>(argmax), row, 0, column, 0);
}
__device__ __forceinline__ void find_maximum(const TapAxis (&)[3], const ArgmaxPlane<NoMaxima>&, i32, i32, i32,
                                             i32 (&)[CHANNELS]) {}

// Whether an argmax is one of these taps.
__device__ __forceinline__ bool is_among(const TapAxis (&axes)[3], i32 argmax, Range planes, Range rows,
                                         Range columns) {
  const i32 column = argmax % axes[2].span, rest = argmax / axes[2].span;
  const i32 row = rest % axes[1].span, plane = rest / axes[1].span;
  return column >= columns.begin && column < columns.end && row >= rows.begin && row < rows.end &&
         plane >= planes.begin && plane < planes.end;
}

// The factor of an output's weight at a position along one axis.
__device__ __forceinline__ COMPUTE weight_of(const TapAxis& axis, i32 output, i32 position) {
  if (LINEAR) return axis.closeness<COMPUTE>(output, position);
  return COMPUTE(REPEATS ? axis.reading<PADDING>(output, position).count() : 1);
}

// Adds the terms of a plane of outputs to the sum of one position.
__device__ __forceinline__ void walk_plane(const Params& p, const OutputPlane& outputs, const i32 (&position)[3],
                                           COMPUTE (&sum)[CHANNELS]) {
  const TapAxis(&axes)[3] = p.axes;
  const Range rows = axes[1].readers<PADDING>(position[1]), columns = axes[2].readers<PADDING>(position[2]);
  const COMPUTE plane_weight = weight_of(axes[0], outputs.number, position[0]);
  const i32 plane_count = axes[0].divisor<DIVISOR>(outputs.number);
  for (i32 row = rows.begin; row < rows.end; ++row) {
    const COMPUTE row_weight = plane_weight * weight_of(axes[1], row, position[1]);
    const i32 row_count = plane_count * axes[1].divisor<DIVISOR>(row);
#pragma unroll 4
    for (i32 column = columns.begin; column < columns.end; ++column) {
      COMPUTE dy[1][CHANNELS];
      outputs.dy.read_row<Gradient>(dy, row, 0, column, 0);
      if constexpr (MAXIMUM) {
        i32 argmax[CHANNELS];
        find_maximum(axes, outputs.maxima, outputs.number, row, column, argmax);
        const Range planes_read = axes[0].reading<PADDING>(outputs.number, position[0]);
        const Range rows_read = axes[1].reading<PADDING>(row, position[1]);
        const Range columns_read = axes[2].reading<PADDING>(column, position[2]);
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) {
          if (is_among(axes, argmax[v], planes_read, rows_read, columns_read)) sum[v] += dy[0][v];
        }
      } else {
        const COMPUTE weight = row_weight * weight_of(axes[2], column, position[2]);
        const Quotient<COMPUTE> own(COMPUTE(max(row_count * axes[2].divisor<DIVISOR>(column), 1)));
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) {
          const COMPUTE term = LINEAR || REPEATS ? weight * dy[0][v] : dy[0][v];
          sum[v] += HAS_OWN_DIVISORS ? own.of(term) : term;
        }
      }
    }
  }
}

// The weight along one axis with which the tile's output k reads the tile's position `i`, the image's `position`.
template <class Tile>
__device__ __forceinline__ COMPUTE tap_weight(const TapAxis& axis, int k, int i, i32 position) {
  if (!LINEAR) return COMPUTE(1);
  return Tile::template closeness<PADDING, COMPUTE>(k, i, position == 0, position == axis.inputs - 1);
}

// The argmaxes of a tile's outputs, read a row of outputs at a time; the index counts from each window's first tap.
template <class Maxima> struct IndexedArgmaxes {
  __device__ __forceinline__ IndexedArgmaxes(const ArgmaxPlane<Maxima>&, const i32 (&)[3]) {}
  __device__ __forceinline__ void read(int, i32, i32, i32 (&)[ColumnReaders::OUTPUTS][CHANNELS]) const {}
};
template <> struct IndexedArgmaxes<IndexedMaxima> {
  const ArgmaxPlane<IndexedMaxima>& plane;

  __device__ __forceinline__ IndexedArgmaxes(const ArgmaxPlane<IndexedMaxima>& plane, const i32 (&)[3])
      : plane(plane) {}

  __device__ __forceinline__ void read(int o, i32 first_row, i32 first_column,
                                       i32 (&argmax)[ColumnReaders::OUTPUTS][CHANNELS]) const {
    plane.index.read_row<Sum<i32, CHANNELS>>(argmax, first_row, o, first_column, 0);
  }
};
// The argmaxes that a search finds. Each is a code (Codes): it counts from the first tap of the tile's first window, not
// of its own window.
template <class Result, class Rows, class Columns> struct SearchedArgmaxes {
  typedef typename Rows::OwnWindows RowWindows;
  typedef typename Columns::OwnWindows ColumnWindows;
  typedef Codes<RowWindows, ColumnWindows> TileCodes;

  Result results[Rows::OUTPUTS][Columns::OUTPUTS];
  i32 first_code[Rows::OUTPUTS][Columns::OUTPUTS];

  __device__ __forceinline__ SearchedArgmaxes(const ArgmaxPlane<SearchedMaxima>& plane, const i32 (&position)[3]) {
    const i32 row = position[1] + Rows::ORIGIN, column = position[2] + Columns::ORIGIN;
#pragma unroll
    for (int o = 0; o < Rows::OUTPUTS; ++o) {
#pragma unroll
      for (int k = 0; k < Columns::OUTPUTS; ++k) {
        first_code[o][k] = TileCodes::template first_counted<PADDING>(o, k, row, column);
        results[o][k].begin(first_code[o][k]);
      }
    }
    add_plane<RowWindows, ColumnWindows, false>(plane.x, row, column, COMPUTE(1), results);
  }

  __device__ __forceinline__ void read(int o, i32, i32, i32 (&argmax)[Columns::OUTPUTS][CHANNELS]) const {
#pragma unroll
    for (int k = 0; k < Columns::OUTPUTS; ++k) {
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) argmax[k][v] = results[o][k].argmax(v, first_code[o][k]);
    }
  }
};

typedef Either<MAXIMUM && !HAS_INDEX, SearchedArgmaxes<RESULT, RowReaders, ColumnReaders>,
               IndexedArgmaxes<Maxima>>::Type Argmaxes;

// Adds the terms of a plane of outputs to the sums of the tile at `position`.
__device__ __forceinline__ void add_tile(const Params& p, const OutputPlane& outputs, const i32 (&position)[3],
                                         COMPUTE (&sums)[ROWS][COLUMNS][CHANNELS]) {
  const TapAxis(&axes)[3] = p.axes;
  const i32 first_row = RowReaders::first(axes[1], position[1]);
  const i32 first_column = ColumnReaders::first(axes[2], position[2]);
  const Argmaxes argmaxes(outputs.maxima, position);

#pragma unroll
  for (int o = 0; o < RowReaders::OUTPUTS; ++o) {
    COMPUTE dy[ColumnReaders::OUTPUTS][CHANNELS];
    outputs.dy.read_row<Gradient>(dy, first_row, o, first_column, 0);
    if constexpr (MAXIMUM) {
      i32 argmax[ColumnReaders::OUTPUTS][CHANNELS];
      argmaxes.read(o, first_row, first_column, argmax);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
          for (int k = 0; k < ColumnReaders::OUTPUTS; ++k) {
            if (!RowReaders::has(o, i) || !ColumnReaders::has(k, j)) continue;
            const int row = HAS_INDEX ? RowReaders::tap(o, i) : i - RowReaders::ORIGIN;
            const int column = HAS_INDEX ? ColumnReaders::tap(k, j) : j - ColumnReaders::ORIGIN;
            const i32 wanted = row * ColumnReaders::WINDOW + column;
#pragma unroll
            for (int v = 0; v < CHANNELS; ++v) {
              if (argmax[k][v] == wanted) sums[i][j][v] += dy[k][v];
            }
          }
        }
      }
    } else {
      if constexpr (HAS_OWN_DIVISORS) {
        const i32 rows_counted = axes[0].divisor<DIVISOR>(outputs.number) * axes[1].divisor<DIVISOR>(first_row + o);
#pragma unroll
        for (int k = 0; k < ColumnReaders::OUTPUTS; ++k) {
          const Quotient<COMPUTE> own(COMPUTE(max(rows_counted * axes[2].divisor<DIVISOR>(first_column + k), 1)));
#pragma unroll
          for (int v = 0; v < CHANNELS; ++v) dy[k][v] = own.of(dy[k][v]);
        }
      }
      const COMPUTE plane_weight = LINEAR ? axes[0].closeness<COMPUTE>(outputs.number, position[0]) : COMPUTE(1);
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        Gradient part;
        part.begin(0);
#pragma unroll
        for (int k = 0; k < ColumnReaders::OUTPUTS; ++k) {
          if (ColumnReaders::has(k, j)) part.take(dy[k], tap_weight<ColumnReaders>(axes[2], k, j, position[2] + j), 0);
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
          if (!RowReaders::has(o, i)) continue;
          const COMPUTE weight = plane_weight * tap_weight<RowReaders>(axes[1], o, i, position[1] + i);
#pragma unroll
          for (int v = 0; v < CHANNELS; ++v) sums[i][j][v] += weight * part.value[v];
        }
      }
    }
  }
}

// The sums of one position over the outputs that read it, plane by plane.
__device__ __forceinline__ void walk(const Params& p, i64 n, i64 c, const i32 (&position)[3],
                                     COMPUTE (&sum)[CHANNELS]) {
  const Range readers = HAS_PLANES ? p.axes[0].readers<PADDING>(position[0]) : Range{0, 1};
#pragma unroll
  for (int v = 0; v < CHANNELS; ++v) sum[v] = COMPUTE(0);
  for (i32 z = readers.begin; z < readers.end; ++z) walk_plane(p, OutputPlane(p, n, c, z), position, sum);
}

// Computes neighbouring columns of a row in sequence. Columns that the same outputs read share an average.
__device__ __forceinline__ void walk_columns(const Params& p, i64 n, i64 c, i32 (&position)[3]) {
  constexpr bool REUSES = !MAXIMUM && !LINEAR && !REPEATS;
  const TapAxis& columns = p.axes[2];
  const i32 end = min(position[2] + COLUMNS, columns.inputs);
  const Quotient<COMPUTE> all(p.divisor);
  COMPUTE sum[CHANNELS];
  Range known = {-1, -1};  // none
#pragma unroll 1
  for (; position[2] < end; ++position[2]) {
    const Range readers = columns.readers<PADDING>(position[2]);
    if (!REUSES || readers.begin != known.begin || readers.end != known.end) {
      walk(p, n, c, position, sum);
      known = readers;
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) sum[v] = DIVISOR == ALL ? all.of(sum[v]) : sum[v];
    }
    const i64 at[5] = {n, c, position[0], position[1], position[2]};
    Functor::apply<CHANNELS>(args_of<Functor>(p), Functor::cursor(args_of<Functor>(p), at), c, CHANNELS, sum);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;

  // The coordinates of the thread's positions: n, c, plane, row, column.
  i64 digit[5];
  digits<5>(p.radices, INDEX(group), digit);
  constexpr int C = CHANNELS_LAST ? 4 : 1, PLANE = CHANNELS_LAST ? 1 : 2;
  const i64 n = digit[0], c = digit[C] * CHANNELS;
  i32 position[3] = {i32(digit[PLANE]), i32(digit[PLANE + 1]) * ROWS, i32(digit[PLANE + 2]) * COLUMNS};

  if constexpr (CHANNELS_LAST && !IS_TILED) {
    walk_columns(p, n, c, position);
    return;
  }

  // Sum over the outputs that read the positions, plane by plane.
  COMPUTE sums[ROWS][COLUMNS][CHANNELS] = {};
  const Range readers = HAS_PLANES ? p.axes[0].readers<PADDING>(position[0]) : Range{0, 1};
  for (i32 z = readers.begin; z < readers.end; ++z) {
    const OutputPlane outputs(p, n, c, z);
    if constexpr (IS_TILED) {
      add_tile(p, outputs, position, sums);
    } else {
      walk_plane(p, outputs, position, sums[0][0]);
    }
  }

  // Pass the results to the functor.
  const Functor::Args& pointwise = args_of<Functor>(p);
  const Quotient<COMPUTE> all(p.divisor);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (position[1] + i >= p.axes[1].inputs) break;
    i64 at[5] = {n, c, position[0], position[1] + i, position[2]};
    if constexpr (CHANNELS_LAST) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        if (position[2] + j >= p.axes[2].inputs) break;
        COMPUTE values[CHANNELS];
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) values[v] = DIVISOR == ALL ? all.of(sums[i][j][v]) : sums[i][j][v];
        at[4] = position[2] + j;
        Functor::apply<CHANNELS>(pointwise, Functor::cursor(pointwise, at), c, CHANNELS, values);
      }
    } else {
      const int valid = min(p.axes[2].inputs - position[2], COLUMNS);
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) {
        COMPUTE values[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) values[j] = DIVISOR == ALL ? all.of(sums[i][j][v]) : sums[i][j][v];
        at[1] = c + v;
        Functor::apply<COLUMNS>(pointwise, Functor::cursor(pointwise, at), position[2], valid, values);
      }
    }
  }
}
