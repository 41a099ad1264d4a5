// divisive_terms: writes dy s^-beta and dy x s^(-beta - 1) of divisive normalisation's gradient to the workspace, for
// windows whose reach fits shared memory once but not twice; see ops/divisive_normalization.py.
//
// Layouts: any strides; the terms are packed. Block, launch and the other macros: divisive.cuh, divisive_gradient.cuh.
// Shared memory: two boxes of the tile and its windows' reach.
// Macros: DY (type), and those of divisive_gradient.cuh.

#include "divisive_gradient.cuh"

struct Params {
  Source source;
  const DY* dy;
  Value *scaled, *terms;
  Strides dy_strides, terms_strides;
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
    const Value dy = convert<Value>(p.dy[p.dy_strides.of(e.at)]);
    const Terms found = Terms::of<DX>(p.shape, p.source.value(e.at), dy, sums[number]);
    p.scaled[p.terms_strides.of(e.at)] = found.scaled;
    p.terms[p.terms_strides.of(e.at)] = found.term;
  });
}
