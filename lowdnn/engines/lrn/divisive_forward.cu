// divisive_forward: y = x * (k + alpha / n^SPATIAL * sum of (x - means)^2 over a window of n positions along each
// spatial axis)^-beta; see ops/divisive_normalization.py.
//
// Layouts: any strides; consecutive threads have consecutive w, or consecutive channels if TILE_C > 1. Block, launch
// and the other macros: divisive.cuh.
// Shared memory: two boxes of the tile and its windows' reach.
// Macros: Y (type), and those of divisive.cuh.

#include "divisive.cuh"

struct Params {
  Source source;
  Y* y;
  Strides y_strides;
  Divisive shape;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  constexpr int D = TILE_D + REACH_D, H = TILE_H + REACH, W = TILE_W + REACH;
  extern __shared__ __align__(16) u8 memory[];
  Value* const box = reinterpret_cast<Value*>(memory);
  const Position tile = first_position(p.shape);

  p.source.load_squares<D, H, W>(box, p.shape, tile, BEFORE_D, BEFORE);
  const Value* const sums = window_sums<TILE_D, TILE_H, TILE_W>(box, box + elements(D, H, W));
  for_box<TILE_D, TILE_H, TILE_W>(p.shape, tile, 0, 0, [&](int number, const Element& e) {
    if (!e.exists) return;
    const Value factor = power<Y>(p.shape.k + p.shape.scale * sums[number], p.shape.exponent);
    p.y[p.y_strides.of(e.at)] = convert<Y>(p.source.value(e.at) * factor);
  });
}
