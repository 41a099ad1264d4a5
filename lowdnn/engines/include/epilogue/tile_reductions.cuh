// Reductions of one value of the functor in an EpilogueTile: over each column, each row and all elements of one tile.
//
// The values replace the accumulators in shared memory. Each warp reduces its part of the tile, and warps that share
// columns or rows combine their totals there. The tile's totals go to the workspace, where
// reduction/reduction_combine.cu combines those of all tiles as slices. So the order of summation depends only on the
// plan.
// Operators, computed in f32: include/math/reduction_operators.cuh.

#pragma once

#include "include/numeric.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/math/reduction_operators.cuh"

// The tile's slices of the totals of columns and of rows.
struct ReductionSlices {
  u32 columns, rows;
};

// Reduces each of LINES lines (columns or rows) of a tile. A warp's part has WARP_LINES lines of LENGTH elements;
// element i of line l lies at l * LINE_STEP + i * STEP. SHARERS warps have parts of the same lines.
template <class Operator, int LINES, int WARP_LINES, int LENGTH, int LINE_STEP, int STEP> struct LineReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;
  static constexpr int OWNED = WARP_LINES / WARP_SIZE;

  struct Output {
    Total* line_totals;  // [slices][lines of the output]
    i64 lines;
  };

  Total totals[OWNED];

  // Reduces this warp's lines; elements from `count` on do not exist.
  __device__ __forceinline__ void reduce(const f32* part, u32 count) {
    const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int j = 0; j < OWNED; ++j) {
      const f32* line = part + (lane + j * WARP_SIZE) * LINE_STEP;
      totals[j] = Operator::template neutral<f32>();
#pragma unroll 4
      for (u32 i = 0; i < LENGTH; ++i) {
        const u32 at = STEP == 1 ? (i + lane) % LENGTH : i;  // rotated: no bank conflicts between rows
        if (at < count) totals[j] = Operator::combine(totals[j], Operator::prepare(line[at * STEP]));
      }
    }
  }

  // Writes the totals of the warp's lines, from line `first` on, to shared memory [sharers][LINES].
  __device__ __forceinline__ void put(u8* shared, u32 sharer, u32 first) const {
    Total* to = reinterpret_cast<Total*>(shared) + sharer * LINES + first + threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int j = 0; j < OWNED; ++j) to[j * WARP_SIZE] = totals[j];
  }

  // Combines the totals of SHARERS warps, and stores those of the output's lines from `first` on, up to `end`.
  template <int SHARERS, int THREADS>
  __device__ __forceinline__ void join(const Output& output, const u8* shared, u32 slice, u32 first, u32 end) const {
    const Total* from = reinterpret_cast<const Total*>(shared);
    for (u32 line = threadIdx.x; line < LINES && first + line < end; line += THREADS) {
      Total joined = from[line];
#pragma unroll
      for (int sharer = 1; sharer < SHARERS; ++sharer) joined = Operator::combine(joined, from[sharer * LINES + line]);
      output.line_totals[slice * output.lines + first + line] = joined;
    }
  }

  template <int SHARERS> static constexpr int bytes() { return SHARERS * LINES * int(sizeof(Total)); }
};

template <int LINES, int WARP_LINES, int LENGTH, int LINE_STEP, int STEP>
struct LineReduction<NoOperator, LINES, WARP_LINES, LENGTH, LINE_STEP, STEP> {
  static constexpr bool EXISTS = false;
  struct Output {};
  __device__ __forceinline__ void reduce(const f32*, u32) const {}
  __device__ __forceinline__ void put(u8*, u32, u32) const {}
  template <int SHARERS, int THREADS>
  __device__ __forceinline__ void join(const Output&, const u8*, u32, u32, u32) const {}
  template <int SHARERS> static constexpr int bytes() { return 0; }
};

