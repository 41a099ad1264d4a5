// The team (row_team.cuh) of a block's threads, by the macros of a kernel over rows: SHARING, CLUSTER, IN_TURNS.

#pragma once

#if IN_TURNS
#include "include/row_meeting.cuh"
#endif
#include "include/row_team.cuh"

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
