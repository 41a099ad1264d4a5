// cp.async: asynchronous copies from global to shared memory, in groups.
//
// A copy of BYTES = 4, 8 or 16 needs both addresses aligned to BYTES. If the source does not exist, zeros are written
// and its address is not used. Source: PTX ISA, cp.async, target sm_80.

#pragma once

#include "include/ptx/shared_memory.cuh"
#include "include/vector.cuh"

// IN_LINES: the L2 cache prefetches the 128 bytes around a source of 16, since neighbours will need them.
template <int BYTES, bool IN_LINES = false>
__device__ __forceinline__ void cp_async(u32 destination, const void* source, bool exists) {
  const i32 bytes = exists ? BYTES : 0;
  if constexpr (BYTES == 16 && IN_LINES) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(destination), "l"(__cvta_generic_to_global(source)), "r"(bytes)
                 : "memory");
  } else if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(destination), "l"(__cvta_generic_to_global(source)), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;"
                 :: "r"(destination), "l"(__cvta_generic_to_global(source)), "r"(bytes), "n"(BYTES)
                 : "memory");
  }
}

// Copies V neighbouring elements to shared memory, in accesses of WIDTH elements as in vector.cuh; both addresses must
// be aligned to an access. Accesses that are too narrow for cp.async, and groups with missing elements, are copied
// synchronously. Whole lines are prefetched for the threads that read their rest: on an H200 that saved 3 % in
// gradients of channels-last group norms.
template <int WIDTH, class T, int V>
__device__ __forceinline__ void copy_row(T (&to)[V], const T* from, int valid) {
  constexpr int W = access_width(WIDTH, V, sizeof(T)), BYTES = W * sizeof(T);
  if (valid < V) {
    load_strided(to, from, 1, valid);
    return;
  }
#pragma unroll
  for (int i = 0; i < V; i += W) {
    if constexpr (BYTES >= 4) cp_async<BYTES, true>(shared_address(to + i), from + i, true);
    else *reinterpret_cast<Vector<T, W>*>(to + i) = Plain::load<T, W>(from + i);
  }
}

// Commits the copies of this thread since the last call as a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Arrives at a barrier (mbarrier.cuh) that counts this thread, when all its copies so far have landed.
__device__ __forceinline__ void cp_async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}

// Waits until at most PENDING of this thread's groups are unfinished; other threads see the data after a barrier.
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

// Waits until at most `pending` groups are unfinished, a run-time number of at least FEW; numbers above MOST count as
// MOST.
template <int FEW, int MOST> __device__ __forceinline__ void cp_async_wait_for(int pending) {
  if constexpr (FEW == MOST) {
    cp_async_wait<FEW>();
  } else {
    constexpr int MIDDLE = (FEW + MOST + 1) / 2;
    if (pending >= MIDDLE) cp_async_wait_for<MIDDLE, MOST>(pending);
    else cp_async_wait_for<FEW, MIDDLE - 1>(pending);
  }
}
