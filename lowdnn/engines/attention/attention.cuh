// Parts of attention, whichever instruction multiplies: operands of two values, rows of accumulators, of which four
// neighbouring lanes have the columns, rows of heads in memory, and the keys that a query attends to.

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

// The largest number of the four lanes that hold a row of accumulators.
__device__ __forceinline__ f32 largest_of_row(f32 x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ f32 sum_of_row(f32 x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The largest of a warp's magnitudes; it joins those of others, in any order: bits are in that of magnitudes, with NaN
// behind all.
__device__ __forceinline__ u32 largest_of_warp(u32 magnitude) {
  asm volatile("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(magnitude));
  return magnitude;
}
__device__ __forceinline__ void join_largest(u32* to, u32 magnitude) {
  magnitude = largest_of_warp(magnitude);
  if (threadIdx.x % WARP_SIZE == 0) asm volatile("red.global.max.u32 [%0], %1;" :: "l"(to), "r"(magnitude) : "memory");
}

// Where rows of heads lie: a stride apart, in pages of a cache (large: of whole tiles), or as sequences packed one
// behind the other.
enum { IN_STRIDES, IN_PAGES, IN_LARGE_PAGES, PACKED };

// Rows of heads in memory: element strides of batch, head, row.
template <class T> struct Heads {
  T* first;
  i64 strides[3];
  i32 sharing;  // heads of q that share one of these

  __device__ __forceinline__ T* at(i32 batch, i32 head, i64 row) const {
    return first + batch * strides[0] + head / sharing * strides[1] + row * strides[2];
  }
};

// Query r sees the keys from r - left to r + right, of those that there are.
struct Band {
  i32 left, right, queries, keys;

  __device__ __forceinline__ bool sees(i32 query, i32 key) const {
    return key < keys && query - left <= key && key <= query + right;
  }

  // Whether each of these queries sees each of these keys.
  __device__ __forceinline__ bool sees_all(i32 first_query, i32 query_count, i32 first_key, i32 key_count) const {
    const i32 last_query = first_query + query_count - 1, last_key = first_key + key_count - 1;
    return last_key < keys && last_key <= first_query + right && first_key >= last_query - left;
  }

  // Whether any of these queries may see any of these keys.
  __device__ __forceinline__ bool sees_any(i32 first_query, i32 query_count, i32 first_key, i32 key_count) const {
    const i32 last_query = first_query + query_count - 1, last_key = first_key + key_count - 1;
    return first_key < keys && first_key <= last_query + right && last_key >= first_query - left;
  }

  // Where the keys that any of these queries sees begin and end; the end may lie before the beginning.
  __device__ __forceinline__ i32 keys_begin(i32 first_query) const { return max(first_query - left, 0); }
  __device__ __forceinline__ i32 keys_end_of(i32 query) const { return min(query + right + 1, keys); }
  __device__ __forceinline__ i32 keys_end(i32 first_query, i32 query_count) const {
    if (first_query >= queries) return 0;
    return clamped(min(first_query + query_count, queries) + right, 0, keys);
  }

  // Where the queries that see any of these keys begin and end.
  __device__ __forceinline__ i32 queries_begin(i32 first_key) const { return max(first_key - right, 0); }
  __device__ __forceinline__ i32 queries_end(i32 first_key, i32 key_count) const {
    if (first_key >= keys) return 0;
    return clamped(min(first_key + key_count, keys) + left, 0, queries);
  }
};
