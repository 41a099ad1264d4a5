// Rows of heads in packed sequences, and accessors for rows that are packed or not.

#pragma once

#include "attention.cuh"
#include "ragged.cuh"

template <class T> struct PackedHeads {
  Heads<T> padded;
  Offsets offsets;

  __device__ __forceinline__ T* at(i32 batch, i32 head, i64 row) const {
    return padded.at(batch, head, row) + offsets.shift(batch);
  }
};

// Number of rows of a batch that exist, at most `most`.
template <class T> __device__ __forceinline__ i32 existing_rows(const Heads<T>& heads, i32 batch, i32 most) {
  return most;
}
template <class T> __device__ __forceinline__ i32 existing_rows(const PackedHeads<T>& heads, i32 batch, i32 most) {
  return heads.offsets.rows(batch, most);
}

// Stride of rows, in elements.
template <class T> __device__ __forceinline__ i64 row_stride(const Heads<T>& heads) { return heads.strides[2]; }
template <class T> __device__ __forceinline__ i64 row_stride(const PackedHeads<T>& heads) {
  return heads.padded.strides[2];
}

// Heads of q for each of these heads.
template <class T> __device__ __forceinline__ i32 sharing(const Heads<T>& heads) { return heads.sharing; }
template <class T> __device__ __forceinline__ i32 sharing(const PackedHeads<T>& heads) { return heads.padded.sharing; }
