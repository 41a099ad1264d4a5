// Sources from which the boxes of pixel_box.cuh are copied: the tensor, by all threads of a block, or a tensor map.
//
// A map is for swizzled positions and for sm_90a. It has dimensions (c, w, h, d, n) and boxes of a position's channels,
// IN_HALVES of every second column. One thread starts its copies, and a barrier waits for their bytes.

#pragma once

#include "include/optional.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/tma.cuh"
#include "pixel_box.cuh"

template <class T, bool BY_MAP> using BoxSource = typename Either<BY_MAP, TensorMap, const T*>::Type;

__device__ __forceinline__ void prefetch_source(const void*) {}
__device__ __forceinline__ void prefetch_source(const TensorMap& map) { prefetch(map); }

// Bytes that the barrier of a box expects if a tensor map copies it.
template <class Box> __device__ __forceinline__ u32 copied_bytes(const BoxGeometry& g) {
  return Box::HALVES * g.rows * g.row_places * Box::COPIED_BYTES;
}

// Copies the box of `tile`, from channel `first_channel` on, to shared-memory address `to`. From a tensor, all threads
// of the block call it (cp.async); with a tensor map, one thread does (TMA).
template <class Box, class T>
__device__ __forceinline__ void copy_box(const T* tensor, const BoxGeometry& g, const i32 (&tile)[1 + BOX_AXES],
                                         i32 first_channel, u32 to, u32) {
  Box::copy(tensor, g, tile, first_channel, to);
}
template <class Box>
__device__ __forceinline__ void copy_box(const TensorMap& map, const BoxGeometry& g, const i32 (&tile)[1 + BOX_AXES],
                                         i32 first_channel, u32 to, u32 barrier) {
  static_assert(Box::IS_SWIZZLED, "as the map says");
  i32 at[BOX_AXES];
#pragma unroll
  for (int axis = 0; axis < BOX_AXES; ++axis) at[axis] = tile[1 + axis] * g.pace[axis] + g.origin[axis];
  const i32 image = tile[0] * g.image_pace;
#pragma unroll
  for (int half = 0; half < Box::HALVES; ++half) {
    const u32 place = to + half * g.half_places * Box::PITCH;
    tma_load<1>(place, map, barrier, 0, first_channel, at[2] + half, at[1], at[0], image);
  }
}
