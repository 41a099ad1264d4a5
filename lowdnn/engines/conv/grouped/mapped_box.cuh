// The boxes of pixel_box.cuh by tensor map, for swizzled positions; for sm_90a.
//
// The map has dimensions (c, w, h, d, n) and boxes of a position's channels; IN_HALVES of every second column.

#pragma once

#include "include/ptx/mbarrier.cuh"
#include "pixel_box.cuh"
#include "include/ptx/tma.cuh"

// Of a copy.
template <class Box> __device__ __forceinline__ u32 copied_bytes(const BoxGeometry& g) {
  return Box::HALVES * g.rows * g.row_places * Box::COPIED_BYTES;
}

// Copies the box of `tile`, channels from `first_channel` on, to shared address `to`, for one thread to start; the
// barrier waits for its bytes.
template <class Box>
__device__ __forceinline__ void load_box(const TensorMap& map, const BoxGeometry& g, const i32 (&tile)[1 + BOX_AXES],
                                         i32 first_channel, u32 to, u32 barrier) {
  static_assert(Box::IS_SWIZZLED, "as the map says");
  i32 at[BOX_AXES];
#pragma unroll
  for (int axis = 0; axis < BOX_AXES; ++axis) at[axis] = tile[1 + axis] * g.pace[axis] + g.origin[axis];
  const i32 image = tile[0] * g.image_pace;
#pragma unroll
  for (int half = 0; half < Box::HALVES; ++half)
    tma_load<1>(to + half * g.halves_apart * Box::PITCH, map, barrier, 0, first_channel, at[2] + half, at[1], at[0], image);
}
