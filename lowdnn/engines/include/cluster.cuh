// Blocks of a thread block cluster: who they are, and meeting points.
// Source: PTX ISA, barrier.cluster and the special registers, target sm_90.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ u32 cluster_index() {
  u32 index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ u32 cluster_count() {
  u32 count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

// All threads of all blocks of the cluster; what each wrote before, the others see after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
