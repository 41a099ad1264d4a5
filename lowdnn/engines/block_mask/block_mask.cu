// block_mask: y[b, h, q, k] = x[b, h, q, k] where bit q / 128, k / 128 of the mask is set, otherwise minus infinity.
//
// Layouts: any strides; the mask has a byte for 8 tiles of 128 keys. X_WIDTH and Y_WIDTH: elements of an access, 0
// where
// those of a row are not neighbours.
// Block: THREADS threads, each with one of neighbouring groups of VECTOR keys, which lie in one tile; masked scores are
// not read. Shared memory: none.
// Launch: THREADS threads, ceil(groups / THREADS) blocks; a group's number counts over `axes`: batch, head, query,
// group of keys.
// Macros: X Y THREADS VECTOR X_WIDTH Y_WIDTH; INDEX: u32 up to 2^31 groups, otherwise i64.

#include "include/exponential.cuh"
#include "include/elements/transform.cuh"

constexpr int SIDE = 128;

struct Params {
  const X* x;
  const u8* mask;
  Y* y;
  i64 groups, keys;
  i64 x_strides[4], mask_strides[4], y_strides[4];
  Divider axes[4];
};

__device__ __forceinline__ i64 offset_of(const i64 (&place)[4], const i64 (&strides)[4]) {
  return place[0] * strides[0] + place[1] * strides[1] + place[2] * strides[2] + place[3] * strides[3];
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const INDEX group = INDEX(blockIdx.x) * THREADS + threadIdx.x;
  if (group >= p.groups) return;
  i64 place[4];
  digits<4>(p.axes, group, place);
  place[3] *= VECTOR;
  const i64 tile = place[3] / SIDE, of_mask[4] = {place[0], place[1], place[2] / SIDE, tile / 8};
  const bool sees = p.mask[offset_of(of_mask, p.mask_strides)] >> tile % 8 & 1;
  const int valid = clamped_count<VECTOR>(p.keys - place[3]);

  Y out[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) out[i] = convert<Y>(-INFINITE);
  if (sees) {
    X in[VECTOR];
    const X* const from = p.x + offset_of(place, p.x_strides);
    if constexpr (X_WIDTH == 0) {
      load_strided(in, from, p.x_strides[3], valid);
    } else {
      load_row<typename PathOf<X_WIDTH * sizeof(X)>::Type, X_WIDTH>(in, from, valid);
    }
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) out[i] = Moved<Y, X>::of(in[i]);
  }
  Y* const to = p.y + offset_of(place, p.y_strides);
  if constexpr (Y_WIDTH == 0) {
    store_strided(to, out, p.y_strides[3], valid);
  } else {
    store_row<Y_WIDTH>(to, out, valid);
  }
}
