// resample_backward: dx[n, c, i] = functor(sum of dy[n, c, o] * weight(o, i) over the outputs o that read position i).
//
// The weight is 1 / divisor(o) for averages, that of interpolation, or 1 where o's maximum lies at i and 0 elsewhere;
// the maximum is where `index` says, or is looked for in x again. Each position gathers its outputs, in an order that
// depends on the plan only: nothing is added by two threads.
//
// Layouts: any strides. A thread has CHANNELS neighbouring channels (16-byte accesses where dy is channels-last) of
// TILE neighbouring positions along the columns. With a STRIDE, of which TILE is a multiple, the outputs that read the
// tile are READERS from m + FIRST_READER on, with m = (column + padding) / STRIDE; which taps meet is known at compile
// time, and each output is read once. Otherwise TILE is 1, and READERS outputs are on their way at a time.
// Block: THREADS threads, neighbouring ones neighbouring groups of dx, in the order of its memory.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks.
// Macros: DY_TYPE, X_TYPE, INDEX_TYPE, COMPUTE: types of dy, x, index and the arithmetic. MAXIMUM, LINEAR: 1 for
//   largest values, interpolation. HAS_INDEX: whether maxima come from the index. INDEX_WIDTH: elements of its
//   accesses, 0 where its channels are not neighbours.
//   PADDING, DIVISOR, NAN_WINS: see resample.cuh. REPEATS: 1 where an output may read a position several times.
//   CHANNELS_LAST: channels are the innermost axis of groups. CONTIGUOUS: 1 where neighbouring columns of what is read
//   lie side by side.
//   WINDOW: taps along the columns. STRIDE: between the columns of two outputs, 0 where only the parameters say. PHASE:
//   the columns' padding modulo STRIDE. READERS: outputs along the columns that read one tile, where they are not more.
//   INDEX: u32 up to 2^31 groups, otherwise i64. THREADS.

#include "include/resample.cuh"
#include "generated.cuh"

struct Params {
  i64 groups;
  Divider radices[5];  // of groups, the first not used
  const DY_TYPE* dy;
  i64 dy_strides[5];  // n, c, planes, rows, columns
  TapAxis axes[3];    // planes, rows, columns
  COMPUTE divisor;    // of every output where DIVISOR is ALL
#if MAXIMUM && HAS_INDEX
  const INDEX_TYPE* index;
  i64 index_strides[5];
#elif MAXIMUM
  const X_TYPE* x;
  i64 x_strides[5];
#endif
  Functor::Args pointwise;
};

constexpr int floor_quotient(int dividend, int divisor) {
  return dividend >= 0 ? dividend / divisor : -((divisor - 1 - dividend) / divisor);
}
// With a STRIDE, of the outputs that read the tile: the first one, counted from m.
constexpr int FIRST_READER = STRIDE ? -floor_quotient(WINDOW - 1 - PHASE, STRIDE) : 0;

constexpr bool HAS_OWN_DIVISORS = DIVISOR == TAPS || DIVISOR == INSIDE;
constexpr bool IS_WEIGHTED = LINEAR || REPEATS || HAS_OWN_DIVISORS;

// dy and the places of maxima of one output.
struct Output {
  COMPUTE dy[CHANNELS];
  i32 place[CHANNELS];

  // What an output that does not exist adds: nothing.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
      dy[v] = COMPUTE(0);
      place[v] = -1;
    }
  }
};

// What is read of one row of outputs, at the thread's image and channels.
struct OutputRow {
  const DY_TYPE* dy;
#if MAXIMUM && HAS_INDEX
  const INDEX_TYPE* index;
#elif MAXIMUM
  const X_TYPE* x;  // of the image, not of a row
  i32 plane, row;
#endif

  __device__ __forceinline__ OutputRow(const Params& p, i64 n, i64 c, i32 plane_, i32 row_) {
    dy = p.dy + n * p.dy_strides[0] + c * p.dy_strides[1] + plane_ * p.dy_strides[2] + row_ * p.dy_strides[3];
#if MAXIMUM && HAS_INDEX
    const i64(&strides)[5] = p.index_strides;
    index = p.index + n * strides[0] + c * strides[1] + plane_ * strides[2] + row_ * strides[3];
#elif MAXIMUM
    x = p.x + n * p.x_strides[0] + c * p.x_strides[1];
    plane = plane_, row = row_;
#endif
  }

