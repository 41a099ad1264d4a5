// Groups of routed rows from offsets in device memory: host side ops/token_groups.py, engines/moe/arguments.py.
//
// Group g has the rows from offset g to offset g + 1 (the last one, without `has_end`, to the end of the rows) and
// belongs to expert g mod experts. Offsets are clamped to the rows, and a group that ends before it begins is empty, so
// no offsets make a kernel access memory outside its tensors.

#pragma once

#include "include/math/division.cuh"
#include "include/math/search.cuh"
#include "include/ptx/shared_memory.cuh"

struct RowRange {
  u32 first, end;

  __device__ __forceinline__ u32 size() const { return end - first; }
};

template <class Offset> struct TokenGroups {
  const Offset* offsets;
  i64 offset_stride;
  Divider experts;
  u32 count, rows, has_end;

  __device__ __forceinline__ RowRange range(u32 group) const {
    const u32 first = bound(group), end = group + 1 < count + has_end ? bound(group + 1) : rows;
    return {first, max(first, end)};
  }

  __device__ __forceinline__ u32 expert(u32 group) const {
    return group - experts.divide(group) * experts.divisor;
  }

 private:
  __device__ __forceinline__ u32 bound(u32 index) const {
    const Offset offset = offsets[index * offset_stride];
    return offset <= 0 ? 0 : offset < Offset(rows) ? u32(offset) : rows;
  }
};

// Words of shared memory by a 32-bit address, which takes one register.
struct SharedWords {
  u32 address;
  __device__ __forceinline__ u32 operator[](u32 index) const { return load_shared_32(address + index * 4); }
};

// Each group is cut into tiles of `TILE` rows, which are numbered group by group: before[g] is the number of group g's
// first tile, before[count] the number of tiles of all groups.
struct GroupTiles {
  SharedWords before;
  u32 count;

  // Called by all threads of the block; the first warp sums. table: count + 1 words of shared memory.
  template <int TILE, class Groups> static __device__ __forceinline__ GroupTiles of(u32* table, const Groups& groups) {
    for (u32 group = threadIdx.x; group < groups.count; group += blockDim.x) {
      table[group + 1] = (groups.range(group).size() + TILE - 1) / TILE;
    }
    __syncthreads();
    if (threadIdx.x < WARP_SIZE) add_up(table, groups.count);
    __syncthreads();
    return {{shared_address(table)}, groups.count};
  }

  __device__ __forceinline__ u32 all() const { return before[count]; }

  // The group that has tile `tile`, a number below all().
  __device__ __forceinline__ u32 group_of(u32 tile) const { return last_not_above(before, count, tile); }

 private:
  // Called by one warp: the words from the second on become prefix sums, the first one 0.
  static __device__ __forceinline__ void add_up(u32* table, u32 count) {
    u32 sum = 0;
    for (u32 first = 0; first < count; first += WARP_SIZE) {
      const u32 group = first + threadIdx.x;
      u32 tiles = group < count ? table[group + 1] : 0;
      for (u32 step = 1; step < WARP_SIZE; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, tiles, step);
        if (threadIdx.x >= step) tiles += other;
      }
      if (group < count) table[group + 1] = sum + tiles;
      sum += __shfl_sync(~0u, tiles, WARP_SIZE - 1);
    }
    if (threadIdx.x == 0) table[0] = 0;
  }
};
