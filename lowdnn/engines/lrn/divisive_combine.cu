// divisive_combine: the gradients of divisive_forward's x and means from the terms that divisive_terms wrote to the
// workspace.
//
// Layouts: any strides; the terms are packed. Block, launch and the other macros: divisive.cuh, divisive_gradient.cuh.
// Shared memory: two boxes of the tile and its windows' reach.

#include "divisive_gradient.cuh"

struct Params {
  Source source;
  const Value *scaled, *terms;
  Strides terms_strides;
  Gradients gradients;
  Divisive shape;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  constexpr int D = TILE_D + REACH_D, H = TILE_H + REACH, W = TILE_W + REACH;
  extern __shared__ __align__(16) u8 memory[];
  Value* const box = reinterpret_cast<Value*>(memory);
  const Position tile = first_position(p.shape);

  for_box<D, H, W>(p.shape, tile, AFTER_D, AFTER, [&](int number, const Element& e) {
    box[number] = e.exists ? p.terms[p.terms_strides.of(e.at)] : Value(0);
  });
  __syncthreads();
  const Value* const sums = window_sums<TILE_D, TILE_H, TILE_W>(box, box + elements(D, H, W));
  for_box<TILE_D, TILE_H, TILE_W>(p.shape, tile, 0, 0, [&](int number, const Element& e) {
    if (e.exists) p.gradients.store(p.source, e.at, p.scaled[p.terms_strides.of(e.at)], sums[number]);
  });
}
