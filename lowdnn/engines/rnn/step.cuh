// The walk of a block, which the kernels of a recurrent step share.
//
// The CLUSTER blocks of a cluster compute UNITS units of COLUMNS sequences in one direction, a part of k each, and then
// a part of the cells each: blockIdx.x / CLUSTER is the tile of units, blockIdx.y of sequences, blockIdx.z the
// direction. A unit has a row of weights for each of its cell's gates.
// Launch: WARPS * 32 threads; clusters of (CLUSTER, 1, 1); dynamic shared memory Product::SHARED_BYTES. It may be a
// dependent launch, behind another kernel of the same plan at least; the one before that has ended then, so that from the
// second step on the weights may be read before the wait.
// Macros: TYPE, UNITS and COLUMNS (multiples of 8), WARPS, CLUSTER, IS_WHOLE (step_product.cuh), TENSOR_CORES, CELL (a
// type).

#pragma once

#include "include/ptx/dependent_launch.cuh"
#include "sequences.cuh"
#include "step_product.cuh"

template <int GATES> struct StepTile {
  static constexpr int ROW_BLOCKS = GATES * UNITS / 8;
  typedef typename Either<TENSOR_CORES, TensorCoreSums<TYPE, ROW_BLOCKS, COLUMNS / 8>,
                          FmaSums<TYPE, ROW_BLOCKS, COLUMNS / 8>>::Type Sums;
  typedef StepProduct<Sums, WARPS, CLUSTER, IS_WHOLE> Product;
  static constexpr int THREADS = WARPS * WARP_SIZE, SHARE = UNITS * COLUMNS / CLUSTER;
  static constexpr int ELEMENTS = (SHARE + THREADS - 1) / THREADS;

  // Blocks that a multiprocessor is to have registers for: the next kernel's then find room beside this one's.
  static constexpr int RESIDENT = 8 * ROW_BLOCKS * COLUMNS * sizeof(Value) <= 2048 ? 2 : 1;

  const u32 rank = blockIdx.x % CLUSTER;
  const u32 first_unit = blockIdx.x / CLUSTER * UNITS, first_sequence = blockIdx.y * COLUMNS, direction = blockIdx.z;

  // The lines of weights that this lane reads: those of gate g of unit u at row (first_gate + g) * units + u.
  __device__ __forceinline__ void find_weights(const Product& product, const Weights& weights, u32 first_gate,
                                               u32 units, const TYPE* (&lines)[ROW_BLOCKS]) const {
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS; ++i) {
      const u32 row = product.row(i), gate = row / UNITS, unit = first_unit + row % UNITS;
      const i64 place = direction * weights.direction + (i64(first_gate + gate) * units + unit) * weights.pitch;
      lines[i] = unit < units ? weights.at + place : nullptr;
    }
  }

  // Calls visit(i, unit of the tile, sequence of the tile) for the elements of this thread.
  template <class Visit> __device__ __forceinline__ void for_each(u32 units, u32 batch, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
      const u32 place = threadIdx.x + i * THREADS, number = rank * SHARE + place;
      const u32 unit = number % UNITS, sequence = number / UNITS;
      if (place < SHARE && first_unit + unit < units && first_sequence + sequence < batch) {
        visit(i, unit, sequence);
      }
    }
  }
};
