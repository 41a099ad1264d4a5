// Stores a warp's accumulators to device memory: through the functor, or as a slice of a split sum.

#pragma once

#include "include/epilogue/tile_reductions.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/tile/tile_mma.cuh"

// Each warp transposes its part of the accumulators through shared memory, so that a lane holds WIDTH neighbours along
// the output's contiguous axis, and hands them to the functor at the coordinates that an OutputMap gives.
// Shared memory: WARP_ROWS * WARP_COLUMNS regions of WARP_M x (WARP_N + 8) accumulators, which overlay the pipeline's
// stages. The padding limits bank conflicts to two-way ones in both directions.
// A value of the functor may be reduced along the way (tile_reductions.cuh).
template <class Product> struct EpilogueTile {
  typedef typename Product::Accumulator Accumulator;
  static constexpr int PITCH = Product::WARP_N + 8;
  static constexpr int WARP_ELEMENTS = Product::WARP_M * PITCH;
  static constexpr int BYTES = Product::WARP_ROWS * Product::WARP_COLUMNS * WARP_ELEMENTS * int(sizeof(Accumulator));

  template <class ColumnOperator, class RowOperator, class WholeOperator>
  using Reductions = TileReductions<Product, PITCH, ColumnOperator, RowOperator, WholeOperator>;

  // slices: the tile's slices of the totals, where it has reductions.
  template <class Functor, int WIDTH, class Map, class Reductions>
  static __device__ __forceinline__ void run(const Product& product, u8* shared, TilePlace place, const Map& map,
                                             const typename Functor::Args& arguments, Reductions reductions,
                                             const typename Reductions::Output& output, ReductionSlices slices) {
    static_assert(Reductions::BYTES <= BYTES, "totals lie where the accumulators were");
    constexpr int GROUPS = Product::WARP_N / WIDTH;  // groups of WIDTH columns in a row
    const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    Accumulator* staged = reinterpret_cast<Accumulator*>(shared) + warp * WARP_ELEMENTS;
    const u32 first_row = place.row + warp % Product::WARP_ROWS * Product::WARP_M;
    const u32 first_column = place.column + warp / Product::WARP_ROWS * Product::WARP_N;

    __syncthreads();  // every warp has read its last fragments
    stage(product, staged, lane);
    __syncwarp();

#pragma unroll 4
    for (u32 item = lane; item < Product::WARP_M * GROUPS; item += WARP_SIZE) {
      const u32 row = first_row + item / GROUPS, column = first_column + item % GROUPS * WIDTH;
      if (row >= place.row_end || column >= place.column_end) continue;
      Accumulator values[WIDTH];
      Accumulator* from = staged + item / GROUPS * PITCH + item % GROUPS * WIDTH;
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) values[v] = from[v];
      i64 coordinate[Map::RANK];
      const i64 along = map.locate(row, column, coordinate);
      const i32 valid = min(i32(place.column_end - column), WIDTH);
      const typename Functor::Cursor cursor = Functor::cursor(arguments, coordinate);
      if constexpr (Reductions::EXIST) {
        f32 reduced[WIDTH];
        Functor::template apply<WIDTH>(arguments, cursor, along, valid, values, reduced);
        reductions.take(reduced, valid, reinterpret_cast<f32*>(from));
      } else {
        Functor::template apply<WIDTH>(arguments, cursor, along, valid, values);
      }
    }
    if constexpr (Reductions::EXIST) {
      reductions.finish(output, reinterpret_cast<const f32*>(staged), shared, place, slices);
    }
  }

  // Runs the epilogue without reductions.
  template <class Functor, int WIDTH, class Map>
  static __device__ __forceinline__ void run(const Product& product, u8* shared, TilePlace place, const Map& map,
                                             const typename Functor::Args& arguments) {
    typedef Reductions<NoOperator, NoOperator, NoOperator> None;
    run<Functor, WIDTH>(product, shared, place, map, arguments, None(), typename None::Output(), ReductionSlices());
  }

  // Writes raw accumulators: element (row, column) goes to slice[row * pitch + column].
  static __device__ __forceinline__ void store(const Product& product, Accumulator* slice, i64 pitch, TilePlace place) {
    const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const u32 first_row = place.row + warp % Product::WARP_ROWS * Product::WARP_M + lane / 4;
    const u32 first_column = place.column + warp / Product::WARP_ROWS * Product::WARP_N + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * Product::BLOCKS_M; ++i) {
      const u32 row = first_row + i * 8;
      if (row >= place.row_end) continue;
#pragma unroll
      for (int j = 0; j < 2 * Product::BLOCKS_N; ++j) {
        const u32 column = first_column + j * 8;
        if (column >= place.column_end) continue;
        const Accumulator(&d)[4] = product.accumulator[i / 2][j];
        store_pair(slice + row * pitch + column, d[i % 2 * 2], d[i % 2 * 2 + 1]);
      }
    }
  }

 private:
  static __device__ __forceinline__ void stage(const Product& product, Accumulator* staged, u32 lane) {
    Accumulator* to = staged + lane / 4 * PITCH + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * Product::BLOCKS_M; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * Product::BLOCKS_N; ++j) {
        const Accumulator(&d)[4] = product.accumulator[i / 2][j];
        store_pair(to + i * 8 * PITCH + j * 8, d[i % 2 * 2], d[i % 2 * 2 + 1]);
      }
    }
  }

  static __device__ __forceinline__ void store_pair(Accumulator* to, Accumulator x, Accumulator y) {
    struct alignas(2 * sizeof(Accumulator)) Pair { Accumulator x, y; };
    *reinterpret_cast<Pair*>(to) = Pair{x, y};
  }
};
