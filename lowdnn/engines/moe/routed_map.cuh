// The space (1, rows, columns) of an output whose rows go where the routing says, as a map of output_map.cuh.

#pragma once

#include "routing.cuh"

// Rows past the last one get its coordinates; nothing stores them.
struct RoutedMap {
  static constexpr int RANK = 3;
  Routing routing;
  u32 last_row;

  __device__ __forceinline__ i64 locate(u32 row, u32 column, i64 (&coordinate)[RANK]) const {
    coordinate[0] = 0;
    coordinate[1] = routing.target(min(row, last_row));
    coordinate[2] = column;
    return column;
  }

  __device__ __forceinline__ bool exists(const i64 (&)[RANK]) const { return true; }
};
