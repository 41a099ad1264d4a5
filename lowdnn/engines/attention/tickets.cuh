// Tickets and turns by which the blocks of a grid order their accesses to shared global memory. Their words are 0 when
// the grid starts.
//
// A block may wait only for blocks with lower tickets: these already run, in whatever order the device starts blocks.
// Source: PTX ISA, "Memory Consistency Model".

#pragma once

#include "include/numeric.cuh"

// Returns the number of blocks that took a ticket before; one thread of a block calls it.
__device__ __forceinline__ u32 take_ticket(u32* counter) { return atomicAdd(counter, 1); }

// Waits until *turn is at least `least`. The calling thread then sees the writes that were made before.
__device__ __forceinline__ void await_turn(const u32* turn, u32 least) {
  u32 now;
  do {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now < least);
}

__device__ __forceinline__ void pass_turn(u32* turn, u32 next) {
  asm volatile("st.release.gpu.u32 [%0], %1;" :: "l"(turn), "r"(next) : "memory");
}
