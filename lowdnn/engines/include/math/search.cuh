// Search in ascending lists.

#pragma once

#include "include/numeric.cuh"

// The greatest index below `count` whose word is at most `value`; words[0] must be.
template <class Words> __device__ __forceinline__ u32 last_not_above(const Words& words, u32 count, u32 value) {
  u32 least = 0, past = count;
  while (past - least > 1) {
    const u32 middle = (least + past) / 2;
    if (words[middle] <= value) least = middle;
    else past = middle;
  }
  return least;
}
