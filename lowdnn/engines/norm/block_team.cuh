// The team (row_team.cuh) of a block, and its part of a kernel's Params.

#pragma once

#include "include/rows/row_team.cuh"

// A base of a kernel's Params: the workspace through which blocks of a cooperative grid exchange numbers, if they do.
template <class T, bool IN_GRID> struct PartialsOf {
  T* partials;
};
template <class T> struct PartialsOf<T, false> {};

template <class Team, class Params> __device__ __forceinline__ Team team_of_block(const Params& p) {
  __shared__ typename Team::Shared shared;
  if constexpr (Team::Tile::IN_GRID) return Team(shared, p.partials);
  else return Team(shared);
}
