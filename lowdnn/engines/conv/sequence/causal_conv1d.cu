// causal_conv1d: a causal convolution along sequences, one filter for each channel,
//
//     z[b, d, l] = bias[d] + sum over q < taps of w[d, taps - 1 - q] * x[b, d, l - q]
//     y = z, silu(z) (ACTIVATION 1), or dy * silu'(z) (ACTIVATION 2)
//
// and, where ADJOINT is 1, the same sum of x[b, d, l + q]. Samples before a sequence are its states, or 0; those after
// it are 0. y is 0 outside of the sequences (sequence_bounds.cuh).
//
// Layouts: x, dy and y have any strides; accesses are wide along the axis of the lanes.
// Thread: TILES tiles (sequence_tile.cuh). It loads all of them, and the tile before each one, which another thread has
// loaded too: that comes from L1. Filters of more taps than POSITIONS (TAPS 0) are added in chunks of POSITIONS taps,
// each of which needs one more tile.
// Shared memory: none.
// Launch: THREADS threads; one block for each of the digits of place_of().
// Macros: X W BIAS DY Y COMPUTE (types) INDEX SEQUENCES HAS_STATES SLOT HAS_SLOTS HAS_BIAS TAPS ADJOINT ACTIVATION TILES
// THREADS LANES CHANNELS ALONG_CHANNELS X_WIDTH DY_WIDTH Y_WIDTH.

#include "include/pointwise.cuh"
#include "sequence_bounds.cuh"
#include "silu.cuh"

constexpr int CHUNK = TAPS ? TAPS : POSITIONS;  // taps at a time

struct Params {
  const X* x;
  const W* w;
  const BIAS* bias;
  const DY* dy;
  Y* y;
  Sequences sequences;
  Shape shape;
  Strides x_strides, dy_strides, y_strides;
  i64 w_strides[2], bias_stride;
  i64 taps;
};

typedef Packed<X> Tile;
typedef Value Sums[POSITIONS][CHANNELS];

// Adds the taps from `chunk` on. left: positions of the batch from the tile's first on.
__device__ __forceinline__ void add_chunk(
    const Params& p, const Place& place, i32 chunk, i32 taps, const Value (&weights)[CHUNK][CHANNELS], const Tile& near,
    const Tile& far, const TileBounds& bounds, i32 left, Sums& sums) {
#pragma unroll
  for (int q = 0; q < CHUNK; ++q) {
    if (chunk + q >= taps) break;
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) {
      // Samples after a sequence are not there; as zeros, they could become NaN by the weight.
      if (ADJOINT && chunk + q > (HAS_BOUNDS ? bounds.after[i] : left - 1 - i)) continue;
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        X sample = picked<ADJOINT>(near, far, i, q, c);
        if constexpr (HAS_BOUNDS && !ADJOINT) {
          const i32 room = bounds.before[i];
          if (chunk + q > room) {
            sample = X{};
            if (HAS_STATES && room >= 0) {
              sample = p.sequences.state(bounds.sequence[i], place.channel + c, i32(taps) - 1 + room - chunk - q);
            }
          }
        }
        sums[i][c] += weights[q][c] * convert<Value>(sample);
      }
    }
  }
}

// y of a tile from its sums.
__device__ __forceinline__ void finish(
    const Params& p, const Place& place, const TileBounds& bounds, i32 first, i32 begin, i32 end, Sums& sums) {
  Packed<DY> dy;
  if constexpr (ACTIVATION == 2) {
    load_tile<DY_WIDTH>(dy, row_at(p.dy, p.dy_strides, place), p.dy_strides, first, begin, end);
  }
  Y results[POSITIONS][CHANNELS];
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
    bool exists = SEQUENCES == 0 || (first + i >= begin && first + i < end);  // positions of no batch are not stored
    if constexpr (HAS_SLOTS) exists = bounds.before[i] >= 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      Value value = sums[i][c];
      if constexpr (ACTIVATION == 1) value = silu(value);
      if constexpr (ACTIVATION == 2) value = convert<Value>(dy(i, c)) * silu_slope(value);
      results[i][c] = convert<Y>(exists ? value : Value(0));
    }
  }
  store_tile<Y_WIDTH>(row_at(p.y, p.y_strides, place), results, p.y_strides, first, p.shape.length);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const Place place = place_of(p.shape);
  if (!place.exists) return;
  constexpr i32 STEP = ADJOINT ? POSITIONS : -POSITIONS;
  const i32 taps = TAPS ? TAPS : i32(p.taps);
  const X* const x = row_at(p.x, p.x_strides, place);
  i32 begin, end;
  p.sequences.batch_range(place.batch, begin, end);

  Tile near[TILES], far[TILES];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    const i32 first = place.first(t, TILES);
    load_tile<X_WIDTH>(near[t], x, p.x_strides, first, begin, end);
    if (taps > 1) load_tile<X_WIDTH>(far[t], x, p.x_strides, first + STEP, begin, end);
  }
  TileBounds bounds[TILES];
  Sums sums[TILES];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    bounds[t].find(p.sequences, place.batch, place.first(t, TILES), begin, end);
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      const Value bias = HAS_BIAS ? convert<Value>(p.bias[(place.channel + c) * p.bias_stride]) : Value(0);
#pragma unroll
      for (int i = 0; i < POSITIONS; ++i) sums[t][i][c] = bias;
    }
  }

  for (i32 chunk = 0; chunk < taps; chunk += CHUNK) {
    Value weights[CHUNK][CHANNELS];
#pragma unroll
    for (int q = 0; q < CHUNK; ++q) {
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        const i64 at = (place.channel + c) * p.w_strides[0] + (taps - 1 - chunk - q) * p.w_strides[1];
        weights[q][c] = chunk + q < taps ? convert<Value>(p.w[at]) : Value(0);
      }
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      add_chunk(p, place, chunk, taps, weights, near[t], far[t], bounds[t], end - place.first(t, TILES), sums[t]);
      if constexpr (TAPS == 0) {
        near[t] = far[t];
        const i32 next = place.first(t, TILES) + (chunk / POSITIONS + 2) * STEP;
        load_tile<X_WIDTH>(far[t], x, p.x_strides, next, begin, end);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    finish(p, place, bounds[t], place.first(t, TILES), begin, end, sums[t]);
  }
}
