// Parts of the parameters of attention forward: lengths, a mask of tiles, values for each query, factors.

#pragma once

#include "attention.cuh"
#include "include/ptx/prefetch.cuh"

// The number of keys or queries of each batch that are used.
template <class Length> struct Lengths {
  const Length* first;
  i64 stride;

  __device__ __forceinline__ i32 count(i32 batch, i32 most) const {
    return i32(clamped<i64>(i64(first[batch * stride]), 0, most));
  }
  __device__ __forceinline__ void prefetch(i32 batch) const { prefetch_to_l2(first + batch * stride); }
};

// The block mask: a bit for each 128 queries and 128 keys of a head says whether these attend to those.
struct BlockMask {
  static constexpr i32 SIDE = 128;

  const u8* first;
  i64 strides[4];

  __device__ __forceinline__ bool sees(i64 batch, i64 head, i32 query, i32 key) const {
    const i32 tile = key / SIDE;
    const i64 row = batch * strides[0] + head * strides[1] + query / SIDE * strides[2];
    return __ldg(first + row + tile / 8 * strides[3]) >> tile % 8 & 1;
  }
};

// One number for each query.
template <class Number> struct RowValues {
  Number* first;
  i64 strides[3];

  __device__ __forceinline__ Number& at(const i64 (&coordinate)[4]) const {
    return first[coordinate[0] * strides[0] + coordinate[1] * strides[1] + coordinate[2] * strides[2]];
  }
};

// COUNT positive scalars in device memory; `Factor` tells apart two such base classes of one struct. With COUNT 0 the
// struct is empty.
template <class Factor, int COUNT> struct Factors {
  const f32* factors[COUNT];

  __device__ __forceinline__ f32 times(f32 product) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) product *= __ldg(factors[i]);
    return product;
  }
};
template <class Factor> struct Factors<Factor, 0> {
  __device__ __forceinline__ f32 times(f32 product) const { return product; }
};
