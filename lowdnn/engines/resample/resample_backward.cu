// resample_backward: dx[n, c, i] = functor(sum of dy[n, c, o] * weight(o, i) over the outputs o that read position i).
//
// The weight is 1 / divisor(o) for averages, that of interpolation, or 1 where o's maximum lies at i and 0 elsewhere; the
// maximum is where `index` says, or is looked for in x again. Each position gathers its outputs in ascending order:
// nothing is added by two threads.
//
// Layouts: any strides. A thread has CHANNELS neighbouring channels (16-byte accesses where dy is channels-last) of TILE
// neighbouring positions along the columns. With a STRIDE, of which TILE is a multiple, the outputs that read the tile are
// m + FIRST_READER .. m + LAST_READER with m = (column + padding) / STRIDE; which taps meet is known at compile time, and
// each output is read once.
// Block: THREADS threads, neighbouring ones neighbouring groups of dx, in the order of its memory.
// Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks.
// Macros: DY_TYPE, X_TYPE, INDEX_TYPE, COMPUTE: types of dy, x, index and the arithmetic. MAXIMUM, LINEAR: 1 for largest
//   values, interpolation. HAS_INDEX: whether maxima come from the index. INDEX_WIDTH: elements of its accesses, 0 where
//   its channels are not neighbours.
//   PADDING, DIVISOR, NAN_WINS: see resample.cuh. CHANNELS_LAST: channels are the innermost axis of groups.
//   WINDOW: taps along the columns, 0 where only the parameters say. STRIDE: between the columns of two outputs, 0 where
//   only the parameters say; TILE is 1 then. PHASE: the columns' padding modulo STRIDE.
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
constexpr int STEP = STRIDE ? STRIDE : 1;
constexpr int FIRST_READER = -floor_quotient(WINDOW - 1 - PHASE, STEP), LAST_READER = (PHASE + TILE - 1) / STEP;
constexpr int READERS = LAST_READER - FIRST_READER + 1;

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

// The thread's image and channels.
struct Place {
  const Params& p;
  i64 n, c;

  __device__ __forceinline__ Output read_output(i32 plane, i32 row, i32 column) const {
    Output output;
    read(output.dy, p.dy + offset(p.dy_strides, plane, row, column));
#if MAXIMUM && HAS_INDEX
    INDEX_TYPE stored[CHANNELS];
    const INDEX_TYPE* index = p.index + offset(p.index_strides, plane, row, column);
    if constexpr (INDEX_WIDTH) {
      load<Repeated, INDEX_WIDTH>(stored, index);
    } else {
      load_strided(stored, index, p.index_strides[1], CHANNELS);
    }
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) output.place[v] = i32(stored[v]);
#elif MAXIMUM
    find_maxima(plane, row, column, output.place);
#endif
    return output;
  }

 private:
  __device__ __forceinline__ i64 offset(const i64 (&strides)[5], i32 plane, i32 row, i32 column) const {
    return n * strides[0] + c * strides[1] + plane * strides[2] + row * strides[3] + column * strides[4];
  }

#if MAXIMUM && !HAS_INDEX
  // Where the maxima of an output's window lie.
  __device__ __forceinline__ void find_maxima(i32 plane, i32 row, i32 column, i32 (&place)[CHANNELS]) const {
    const TapAxis(&axes)[3] = p.axes;
    const i32 output[3] = {plane, row, column};
    const i32 first[3] = {axes[0].first(plane), axes[1].first(row), axes[2].first(column)};
    const Range planes = axes[0].walked<PADDING>(plane), rows = axes[1].walked<PADDING>(row);
    const Range columns = axes[2].walked<PADDING>(column);
    Maximum<COMPUTE, CHANNELS, NAN_WINS, true> found;
    found.begin(first_place<PADDING>(axes, output));
    for (i32 z = planes.begin; z < planes.end; ++z) {
      for (i32 r = rows.begin; r < rows.end; ++r) {
#pragma unroll 4
        for (i32 k = columns.begin; k < columns.end; ++k) {
          COMPUTE values[CHANNELS];
          read_position(z, r, k, values);
          found.take(values, COMPUTE(1), place_of(axes, z - first[0], r - first[1], k - first[2]));
        }
      }
    }
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) place[v] = found.place[v];
  }

  __device__ __forceinline__ void read_position(i32 z, i32 r, i32 k, COMPUTE (&values)[CHANNELS]) const {
    const TapAxis(&axes)[3] = p.axes;
    if (PADDING == CLAMP) {
      z = clamp(z, axes[0].inputs), r = clamp(r, axes[1].inputs), k = clamp(k, axes[2].inputs);
    }
    const bool inside = PADDING != ZERO || (u32(z) < u32(axes[0].inputs) && u32(r) < u32(axes[1].inputs) &&
                                            u32(k) < u32(axes[2].inputs));
    if (inside) {
      read(values, p.x + offset(p.x_strides, z, r, k));
    } else {
#pragma unroll
      for (int v = 0; v < CHANNELS; ++v) values[v] = COMPUTE(0);
    }
  }
#endif
};

// One row of outputs as the tile's positions see it.
struct RowOfOutputs {
  i32 plane, row;
  Range plane_taps, row_taps;  // those that read the tile's plane and row
  COMPUTE weight;              // of the outputs as far as planes and rows tell
  i32 count;                   // the divisor as far as planes and rows tell
};

