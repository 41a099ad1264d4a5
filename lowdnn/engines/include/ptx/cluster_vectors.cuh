// Vectors in the shared memory of other blocks of a cluster.
// Source: PTX ISA, ld.shared::cluster, target sm_90.

#pragma once

#include "include/ptx/cluster.cuh"

// Four values at the place of `own`, a multiple of 16 bytes, in another block.
__device__ __forceinline__ float4 load_of_block_16(const f32* own, u32 block) {
  float4 values;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
               : "r"(cluster_address(shared_address(own), block)) : "memory");
  return values;
}
