// States that blocks of a running grid exchange through device memory, where a reader polls the states themselves: a
// word that is still UNSET has not been written. So a hand-over takes a store and a load, without a counter or a fence.
//
// A word has two 16-bit states. UNSET is two NaNs with all bits set, while conversions make every NaN 0x7fff.
// The states before step s lie in slot s % SLOTS. A block that has all states of step s knows that all blocks have read
// those of step s - 1, and makes its own words of them UNSET again. Others poll these SLOTS steps later. Between lies a
// fence of the writer, a word that it writes then, and a fence of the reader behind that word: all threads have a fence
// in each step that is a multiple of SLOTS / 4, between what they read and what they write.
// Source: PTX ISA, "Memory Consistency Model": relaxed accesses of 32 bits, each element of a vector one of its own.

#pragma once

#include "include/numeric.cuh"

constexpr u32 UNSET = ~0u;
constexpr i32 SLOTS = 32;

__device__ __forceinline__ void set(u8* at, u32 word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(__cvta_generic_to_global(at)), "r"(word) : "memory");
}

// Two states, the first one in the low half.
template <class T> __device__ __forceinline__ u32 word_of(T low, T high) { return low.bits | u32(high.bits) << 16; }

// 16 bytes of states.
struct Polled {
  u32 words[4];

  __device__ __forceinline__ void clear() { words[0] = words[1] = words[2] = words[3] = 0; }
  __device__ __forceinline__ void request(const u8* from) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(__cvta_generic_to_global(from)) : "memory");
  }
  __device__ __forceinline__ bool is_set() const {
    return words[0] != UNSET && words[1] != UNSET && words[2] != UNSET && words[3] != UNSET;
  }
};

__device__ __forceinline__ void order_slots(i32 step) {
  if (step % (SLOTS / 4) == 0) asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