// Reduces all elements of the tile.
template <class Operator> struct BlockReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* block_totals;  // [blocks]
  };

  Total total = Operator::template neutral<f32>();

  __device__ __forceinline__ void add(f32 value) { total = Operator::combine(total, Operator::prepare(value)); }

  // Combines the lanes' totals in a tree: one total for each warp.
  __device__ __forceinline__ void put(u8* shared) {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
      total = Operator::combine(total, shuffle_down(total, offset));
    }
    if (threadIdx.x % WARP_SIZE == 0) reinterpret_cast<Total*>(shared)[threadIdx.x / WARP_SIZE] = total;
  }

  template <int WARPS> __device__ __forceinline__ void join(const Output& output, const u8* shared) const {
    if (threadIdx.x > 0) return;
    Total joined = total;
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) {
      joined = Operator::combine(joined, reinterpret_cast<const Total*>(shared)[warp]);
    }
    output.block_totals[blockIdx.x] = joined;
  }
};

template <> struct BlockReduction<NoOperator> {
  static constexpr bool EXISTS = false;
  struct Output {};
  __device__ __forceinline__ void add(f32) const {}
  __device__ __forceinline__ void put(u8*) const {}
  template <int WARPS> __device__ __forceinline__ void join(const Output&, const u8*) const {}
};

// All three reductions. PITCH: elements from one row of a warp's part to the next.
template <class Product, int PITCH, class ColumnOperator, class RowOperator, class WholeOperator>
struct TileReductions {
  typedef LineReduction<ColumnOperator, Product::N, Product::WARP_N, Product::WARP_M, 1, PITCH> Columns;
  typedef LineReduction<RowOperator, Product::M, Product::WARP_M, Product::WARP_N, PITCH, 1> Rows;
  typedef BlockReduction<WholeOperator> Whole;
  static constexpr int COLUMN_BYTES = Columns::template bytes<Product::WARP_ROWS>();
  static constexpr int ROW_BYTES = Rows::template bytes<Product::WARP_COLUMNS>();
  static constexpr int BYTES = COLUMN_BYTES + ROW_BYTES + Product::THREADS / WARP_SIZE * 8;  // while `finish` runs

  static constexpr bool EXIST = Columns::EXISTS || Rows::EXISTS || Whole::EXISTS;

  struct Output : Columns::Output, Rows::Output, Whole::Output {};

  Columns columns;
  Rows rows;
  Whole whole;

  // Takes the values of one group of `valid` elements and writes them to `staged`, from where the lane has read its
  // accumulators.
  template <int WIDTH> __device__ __forceinline__ void take(const f32 (&values)[WIDTH], i32 valid, f32* staged) {
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
      staged[v] = values[v];
      if (Whole::EXISTS && v < valid) whole.add(values[v]);
    }
  }

  // Called by all threads after the last group. staged: this warp's region of `shared`, which is overwritten.
  __device__ __forceinline__ void finish(const Output& output, const f32* staged, u8* shared, const TilePlace& place,
                                         ReductionSlices slices) {
    const u32 warp = threadIdx.x / WARP_SIZE;
    const u32 warp_row = warp % Product::WARP_ROWS, warp_column = warp / Product::WARP_ROWS;
    const u32 first_row = warp_row * Product::WARP_M, first_column = warp_column * Product::WARP_N;
    u8* row_area = shared + COLUMN_BYTES;
    u8* whole_area = row_area + ROW_BYTES;
    __syncwarp();
    columns.reduce(staged, rest(place.row + first_row, place.row_end));
    rows.reduce(staged, rest(place.column + first_column, place.column_end));
    __syncthreads();
    columns.put(shared, warp_row, first_column);
    rows.put(row_area, warp_column, first_row);
    whole.put(whole_area);
    __syncthreads();
    constexpr int THREADS = Product::THREADS, WARPS = THREADS / WARP_SIZE;
    columns.template join<Product::WARP_ROWS, THREADS>(output, shared, slices.columns, place.column, place.column_end);
    rows.template join<Product::WARP_COLUMNS, THREADS>(output, row_area, slices.rows, place.row, place.row_end);
    whole.template join<WARPS>(output, whole_area);
  }

 private:
  static __device__ __forceinline__ u32 rest(u32 first, u32 end) { return first < end ? end - first : 0; }
};
