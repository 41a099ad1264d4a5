// conv_fft_targets: windows of a convolution's result from their spectra, through the epilogue:
//     target[o] = epilogue(value o of the window that has the spectrum),    o < step along each axis
//
// The spectrum is given (FUSED 0), or it is that of a window of the source times the filter's (FUSED 1), which convolves
// the two, or correlates them if the filter's is a conjugate. Then both transforms are done in the block, and nothing
// between source and target goes through device memory. Spectra of filters have the factor 1 / POINTS.
// Layouts: source and target have any strides. A line of the target is a pair of a row and a map; these are n and
// channel, or in a filter gradient (SWAPPED) c and k.
// Block: the lines of BlockLines, one window of each; blockIdx.x = tile of lines * windows + window.
// Shared memory (dynamic): the block's lines of real_transform.cuh.
// Launch: a thread for each butterfly, at most 512; it may be a dependent launch.
// Macros: POINTS SPATIAL (windows.cuh) FUSED SWAPPED; HALF: as in windows.cuh, of source and target; X_TYPE: the
// source's type if FUSED; SPACED: 1 if elements of the target are farther apart than one position.

#include "include/optional.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "windows.cuh"
#include "generated.cuh"

// One axis of the target. Window w has positions w * step - offset and on; its elements are at every spacing-th position.
struct TargetAxis {
  i32 step, offset, elements;
  Divider spacing;
};

// Which lines follow each other: those of a row, or those of a map, which share a filter.
struct LineOrder {
  Divider inner;  // lines of a row, or of a map
  i32 rows_are_inner;
};

struct Targets {
  BlockLines block;
  const Complex* spectra;  // FUSED: the filters' spectra; otherwise the target's
  Divider count;           // windows of a line
  Divider counts[SPATIAL];
  Divider extents[SPATIAL];  // a window's
  TargetAxis axes[SPATIAL];
  LineOrder order;
  i32 lines;
  Functor::Args epilogue;
};

// A line of the target and one of its windows.
struct Place {
  u32 row, map;
  i32 positions[SPATIAL];
};

__device__ __forceinline__ Place place_of(const Targets& p, u32 number, u32 window) {
  Place place = {};
  digits<SPATIAL>(p.counts, window, place.positions);
  const u32 outer = p.order.inner.divide(number), inner = number - outer * p.order.inner.divisor;
  place.row = p.order.rows_are_inner ? inner : outer;
  place.map = p.order.rows_are_inner ? outer : inner;
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) place.positions[s] = place.positions[s] * p.axes[s].step - p.axes[s].offset;
  return place;
}

struct Source {
  Windows<X_TYPE, false> source;
  Divider channel_maps;  // maps of one channel of the source

  // The passes of the source's transform but the last one.
  __device__ __forceinline__ void split(const BlockLines& block, const Place& place, u32 window, Complex* line) const {
    i32 positions[SPATIAL];
    source.begin(window, positions);
    source.split(source.line(place.row, channel_maps.divide(place.map)), positions, block.butterfly(), line);
    block.split_between<Line::passes()>(line);
  }
};

struct NoSource {
  __device__ __forceinline__ void split(const BlockLines&, const Place&, u32, Complex*) const {}
};

struct Params : Targets, Either<FUSED, Source, NoSource>::Type {};

// Hands value `number` of a window to the epilogue if it is an element of the target.
__device__ __forceinline__ void finish(const Params& p, const Place& place, u32 number, f32 value) {
  u32 coordinates[SPATIAL];
  digits<SPATIAL>(p.extents, number, coordinates);
  i64 coordinate[SPATIAL + 2] = {SWAPPED ? place.map : place.row, SWAPPED ? place.row : place.map};
  bool exists = true;
#pragma unroll
  for (int s = 0; s < SPATIAL; ++s) {
    const TargetAxis& axis = p.axes[s];
    const u32 position = place.positions[s] + coordinates[s];
    const u32 element = SPACED ? axis.spacing.divide(position) : position;
    exists = exists && coordinates[s] < u32(axis.step) && element < u32(axis.elements);
    if (SPACED) exists = exists && element * axis.spacing.divisor == position;
    coordinate[2 + s] = element;
  }
  const f32 values[1] = {value};
  if (exists) {
    Functor::apply<1>(p.epilogue, Functor::cursor(p.epilogue, coordinate), coordinate[SPATIAL + 1], 1, values);
  }
}

