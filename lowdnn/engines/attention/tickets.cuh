// Turns that blocks of a grid take at memory which they share, counted in words that are 0 when the grid starts.
//
// A block may wait for those with lower tickets only: they run already, whatever order a device starts blocks in.
// Source: PTX ISA, "Memory Consistency Model".

#pragma once

#include "include/numeric.cuh"

// One thread of a block: how many blocks have come here before.
__device__ __forceinline__ u32 take_ticket(u32* counter) { return atomicAdd(counter, 1); }

// This thread sees the writes that threads made before they passed turn `least`.
__device__ __forceinline__ void await_turn(const u32* turn, u32 least) {
  u32 now;
  do {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now < least);
}

__device__ __forceinline__ void pass_turn(u32* turn, u32 next) {
  asm volatile("st.release.gpu.u32 [%0], %1;" :: "l"(turn), "r"(next) : "memory");
}
