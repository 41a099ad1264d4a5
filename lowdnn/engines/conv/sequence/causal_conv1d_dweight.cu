// causal_conv1d_dweight: parts of the filters' gradients of a causal convolution with many taps,
//
//     parts: sums over l of g[l] * x[l - q], as row taps - 1 - q, and of g[l], as row taps
//
// g: dy where the convolution has no activation, otherwise dy times its derivative.
//
// Layouts: x and g have any strides; parts [part][taps + 1][channel] of COMPUTE, a part being the sums of a block in one
// batch.
// Thread: `run` tiles (sequence_tile.cuh), and the POSITIONS taps from blockIdx.y * POSITIONS on. It reads g, and the two
// tiles of x that lie so many positions before it; blocks of other taps read the same from L2.
// Shared memory: (POSITIONS + 1) * THREADS * CHANNELS sums where ALONG_CHANNELS is 1.
// Launch: THREADS threads; blocks (the digits of place_of(), ceil(taps / POSITIONS)).
// Macros: X G COMPUTE (types) INDEX SEQUENCES HAS_STATES SLOT HAS_SLOTS THREADS LANES CHANNELS ALONG_CHANNELS X_WIDTH
// G_WIDTH.

#include "sequence_bounds.cuh"
#include "sequence_sums.cuh"

struct Params {
  const X* x;
  const G* g;
  Value* parts;
  Sequences sequences;
  Shape shape;
  Strides x_strides, g_strides;
  i64 run, taps;
};

extern "C" __global__ void KERNEL_BOUNDS KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Value shared[ALONG_CHANNELS ? (POSITIONS + 1) * THREADS * CHANNELS : 1];
  const Place place = place_of(p.shape);
  const i32 run = i32(p.run), taps = i32(p.taps), chunk = blockIdx.y * POSITIONS;
  i32 begin = 0, end = 0;
  if (place.exists) p.sequences.batch_range(place.batch, begin, end);
  const X* const x = row_at(p.x, p.x_strides, place);
  const G* const g_row = row_at(p.g, p.g_strides, place);

  Value sums[POSITIONS + 1][CHANNELS] = {};
  for (i32 tile = 0; tile < run; ++tile) {
    const i32 first = place.first(tile, run);
    if (first >= end) break;
    Packed<X> near, far;
    Packed<G> g;
    load_tile<X_WIDTH>(near, x, p.x_strides, first - chunk, begin, end);
    load_tile<X_WIDTH>(far, x, p.x_strides, first - chunk - POSITIONS, begin, end);
    load_tile<G_WIDTH>(g, g_row, p.g_strides, first, begin, end);
    TileBounds bounds;
    bounds.find(p.sequences, place.batch, first, begin, end);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) {
      // A term that is not there is left out, since 0 times NaN is not 0.
      if (!HAS_BOUNDS && (first + i < begin || first + i >= end)) continue;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        const Value value = convert<Value>(g(i, c));
#pragma unroll
        for (int q = 0; q < POSITIONS; ++q) {
          X sample = picked<false>(near, far, i, q, c);
          if constexpr (HAS_BOUNDS) {
            const i32 room = bounds.before[i], back = chunk + q;
            if (back > room) {
              sample = X{};
              if (HAS_STATES && room >= 0 && back < taps) {
                sample = p.sequences.state(bounds.sequence[i], place.channel + c, taps - 1 + room - back);
              }
            }
          }
          sums[q][c] += value * convert<Value>(sample);
        }
        sums[POSITIONS][c] += value;
      }
    }
  }
  store_sums(p.parts, p.shape, place, sums, taps + 1, shared, [=](i32 q) {
    return q < POSITIONS ? (chunk + q < taps ? taps - 1 - chunk - q : -1) : (chunk == 0 ? taps : -1);
  });
}
