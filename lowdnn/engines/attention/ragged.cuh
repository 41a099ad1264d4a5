// Ragged tensors: sequences of rows packed one behind the other, as if each batch had room for the longest one.

#pragma once

#include "include/math/division.cuh"

// Where batches begin, in elements, as 32-bit or 64-bit integers; null where all of a tensor is there.
struct Offsets {
  const void* first;
  i64 stride, multiplier;  // from an offset to the next; elements for each unit of an offset
  i64 batch_elements;      // from batch to batch, if the tensor were padded
  Divider row_elements;
  i32 is_i64;

  // From where a batch would be in a padded tensor to where it is.
  __device__ __forceinline__ i64 shift(i32 batch) const {
    return first == nullptr ? 0 : at(batch) - batch * batch_elements;
  }

  // Rows of all batches before this one, where there are offsets.
  __device__ __forceinline__ i64 rows_before(i32 batch) const { return row_elements.divide(at(batch)); }

  // How many of the first `most` rows of a batch exist.
  __device__ __forceinline__ i32 rows(i32 batch, i32 most) const {
    return first == nullptr ? most : min(i32(row_elements.divide(u32(at(batch + 1) - at(batch)))), most);
  }

 private:
  __device__ __forceinline__ i64 at(i32 batch) const {
    const i64 place = batch * stride;
    return multiplier * (is_i64 ? static_cast<const i64*>(first)[place] : static_cast<const i32*>(first)[place]);
  }
};
