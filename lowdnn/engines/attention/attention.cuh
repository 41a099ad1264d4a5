// Parts that every attention kernel uses, with mma.sync or wgmma: words of two 16-bit values, rows of heads in memory,
// and the band of keys that a query attends to. Reductions over a row of accumulators go over the four neighbouring
// lanes that hold its columns.

#pragma once

#include "include/exponential.cuh"

// Two values as one word, the first in its low half.
__device__ __forceinline__ u32 packed(Tag<bf16>, f32 low, f32 high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 packed(Tag<f16>, f32 low, f32 high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Returns the maximum of x over the four lanes that hold one row of accumulators.
__device__ __forceinline__ f32 largest_of_row(f32 x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ f32 sum_of_row(f32 x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Returns the warp's maximum of magnitudes, given as bits of f32. As integers the bits are in the order of the
// magnitudes, and NaN is the largest, so an atomic maximum may combine the warps in any order.
__device__ __forceinline__ u32 largest_of_warp(u32 magnitude) {
  asm volatile("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(magnitude));
  return magnitude;
}
__device__ __forceinline__ void join_largest(u32* to, u32 magnitude) {
  magnitude = largest_of_warp(magnitude);
  if (threadIdx.x % WARP_SIZE == 0) asm volatile("red.global.max.u32 [%0], %1;" :: "l"(to), "r"(magnitude) : "memory");
}

// Layouts of rows of heads: at a constant stride, in pages of a cache (large pages hold whole tiles), or in packed
// sequences without gaps.
enum { IN_STRIDES, IN_PAGES, IN_LARGE_PAGES, PACKED };

// Rows of heads in memory: element strides of batch, head, row.
template <class T> struct Heads {
  T* first;
  i64 strides[3];
  i32 sharing;  // heads of q for each of these heads

  __device__ __forceinline__ T* at(i32 batch, i32 head, i64 row) const {
    return first + batch * strides[0] + head / sharing * strides[1] + row * strides[2];
  }
};

// Query r attends to the existing keys from r - left to r + right.
struct Band {
  i32 left, right, queries, keys;

  __device__ __forceinline__ bool sees(i32 query, i32 key) const {
    return key < keys && query - left <= key && key <= query + right;
  }

  // Whether every one of these queries attends to all of these keys.
  __device__ __forceinline__ bool sees_all(i32 first_query, i32 query_count, i32 first_key, i32 key_count) const {
    const i32 last_query = first_query + query_count - 1, last_key = first_key + key_count - 1;
    return last_key < keys && last_key <= first_query + right && first_key >= last_query - left;
  }

  // Whether some of these queries may attend to some of these keys.
  __device__ __forceinline__ bool sees_any(i32 first_query, i32 query_count, i32 first_key, i32 key_count) const {
    const i32 last_query = first_query + query_count - 1, last_key = first_key + key_count - 1;
    return first_key < keys && first_key <= last_query + right && last_key >= first_query - left;
  }

  // The first key and the end of the keys that some of these queries attend to; the end may be less than the first key.
  __device__ __forceinline__ i32 keys_begin(i32 first_query) const { return max(first_query - left, 0); }
  __device__ __forceinline__ i32 keys_end_of(i32 query) const { return min(query + right + 1, keys); }
  __device__ __forceinline__ i32 keys_end(i32 first_query, i32 query_count) const {
    if (first_query >= queries) return 0;
    return clamped(min(first_query + query_count, queries) + right, 0, keys);
  }

  // The first query and the end of the queries that attend to some of these keys.
  __device__ __forceinline__ i32 queries_begin(i32 first_key) const { return max(first_key - right, 0); }
  __device__ __forceinline__ i32 queries_end(i32 first_key, i32 key_count) const {
    if (first_key >= keys) return 0;
    return clamped(min(first_key + key_count, keys) + left, 0, queries);
  }
};
