// Sources of routed rows and targets of their results, by the macro ROUTING:
//
//     ROUTING_NONE     both in place
//     ROUTING_GATHER   row r comes from the token index[r]
//     ROUTING_SCATTER  row r goes to the slot ks[r] of the token index[r], of top_k slots for each token

#pragma once

#include "include/numeric.cuh"

#define ROUTING_NONE 0
#define ROUTING_GATHER 1
#define ROUTING_SCATTER 2

struct Routing {
  const i32* index;  // index and ks are read only where the mode needs them
  const i32* ks;
  i64 index_stride, ks_stride;
  i32 top_k;

  __device__ __forceinline__ u32 source(u32 row) const {
    return ROUTING == ROUTING_GATHER ? index[row * index_stride] : row;
  }

  __device__ __forceinline__ u32 target(u32 row) const {
    return ROUTING == ROUTING_SCATTER ? index[row * index_stride] * top_k + ks[row * ks_stride] : row;
  }
};
