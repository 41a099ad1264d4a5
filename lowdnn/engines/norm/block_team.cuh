// The team (row_team.cuh) of a block's threads, and where they take turns their meeting (row_exchange.cuh), by the
// macros of a kernel over rows: SHARING, CLUSTER, IN_TURNS.

#pragma once

#if IN_TURNS
#include "row_exchange.cuh"
#endif
#include "include/rows/row_team.cuh"

// Each pass has shared memory of its own. p: a kernel's parameters, with `partials` where blocks of a grid share rows.
template <class Team, class Params> __device__ __forceinline__ Team team_of_block(const Params& p) {
#if IN_TURNS
  __shared__ typename Team::Shared shared[2];
  return Team(shared[role() == SECOND_PASS]);
#else
  __shared__ typename Team::Shared shared;
#if SHARING > CLUSTER
  return Team(shared, p.partials);
#else
  return Team(shared);
#endif
#endif
}

#if IN_TURNS
// All threads of the block, which meet here: what they have made before is there.
template <class Meeting, class Params> __device__ __forceinline__ Meeting meeting_of_block(const Params& p) {
  __shared__ typename Meeting::Shared shared;
  const Meeting meeting(shared, p.partials);
  meeting.begin();
  __syncthreads();
  return meeting;
}
#endif
