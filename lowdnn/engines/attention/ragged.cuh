// Ragged tensors: sequences of rows packed without gaps, addressed by offsets from the tensor in which every batch has
// room for the longest sequence.

#pragma once

#include "include/math/division.cuh"

// The beginnings of batches as integers of 32 or 64 bits; null where the tensor is not packed.
struct Offsets {
  const void* first;
  i64 stride, multiplier;  // stride of the offsets; elements for each unit of an offset
  i64 batch_elements;      // elements of a batch of the padded tensor
  Divider row_elements;
  i32 is_i64;

  // Elements from a batch's beginning in the padded tensor to its beginning in the packed one.
  __device__ __forceinline__ i64 shift(i32 batch) const {
    return first == nullptr ? 0 : at(batch) - batch * batch_elements;
  }

  // Rows of all batches before this one, if the tensor is packed.
  __device__ __forceinline__ i64 rows_before(i32 batch) const { return row_elements.divide(at(batch)); }

  // Number of rows of a batch that exist, at most `most`.
  __device__ __forceinline__ i32 rows(i32 batch, i32 most) const {
    return first == nullptr ? most : min(i32(row_elements.divide(u32(at(batch + 1) - at(batch)))), most);
  }

 private:
  __device__ __forceinline__ i64 at(i32 batch) const {
    const i64 place = batch * stride;
    return multiplier * (is_i64 ? static_cast<const i64*>(first)[place] : static_cast<const i32*>(first)[place]);
  }
};
