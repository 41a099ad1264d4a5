// ragged_move: with first[b] = multiplier * offsets[b] elements, rows[b] = min(S, (first[b + 1] - first[b]) / row stride),
//
//   load:   padded[b, h, s, d] = packed[first[b] + (h, s, d)] where s < rows[b], otherwise 0
//   store:  packed[first[b] + (h, s, d)] = padded[b, h, s, d] where s < rows[b]
//
// Layouts: any strides; the packed tensor has strides of heads, rows and elements. Rows are cut into groups of VECTOR
// elements, one for each thread. A thread accesses ACCESS elements at once; 0: elements are strided and accessed one by
// one.
// Block: THREADS threads on neighbouring groups. Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks; a group's number counts over (batch, head, row, group in the
// row).
// Macros: TYPE OFFSET_TYPE IS_STORE VECTOR ACCESS THREADS; INDEX: type of a group's number, u32 up to 2^31 groups,
// otherwise i64.

#include "include/math/division.cuh"
#include "include/vector.cuh"

typedef TYPE T;

struct Params {
  T* packed;
  T* padded;
  const OFFSET_TYPE* offsets;
  i64 groups, size;
  i64 packed_strides[3];  // the strides of a head, a row and an element
  i64 padded_strides[4];
  i64 offset_stride, multiplier;
  Divider axes[4];  // radices of (batch, head, row, group); that of batches is not used
};

__device__ __forceinline__ void read(T (&values)[VECTOR], const T* from, i64 stride, int valid) {
  if constexpr (ACCESS == 0) load_strided(values, from, stride, valid);
  else load_row<Plain, ACCESS>(values, from, valid);
}

__device__ __forceinline__ void write(T* to, const T (&values)[VECTOR], i64 stride, int valid) {
  if constexpr (ACCESS == 0) store_strided(to, values, stride, valid);
  else store_row<ACCESS>(to, values, valid);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;
  i64 coordinate[4];
  digits<4>(p.axes, INDEX(group), coordinate);
  const i64 batch = coordinate[0], head = coordinate[1], row = coordinate[2], column = coordinate[3] * VECTOR;
  const i64 remaining = p.size - column;
  const int valid = remaining >= VECTOR ? VECTOR : int(remaining);

  const OFFSET_TYPE* const offset = p.offsets + batch * p.offset_stride;
  const i64 first = p.multiplier * offset[0], end = p.multiplier * offset[p.offset_stride];
  const bool exists = (row + 1) * p.packed_strides[1] <= end - first;
  T* const packed = p.packed + first + head * p.packed_strides[0] + row * p.packed_strides[1] + column * p.packed_strides[2];
  T* const padded = p.padded + batch * p.padded_strides[0] + head * p.padded_strides[1] + row * p.padded_strides[2] +
                    column * p.padded_strides[3];
  T values[VECTOR] = {};
  if constexpr (IS_STORE) {
    if (!exists) return;
    read(values, padded, p.padded_strides[3], valid);
    write(packed, values, p.packed_strides[2], valid);
  } else {
    if (exists) read(values, packed, p.packed_strides[2], valid);
    write(padded, values, p.padded_strides[3], valid);
  }
}
