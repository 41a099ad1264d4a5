// From a warpgroup's accumulators to the rows of its group, and not to those of the next one.
//
// By tensor map, 16 rows at once where the group has them, the others one by one; or by the functor, which may scatter
// them. Chunks of shared memory that leave row by row are swizzled over 128 bytes, so that each row begins aligned.

#pragma once

#include "include/epilogue_wgmma.cuh"
#include "include/grouped_tiles.cuh"
#include "include/map_epilogue.cuh"
#include "include/routed_map.cuh"

constexpr u32 CHUNK_ROW_BYTES = 128;

// The space (1, rows, columns) of an output whose rows are in place. row: the output's tensor map in boxes of one row.
struct GroupMap {
  static constexpr int RANK = 3;
  TensorMap row;

  __device__ __forceinline__ i64 locate(u32 row, u32 column, i64 (&coordinate)[RANK]) const {
    coordinate[0] = 0;
    coordinate[1] = row;
    coordinate[2] = column;
    return column;
  }
};

// For MapEpilogue: up to STAGING_ROWS rows from `row` on, as many as the group has.
struct GroupTarget {
  const GroupMap& output;
  const i32 row, rows;

  __device__ __forceinline__ GroupTarget(const GroupMap& output, const TileWork& work, u32, u32 row)
      : output(output), row(row), rows(i32(static_cast<const GroupWork&>(work).row_end - row)) {}

  __device__ __forceinline__ void store(const TensorMap& map, u32 from, u32 column) const {
    if (rows >= STAGING_ROWS) {
      tma_store(map, from, i32(column), row, 0);
      return;
    }
    for (i32 i = 0; i < rows; ++i) tma_store(output.row, from + i * CHUNK_ROW_BYTES, i32(column), row + i, 0);
  }
};

// FunctorEpilogue where the rows end with the tile's group.
template <class Tile, class Functor, int WIDTH> struct RoutedEpilogue {
  typedef FunctorEpilogue<Tile, Functor, WIDTH, RoutedMap> Base;
  typedef typename Base::Output Output;
  static constexpr int STAGING_BYTES = Base::STAGING_BYTES, BARRIER_BYTES = 0;

  const Output& output;
  u8* const staging;

  __device__ __forceinline__ RoutedEpilogue(const Output& output, u8* staging, u32)
      : output(output), staging(staging) {}

  __device__ __forceinline__ void begin(const GroupWork&, u32) const {}

  __device__ __forceinline__ void end(const typename Tile::Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2],
                                      const GroupWork& work, u32 first_row) const {
    Output here = output;
    here.rows = work.row_end;
    Base(here, staging, 0).end(d, work, first_row);
  }

  __device__ __forceinline__ void finish() const {}
};
