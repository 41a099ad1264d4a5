// Numbers that blocks of a running grid tell each other in device memory, each with the turn that it is of: a word of 8
// bytes arrives whole, so whoever finds the turn has the number, without a fence or a counter.
//
// Source: PTX ISA, "Memory Consistency Model": single-copy atomicity of relaxed accesses of 64 bits.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ void store_told(u64* to, u32 bits, u32 turn) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;"
               :: "l"(__cvta_generic_to_global(to)), "l"(u64(turn) << 32 | bits) : "memory");
}
__device__ __forceinline__ u64 load_told(const u64* from) {
  u64 word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(__cvta_generic_to_global(from)) : "memory");
  return word;
}

// A number in words with 32 of its bits each. Turns are counted from 1; in turn 0 nothing is told.
template <class T> struct Told {
  static constexpr int WORDS = sizeof(T) / 4;

  u64 words[WORDS];

  __device__ __forceinline__ void tell(T value, u32 turn) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) store_told(words + i, reinterpret_cast<const u32*>(&value)[i], turn);
  }
  __device__ __forceinline__ void clear() { tell(T(0), 0); }

  __device__ __forceinline__ Told heard() const {
    Told now;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) now.words[i] = load_told(words + i);
    return now;
  }

  // Whether what was heard is of the turn; below, the number that was heard.
  __device__ __forceinline__ bool is_of(u32 turn) const {
    bool is = true;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) is &= u32(words[i] >> 32) == turn;
    return is;
  }
  __device__ __forceinline__ T value() const {
    T number;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) reinterpret_cast<u32*>(&number)[i] = u32(words[i]);
    return number;
  }
};
