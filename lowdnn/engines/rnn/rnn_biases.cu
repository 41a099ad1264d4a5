// rnn_biases: gradients of the biases of all pseudo-layers from the sums of their gate gradients over all rows:
//
//   d bias(layer, side, row) = [d bias +] sums(layer, row + shift of the side, from the row `shifted` on)
//
// Layouts: sums (layer, sum_pitch); biases (layer, side, rows), contiguous. Side 0 is not shifted; the other one of a
// GRU takes its last gate from a block of its own.
// Block: THREADS rows of all sides of layer blockIdx.y. Launch: THREADS threads; no dynamic shared memory. It may be a
// dependent launch.
// Macros: TYPE, ADDS, THREADS.

#include "include/numeric.cuh"
#include "include/ptx/dependent_launch.cuh"

typedef Compute<TYPE>::Type Value;

struct Params {
  const Value* sums;
  TYPE* biases;
  i32 rows, sum_pitch;
  i32 count;             // biases of a layer
  i32 unshifted;         // biases of a layer before the shifted side
  i32 shifted, shift;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  wait_for_previous_kernel();
  allow_next_kernel();
  const i32 place = blockIdx.x * THREADS + threadIdx.x;
  if (place >= p.count) return;
  const i32 row = place % p.rows, from = place >= p.unshifted && row >= p.shifted ? row + p.shift : row;
  TYPE* const bias = p.biases + i64(blockIdx.y) * p.count + place;
  Value sum = p.sums[i64(blockIdx.y) * p.sum_pitch + from];
  if constexpr (ADDS) sum += Value(widen(*bias));
  *bias = convert<TYPE>(sum);
}
