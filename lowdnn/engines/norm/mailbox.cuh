// Mailboxes: numbers that blocks of a running grid, or of grids on several devices, exchange through device memory. A
// word holds 32 bits of a number and the sequence number of the exchange. Its 8 bytes become visible together, so a
// block that polls and finds the sequence number has the bits too, without a fence or a counter.

#pragma once

#include "include/numeric.cuh"

// Who sees the words: the blocks of one device, or those of several.
enum Scope { OF_DEVICE, OF_SYSTEM };

template <Scope SCOPE> __device__ __forceinline__ void store_word(u64* to, u32 bits, u32 sequence) {
  const u64 address = __cvta_generic_to_global(to), word = u64(sequence) << 32 | bits;
  if constexpr (SCOPE == OF_DEVICE) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(address), "l"(word) : "memory");
  } else {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(address), "l"(word) : "memory");
  }
}
template <Scope SCOPE> __device__ __forceinline__ u64 load_word(const u64* from) {
  const u64 address = __cvta_generic_to_global(from);
  u64 word;
  if constexpr (SCOPE == OF_DEVICE) {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
  } else {
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
  }
  return word;
}

// One number, in words of 32 bits each. Sequence numbers begin at 1; 0 marks an empty mailbox.
template <class T, Scope SCOPE = OF_DEVICE> struct Mailbox {
  static constexpr int WORDS = sizeof(T) / 4;

  u64 words[WORDS];

  __device__ __forceinline__ void post(T value, u32 sequence) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) store_word<SCOPE>(words + i, reinterpret_cast<const u32*>(&value)[i], sequence);
  }
  __device__ __forceinline__ void clear() { post(T(0), 0); }

  __device__ __forceinline__ Mailbox poll() const {
    Mailbox now;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) now.words[i] = load_word<SCOPE>(words + i);
    return now;
  }

  // Whether a polled number belongs to exchange `sequence`, and the number.
  __device__ __forceinline__ bool is_of(u32 sequence) const {
    bool is = true;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) is &= u32(words[i] >> 32) == sequence;
    return is;
  }
  __device__ __forceinline__ T value() const {
    T number;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) reinterpret_cast<u32*>(&number)[i] = u32(words[i]);
    return number;
  }
};
