// lrn_backward: the gradient of lrn_forward's x; with s = k + alpha / n * (sum of x^2 over the window of a channel)
//   dx = dy * s^-beta - 2 alpha beta / n * x * (sum of dy x s^(-beta - 1) over the channels whose windows hold it)
//
// Layouts: any strides; X_WIDTH, DY_WIDTH, DX_WIDTH: elements of an access along contiguous channels, 0 where they are
// not. Block, launch and the other macros: lrn.cuh. Memory: x and dy are read once, the channels that runs share from
// the cache again; dx is written once. s and the terms of the sum are computed again by each run that they reach.
// Shared memory: none.
// Macros: X DY DX (types) X_WIDTH DY_WIDTH DX_WIDTH, and those of lrn.cuh.

#include "lrn.cuh"

struct Params {
  const X* x;
  const DY* dy;
  DX* dx;
  Places x_places, dy_places, dx_places;
  Value slope;  // 2 alpha beta / n
  Lrn lrn;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  i64 place[5];
  if (!find_run(p.lrn, place)) return;
  const i64 first = place[CHANNEL_AXIS] * RUN, channels = p.lrn.channels;
  const Run<X, X_WIDTH, WINDOW - 1, WINDOW - 1> x(p.x + p.x_places.of(place), p.x_places.channel, first, channels);
  const Run<DY, DY_WIDTH, AFTER, BEFORE> dy(p.dy + p.dy_places.of(place), p.dy_places.channel, first, channels);

  // Terms of the channels whose windows hold one of the run: the i-th is AFTER before the i-th of the run.
  Value terms[AFTER + RUN + BEFORE], dx[RUN];
#pragma unroll
  for (int i = 0; i < AFTER + RUN + BEFORE; ++i) {
    const Value scale = scale_of(p.lrn, x.values, i), factor = power<DX>(scale, p.lrn.exponent);
    const Value scaled = dy.values[i] * factor;
    terms[i] = scaled * x.values[BEFORE + i] / scale;
    if (i >= AFTER && i < AFTER + RUN) dx[i - AFTER] = scaled;
  }
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    Value sum = 0;
#pragma unroll
    for (int j = 0; j < WINDOW; ++j) sum += terms[i + j];
    dx[i] -= p.slope * x.values[WINDOW - 1 + i] * sum;
  }
  store_run<DX_WIDTH>(p.dx + p.dx_places.of(place), p.dx_places.channel, first, channels, dx);
}
