// Stores a warpgroup's accumulators by tensor map, and loads an operand of the epilogue by tensor map.
//
// The functor gets pairs of accumulators and hands back the output's values. Each warp transposes its rows, CHUNK
// columns at a time, through STAGING_BUFFERS buffers of shared memory; of two buffers, one is written while the other
// is stored. A full-size operand (a residual) comes the same way: it is loaded AHEAD chunks ahead, starting before the
// tile's multiplications.
// The output, or another value of the functor, may be reduced along the way (epilogue_reductions.cuh).
// Target: how the output's map addresses its rows; a whole warp stores a chunk of them. An operand's map has dimensions
// (columns, rows, batch). Boxes are CHUNK x 16, swizzled over the bytes of a chunk's row.

#pragma once

#include "include/epilogue/epilogue_reductions.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_schedule.cuh"
#include "include/ptx/tma.cuh"
#include "include/epilogue/warp_staging.cuh"

// Columns of a chunk: at most 128 bytes of the widest type, and a divisor of the tile's columns.
constexpr int chunk_columns(int tile_columns, int element_bytes) {
  int columns = 128 / element_bytes;
  while (tile_columns % columns) columns /= 2;
  return columns;
}

// STAGING_ROWS x COLUMNS elements in the layout of a tensor map whose swizzle spans a whole row.
template <class T, int COLUMNS> struct SwizzledChunk {
  typedef T Element;
  static constexpr int WIDTH = COLUMNS;
  static constexpr u32 ROW_BYTES = COLUMNS * sizeof(T), BYTES = STAGING_ROWS * ROW_BYTES;
  struct alignas(2 * sizeof(T)) Pair { T x, y; };

  static __device__ __forceinline__ u32 at(u32 row, u32 column) {
    constexpr u32 PIECES = ROW_BYTES / 16, PIECE = 16 / sizeof(T);
    const u32 piece = column / PIECE ^ row * ROW_BYTES / 128 % PIECES;
    return row * ROW_BYTES + piece * 16 + column % PIECE * u32(sizeof(T));
  }
};

// Rows of a tiled map with dimensions (columns, rows, batch).
struct RowTarget {
  i32 row, batch;

  template <class Map>
  __device__ __forceinline__ RowTarget(const Map&, const TileWork& work, u32, u32 row) : row(row), batch(work.batch) {}

  template <class Chunk>
  __device__ __forceinline__ void store(const TensorMap& map, const u8* from, u32 column) const {
    if (threadIdx.x % WARP_SIZE == 0) tma_store(map, shared_address(from), i32(column), row, batch);
  }
};

// Pixels of an im2col map with dimensions (columns, pixel axes innermost first, images): the rows of an OutputMap with
// as many axes.
template <int AXES> struct PixelTarget {
  i64 at[AXES];

  __device__ __forceinline__ PixelTarget(const OutputMap<AXES, AXES - 1>& output, const TileWork& work, u32 rows,
                                         u32 row) {
    output.locate_row(work.batch * rows + row, at);
  }

  template <class Chunk>
  __device__ __forceinline__ void store(const TensorMap& map, const u8* chunk, u32 column) const {
    if (threadIdx.x % WARP_SIZE != 0) return;
    const u32 from = shared_address(chunk);
    if constexpr (AXES == 3) {
      tma_store_im2col(map, from, i32(column), i32(at[1]), i32(at[0]));
    } else if constexpr (AXES == 4) {
      tma_store_im2col(map, from, i32(column), i32(at[2]), i32(at[1]), i32(at[0]));
    } else {
      tma_store_im2col(map, from, i32(column), i32(at[3]), i32(at[2]), i32(at[1]), i32(at[0]));
    }
  }
};

// Functor::Result is the stored tensor's type, Element. Functor::Handed0 of type Operand exists if AHEAD > 0, and
// Functor::Reduced if there is a RowOperator or a WholeOperator.
template <class Tile, class Functor, class Map, class Target, class Element, int AHEAD, class Operand,
          class ColumnOperator, class RowOperator, class WholeOperator>
struct MapEpilogue {
  typedef typename Tile::Accumulator Accumulator;
  static constexpr int WIDEST = sizeof(Operand) > sizeof(Element) ? sizeof(Operand) : sizeof(Element);
  static constexpr int CHUNK = chunk_columns(Tile::COLUMNS, WIDEST);
  typedef SwizzledChunk<Element, CHUNK> OutputChunk;
  typedef SwizzledChunk<Operand, CHUNK> OperandChunk;
  static constexpr bool HAS_OPERAND = AHEAD > 0;
  static constexpr int BUFFERS = STAGING_BUFFERS;  // buffers of the output
  static constexpr int BATCH = CHUNK % 32 == 0 ? 4 : CHUNK % 16 == 0 ? 2 : 1;
  static constexpr int STAGING_BYTES = BUFFERS * OutputChunk::BYTES + AHEAD * OperandChunk::BYTES;
  static constexpr int BARRIER_BYTES = AHEAD * MBARRIER_BYTES;

