// lrn_backward: the gradient of lrn_forward's x. With s = k + alpha / n * (sum of x^2 over the window of a channel)
//
//   dx = dy * s^-beta - 2 alpha beta / n * x * (sum of dy x s^(-beta - 1) over the channels whose windows contain it)
//
// Layouts: any strides; X_WIDTH, DY_WIDTH, DX_WIDTH: elements of an access along contiguous channels, 0 if they are
// strided. Block, launch and the other macros: lrn.cuh. Memory: x and dy are read once, channels of several runs again
// from the cache; dx is written once. Each run computes s and the terms that it needs itself.
// Shared memory: none.
// Macros: X DY DX (types) X_WIDTH DY_WIDTH DX_WIDTH, and those of lrn.cuh.

#include "lrn.cuh"

struct Params {
  const X* x;
  const DY* dy;
  DX* dx;
  AxisStrides x_strides, dy_strides, dx_strides;
  Value slope;  // 2 alpha beta / n
  Lrn lrn;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  i64 coordinate[5];
  if (!find_run(p.lrn, coordinate)) return;
  const i64 first = coordinate[CHANNEL_AXIS] * RUN, channels = p.lrn.channels;
  const Run<X, X_WIDTH, WINDOW - 1, WINDOW - 1> x(p.x + p.x_strides.of(coordinate), p.x_strides.channel, first,
                                                  channels);
  const Run<DY, DY_WIDTH, AFTER, BEFORE> dy(p.dy + p.dy_strides.of(coordinate), p.dy_strides.channel, first, channels);

  // The terms of the channels whose windows contain one of the run; term i is AFTER channels before channel i of the
  // run.
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
  store_run<DX_WIDTH>(p.dx + p.dx_strides.of(coordinate), p.dx_strides.channel, first, channels, dx);
}
