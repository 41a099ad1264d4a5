// Reductions in a MapEpilogue: over each column of the stored output; over each row, and over all elements, of one
// tensor of the epilogue.
//
// Columns: every consumer warpgroup of the grid (a "worker") has its own totals in the workspace, one for each column
// of the product. Its warps accumulate the columns of their current tiles in registers, and add them to the worker's
// totals when the worker moves on to other columns. Rows: each column of tiles has its own totals, one for each row of
// all batches; one tile writes each of them. Whole: each warp of a worker has one total. reduction/reduction_combine.cu
// combines them all as slices, so the order of summation depends only on the plan.
// Operators, computed in f32: include/math/reduction_operators.cuh.

#pragma once

#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_schedule.cuh"
#include "include/ptx/tma.cuh"
#include "include/epilogue/warp_staging.cuh"
#include "include/ptx/warpgroup.cuh"
#include "include/math/reduction_operators.cuh"

// Index of this warpgroup among all workers: the first `per_block` warpgroups of each block are its consumers.
__device__ __forceinline__ u32 worker_index(u32 per_block) {
  return blockIdx.x * per_block + threadIdx.x / WARPGROUP_SIZE;
}

// ---- columns --------------------------------------------------------------------------------------------------------

// Computes an operator's total from the sum and the sum of squares of elements, for operators that are one of them or
// both.
template <class Operator> struct FromMoments { static constexpr bool EXISTS = false; };
template <> struct FromMoments<Add> {
  static constexpr bool EXISTS = true;
  static __device__ __forceinline__ f32 total(f32 sum, f32) { return sum; }
};
template <> struct FromMoments<Avg> : FromMoments<Add> {};
template <> struct FromMoments<Norm2> {
  static constexpr bool EXISTS = true;
  static __device__ __forceinline__ f32 total(f32, f32 squares) { return squares; }
};
template <> struct FromMoments<GenStats> {
  static constexpr bool EXISTS = true;
  static __device__ __forceinline__ Moments<f32> total(f32 sum, f32 squares) { return {sum, squares}; }
};

// Two packed elements of value 1, which tensor cores multiply exactly.
template <class T> struct OnePair { static constexpr u32 WORD = 0; };
template <> struct OnePair<f16> { static constexpr u32 WORD = 0x3c003c00; };
template <> struct OnePair<bf16> { static constexpr u32 WORD = 0x3f803f80; };

// A warp's column totals of one tile of CHUNKS chunks: in every chunk a lane has the totals of SIDE adjacent columns.
// Chunk: the layout in shared memory of the STAGING_ROWS x WIDTH elements that a warp stages.
template <class Chunk, int CHUNKS, class Operator> struct LaneColumns {
  typedef typename TotalOf<Operator, f32>::Type Total;
  typedef typename Chunk::Element Element;
  static constexpr int SIDE = (Chunk::WIDTH + WARP_SIZE - 1) / WARP_SIZE;

  struct alignas(SIDE * sizeof(Element)) Side { Element value[SIDE]; };

  Total totals[CHUNKS][SIDE];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int i = 0; i < SIDE; ++i) totals[chunk][i] = Operator::template neutral<f32>();
    }
  }

  // Called before a tile's first chunk.
  __device__ __forceinline__ void begin() const {}

  // Adds the first `rows` rows of the tile's chunk `chunk`, which this warp has staged.
  __device__ __forceinline__ void add(const u8* area, int chunk, u32 rows) {
    const u32 column = threadIdx.x % WARP_SIZE * SIDE;
    if (column >= Chunk::WIDTH) return;
    if (rows >= STAGING_ROWS) {
#pragma unroll
      for (u32 row = 0; row < STAGING_ROWS; ++row) add_row(area, chunk, row, column);
    } else {
#pragma unroll 1
      for (u32 row = 0; row < rows; ++row) add_row(area, chunk, row, column);
    }
  }

  // Writes the totals of the tile's columns one after the other.
  __device__ __forceinline__ void put(Total* to) const {
    const u32 column = threadIdx.x % WARP_SIZE * SIDE;
    if (column >= Chunk::WIDTH) return;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int i = 0; i < SIDE; ++i) to[chunk * Chunk::WIDTH + column + i] = totals[chunk][i];
    }
  }

 private:
  __device__ __forceinline__ void add_row(const u8* area, int chunk, u32 row, u32 column) {
    const Side side = *reinterpret_cast<const Side*>(area + Chunk::at(row, column));
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
      totals[chunk][i] = Operator::combine(totals[chunk][i], Operator::prepare(convert<f32>(side.value[i])));
    }
  }
};

