// tma: copies of boxes of a tensor between global and shared memory by the tensor memory accelerator.
//
// A load names its tensor map, the first coordinate of the box along each dimension (innermost first), the destination
// in shared memory and the barrier that counts its bytes. With BLOCKS > 1 the box and its bytes arrive at the same
// addresses in every block of the cluster whose bit is set in `blocks`. An im2col load names the base pixel of its
// first row and the filter tap's offset; it goes on over as many pixels as the map says. Elements outside the tensor
// is filled with zeros.
// Stores read shared memory later: bulk_commit closes a group of stores, bulk_wait_read waits until they have read
// theirs.
// Source: PTX ISA, cp.async.bulk.tensor, target sm_90.

#pragma once

#include "include/numeric.cuh"

struct alignas(64) TensorMap { u64 words[16]; };

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

// Makes what this thread wrote to shared memory visible to copies that it starts, or that start after a barrier.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders this thread's plain accesses to any memory before its later copies, and its earlier copies before later
// accesses.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}
template <int PENDING> __device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
}

// Copies `bytes` (a multiple of 16) from global to shared memory; the barrier already expects them.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Copies `bytes` (a multiple of 16) from shared to global memory: bulk_store overwrites, bulk_add adds to the numbers
// there.
__device__ __forceinline__ void bulk_store(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_add(f32* to, u32 from, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :: "l"(to), "r"(from), "r"(bytes) : "memory");
}

// ---- loads ----------------------------------------------------------------------------------------------------------

// KIND: dimensions, state spaces and mode of the instruction. COORDINATES, OFFSETS: the operands %4... that the further
// arguments bind; %3 is `blocks`, or a placeholder.
#define TMA_LOAD(KIND, COORDINATES, OFFSETS, ...)                                                                \
  if constexpr (BLOCKS > 1) {                                                                                    \
    asm volatile("cp.async.bulk.tensor." KIND ".mbarrier::complete_tx::bytes.multicast::cluster "                \
                 "[%0], [%1, " COORDINATES "], [%2]" OFFSETS ", %3;"                                             \
                 :: "r"(to), "l"(&map), "r"(barrier), "h"(blocks), __VA_ARGS__ : "memory");                      \
  } else {                                                                                                       \
    asm volatile("cp.async.bulk.tensor." KIND ".mbarrier::complete_tx::bytes "                                   \
                 "[%0], [%1, " COORDINATES "], [%2]" OFFSETS ";"                                                 \
                 :: "r"(to), "l"(&map), "r"(barrier), "n"(0), __VA_ARGS__ : "memory");                           \
  }

template <int BLOCKS>
__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c0, i32 c1) {
  TMA_LOAD("2d.shared::cluster.global.tile", "{%4, %5}", "", "r"(c0), "r"(c1));
}

template <int BLOCKS>
__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c0, i32 c1,
                                         i32 c2) {
  TMA_LOAD("3d.shared::cluster.global.tile", "{%4, %5, %6}", "", "r"(c0), "r"(c1), "r"(c2));
}

template <int BLOCKS>
__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c0, i32 c1, i32 c2,
                                         i32 c3) {
  TMA_LOAD("4d.shared::cluster.global.tile", "{%4, %5, %6, %7}", "", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
}

template <int BLOCKS>
__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c0, i32 c1, i32 c2,
                                         i32 c3, i32 c4) {
  TMA_LOAD("5d.shared::cluster.global.tile", "{%4, %5, %6, %7, %8}", "", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
}

// By im2col map: coordinates (c, w, h, d, n), offsets (w, h, d).
template <int BLOCKS>
__device__ __forceinline__ void tma_load_im2col(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c, i32 w,
                                                i32 n, u16 s) {
  TMA_LOAD("3d.shared::cluster.global.im2col", "{%4, %5, %6}", ", {%7}", "r"(c), "r"(w), "r"(n), "h"(s));
}

template <int BLOCKS>
__device__ __forceinline__ void tma_load_im2col(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c, i32 w,
                                                i32 h, i32 n, u16 s, u16 r) {
  TMA_LOAD("4d.shared::cluster.global.im2col", "{%4, %5, %6, %7}", ", {%8, %9}", "r"(c), "r"(w), "r"(h), "r"(n), "h"(s),
           "h"(r));
}

template <int BLOCKS>
__device__ __forceinline__ void tma_load_im2col(u32 to, const TensorMap& map, u32 barrier, u16 blocks, i32 c, i32 w,
                                                i32 h, i32 d, i32 n, u16 s, u16 r, u16 t) {
  TMA_LOAD("5d.shared::cluster.global.im2col", "{%4, %5, %6, %7, %8}", ", {%9, %10, %11}", "r"(c), "r"(w), "r"(h),
           "r"(d), "r"(n), "h"(s), "h"(r), "h"(t));
}

#undef TMA_LOAD

// ---- tiled stores ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ void tma_store(const TensorMap& map, u32 from, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
               :: "l"(&map), "r"(from), "r"(c0), "r"(c1) : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, u32 from, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               :: "l"(&map), "r"(from), "r"(c0), "r"(c1), "r"(c2) : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               :: "l"(&map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, u32 from, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
               :: "l"(&map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// ---- im2col stores: coordinates (c, w, h, d, n) of the first pixel; others follow as the map says -------------------

__device__ __forceinline__ void tma_store_im2col(const TensorMap& map, u32 from, i32 c, i32 w, i32 n) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4}], [%1];"
               :: "l"(&map), "r"(from), "r"(c), "r"(w), "r"(n) : "memory");
}

__device__ __forceinline__ void tma_store_im2col(const TensorMap& map, u32 from, i32 c, i32 w, i32 h, i32 n) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               :: "l"(&map), "r"(from), "r"(c), "r"(w), "r"(h), "r"(n) : "memory");
}

__device__ __forceinline__ void tma_store_im2col(const TensorMap& map, u32 from, i32 c, i32 w, i32 h, i32 d, i32 n) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
               :: "l"(&map), "r"(from), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n) : "memory");
}
