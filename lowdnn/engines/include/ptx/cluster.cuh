// Blocks of a thread block cluster: their ranks, the cluster barrier, access to each other's shared memory.
// Source: PTX ISA, barrier.cluster, mapa, ld.shared::cluster, st.async and the special registers, target sm_90.

#pragma once

#include "include/ptx/shared_memory.cuh"

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

// The cluster address in block `rank` that corresponds to a shared-memory address of this block.
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Sends 16 bytes to a block of the cluster, counted on arrival at a barrier of that block; both by cluster address.
__device__ __forceinline__ void store_async_16(u32 destination, u32 barrier, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               :: "r"(destination), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
               : "memory");
}

// Cluster barrier of all threads of all blocks, in two steps: writes before the first step are visible to all after the
// second.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Loads from the shared memory of another block, at the offset that `own` has in this block's.
__device__ __forceinline__ f32 load_of_block(const f32* own, u32 block) {
  f32 value;
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n}" : "=f"(value) : "r"(shared_address(own)), "r"(block) : "memory");
  return value;
}
__device__ __forceinline__ f64 load_of_block(const f64* own, u32 block) {
  f64 value;
  asm volatile(
      "{ .reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f64 %0, [remote];\n}" : "=d"(value) : "r"(shared_address(own)), "r"(block) : "memory");
  return value;
}

// Stores to the shared memory of another block, at the offset that `own` has in this block's.
__device__ __forceinline__ void store_of_block(f32* own, u32 block, f32 value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;"
               :: "r"(cluster_address(shared_address(own), block)), "f"(value) : "memory");
}
__device__ __forceinline__ void store_of_block(f64* own, u32 block, f64 value) {
  asm volatile("st.shared::cluster.f64 [%0], %1;"
               :: "r"(cluster_address(shared_address(own), block)), "d"(value) : "memory");
}
