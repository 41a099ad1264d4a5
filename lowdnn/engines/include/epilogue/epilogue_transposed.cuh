// Epilogues of transposed tiles: the tile's rows are the output's columns, its columns the output's rows.
//
// They have the interface of epilogue_wgmma.cuh; Output counts rows and columns of the output.

#pragma once

#include "include/epilogue/epilogue_wgmma.cuh"

// Hands the accumulators to the functor, WIDTH neighbours along a column of the tile at a time.
//
// A warp transposes TURNED_COLUMNS columns of its 16 rows at a time in its staging area; PITCH keeps its writes in
// different banks.
template <class Tile, class Functor, int WIDTH, class Map, class Reductions> struct TransposedFunctorEpilogue {
  typedef typename Tile::Accumulator Accumulator;
  typedef typename FunctorEpilogue<Tile, Functor, WIDTH, Map, PlainColumns, Reductions>::Output Output;
  static constexpr int TURNED_COLUMNS = STAGING_BUFFERS * 24, PITCH = 20;
  static constexpr int STAGING_BYTES = STAGING_BUFFERS * STAGING_BUFFER_BYTES, BARRIER_BYTES = 0;
  static_assert(TURNED_COLUMNS * PITCH * sizeof(Accumulator) <= STAGING_BYTES, "turned in the warp's staging area");

  const Output* output;  // parameters of the tile's part of the output
  Accumulator* const area;
  Reductions reductions;

  __device__ __forceinline__ TransposedFunctorEpilogue(const Output& output, u8* staging, u32)
      : output(&output), area(reinterpret_cast<Accumulator*>(staging)), reductions(output) {}

  __device__ __forceinline__ void begin(const TileWork&, u32) const {}

  __device__ __forceinline__ void end(const Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const TileWork& work,
                                      u32 first_row) {
    const u32 warp = threadIdx.x / WARP_SIZE % 4;
#pragma unroll
    for (int part = 0; part < Tile::PARTS; ++part) {
      const u32 column = work.row + first_row + part * 64 + warp * STAGING_ROWS;
      if (column >= output->columns.count) continue;
      reductions.begin();
      chunks<0>(d[part], column, work);
      if constexpr (Reductions::EXIST) {
        const u32 slices = (output->rows + Tile::COLUMNS - 1) / Tile::COLUMNS;  // slices of one batch
        const u32 slice = work.batch * slices + work.column / Tile::COLUMNS;
        if (work.column < output->rows) reductions.end(*output, {slice, column, output->columns.count});
      }
    }
  }

  __device__ __forceinline__ void finish() { reductions.whole.finish(); }

 private:
  struct alignas(WIDTH < 4 ? 4 * WIDTH : 16) Values { Accumulator v[WIDTH]; };

  // Stores the tile's columns from FIRST on; the tile's rows are the output's columns from `column` on.
  template <int FIRST>
  __device__ __forceinline__ void chunks(const Accumulator (&d)[Tile::COLUMNS / 2], u32 column, const TileWork& work) {
    if constexpr (FIRST < Tile::COLUMNS) {
      constexpr int LEFT = Tile::COLUMNS - FIRST, TURNED = LEFT < TURNED_COLUMNS ? LEFT : TURNED_COLUMNS;
      const u32 lane = threadIdx.x % WARP_SIZE, row = work.column + FIRST;
      if (row >= output->rows) return;
      __syncwarp();  // the last chunk has been read
#pragma unroll
      for (int within = 0; within < TURNED; within += 8) {
        const Accumulator* from = d + (FIRST + within) / 2;
        Accumulator* to = area + (within + lane % 4 * 2) * PITCH + lane / 4;
        to[0] = from[0];
        to[PITCH] = from[1];
        to[8] = from[2];
        to[PITCH + 8] = from[3];
      }
      __syncwarp();
      store_groups<Functor, WIDTH, TURNED, STAGING_ROWS / WIDTH, Accumulator, Reductions::EXIST>(
          *output, work.batch,
          [&](u32 within, u32 group) {
            return GroupPlace{row + within, column + group * WIDTH, output->columns.count};
          },
          [&](Accumulator(&values)[WIDTH], u32 within, u32 group) {
            const Values staged = *reinterpret_cast<const Values*>(area + within * PITCH + group * WIDTH);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) values[i] = staged.v[i];
          },
          [&](const f32(&values)[WIDTH], u32 within, u32 group, i32 valid) {
            reductions.take(values, valid);
            f32* to = reinterpret_cast<f32*>(area) + within * PITCH + group * WIDTH;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) to[i] = values[i];
          });
      if constexpr (Reductions::EXIST) {
        const u32 first = work.batch * output->rows;
        const ReductionPlace down = {column / STAGING_ROWS, first + row, first + output->rows};
        const auto at = [&](u32 row, u32 column) { return reinterpret_cast<const f32*>(area)[column * PITCH + row]; };
        reductions.template reduce<TURNED>(*output, at, output->columns.count - column, output->rows - row, down);
      }
      chunks<FIRST + TURNED_COLUMNS>(d, column, work);
    }
  }
};

// Writes raw accumulators: element (row, column) of the output's part `split` goes to slice[row * pitch + column].
template <class Tile> struct TransposedSliceEpilogue {
  typedef typename Tile::Accumulator Accumulator;
  typedef typename SliceEpilogue<Tile>::Output Output;
  static constexpr int STAGING_BYTES = 0, BARRIER_BYTES = 0;

  const Output& output;

  __device__ __forceinline__ TransposedSliceEpilogue(const Output& output, u8*, u32) : output(output) {}

  __device__ __forceinline__ void begin(const TileWork&, u32) const {}

  __device__ __forceinline__ void end(const Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const TileWork& work,
                                      u32 first_row) const {
    const u32 warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
    Accumulator* slice =
        output.slices + work.split * output.slice_stride + i64(work.batch) * output.rows * output.pitch;
#pragma unroll
    for (int half = 0; half < 2 * Tile::PARTS; ++half) {
      const u32 column = work.row + first_row + half / 2 * 64 + warp * 16 + half % 2 * 8 + lane / 4;
      if (column >= output.columns.count) continue;
#pragma unroll
      for (int i = 0; i < Tile::COLUMNS / 4; ++i) {
        const u32 row = work.column + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (row < output.rows) slice[row * output.pitch + column] = d[half / 2][i / 2 * 4 + half % 2 * 2 + i % 2];
      }
    }
  }

  __device__ __forceinline__ void finish() const {}
};
