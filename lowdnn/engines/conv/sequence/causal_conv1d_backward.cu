// causal_conv1d_backward: the gradients of a causal convolution (causal_conv1d.cu) with at most POSITIONS taps,
//
//     g = dy, or dy * silu'(z) (HAS_SILU), with z[l] = bias + sum over q < taps of w[taps - 1 - q] * x[l - q]
//     dx[l] = sum over q < taps of w[taps - 1 - q] * g[l + q]
//     parts: sums over l of g[l] * x[l - q], as row taps - 1 - q, and of g[l], as row taps
//
// Layouts: x, dy and dx have any strides; parts [part][taps + 1][channel] of COMPUTE, a part being the sums of a block in
// one batch.
// Thread: `run` tiles (sequence_tile.cuh), from the last to the first. It needs g of the taps - 1 positions after a tile:
// its own of the tile before, where ALONG_CHANNELS is 1, otherwise those of the next lane. They come by shuffles, from the
// first lane to the last one with a delay of one tile. Before the last tile, g of the positions after it is computed
// too, so x and dy of taps - 1 positions in each run are read twice. The loads of a tile are issued before the one
// before it is computed.
// Shared memory: (taps + 1) * THREADS * CHANNELS sums where ALONG_CHANNELS is 1.
// Launch: THREADS threads; one block for each of the digits of place_of(); it may be a dependent launch
// (dependent_launch.cuh).
// Macros: X W BIAS DY DX COMPUTE (types) INDEX SEQUENCES HAS_STATES SLOT HAS_SLOTS HAS_BIAS HAS_SILU TAPS THREADS
// LANES CHANNELS ALONG_CHANNELS X_WIDTH DY_WIDTH DX_WIDTH.

#include "include/ptx/dependent_launch.cuh"
#include "sequence_bounds.cuh"
#include "sequence_sums.cuh"
#include "silu.cuh"

constexpr int BEYOND = TAPS > 1 ? TAPS - 1 : 1;  // positions after a tile whose g it needs; without any, one for arrays

struct Params {
  const X* x;
  const W* w;
  const BIAS* bias;
  const DY* dy;
  DX* dx;
  Value* parts;
  Sequences sequences;
  Shape shape;
  Strides x_strides, dy_strides, dx_strides;
  i64 w_strides[2], bias_stride;
  i64 run;
};

typedef Value Gradients[POSITIONS][CHANNELS];
typedef Value Beyond[BEYOND][CHANNELS];
typedef Value Sums[TAPS + 1][CHANNELS];  // row q: of taps - 1 - q; then that of g

// The filter of a thread's channels, by q.
struct Filter {
  Value weights[TAPS][CHANNELS], bias[CHANNELS];

  __device__ __forceinline__ void load(const Params& p, const Place& place) {
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      const i64 channel = place.exists ? place.channel + c : 0;
      bias[c] = HAS_BIAS ? convert<Value>(p.bias[channel * p.bias_stride]) : Value(0);
#pragma unroll
      for (int q = 0; q < TAPS; ++q) {
        weights[q][c] = convert<Value>(p.w[channel * p.w_strides[0] + (TAPS - 1 - q) * p.w_strides[1]]);
      }
    }
  }
};

// The positions of a tile from `first` on, and those of all sequences of its batch.
struct Extent {
  i32 first, begin, end;

  // Whether position i of the tile, or of those after it, is there; WHOLE: all of the tile are.
  template <bool WHOLE> __device__ __forceinline__ bool has(int i) const {
    return (WHOLE && i < POSITIONS) || (first + i >= begin && first + i < end);
  }
  __device__ __forceinline__ bool is_whole() const { return first >= begin && first + POSITIONS <= end; }
};

// The operands of a tile: x of it and of the tile before it, and dy.
struct Operands {
  Packed<X> near, far;
  Packed<DY> dy;

  // row, dy_row: these lead to position 0 of the thread's channel.
  __device__ __forceinline__ void load(
      const Params& p, const X* row, const DY* dy_row, i32 first, i32 begin, i32 end) {
    if constexpr (!ALONG_CHANNELS && X_WIDTH > 0 && DY_WIDTH > 0) {
      if (first >= begin + (TAPS > 1 ? POSITIONS : 0) && first + POSITIONS <= end) {
        near.template load_line<X_WIDTH>(row + first);
        if (TAPS > 1) far.template load_line<X_WIDTH>(row + first - POSITIONS);
        dy.template load_line<DY_WIDTH>(dy_row + first);
        return;
      }
    }
    load_tile<X_WIDTH>(near, row, p.x_strides, first, begin, end);
    if (TAPS > 1) load_tile<X_WIDTH>(far, row, p.x_strides, first - POSITIONS, begin, end);
    load_tile<DY_WIDTH>(dy, dy_row, p.dy_strides, first, begin, end);
  }

  // The sample `back` positions before position i, of the same sequence.
  __device__ __forceinline__ Value sample(
      const Params& p, const Place& place, const TileBounds& bounds, int i, int back, int c) const {
    X found = picked<false>(near, far, i, back, c);
    if constexpr (HAS_BOUNDS) {
      const i32 room = bounds.before[i];
      if (back > room) {
        found = X{};
        if (HAS_STATES && room >= 0) {
          found = p.sequences.state(bounds.sequence[i], place.channel + c, TAPS - 1 + room - back);
        }
      }
    }
    return convert<Value>(found);
  }
};

