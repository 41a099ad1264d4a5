// lrn_forward: y = x * (k + alpha / n * sum of x^2 over a window of n channels)^-beta; see ops/lrn.py.
//
// Layouts: any strides; X_WIDTH and Y_WIDTH: elements of an access along contiguous channels, 0 if they are strided.
// Block, launch and the other macros: lrn.cuh. Memory: x is read once, channels of several runs again from the cache; y
// is written once.
// Shared memory: none.
// Macros: X Y (types) X_WIDTH Y_WIDTH, and those of lrn.cuh.

#include "lrn.cuh"

struct Params {
  const X* x;
  Y* y;
  AxisStrides x_strides, y_strides;
  Lrn lrn;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  i64 coordinate[5];
  if (!find_run(p.lrn, coordinate)) return;
  const i64 first = coordinate[CHANNEL_AXIS] * RUN, channels = p.lrn.channels;
  const Run<X, X_WIDTH, BEFORE, AFTER> x(p.x + p.x_strides.of(coordinate), p.x_strides.channel, first, channels);

  Value y[RUN];
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    y[i] = x.values[BEFORE + i] * power<Y>(scale_of(p.lrn, x.values, i), p.lrn.exponent);
  }
  store_run<Y_WIDTH>(p.y + p.y_strides.of(coordinate), p.y_strides.channel, first, channels, y);
}
