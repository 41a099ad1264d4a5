// Programmatic dependent launch: a kernel may start while the one before it in the stream ends.
// Source: PTX ISA, griddepcontrol, target sm_90. For older targets, which have none, both functions do nothing.

#pragma once

#include "include/numeric.cuh"

// Returns when all kernels before this one have ended and their writes are visible. Memory that they may write or still
// read must not be touched before it. Without the launch attribute it returns at once.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Waits after `place` is computed; the compiler could otherwise compute it after the wait. place: an address, or the
// exclusive or of two addresses, so that never all bits are set.
__device__ __forceinline__ void wait_for_previous_kernel(u64 place) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{.reg .pred known; setp.ne.u64 known, %0, -1; @known griddepcontrol.wait;}" :: "l"(place) : "memory");
#endif
}

// Lets the blocks of the next kernel start as soon as there is room for them.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