// LaneColumns for operators that are made of moments, and 16-bit elements: tensor cores compute a tile's sums,
// accumulating in fp32.
//
// For 8 columns Y of 16 rows, [Y | 1]^T Y has the sums of squares on the diagonal of its first 8 rows, and the column
// sums in each of its last 8 rows. Lane 4 * g + g / 2 holds both for column g.
template <class Chunk, int CHUNKS, class Operator> struct MomentColumns : LaneColumns<Chunk, CHUNKS, Operator> {
  typedef LaneColumns<Chunk, CHUNKS, Operator> Lanes;
  typedef typename Lanes::Total Total;
  typedef typename Chunk::Element Element;
  static constexpr int BLOCKS = Chunk::WIDTH / 8;
  static constexpr int AT_ONCE = 4;  // chunks whose totals are exchanged through shared memory together
  static_assert(Chunk::WIDTH % 16 == 0, "ldmatrix brings 16 columns");
  static_assert(AT_ONCE * Chunk::WIDTH * sizeof(Total) <= Chunk::BYTES, "handed over in one chunk's memory");

  f32 moments[CHUNKS][BLOCKS][4];  // moments of one tile

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < CHUNKS * BLOCKS * 4; ++i) moments[0][0][i] = 0;
  }

  __device__ __forceinline__ void add(const u8* area, int chunk, u32 rows) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    const u32 first_address = shared_address(area + Chunk::at(lane % 16, lane / 16 * 8));
    u32 pairs[BLOCKS / 2][4];
#pragma unroll
    for (int i = 0; i < BLOCKS / 2; ++i) ldmatrix_x4_transposed(pairs[i], first_address ^ i * 32);
    if (rows < STAGING_ROWS) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 row = half * 8 + lane % 4 * 2;
        const u32 exist = row + 1 < rows ? ~0u : row < rows ? 0xffffu : 0;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) pairs[i / 2][i % 2 * 2 + half] &= exist;
      }
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) {
      const u32 first = pairs[i / 2][i % 2 * 2], second = pairs[i / 2][i % 2 * 2 + 1];
      const u32 columns_and_ones[4] = {first, OnePair<Element>::WORD, second, OnePair<Element>::WORD};
      Mma<Element>::apply(moments[chunk][i], columns_and_ones, first, second);
    }
  }

  // Called after a tile's last chunk; `area` has Chunk::BYTES of shared memory for the exchange.
  __device__ __forceinline__ void end(u8* area) {
    const u32 lane = threadIdx.x % WARP_SIZE, column = lane / 4;
    Total* handed = reinterpret_cast<Total*>(area);
#pragma unroll
    for (int first = 0; first < CHUNKS; first += AT_ONCE) {
      __syncwarp();
#pragma unroll
      for (int i = first * BLOCKS; i < (first + AT_ONCE) * BLOCKS && i < CHUNKS * BLOCKS; ++i) {
        const f32(&d)[4] = moments[i / BLOCKS][i % BLOCKS];
        const Total total = FromMoments<Operator>::total(column % 2 ? d[3] : d[2], column % 2 ? d[1] : d[0]);
        if (lane % 4 == column / 2) handed[(i - first * BLOCKS) * 8 + column] = total;
      }
      __syncwarp();
#pragma unroll
      for (int chunk = first; chunk < first + AT_ONCE && chunk < CHUNKS; ++chunk) take(handed, chunk, chunk - first);
    }
  }

 private:
  __device__ __forceinline__ void take(const Total* handed, int chunk, int place) {
    const u32 column = threadIdx.x % WARP_SIZE * Lanes::SIDE;
    if (column >= Chunk::WIDTH) return;
#pragma unroll
    for (int i = 0; i < Lanes::SIDE; ++i) {
      Total& total = this->totals[chunk][i];
      total = Operator::combine(total, handed[place * Chunk::WIDTH + column + i]);
    }
  }
};