// The weight of an output: of interpolation, of positions that are read several times, of its own divisor.
__device__ __forceinline__ COMPUTE weight_of(const TapAxis& columns, const RowOfOutputs& row, i32 output, Range taps) {
  COMPUTE weight = row.weight;
  if (LINEAR || PADDING == CLAMP) weight *= columns.weight<LINEAR, COMPUTE>(output, taps);
  if (DIVISOR == TAPS || DIVISOR == INSIDE) {
    weight /= COMPUTE(max(row.count * columns.divisor<DIVISOR>(output), 1));
  }
  return weight;
}

// Whether a place of a window lies in these taps.
__device__ __forceinline__ bool is_within(const TapAxis (&axes)[3], i32 place, const RowOfOutputs& row, Range taps) {
  if (PADDING != CLAMP) return place == place_of(axes, row.plane_taps.begin, row.row_taps.begin, taps.begin);
  const i32 column = place % axes[2].span, rest = place / axes[2].span;
  const i32 tap_row = rest % axes[1].span, tap_plane = rest / axes[1].span;
  return column >= taps.begin && column < taps.end && tap_row >= row.row_taps.begin && tap_row < row.row_taps.end &&
         tap_plane >= row.plane_taps.begin && tap_plane < row.plane_taps.end;
}

__device__ __forceinline__ void add(const TapAxis (&axes)[3], const Output& output, const RowOfOutputs& row, Range taps,
                                    COMPUTE weight, COMPUTE (&sum)[CHANNELS]) {
  constexpr bool IS_WEIGHTED = LINEAR || (!MAXIMUM && PADDING == CLAMP) || DIVISOR == TAPS || DIVISOR == INSIDE;
#pragma unroll
  for (int v = 0; v < CHANNELS; ++v) {
    if (MAXIMUM) {
      sum[v] += is_within(axes, output.place[v], row, taps) ? output.dy[v] : COMPUTE(0);
    } else {
      sum[v] += IS_WEIGHTED ? weight * output.dy[v] : output.dy[v];
    }
  }
}

// Adds one row of outputs to the tile, whose first column is `column`.
__device__ __forceinline__ void add_row(const Place& at, const RowOfOutputs& row, i32 column,
                                        COMPUTE (&sums)[TILE][CHANNELS]) {
  const TapAxis& columns = at.p.axes[2];
  if constexpr (STRIDE) {
    const i32 middle = (column + columns.bias - columns.start) / STEP;
    Output outputs[READERS];
#pragma unroll
    for (int k = 0; k < READERS; ++k) {
      const i32 output = middle + FIRST_READER + k;
      if (u32(output) < u32(columns.outputs)) {
        outputs[k] = at.read_output(row.plane, row.row, output);
      } else {
        outputs[k].clear();
      }
    }
#pragma unroll
    for (int k = 0; k < READERS; ++k) {
      const i32 output = middle + FIRST_READER + k;
      const COMPUTE weight = weight_of(columns, row, output, {0, 1});
#pragma unroll
      for (int j = 0; j < TILE; ++j) {
        const int tap = PHASE + j - (FIRST_READER + k) * STEP;
        if (tap >= 0 && tap < WINDOW) add(at.p.axes, outputs[k], row, {tap, tap + 1}, weight, sums[j]);
      }
    }
  } else {
    const Range readers = columns.readers<PADDING>(column);
    for (i32 output = readers.begin; output < readers.end; ++output) {
      const Range taps = columns.reading<PADDING>(output, column);
      const COMPUTE weight = weight_of(columns, row, output, taps);
      add(at.p.axes, at.read_output(row.plane, row.row, output), row, taps, weight, sums[0]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;

  // Where the thread's positions lie: n, c, plane, row, column.
  i64 digit[5];
  digits<5>(p.radices, INDEX(group), digit);
  constexpr int C = CHANNELS_LAST ? 4 : 1, PLANE = CHANNELS_LAST ? 1 : 2;
  i64 position[5] = {digit[0], digit[C] * CHANNELS, digit[PLANE], digit[PLANE + 1], digit[PLANE + 2] * TILE};
  const i32 plane = i32(position[2]), row = i32(position[3]), column = i32(position[4]);

  // The sums over the outputs that read them, plane by plane, row by row.
  COMPUTE sums[TILE][CHANNELS];
#pragma unroll
  for (int j = 0; j < TILE; ++j) {
#pragma unroll
    for (int v = 0; v < CHANNELS; ++v) sums[j][v] = COMPUTE(0);
  }
  const TapAxis& planes = p.axes[0];
  const TapAxis& rows = p.axes[1];
  const Place at = {p, position[0], position[1]};
  const Range plane_readers = planes.readers<PADDING>(plane), row_readers = rows.readers<PADDING>(row);
  for (i32 z = plane_readers.begin; z < plane_readers.end; ++z) {
    const Range plane_taps = planes.reading<PADDING>(z, plane);
    const COMPUTE plane_weight = planes.weight<LINEAR, COMPUTE>(z, plane_taps);
    for (i32 r = row_readers.begin; r < row_readers.end; ++r) {
      const Range row_taps = rows.reading<PADDING>(r, row);
      const COMPUTE weight = plane_weight * rows.weight<LINEAR, COMPUTE>(r, row_taps);
      const i32 count = planes.divisor<DIVISOR>(z) * rows.divisor<DIVISOR>(r);
      add_row(at, {z, r, plane_taps, row_taps, weight, count}, column, sums);
    }
  }

  // To the functor.
  const TapAxis& columns = p.axes[2];
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
    COMPUTE values[TILE];
#pragma unroll
    for (int j = 0; j < TILE; ++j) values[j] = DIVISOR == ALL ? sums[j][0] / p.divisor : sums[j][0];
    const int valid = min(columns.inputs - column, TILE);
    Functor::apply<TILE>(p.pointwise, Functor::cursor(p.pointwise, position), column, valid, values);
  }
}
