// What the kernels of a recurrent step share: where rows lie, which of them there are, and the walk of a block.
//
// Rows of a tensor over steps are (step t, sequence b, direction d); t of direction 1 runs backwards. A sequence has its
// first `length` steps. The CLUSTER blocks of a cluster compute UNITS units of COLUMNS sequences in one direction, a part of
// k each, and then a part of the cells each: blockIdx.x / CLUSTER is the tile of units, blockIdx.y of sequences, blockIdx.z
// the direction. A unit has a row of weights for each of its cell's gates.
// Launch: WARPS * 32 threads; clusters of (CLUSTER, 1, 1); dynamic shared memory Product::SHARED_BYTES. It may be a dependent launch, behind another
// kernel of the same plan at least; the one before that has ended then, so that from the second step on the weights may
// be read before the wait.
// Macros: TYPE, UNITS and COLUMNS (multiples of 8), WARPS, CLUSTER, IS_WHOLE (step_product.cuh), TENSOR_CORES, CELL (a type).

#pragma once

#include "include/numeric.cuh"
#include "include/optional.cuh"
#include "include/pointwise.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "step_product.cuh"

typedef Compute<TYPE>::Type Value;

// Elements from one step, sequence and direction to the next.
struct Rows {
  i64 step, sequence, direction;

  __device__ __forceinline__ i64 of(i32 t, u32 b, u32 d) const {
    return t * step + b * sequence + d * direction;
  }
};

// States before the first step of a sequence or behind its last one: rows of a sequence and direction.
struct Ends {
  i64 sequence, direction;

  __device__ __forceinline__ i64 of(u32 b, u32 d) const { return b * sequence + d * direction; }
};

// A sequence of the tile in one direction.
struct Sequence {
  u32 b, d;
  i32 length;  // 0 to the number of steps; -1 where there is no such sequence

  __device__ __forceinline__ bool exists() const { return length >= 0; }
  __device__ __forceinline__ bool has(i32 t) const { return t < length; }
  // The step that t follows; its neighbour in the other direction follows t.
  __device__ __forceinline__ i32 before(i32 t) const { return d ? t + 1 : t - 1; }
  __device__ __forceinline__ i32 behind(i32 t) const { return d ? t - 1 : t + 1; }
  __device__ __forceinline__ i32 first() const { return d ? length - 1 : 0; }
  __device__ __forceinline__ i32 last() const { return d ? 0 : length - 1; }
};

__device__ __forceinline__ Sequence sequence_of(const i32* lengths, u32 b, u32 d, i32 steps, u32 batch) {
  if (b >= batch) return {b, d, -1};
  return {b, d, lengths ? min(max(lengths[b], 0), steps) : steps};
}

template <class T> __device__ __forceinline__ Value read(const T* from, i64 place) {
  return from ? Value(widen(from[place])) : Value(0);
}

template <class T> __device__ __forceinline__ void write(T* to, i64 place, Value value) {
  to[place] = convert<T>(value);
}

// 1 - tanh^2 and s (1 - s) of what a function has given.
__device__ __forceinline__ Value tanh_slope_of(Value y) { return Value(1) - y * y; }
__device__ __forceinline__ Value sigmoid_slope_of(Value y) { return y * (Value(1) - y); }

// The weights of a step: rows of `depth` elements, `pitch` apart.
struct Weights {
  const TYPE* at;
  i64 direction;
  i32 pitch, depth;
};

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
