// The team (row_team.cuh) of a block's threads, by the macros of a kernel over rows: SHARING, CLUSTER, IN_TURNS.

#pragma once

#if IN_TURNS
#include "include/row_roles.cuh"
#endif
#include "include/row_team.cuh"

// Each role has shared memory of its own. p: a kernel's parameters, with `partials` where blocks of a grid share rows.
template <class Team, class Params> __device__ __forceinline__ Team team_of_block(const Params& p) {
#if IN_TURNS
  __shared__ typename Team::Shared shared[ROLES];
  return Team(shared[role()], p.partials);
#else
  __shared__ typename Team::Shared shared;
#if SHARING > CLUSTER
  return Team(shared, p.partials);
#else
  return Team(shared);
#endif
#endif
}
