// divisive_backward: the gradients of divisive_forward's x and means in one kernel, for windows whose reach fits shared
// memory twice; see ops/divisive_normalization.py.
//
// Layouts: any strides, as divisive_forward. Block, launch and the other macros: divisive.cuh, divisive_gradient.cuh.
// Shared memory: two boxes of the tile and twice its windows' reach, first for the squares and then for dy s^-beta and
// the terms; one box of the tile and its windows' reach.
// Macros: DY (type), and those of divisive_gradient.cuh.

#include "divisive_gradient.cuh"

struct Params {
  Source source;
  const DY* dy;
  Strides dy_strides;
  Gradients gradients;
  Divisive shape;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  constexpr int D = TILE_D + REACH_D, H = TILE_H + REACH, W = TILE_W + REACH;
  constexpr int WHOLE = elements(D + REACH_D, H + REACH, W + REACH);
  extern __shared__ __align__(16) u8 memory[];
  Value* const first = reinterpret_cast<Value*>(memory);
  Value *const second = first + WHOLE, *const third = second + WHOLE;
  const Position tile = first_position(p.shape);

  p.source.load_squares<D + REACH_D, H + REACH, W + REACH>(first, p.shape, tile, REACH_D, REACH);
  Value* const scaled = window_sums<D, H, W>(first, second);
  Value* const terms = scaled == first ? second : first;
  for_box<D, H, W>(p.shape, tile, AFTER_D, AFTER, [&](int number, const Element& e) {
    Terms found = {0, 0};
    if (e.exists) {
      const Value dy = convert<Value>(p.dy[p.dy_strides.of(e.at)]);
      found = Terms::of<DX>(p.shape, p.source.value(e.at), dy, scaled[number]);
    }
    scaled[number] = found.scaled;
    terms[number] = found.term;
  });
  __syncthreads();

  const Value* const sums = window_sums<TILE_D, TILE_H, TILE_W>(terms, third);
  for_box<TILE_D, TILE_H, TILE_W>(p.shape, tile, 0, 0, [&](int number, const Element& e) {
    const int own = (((e.d + AFTER_D) * H + e.h + AFTER) * W + e.w + AFTER) * TILE_C + e.c;
    if (e.exists) p.gradients.store(p.source, e.at, scaled[own], sums[number]);
  });
}
