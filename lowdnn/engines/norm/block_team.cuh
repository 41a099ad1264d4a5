// The team (row_team.cuh) of a block's threads.

#pragma once

#include "include/rows/row_team.cuh"

// Where blocks of a cooperative grid share rows, workspace for what they tell each other: a base of a kernel's Params.
template <class T, bool IN_GRID> struct PartialsOf {
  T* partials;
};
template <class T> struct PartialsOf<T, false> {};

template <class Team, class Params> __device__ __forceinline__ Team team_of_block(const Params& p) {
  __shared__ typename Team::Shared shared;
  if constexpr (Team::Tile::IN_GRID) return Team(shared, p.partials);
  else return Team(shared);
}
