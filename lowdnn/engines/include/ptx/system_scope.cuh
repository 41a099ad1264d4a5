// Memory that several devices share: accesses of system scope, and what a kernel needs to wait for another device.
// Source: PTX ISA, "Memory consistency model" (scopes), "%globaltimer", "nanosleep".

#pragma once

#include "include/numeric.cuh"

// A relaxed load is never an old value of a cache, and orders nothing.
__device__ __forceinline__ u32 load_relaxed_system(const u32* from) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed_system(u32* to, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
}

// Whoever acquires a word sees all that its writer wrote before the release, or knew others to have written.
__device__ __forceinline__ u32 load_acquire_system(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)) : "memory");
  return value;
}
__device__ __forceinline__ void store_release_system(u32* to, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
}

// Nanoseconds of a clock that goes on whatever the kernel does; its steps may be as long as a microsecond.
__device__ __forceinline__ u64 timer_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Sleeps for up to twice as long; at most a millisecond.
__device__ __forceinline__ void sleep_ns(u32 duration) { asm volatile("nanosleep.u32 %0;" :: "r"(duration)); }
