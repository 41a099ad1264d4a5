// Functions with which blocks of a persistent recurrence exchange results through memory and read a layer's rows.

#pragma once

#include "include/numeric.cuh"

// The number that have arrived; what they wrote before is seen.
__device__ __forceinline__ u32 arrived(const u32* arrivals) {
  u32 count;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(count) : "l"(arrivals) : "memory");
  return count;
}
__device__ __forceinline__ void arrive(u32* arrivals) {
  asm volatile("red.release.gpu.add.u32 [%0], 1;" :: "l"(arrivals) : "memory");
}

// Orders this thread's plain accesses to global memory before its later copies. A fence of all memory would wait for
// the thread's stores, too.
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Words where `exists`; otherwise they stay. Predicated, so that no load waits for another one's condition; from memory
// that the kernel may write later. A half becomes the low bits of a word.
__device__ __forceinline__ void load_half_where(bool exists, const void* from, u32& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u16 %0, [%1]; }"
               : "+r"(to) : "l"(from), "r"(u32(exists)) : "memory");
}
__device__ __forceinline__ void load_where(bool exists, const void* from, u32& to) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u32 %0, [%1]; }"
               : "+r"(to) : "l"(from), "r"(u32(exists)) : "memory");
}
__device__ __forceinline__ void load_where(bool exists, const void* from, f32 (&to)[2]) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.f32 {%0, %1}, [%2]; }"
               : "+f"(to[0]), "+f"(to[1]) : "l"(from), "r"(u32(exists)) : "memory");
}
