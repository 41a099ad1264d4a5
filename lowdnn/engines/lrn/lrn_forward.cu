// lrn_forward: y = x * (k + alpha / n * sum of x^2 over a window of n channels)^-beta; see ops/lrn.py.
//
// Layouts: any strides; X_WIDTH and Y_WIDTH: elements of an access along contiguous channels, 0 where they are not.
// Block, launch and the other macros: lrn.cuh. Memory: x is read once, the channels that runs share from the cache
// again; y is written once. Shared memory: none.
// Macros: X Y (types) X_WIDTH Y_WIDTH, and those of lrn.cuh.

#include "lrn.cuh"

struct Params {
  const X* x;
  Y* y;
  Places x_places, y_places;
  Lrn lrn;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  i64 place[5];
  if (!find_run(p.lrn, place)) return;
  const i64 first = place[CHANNEL_AXIS] * RUN, channels = p.lrn.channels;
  const Run<X, X_WIDTH, BEFORE, AFTER> x(p.x + p.x_places.of(place), p.x_places.channel, first, channels);

  Value y[RUN];
#pragma unroll
  for (int i = 0; i < RUN; ++i) {
    y[i] = x.values[BEFORE + i] * power<Y>(scale_of(p.lrn, x.values, i), p.lrn.exponent);
  }
  store_run<Y_WIDTH>(p.y + p.y_places.of(place), p.y_places.channel, first, channels, y);
}