  typedef ColumnReduction<Tile, OutputChunk, ColumnOperator> Columns;
  typedef RowReduction<Tile, RowOperator> Rows;
  typedef WholeReduction<Tile, WholeOperator> Whole;

  struct Output : Columns::Output, Rows::Output, Whole::Output {
    TensorMap tensor, operand;  // `operand` is not used unless HAS_OPERAND
    u32 rows, columns;
    Map map;
    typename Functor::Args arguments;
  };

  const Output* output;  // parameters of the tile's part of the output
  u8* const area;  // STAGING_BYTES bytes of this warp
  const u32 barriers;  // BARRIER_BYTES bytes of this warp
  u32 stores = 0, loads = 0, uses = 0;
  u32 chunks, across;  // chunks of this warp's part of the tile that exist; those of 16 rows
  Columns column_reduction;
  Rows row_reduction;
  Whole whole_reduction;

  __device__ __forceinline__ MapEpilogue(const Output& output, u8* area, u32 barriers)
      : output(&output), area(area), barriers(barriers), column_reduction(output), row_reduction(output),
        whole_reduction(output) {
    if (threadIdx.x == 0) prefetch(output.tensor);
    if constexpr (HAS_OPERAND) {
      if (threadIdx.x % WARP_SIZE == 0) {
        for (int buffer = 0; buffer < AHEAD; ++buffer) mbarrier_init(barriers + buffer * MBARRIER_BYTES, 1);
        mbarrier_fence_init();
      }
      __syncwarp();
    }
  }

  // Starts the loads of the operand's first chunks.
  __device__ __forceinline__ void begin(const TileWork& work, u32 first_row) {
    column_reduction.template begin<STAGING_BYTES>(work, area);
    if constexpr (HAS_OPERAND) {
      const u32 row = warp_row(work, first_row);
      const i32 columns = max(i32(output->columns) - i32(work.column), 0);  // 0 in a tile past the end
      across = (min(Tile::COLUMNS, columns) + CHUNK - 1) / CHUNK;
      chunks = 0;
      for (int part = 0; part < Tile::PARTS; ++part) chunks += row + part * 64 < output->rows ? across : 0;
      for (u32 chunk = 0; chunk < AHEAD; ++chunk) load(work, row, chunk);
    }
  }