template <bool IS_MOMENT, class Chunk, int CHUNKS, class Operator> struct WarpColumns {
  typedef LaneColumns<Chunk, CHUNKS, Operator> Type;
};
template <class Chunk, int CHUNKS, class Operator> struct WarpColumns<true, Chunk, CHUNKS, Operator> {
  typedef MomentColumns<Chunk, CHUNKS, Operator> Type;
};

// Reduces the stored output over its rows: one total for each column.
template <class Tile, class Chunk, class Operator> struct ColumnReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr int COLUMNS = Tile::COLUMNS;
  static constexpr int OWNED = (COLUMNS + WARPGROUP_SIZE - 1) / WARPGROUP_SIZE;  // columns of a tile that a thread owns
  static constexpr u32 BARRIER = 3;  // named barrier of the first warpgroup
  static constexpr u32 NOWHERE = ~0u;
  static constexpr bool USES_CHUNK = FromMoments<Operator>::EXISTS && OnePair<typename Chunk::Element>::WORD;
  static_assert(COLUMNS * sizeof(Total) <= STAGING_BUFFERS * Chunk::BYTES, "a warp's totals lie where its chunks were");

  struct Output {
    Total* column_totals;  // [workers][columns]
    i64 all_columns;
  };

  Total* const own;  // totals of this worker
  const u32 columns;  // columns of the product
  u32 first = NOWHERE;  // first column of the tiles whose totals the warps have
  typename WarpColumns<USES_CHUNK, Chunk, COLUMNS / Chunk::WIDTH, Operator>::Type warp_columns;

  __device__ __forceinline__ ColumnReduction(const Output& output)
      : own(output.column_totals + worker_index(Tile::CONSUMER_WARPS / 4) * output.all_columns),
        columns(output.all_columns) {
    for (u32 first = 0; first < columns; first += COLUMNS) {
      for_owned(first, [](u32, Total& total) { total = Operator::template neutral<f32>(); });
    }
    warp_columns.clear();
  }

  // Called by all warps of the warpgroup before a tile's multiplications. AREA_BYTES: bytes from one warp's area to the
  // next.
  template <int AREA_BYTES> __device__ __forceinline__ void begin(const TileWork& work, u8* area) {
    if (work.column == first) return;
    if (first != NOWHERE) {
      join<AREA_BYTES>(area);
      warp_columns.clear();
    }
    first = work.column;
  }

  // Called after a tile's multiplications.
  __device__ __forceinline__ void begin_store() { warp_columns.begin(); }
  __device__ __forceinline__ void add(const u8* area, int chunk, u32 rows) { warp_columns.add(area, chunk, rows); }
  __device__ __forceinline__ void end_store(u8* chunk) { warp_columns.end(chunk); }  // only if USES_CHUNK

  // Called after the last tile.
  template <int AREA_BYTES> __device__ __forceinline__ void finish(u8* area) const {
    if (first != NOWHERE) join<AREA_BYTES>(area);
  }

 private:
  // Combines the warps' totals through their areas, and adds them to the worker's totals.
  template <int AREA_BYTES> __device__ __forceinline__ void join(u8* area) const {
    const u32 warp = threadIdx.x / WARP_SIZE % 4, barrier = BARRIER + threadIdx.x / WARPGROUP_SIZE;
    if (threadIdx.x % WARP_SIZE == 0) bulk_wait_read<0>();
    __syncwarp();
    warp_columns.put(reinterpret_cast<Total*>(area));
    named_barrier(barrier, WARPGROUP_SIZE);
    const u8* of_warps = area - warp * AREA_BYTES;
    for_owned(first, [&](u32 within, Total& total) {
      Total joined = total;
#pragma unroll
      for (int other = 0; other < 4; ++other) {
        joined = Operator::combine(joined, reinterpret_cast<const Total*>(of_warps + other * AREA_BYTES)[within]);
      }
      total = joined;
    });
    named_barrier(barrier, WARPGROUP_SIZE);  // the areas have been read
  }

  // Calls use(column of the tile, its total) for this thread's columns of the tile that begins at column `start`. A
  // column always belongs to the same thread.
  template <class Use> __device__ __forceinline__ void for_owned(u32 start, const Use& use) const {
#pragma unroll
    for (int i = 0; i < OWNED; ++i) {
      const u32 within = threadIdx.x % WARPGROUP_SIZE + i * WARPGROUP_SIZE;
      if (within < COLUMNS && start + within < columns) use(within, own[start + within]);
    }
  }
};

