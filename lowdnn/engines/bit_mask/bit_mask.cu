// bit_mask: converts a mask of one byte for each element to one of one bit (PACKS), or back; bit i of byte j stands for
// element 8 j + i. PACKS      bits[j] = sum over i of (mask[8 j + i] != 0) << i, for i with 8 j + i < elements
// otherwise  mask[8 j + i] = bits[j] >> i & 1
//
// Layouts: the mask's bytes and the bits are packed; ALIGNED: the mask is aligned to eight bytes.
// Block: THREADS threads on neighbouring bytes of bits.
// Shared memory: none.
// Launch: THREADS threads, ceil(elements / 8 / THREADS) blocks.
// Macros: PACKS ALIGNED THREADS.

#include "include/numeric.cuh"

constexpr int BITS = 8;

struct Params {
  u8* mask;
  u8* bits;
  i64 elements;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 byte = i64(blockIdx.x) * THREADS + threadIdx.x;
  const i64 left = p.elements - byte * BITS;
  if (left <= 0) return;
  u8* const mask = p.mask + byte * BITS;
  const bool is_whole = ALIGNED && left >= BITS;
  const int count = left < BITS ? int(left) : BITS;
  u64 elements = 0;
  if constexpr (PACKS) {
    if (is_whole) {
      elements = *reinterpret_cast<const u64*>(mask);
    } else {
      for (int i = 0; i < count; ++i) elements |= u64(mask[i]) << 8 * i;
    }
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < BITS; ++i) bits |= u32((elements >> 8 * i & 0xff) != 0) << i;
    p.bits[byte] = u8(bits);
  } else {
    const u32 bits = p.bits[byte];
#pragma unroll
    for (int i = 0; i < BITS; ++i) elements |= u64(bits >> i & 1) << 8 * i;
    if (is_whole) {
      *reinterpret_cast<u64*>(mask) = elements;
    } else {
      for (int i = 0; i < count; ++i) mask[i] = u8(elements >> 8 * i);
    }
  }
}