  __device__ __forceinline__ void end(const Accumulator (&d)[Tile::PARTS][Tile::COLUMNS / 2], const TileWork& work,
                                      u32 first_row) {
    const u32 lane = threadIdx.x % WARP_SIZE, row = warp_row(work, first_row);
    u32 chunk = 0;
    column_reduction.begin_store();
#pragma unroll
    for (int part = 0; part < Tile::PARTS; ++part) {
      const u32 part_row = row + part * 64;
      row_reduction.begin();
      const Target target(output->map, work, output->rows, part_row);
      typename Functor::Cursor cursor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 here = min(part_row + half * 8 + lane / 4, output->rows - 1);
        i64 coordinate[Map::RANK];
        output->map.locate(work.batch * output->rows + here, 0, coordinate);
        cursor[half] = Functor::cursor(output->arguments, coordinate);
      }
#pragma unroll
      for (int first = 0; first < Tile::COLUMNS; first += CHUNK) {
        const u32 column = work.column + first;
        if (part_row >= output->rows || column >= output->columns) continue;
        const u8* from = await_operand();
        u8* to = free_buffer(stores++);
#pragma unroll
        for (int within = 0; within < CHUNK; within += 8 * BATCH) {
          put(to, from, part_row, within, column, cursor, d[part] + (first + within) / 2);
        }
        fence_async_shared();
        __syncwarp();
        target.template store<OutputChunk>(output->tensor, to, column);
        if (lane == 0) bulk_commit();
        column_reduction.add(to, first / CHUNK, output->rows - part_row);
        load(work, row, chunk++ + AHEAD);
      }
      if (work.column < output->columns) row_reduction.end(work, part_row, output->rows);
    }
    if constexpr (Columns::USES_CHUNK) column_reduction.end_store(free_buffer(stores));
  }

  // Called before the block ends, since stores read its shared memory until then. Stored data arrives before the kernel
  // counts as ended.
  __device__ __forceinline__ void finish() {
    column_reduction.template finish<STAGING_BYTES>(area);
    whole_reduction.finish();
    bulk_wait_read<0>();
  }

 private:
  static __device__ __forceinline__ u32 warp_row(const TileWork& work, u32 first_row) {
    return work.row + first_row + threadIdx.x / WARP_SIZE % 4 * STAGING_ROWS;
  }

  // The output's buffer for store number `store`, once the buffer's last store has read it.
  __device__ __forceinline__ u8* free_buffer(u32 store) const {
    u8* buffer = area + store % BUFFERS * OutputChunk::BYTES;
    if (threadIdx.x % WARP_SIZE == 0) bulk_wait_read<BUFFERS - 1>();
    __syncwarp();
    return buffer;
  }

  // Starts to load the operand's chunk `chunk` of the tile; the tile's first chunk begins at row `row`.
  __device__ __forceinline__ void load(const TileWork& work, u32 row, u32 chunk) {
    if constexpr (HAS_OPERAND) {
      if (chunk >= chunks) return;
      const u32 buffer = loads++ % AHEAD, barrier = barriers + buffer * MBARRIER_BYTES;
      if (threadIdx.x % WARP_SIZE == 0) {
        const u32 part = chunk / across, first = chunk % across * CHUNK;
        mbarrier_expect(barrier, OperandChunk::BYTES);
        tma_load<1>(shared_address(operand_buffer(buffer)), output->operand, barrier, 0, i32(work.column + first),
                    i32(row + part * 64), i32(work.batch));
      }
    }
  }

  // Waits for the operand's next chunk, and returns its address.
  __device__ __forceinline__ const u8* await_operand() {
    if constexpr (HAS_OPERAND) {
      const u32 buffer = uses % AHEAD;
      mbarrier_wait(barriers + buffer * MBARRIER_BYTES, uses++ / AHEAD % 2);
      return operand_buffer(buffer);
    }
    return nullptr;
  }

  __device__ __forceinline__ u8* operand_buffer(u32 buffer) const {
    return area + BUFFERS * OutputChunk::BYTES + buffer * OperandChunk::BYTES;
  }

  // Passes BATCH blocks of 8 columns through the functor, from column `within` of the chunk on; the chunk's first row
  // and column are `first_row` and `first`. The blocks' loads are in flight together, and their arithmetic is
  // independent.
  __device__ __forceinline__ void put(u8* to, const u8* from, u32 first_row, u32 within, u32 first,
                                      const typename Functor::Cursor (&cursor)[2], const Accumulator* accumulators) {
    typedef typename OutputChunk::Pair Pair;
    const u32 lane = threadIdx.x % WARP_SIZE, row = lane / 4, column = within + lane % 4 * 2;
    typename Functor::template Loaded<2> loaded[BATCH][2];
    Pair results[BATCH][2];
#pragma unroll
    for (int block = 0; block < BATCH; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Columns are even; past the last one anything may be read, since the store cuts it off.
        const u32 along = min(first + column + block * 8, output->columns - 2);
        Functor::template load<2>(output->arguments, cursor[half], along, 2, loaded[block][half]);
      }
    }
#pragma unroll
    for (int block = 0; block < BATCH; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Accumulator* pair = accumulators + block * 4 + half * 2;
        const u32 here = row + half * 8, at = column + block * 8;
        const bool exists = first_row + here < output->rows;
        results[block][half] =
            finish(from, half, here, at, first + at, exists, cursor[half], loaded[block][half], pair);
      }
    }
#pragma unroll
    for (int block = 0; block < BATCH; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<Pair*>(to + OutputChunk::at(row + half * 8, column + block * 8)) = results[block][half];
      }
    }
  }

  // Passes one pair of accumulators through the functor. half: which of the thread's two rows it is. row, column: its
  // position in the chunk. along: its column in the output.
  __device__ __forceinline__ typename OutputChunk::Pair finish(const u8* from, int half, u32 row, u32 column, u32 along,
                                                               bool exists,
                                                               const typename Functor::Cursor& cursor,
                                                               const typename Functor::template Loaded<2>& loaded,
                                                               const Accumulator* pair) {
    const Accumulator values[2] = {pair[0], pair[1]};
    typename Functor::Result results[2];
    const auto compute = [&](auto&... handed) {
      if constexpr (Rows::EXISTS || Whole::EXISTS) {
        typename Functor::Reduced reductions[2];
        Functor::template finish<2>(output->arguments, cursor, along, 2, loaded, values, handed..., results,
                                    reductions);
        for (int i = 0; i < 2; ++i) {
          if constexpr (Rows::EXISTS) {
            if (along < output->columns) row_reduction.add(half, reductions[i]);
          }
          if constexpr (Whole::EXISTS) {
            if (exists && along < output->columns) whole_reduction.add(reductions[i]);
          }
        }
      } else {
        Functor::template finish<2>(output->arguments, cursor, along, 2, loaded, values, handed..., results);
      }
    };
    if constexpr (HAS_OPERAND) {
      const auto operand = *reinterpret_cast<const typename OperandChunk::Pair*>(from + OperandChunk::at(row, column));
      const Operand operands[2] = {operand.x, operand.y};
      compute(operands);
    } else {
      compute();
    }
    return {results[0], results[1]};
  }
};