template <class Tile, class Chunk> struct ColumnReduction<Tile, Chunk, NoOperator> {
  static constexpr bool USES_CHUNK = false;
  struct Output {};
  __device__ __forceinline__ ColumnReduction(const Output&) {}
  template <int AREA_BYTES> __device__ __forceinline__ void begin(const TileWork&, u8*) const {}
  __device__ __forceinline__ void begin_store() const {}
  __device__ __forceinline__ void add(const u8*, int, u32) const {}
  template <int AREA_BYTES> __device__ __forceinline__ void finish(u8*) const {}
};

// ---- rows -----------------------------------------------------------------------------------------------------------

// Reduces the values that the functor hands back over the columns: one total for each row. A warp has 16 rows at a
// time; lane l has elements of rows l / 4 and l / 4 + 8.
template <class Tile, class Operator> struct RowReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* row_totals;  // [columns of tiles][rows of all batches]
    i64 all_rows;
  };

  const Output& output;
  Total totals[2];

  __device__ __forceinline__ RowReduction(const Output& output) : output(output) {}

  __device__ __forceinline__ void begin() { totals[0] = totals[1] = Operator::template neutral<f32>(); }

  __device__ __forceinline__ void add(int half, f32 value) {
    totals[half] = Operator::combine(totals[half], Operator::prepare(value));
  }

  // Combines the lanes' totals, and stores those of the 16 rows from `row` on that are below `rows`, the rows of a
  // product.
  __device__ __forceinline__ void end(const TileWork& work, u32 row, u32 rows) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    Total* to = output.row_totals + work.column / Tile::COLUMNS * output.all_rows + i64(work.batch) * rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int offset = 2; offset > 0; offset /= 2) {
        totals[half] = Operator::combine(totals[half], shuffle_down(totals[half], offset));
      }
      const u32 here = row + half * 8 + lane / 4;
      if (lane % 4 == 0 && here < rows) to[here] = totals[half];
    }
  }
};

template <class Tile> struct RowReduction<Tile, NoOperator> {
  static constexpr bool EXISTS = false;
  struct Output {};
  __device__ __forceinline__ RowReduction(const Output&) {}
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void end(const TileWork&, u32, u32) const {}
};

// ---- everything -----------------------------------------------------------------------------------------------------

// Reduces all values that the functor hands back: one total for each warp.
template <class Tile, class Operator> struct WholeReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* whole;  // [workers][4 warps]
  };

  Total* const own;
  Total total = Operator::template neutral<f32>();

  __device__ __forceinline__ WholeReduction(const Output& output)
      : own(output.whole + worker_index(Tile::CONSUMER_WARPS / 4) * 4 + threadIdx.x / WARP_SIZE % 4) {}

  __device__ __forceinline__ void add(f32 value) { total = Operator::combine(total, Operator::prepare(value)); }

  // Combines the lanes' totals in a tree.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
      total = Operator::combine(total, shuffle_down(total, offset));
    }
    if (threadIdx.x % WARP_SIZE == 0) *own = total;
  }
};

template <class Tile> struct WholeReduction<Tile, NoOperator> {
  static constexpr bool EXISTS = false;
  struct Output {};
  __device__ __forceinline__ WholeReduction(const Output&) {}
  __device__ __forceinline__ void finish() const {}
};
