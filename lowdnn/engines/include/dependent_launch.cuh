// Programmatic dependent launch: a kernel may start while the one before it in the stream ends.
// Source: PTX ISA, griddepcontrol, target sm_90. For older targets, which have none, both functions do nothing.

#pragma once

// Returns when all kernels before this one have ended and what they wrote is visible. Nothing that they may write or
// still read may be touched before it. Without the launch attribute it returns at once.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as blocks of it find room.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
