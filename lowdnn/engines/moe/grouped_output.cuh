// Stores a warpgroup's accumulators to the rows of its group, and not to rows of the next group.
//
// The store goes by tensor map, 16 rows at once, or by the warp in pieces of 16 bytes where the group has fewer rows;
// or it is the functor's, which may scatter rows.

#pragma once

#include "include/epilogue/epilogue_wgmma.cuh"
#include "grouped_tiles.cuh"
#include "include/epilogue/map_epilogue.cuh"
#include "routed_map.cuh"
#include "include/vector.cuh"

// The space (1, rows, columns) of an output whose rows are in place and consist of whole pieces. pitch_bytes: bytes
// from one row to the next.
struct GroupMap {
  static constexpr int RANK = 3;
  u8* rows;
  i64 pitch_bytes;
  u32 columns;

  __device__ __forceinline__ i64 locate(u32 row, u32 column, i64 (&coordinate)[RANK]) const {
    coordinate[0] = 0;
    coordinate[1] = row;
    coordinate[2] = column;
    return column;
  }
};

// A target of MapEpilogue: up to STAGING_ROWS rows from `row` on, at most those of the group.
struct GroupTarget {
  const GroupMap& output;
  const i32 row, rows;

  __device__ __forceinline__ GroupTarget(const GroupMap& output, const TileWork& work, u32, u32 row)
      : output(output), row(row), rows(i32(static_cast<const GroupWork&>(work).row_end - row)) {}

  template <class Chunk>
  __device__ __forceinline__ void store(const TensorMap& map, const u8* chunk, u32 column) const {
    if (rows >= STAGING_ROWS) {
      if (threadIdx.x % WARP_SIZE == 0) tma_store(map, shared_address(chunk), i32(column), row, 0);
    } else {
      store_rows<Chunk>(chunk, column);
    }
  }

 private:
  template <class Chunk>
  __device__ __forceinline__ void store_rows(const u8* chunk, u32 column) const {
    typedef typename Chunk::Element Element;
    constexpr int PIECE = 16 / sizeof(Element), PIECES = Chunk::WIDTH / PIECE;
    for (i32 piece = threadIdx.x % WARP_SIZE; piece < rows * PIECES; piece += WARP_SIZE) {
      const u32 here = piece / PIECES, within = piece % PIECES * PIECE;
      if (column + within >= output.columns) continue;
      u8* to = output.rows + (row + here) * output.pitch_bytes + (column + within) * sizeof(Element);
      store_whole(to, *reinterpret_cast<const uint4*>(chunk + Chunk::at(here, within)));
    }
  }
};

// FunctorEpilogue whose rows end with the tile's group.
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
