// paged_cache_load: y[b, h, s, d] = container[table[b, s / P], h, s mod P, d] where s < length[b], otherwise 0.
//
// Layouts: any strides; P = 2^shift. Rows are cut into groups of VECTOR elements, which a thread moves in accesses of
// ACCESS elements, one by one where that is 0.
// Block: THREADS threads on neighbouring groups. Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks; (batch, head, row, group) are the digits of a group's number.
// Macros: TYPE LENGTH_TYPE VECTOR ACCESS THREADS INDEX: u32 up to 2^31 groups, otherwise i64.

#include "include/math/division.cuh"
#include "include/vector.cuh"

typedef TYPE T;

struct Params {
  const T* container;
  T* y;
  const i32* table;
  const LENGTH_TYPE* lengths;
  i64 groups, size;
  i64 container_strides[4], y_strides[4];
  i64 table_strides[2];  // the strides of a sequence and an entry
  i64 length_stride;
  Divider axes[4];  // the first is not used
  i32 shift;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 group = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;
  i64 coordinate[4];
  digits<4>(p.axes, INDEX(group), coordinate);
  const i64 batch = coordinate[0], head = coordinate[1], row = coordinate[2], column = coordinate[3] * VECTOR;
  const i64 remaining = p.size - column;
  const int valid = remaining >= VECTOR ? VECTOR : int(remaining);

  T values[VECTOR] = {};
  if (row < i64(p.lengths[batch * p.length_stride])) {
    const i64 page = p.table[batch * p.table_strides[0] + (row >> p.shift) * p.table_strides[1]];
    const i64 inside = row & ((i64(1) << p.shift) - 1);
    const T* from = p.container + page * p.container_strides[0] + head * p.container_strides[1] +
                    inside * p.container_strides[2] + column * p.container_strides[3];
    if constexpr (ACCESS == 0) load_strided(values, from, p.container_strides[3], valid);
    else load_row<Plain, ACCESS>(values, from, valid);
  }
  T* to = p.y + batch * p.y_strides[0] + head * p.y_strides[1] + row * p.y_strides[2] + column * p.y_strides[3];
  if constexpr (ACCESS == 0) store_strided(to, values, p.y_strides[3], valid);
  else store_row<ACCESS>(to, values, valid);
}
