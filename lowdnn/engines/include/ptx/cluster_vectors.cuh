// Vectors in the shared memory of other blocks of a cluster.
// Source: PTX ISA, ld.shared::cluster, target sm_90.

#pragma once

#include "include/ptx/cluster.cuh"

// Four values at the place of `own`, a multiple of 16 bytes, in another block; zeros where `exists` is false. It takes
// no branch, so that neighbouring loads do not wait for each other.
__device__ __forceinline__ float4 load_of_block_16(const f32* own, u32 block, bool exists) {
  float4 values = {0, 0, 0, 0};
  asm volatile(
      "{.reg .pred exists;\n"
      "setp.ne.u32 exists, %5, 0;\n"
      "@exists ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "+f"(values.x), "+f"(values.y), "+f"(values.z), "+f"(values.w)
      : "r"(cluster_address(shared_address(own), block)), "r"(u32(exists)) : "memory");
  return values;
}