// g of the tile's positions; 0 where there are none.
template <bool WHOLE>
__device__ __forceinline__ void differentiate(
    const Params& p, const Place& place, const Operands& operands, const TileBounds& bounds, const Extent& extent,
    const Filter& filter, Gradients& g) {
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      Value slope = 1;
      if constexpr (HAS_SILU) {
        Value z = filter.bias[c];
#pragma unroll
        for (int q = 0; q < TAPS; ++q) z += filter.weights[q][c] * operands.sample(p, place, bounds, i, q, c);
        slope = silu_slope(z);
      }
      g[i][c] = extent.has<WHOLE>(i) ? convert<Value>(operands.dy(i, c)) * slope : Value(0);
    }
  }
}

// g of the positions after the tile, from those of the tile and of the one that was computed before.
__device__ __forceinline__ void fetch_beyond(const Gradients& g, Beyond& previous, Beyond& beyond) {
#pragma unroll
  for (int i = 0; i < TAPS - 1; ++i) {
    if constexpr (ALONG_CHANNELS) {
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        beyond[i][c] = previous[i][c];
        previous[i][c] = g[i][c];
      }
    } else {
      const u32 lane = threadIdx.x % LANES;
      beyond[i][0] = __shfl_sync(~0u, lane == 0 ? previous[i][0] : g[i][0], (lane + 1) % LANES, LANES);
      previous[i][0] = g[i][0];
    }
  }
}

// dx of the tile, and what it adds to the sums. A term that is not there is left out, since 0 times NaN is not 0.
template <bool WHOLE>
__device__ __forceinline__ void multiply(
    const Params& p, const Place& place, const Operands& operands, const TileBounds& bounds, const Extent& extent,
    const Filter& filter, const Gradients& g, const Beyond& beyond, Sums& sums, DX (&results)[POSITIONS][CHANNELS]) {
#pragma unroll
  for (int i = 0; i < POSITIONS; ++i) {
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      Value dx = 0;
#pragma unroll
      for (int q = 0; q < TAPS; ++q) {
        const Value after = i + q < POSITIONS ? g[(i + q) % POSITIONS][c] : beyond[(i + q) % POSITIONS][c];
        const bool follows = HAS_OFFSETS ? q <= bounds.after[i] : extent.has<WHOLE>(i + q);
        dx += follows ? filter.weights[q][c] * after : Value(0);
        const Value sample = operands.sample(p, place, bounds, i, q, c);
        sums[q][c] += extent.has<WHOLE>(i) ? g[i][c] * sample : Value(0);
      }
      sums[TAPS][c] += g[i][c];
      results[i][c] = convert<DX>(dx);
    }
  }
}

extern "C" __global__ void KERNEL_BOUNDS KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Value shared[ALONG_CHANNELS ? (TAPS + 1) * THREADS * CHANNELS : 1];
  const Place place = place_of(p.shape);
  const i32 run = i32(p.run), length = p.shape.length;
  const i32 unit_begin = i32(place.unit) * run * SPAN, unit_end = min(length, unit_begin + run * SPAN);
  wait_for_previous_kernel();
  allow_next_kernel();
  i32 begin = 0, end = 0;
  if (place.exists) p.sequences.batch_range(place.batch, begin, end);
  end = min(end, unit_end + TAPS - 1);
  Filter filter;
  filter.load(p, place);

  // One more tile than the run has, where positions follow it.
  i32 tile = (min(length, unit_end + TAPS - 1) - unit_begin + SPAN - 1) / SPAN - 1;
  const X* const x = row_at(p.x, p.x_strides, place);
  const DY* const dy = row_at(p.dy, p.dy_strides, place);
  DX* const dx = row_at(p.dx, p.dx_strides, place);
  Operands next;
  if (tile >= 0) next.load(p, x, dy, place.first(tile, run), begin, end);
  Beyond previous = {}, beyond = {};
  Sums sums = {};
  for (; tile >= 0; --tile) {
    const Operands operands = next;
    const Extent extent = {place.first(tile, run), begin, end};
    if (tile > 0) next.load(p, x, dy, extent.first - SPAN, begin, end);
    TileBounds bounds;
    bounds.find(p.sequences, place.batch, extent.first, begin, end);

    Gradients g;
    if (extent.is_whole()) {
      differentiate<true>(p, place, operands, bounds, extent, filter, g);
    } else {
      differentiate<false>(p, place, operands, bounds, extent, filter, g);
    }
    fetch_beyond(g, previous, beyond);
    if (tile >= run) continue;

    DX results[POSITIONS][CHANNELS];
    if (extent.is_whole()) {
      multiply<true>(p, place, operands, bounds, extent, filter, g, beyond, sums, results);
    } else {
      multiply<false>(p, place, operands, bounds, extent, filter, g, beyond, sums, results);
    }
    if (place.exists) store_tile<DX_WIDTH>(dx, results, p.dx_strides, extent.first, unit_end);
  }
  store_sums(p.parts, p.shape, place, sums, TAPS + 1, shared, [](i32 q) { return q < TAPS ? TAPS - 1 - q : TAPS; });
}
