// Reductions at the exits of a MapEpilogue: of each column of what it stores, and of all elements of one tensor.
//
// Every consumer warpgroup of the grid (a "worker") has totals of its own in the workspace, one for each column, and
// joins those of its tiles with them one after the other; each of its warps has one total over everything. The workers'
// totals are joined by reduction/reduction_combine.cu, as slices. So the order depends on the plan only.
// Operators, computed in f32: reduction/operators.cuh.

#pragma once

#include "include/tile_schedule.cuh"
#include "include/tma.cuh"
#include "include/warp_staging.cuh"
#include "include/warpgroup.cuh"
#include "reduction/operators.cuh"

struct NoOperator {};

// Of the `per_block` consumer warpgroups of every block, which are its first ones.
__device__ __forceinline__ u32 worker_index(u32 per_block) {
  return blockIdx.x * per_block + threadIdx.x / WARPGROUP_SIZE;
}

// Operator over the rows. Chunk: how a warp lays out STAGING_ROWS rows of WIDTH columns in shared memory.
template <class Tile, class Chunk, class Operator> struct ColumnExit {
  typedef typename TotalOf<Operator, f32>::Type Total;
  typedef typename Chunk::Element Element;
  static constexpr int COLUMNS = Tile::COLUMNS, CHUNKS = COLUMNS / Chunk::WIDTH;
  static constexpr int SIDE = (Chunk::WIDTH + WARP_SIZE - 1) / WARP_SIZE;        // columns of a lane, in a chunk
  static constexpr int OWNED = (COLUMNS + WARPGROUP_SIZE - 1) / WARPGROUP_SIZE;  // columns of a thread, in a tile
  static constexpr u32 BARRIER = 3;                                              // of the first warpgroup
  static_assert(COLUMNS * sizeof(Total) <= 2 * Chunk::BYTES, "a warp's totals lie where its two chunks were");

  struct Output {
    Total* columns;  // [workers][columns of the product]
  };

  struct alignas(SIDE * sizeof(Element)) Side { Element value[SIDE]; };

  Total* const own;   // of this worker
  const u32 columns;  // of the product
  Total before[OWNED], totals[CHUNKS][SIDE];

  __device__ __forceinline__ ColumnExit(const Output& output, u32 columns)
      : own(output.columns + i64(worker_index(Tile::CONSUMER_WARPS / 4)) * columns), columns(columns) {
    for (u32 first = 0; first < columns; first += COLUMNS) {
      for_owned(first, [](int, Total& total) { total = Operator::template neutral<f32>(); });
    }
  }

  // At the end of a tile's multiplications.
  __device__ __forceinline__ void begin(const TileWork& work) {
    for_owned(work.column, [&](int i, const Total& total) { before[i] = total; });
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int i = 0; i < SIDE; ++i) totals[chunk][i] = Operator::template neutral<f32>();
    }
  }

  // The first `rows` rows of the tile's chunk `chunk`, which this warp has written.
  __device__ __forceinline__ void add(const u8* area, int chunk, u32 rows) {
    const u32 column = threadIdx.x % WARP_SIZE * SIDE;
    if (column >= Chunk::WIDTH) return;
#pragma unroll
    for (u32 row = 0; row < STAGING_ROWS; ++row) {
      if (row >= rows) continue;
      const Side side = *reinterpret_cast<const Side*>(area + Chunk::at(row, column));
#pragma unroll
      for (int i = 0; i < SIDE; ++i) {
        totals[chunk][i] = Operator::combine(totals[chunk][i], Operator::prepare(convert<f32>(side.value[i])));
      }
    }
  }

  // All warps of the warpgroup: joins their totals through their areas, which lie AREA_BYTES apart.
  template <int AREA_BYTES> __device__ __forceinline__ void end(const TileWork& work, u8* area) const {
    const u32 lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
    const u32 barrier = BARRIER + threadIdx.x / WARPGROUP_SIZE;
    if (lane == 0) bulk_wait_read<0>();
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int i = 0; i < SIDE; ++i) {
        const u32 within = lane * SIDE + i;
        if (within < Chunk::WIDTH) reinterpret_cast<Total*>(area)[chunk * Chunk::WIDTH + within] = totals[chunk][i];
      }
    }
    named_barrier(barrier, WARPGROUP_SIZE);
    const u8* of_warps = area - warp * AREA_BYTES;
    for_owned(work.column, [&](int i, Total& total) {
      const u32 within = threadIdx.x % WARPGROUP_SIZE + i * WARPGROUP_SIZE;
      Total joined = before[i];
#pragma unroll
      for (int other = 0; other < 4; ++other) {
        joined = Operator::combine(joined, reinterpret_cast<const Total*>(of_warps + other * AREA_BYTES)[within]);
      }
      total = joined;
    });
    named_barrier(barrier, WARPGROUP_SIZE);  // the areas have been read
  }

 private:
  // use(i, total) for this thread's columns of the tile from `first` on: each column is always one thread's.
  template <class Use> __device__ __forceinline__ void for_owned(u32 first, const Use& use) const {
#pragma unroll
    for (int i = 0; i < OWNED; ++i) {
      const u32 within = threadIdx.x % WARPGROUP_SIZE + i * WARPGROUP_SIZE;
      if (within < COLUMNS && first + within < columns) use(i, own[first + within]);
    }
  }
};

template <class Tile, class Chunk> struct ColumnExit<Tile, Chunk, NoOperator> {
  struct Output {};
  __device__ __forceinline__ ColumnExit(const Output&, u32) {}
  __device__ __forceinline__ void begin(const TileWork&) const {}
  __device__ __forceinline__ void add(const u8*, int, u32) const {}
  template <int AREA_BYTES> __device__ __forceinline__ void end(const TileWork&, u8*) const {}
};

// Operator over all elements of what the functor hands back as its exit.
template <class Tile, class Operator> struct WholeExit {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* whole;  // [workers][4 warps]
  };

  Total* const own;
  Total total = Operator::template neutral<f32>();

  __device__ __forceinline__ WholeExit(const Output& output)
      : own(output.whole + worker_index(Tile::CONSUMER_WARPS / 4) * 4 + threadIdx.x / WARP_SIZE % 4) {}

  __device__ __forceinline__ void add(f32 value) { total = Operator::combine(total, Operator::prepare(value)); }

  // The lanes' totals joined as a tree.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
      total = Operator::combine(total, shuffle_down(total, offset));
    }
    if (threadIdx.x % WARP_SIZE == 0) *own = total;
  }
};

template <class Tile> struct WholeExit<Tile, NoOperator> {
  static constexpr bool EXISTS = false;
  struct Output {};
  __device__ __forceinline__ WholeExit(const Output&) {}
  __device__ __forceinline__ void finish() const {}
};