  __device__ __forceinline__ Output read_output(const Params& p, i32 column) const {
    Output output;
    read_lanes<CHANNELS_LAST>(output.dy, dy + column * (CONTIGUOUS ? 1 : p.dy_strides[4]), p.dy_strides[1]);
#if MAXIMUM && HAS_INDEX
    INDEX_TYPE stored[CHANNELS];
    const INDEX_TYPE* at = index + column * (CONTIGUOUS ? 1 : p.index_strides[4]);
    if constexpr (INDEX_WIDTH) {
      load<Repeated, INDEX_WIDTH>(stored, at);
    } else {
      load_strided(stored, at, p.index_strides[1], CHANNELS);
    }
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) output.place[v] = i32(stored[v]);
#elif MAXIMUM
    find_maxima(p, column, output.place);
#endif
    return output;
  }

#if MAXIMUM && !HAS_INDEX
 private:
  // Where the maxima of an output's window lie.
  __device__ __forceinline__ void find_maxima(const Params& p, i32 column, i32 (&place)[CHANNELS]) const {
    const TapAxis(&axes)[3] = p.axes;
    const i32 output[3] = {plane, row, column};
    const i32 first[3] = {axes[0].first(plane), axes[1].first(row), axes[2].first(column)};
    const Range planes = axes[0].walked<PADDING>(plane), rows = axes[1].walked<PADDING>(row);
    const Range columns = axes[2].walked<PADDING>(column);
    Maximum<COMPUTE, CHANNELS, NAN_WINS, true> found;
    found.begin(first_place<PADDING>(axes, output));
    for (i32 z = planes.begin; z < planes.end; ++z) {
      for (i32 r = rows.begin; r < rows.end; ++r) {
        const i32 y = PADDING == CLAMP ? clamp(r, axes[1].inputs) : r;
        const i32 depth = PADDING == CLAMP ? clamp(z, axes[0].inputs) : z;
        const X_TYPE* at = x + depth * p.x_strides[2] + y * p.x_strides[3];
        const bool exists = PADDING != ZERO || (u32(z) < u32(axes[0].inputs) && u32(r) < u32(axes[1].inputs));
        const i32 place_of_row = place_of(axes, z - first[0], r - first[1], -first[2]);
#pragma unroll 4
        for (i32 k = columns.begin; k < columns.end; ++k) {
          const i32 position = PADDING == CLAMP ? clamp(k, axes[2].inputs) : k;
          COMPUTE values[CHANNELS];
          if (PADDING != ZERO || (exists && u32(k) < u32(axes[2].inputs))) {
            read_lanes<CHANNELS_LAST>(values, at + position * (CONTIGUOUS ? 1 : p.x_strides[4]), p.x_strides[1]);
          } else {
#pragma unroll
            for (int v = 0; v < CHANNELS; ++v) values[v] = COMPUTE(0);
          }
          found.take(values, COMPUTE(1), place_of_row + k);
        }
      }
    }
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) place[v] = found.place[v];
  }
#endif
};

// An output as a position sees it along one axis: the taps that read the position, and what they weigh together.
struct Reader {
  Range taps;
  COMPUTE weight;

  __device__ __forceinline__ Reader() {}
  __device__ __forceinline__ Reader(const TapAxis& axis, i32 output, i32 position) {
    taps = axis.reading<PADDING>(output, position);
    weight = LINEAR ? axis.closeness<COMPUTE>(output, position) : REPEATS ? COMPUTE(taps.count()) : COMPUTE(1);
    if (HAS_OWN_DIVISORS) weight /= COMPUTE(max(axis.divisor<DIVISOR>(output), 1));
  }
};

// Whether a place of a window is one of these taps.
__device__ __forceinline__ bool is_among(const TapAxis (&axes)[3], i32 place, Range planes, Range rows, Range columns) {
  const i32 column = place % axes[2].span, rest = place / axes[2].span;
  const i32 row = rest % axes[1].span, plane = rest / axes[1].span;
  return column >= columns.begin && column < columns.end && row >= rows.begin && row < rows.end &&
         plane >= planes.begin && plane < planes.end;
}

// Adds to the sums of one position what an output has for it.
__device__ __forceinline__ void add(const TapAxis (&axes)[3], const Output& output, const Reader& plane,
                                    const Reader& row, Range taps, COMPUTE weight, COMPUTE (&sum)[CHANNELS]) {
#pragma unroll
  for (int v = 0; v < CHANNELS; ++v) {
    if constexpr (MAXIMUM && PADDING != CLAMP) {
      const i32 wanted = place_of(axes, plane.taps.begin, row.taps.begin, taps.begin);
      add_where(output.place[v], wanted, output.dy[v], sum[v]);
    } else if constexpr (MAXIMUM) {
      if (is_among(axes, output.place[v], plane.taps, row.taps, taps)) sum[v] += output.dy[v];
    } else {
      sum[v] += IS_WEIGHTED ? weight * output.dy[v] : output.dy[v];
    }
  }
}

