// Shared memory by its 32-bit address, as the instructions of the copy engines and tensor cores name it.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// Stores 16 bytes from registers to shared memory.
__device__ __forceinline__ void store_shared_16(u32 destination, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(destination), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

__device__ __forceinline__ void store_shared_32(u32 destination, u32 word) {
  asm volatile("st.shared.b32 [%0], %1;" :: "r"(destination), "r"(word) : "memory");
}

__device__ __forceinline__ uint4 load_shared_128(u32 source) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(source)
               : "memory");
  return words;
}

__device__ __forceinline__ uint2 load_shared_64(u32 source) {
  uint2 words;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(source) : "memory");
  return words;
}

__device__ __forceinline__ u32 load_shared_32(u32 source) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(source) : "memory");
  return word;
}

__device__ __forceinline__ u32 load_shared_16(u32 source) {
  u16 half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(source) : "memory");
  return half;
}

__device__ __forceinline__ u32 load_shared_8(u32 source) {
  u32 byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(source) : "memory");
  return byte;
}