// Hands the values of a butterfly after the last pass back to the epilogue, where the window has no second half.
__device__ __forceinline__ void finish_half(const Params& p, const Place& place, int butterfly,
                                            const Complex (&v)[Line::VALUES]) {
  const i64 coordinate[SPATIAL + 2] = {SWAPPED ? place.map : place.row, SWAPPED ? place.row : place.map};
  const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
  const TargetAxis& axis = p.axes[0];
  const i32 position = place.positions[0];
  const ElementRange elements(butterfly, -position, min(axis.elements - position, axis.offset + axis.step));
  const auto store = [&](bool are_all) {
#pragma unroll
    for (int k = 0; k < Line::VALUES; ++k) {
      const f32 values[1] = {v[k].x};
      if (!are_all && (k < elements.begin || k >= elements.end)) continue;
      Functor::apply<1>(p.epilogue, cursor, i64(position + butterfly) + k * Line::BUTTERFLIES, 1, values);
    }
  };
  if (elements.begin == 0 && elements.end >= Line::VALUES) store(true);  // then addresses differ by constants
  else store(false);
}

// The last pass back, to the epilogue. The place is computed anew, since registers are scarce in the passes before.
__device__ __forceinline__ void join_last(const Params& p, u32 number, u32 window, int butterfly, Complex* line) {
  const Place place = place_of(p, number, window);
  const Line::Elements<0> elements(butterfly);
  Complex v[Line::VALUES];
  elements.get(line, v);
  Line::join<0>(v, 0);
  if constexpr (HALF) return finish_half(p, place, butterfly, v);
  elements.put(line, v);  // read again, which needs fewer registers
#pragma unroll 2
  for (int k = 0; k < Line::VALUES; ++k) {
    const u32 value = butterfly + k * Line::BUTTERFLIES;
    const Complex values = line[elements.place(k)];
    finish(p, place, value, values.x);
    finish(p, place, value + POINTS, values.y);
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int LAST = Line::passes();
  Complex* const line = reinterpret_cast<Complex*>(shared) + p.block.line() * Line::LINE;
  const u32 tile = p.count.divide(blockIdx.x), window = blockIdx.x - tile * p.count.divisor;
  const i32 wanted = i32(tile) * p.block.count() + p.block.line(), butterfly = p.block.butterfly();
  const i32 number = min(wanted, p.lines - 1);  // lines past the last one repeat it and are not stored
  const Place place = place_of(p, number, window);
  wait_for_previous_kernel();
  allow_next_kernel();

  p.split(p.block, place, window, line);

  // The values of the target's spectrum, and the first pass back.
  const i64 spectrum = FUSED ? i64(place.map) : i64(number) * p.count.divisor + window;
  const Line::Elements<LAST> elements(butterfly);
  Complex v[Line::VALUES];
  if constexpr (FUSED) {
    elements.get(line, v);
    Line::split<LAST>(v, elements.number);
  }
#pragma unroll
  for (int k = 0; k < Line::VALUES; ++k) {
    const Complex value = p.spectra[spectrum_place(spectrum, butterfly, k)];
    v[k] = FUSED ? v[k] * value : value;
  }
  Line::join<LAST>(v, elements.number);
  elements.put(line, v);

  p.block.join_between<LAST>(line);
  if (wanted < p.lines) join_last(p, wanted, window, butterfly, line);
}