// READERS neighbouring outputs along the columns, of which those before `end` and inside the tensor exist.
struct Readers {
  i32 first, end;
  Reader reader[READERS];

  __device__ __forceinline__ Readers(const TapAxis& columns, i32 first, i32 end, i32 column) : first(first), end(end) {
#pragma unroll
    for (int k = 0; k < READERS; ++k) {
      // With a STRIDE only the divisor is asked for: taps are known, and each is one.
      if (!STRIDE || HAS_OWN_DIVISORS) reader[k] = Reader(columns, first + k, column);
    }
  }

  // Adds one row of them to the tile.
  __device__ __forceinline__ void add_row(const Params& p, const OutputRow& at, const Reader& plane, const Reader& row,
                                          COMPUTE (&sums)[TILE][CHANNELS]) const {
    Output outputs[READERS];
#pragma unroll
    for (int k = 0; k < READERS; ++k) {
      if (first + k < end && u32(first + k) < u32(p.axes[2].outputs)) {
        outputs[k] = at.read_output(p, first + k);
      } else {
        outputs[k].clear();
      }
    }
    const COMPUTE weight = plane.weight * row.weight;
#pragma unroll
    for (int k = 0; k < READERS; ++k) {
#pragma unroll
      for (int j = 0; j < TILE; ++j) {
        const int tap = PHASE + j - (FIRST_READER + k) * STRIDE;
        if (STRIDE && (tap < 0 || tap >= WINDOW)) continue;
        const Range taps = STRIDE ? Range{tap, tap + 1} : reader[k].taps;
        add(p.axes, outputs[k], plane, row, taps, IS_WEIGHTED ? weight * reader[k].weight : weight, sums[j]);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;

  // Where the thread's positions lie: n, c, plane, row, column.
  i64 digit[5];
  digits<5>(p.radices, INDEX(group), digit);
  constexpr int C = CHANNELS_LAST ? 4 : 1, PLANE = CHANNELS_LAST ? 1 : 2;
  i64 position[5] = {digit[0], digit[C] * CHANNELS, digit[PLANE], digit[PLANE + 1], digit[PLANE + 2] * TILE};
  const i32 plane = i32(position[2]), row = i32(position[3]), column = i32(position[4]);

  // The sums over the outputs that read them: READERS along the columns at a time, plane by plane, row by row.
  COMPUTE sums[TILE][CHANNELS];
#pragma unroll
  for (int j = 0; j < TILE; ++j) {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) sums[j][v] = COMPUTE(0);
  }
  const TapAxis& planes = p.axes[0];
  const TapAxis& rows = p.axes[1];
  const TapAxis& columns = p.axes[2];
  const Range plane_readers = planes.readers<PADDING>(plane), row_readers = rows.readers<PADDING>(row);
  Range column_readers;
  if constexpr (STRIDE) {
    column_readers.begin = (column + columns.bias - columns.start) / STRIDE + FIRST_READER;
    column_readers.end = column_readers.begin + READERS;
  } else {
    column_readers = columns.readers<PADDING>(column);
  }
  for (i32 first = column_readers.begin; first < column_readers.end; first += READERS) {
    const Readers readers(columns, first, column_readers.end, column);
    for (i32 z = plane_readers.begin; z < plane_readers.end; ++z) {
      const Reader plane_reader(planes, z, plane);
      for (i32 r = row_readers.begin; r < row_readers.end; ++r) {
        readers.add_row(p, OutputRow(p, position[0], position[1], z, r), plane_reader, Reader(rows, r, row), sums);
      }
    }
  }

  // To the functor.
  if constexpr (CHANNELS_LAST) {
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
      if (column + j >= columns.inputs) break;
      COMPUTE values[CHANNELS];
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) values[v] = DIVISOR == ALL ? sums[j][v] / p.divisor : sums[j][v];
      position[4] = column + j;
      Functor::apply<CHANNELS>(p.pointwise, Functor::cursor(p.pointwise, position), position[1], CHANNELS, values);
    }
  } else {
    const int valid = min(columns.inputs - column, TILE);
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) {
      COMPUTE values[TILE];
#pragma unroll
      for (int j = 0; j < TILE; ++j) values[j] = DIVISOR == ALL ? sums[j][v] / p.divisor : sums[j][v];
      position[1] = digit[C] * CHANNELS + v;
      Functor::apply<TILE>(p.pointwise, Functor::cursor(p.pointwise, position), column, valid, values);
    }
  }
}
