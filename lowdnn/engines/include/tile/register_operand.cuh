// Operand A of a wgmma tile through registers: elements in memory pass through a functor on their way to the tensor
// cores.
//
// A stage holds the elements of A's rows as they are in memory, 64 of k each. A warp reads its 16 rows in pairs along
// k, in the order in which wgmma takes A from registers. Functor (codegen, vector axis k) converts each pair to the
// multiplication's type; it does so for one stage while the tensor cores multiply the stage before.

#pragma once

#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/tile/tile_operands.cuh"
#include "include/tile/tile_wgmma.cuh"
#include "include/vector.cuh"

constexpr int REGISTER_STAGE_K = 64;

// EXTENT rows of 64 elements of one or two bytes, in the layout of a tensor map whose swizzle spans a whole row.
template <class Raw, int EXTENT> struct RawStage {
  static constexpr bool MN_MAJOR = false;
  static constexpr int STEPS = REGISTER_STAGE_K / 16;
  static constexpr int ROW_BYTES = STAGE_ROW_BYTES;  // bytes of a row's converted elements
  static constexpr int RAW_ROW_BYTES = REGISTER_STAGE_K * sizeof(Raw), BYTES = EXTENT * RAW_ROW_BYTES;
  static_assert(sizeof(Raw) <= 2, "one or two bytes");

  // Loads the pairs of a warp's 16 rows, 16 elements of k from step * 16 on: words[i] is for fragment register i.
  static __device__ __forceinline__ void load(u32 (&words)[4], u32 rows, u32 step) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    if constexpr (sizeof(Raw) == 2) {
      const u32 row = lane % 16, piece = 2 * step + lane / 16;
      ldmatrix_x4(words, rows + row * RAW_ROW_BYTES + (piece ^ row % 8) * 16);
    } else {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 row = lane / 4 + i % 2 * 8;
        words[i] = load_shared_16(rows + row * RAW_ROW_BYTES + (step ^ row / 2 % 4) * 16 + i / 2 * 8 + lane % 4 * 2);
      }
    }
  }
};

// lines: the number of the operand's rows along the functor's axis of rows. depth: the extent of its vector axis, k.
template <class Functor> struct ConvertedInput {
  u32 lines;
  i32 depth;
  typename Functor::Args arguments;
};

// multiply(d, a, b, accumulate) is a wgmma with A in registers.
// Lines locates a thread's two rows and a stage's elements in the functor's index space:
//     void place(int i, u32 row, i64 (&coordinate)[RANK])    locates the thread's row i, the product's row `row`
//     i32 column() const                                     the stage's first element along the vector axis
//     bool reads(int i) const                                whether row i reads this stage; otherwise it has zeros
//     void advance()                                         moves on to the next stage
// Rows beyond the last one give results that are never stored, but their coordinates must exist.
//
// SAME_LOADS: whether the functor loads the same for all rows. ENDS_EARLY: whether the last stage may end with elements
// that do not exist; the functor may turn their zeros into anything, so its results are zeroed again.
template <class Tile, class Functor, class Multiply, bool SAME_LOADS, bool ENDS_EARLY> struct RegisterOperand {
  typedef typename Tile::Accumulator Accumulator;
  typedef typename Functor::Handed0 Raw;
  typedef typename Functor::Result Element;
  static constexpr int STEPS = Tile::STEPS, LOADED_ROWS = SAME_LOADS ? 1 : 2;
  static_assert(Tile::PARTS == 1 && Tile::K == REGISTER_STAGE_K && sizeof(Element) == 2, "one part, 16-bit types");
  typedef u32 Fragments[STEPS][4];

  typedef ConvertedInput<Functor> Input;

  const Tile& tile;
  const Input& input;
  const Multiply multiply = {};

  // Sums over a tile's stages. lines: at the tile's first stage. See TileWgmma::consume_by.
  template <class Lines, class Issued>
  __device__ __forceinline__ void sum(Accumulator (&d)[1][Tile::COLUMNS / 2], const TileWork& work, Lines lines,
                                      u32 first_row, typename Tile::Position& at, const Issued& issued) const {
    const u32 row = first_row + threadIdx.x / WARP_SIZE % 4 * 16;
    typename Functor::Cursor cursors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      i64 coordinate[Functor::RANK] = {};
      lines.place(i, work.row + row + threadIdx.x % WARP_SIZE / 4 + 8 * i, coordinate);
      cursors[i] = Functor::cursor(input.arguments, coordinate);
    }
    // Two sets of fragments alternate: the tensor cores read one while the other is written.
    Fragments even, odd;
    u32 stage;
    fetch(even, cursors, row, lines, at);
    for (i32 block = 0;; block += 2) {
      stage = at.stage;
      issue(d, even, at, block > 0);
      if (block + 1 == work.blocks) break;
      lines.advance();
      fetch(odd, cursors, row, lines, at);
      wgmma_wait<0>();
      tile.release(stage);
      stage = at.stage;
      issue(d, odd, at, true);
      if (block + 2 == work.blocks) break;
      lines.advance();
      fetch(even, cursors, row, lines, at);
      wgmma_wait<0>();
      tile.release(stage);
    }
    issued();
    wgmma_wait<0>();
    tile.release(stage);
  }

 private:
  // Reads the 16 rows from `row` on of the ring's stage `at`, and converts them to fragments; `lines` gives the stage's
  // coordinates in the functor's index space.
  template <class Lines>
  __device__ __forceinline__ void fetch(Fragments& a, const typename Functor::Cursor (&cursors)[2], u32 row,
                                        const Lines& lines, const typename Tile::Position& at) const {
    const i32 first = lines.column() + threadIdx.x % 4 * 2;
    // Loads of broadcast operands do not wait for the stage.
    typename Functor::template Loaded<2> loaded[2 * STEPS][LOADED_ROWS];
#pragma unroll
    for (int i = 0; i < 2 * STEPS; ++i) {
#pragma unroll
      for (int j = 0; j < LOADED_ROWS; ++j) {
        Functor::template load<2>(input.arguments, cursors[j], first + 8 * i, valid(first + 8 * i), loaded[i][j]);
      }
    }
    const bool reads[2] = {lines.reads(0), lines.reads(1)};
    const u32 rows = tile.wait_full(at) + row * Tile::StageA::RAW_ROW_BYTES;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      u32 words[4];
      Tile::StageA::load(words, rows, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const i32 column = first + 16 * step + 8 * (i / 2);
        const auto& in = loaded[2 * step + i / 2][SAME_LOADS ? 0 : i % 2];
        const u32 word = converted(words[i], cursors[i % 2], column, in);
        a[step][i] = reads[i % 2] ? word : 0;
      }
    }
    // Keeps the compiler from moving arithmetic to after the wgmma_fence that makes these registers ready.
#pragma unroll
    for (int i = 0; i < 4 * STEPS; ++i) asm volatile("" : "+r"(a[i / 4][i % 4]));
  }

  __device__ __forceinline__ u32 converted(u32 word, const typename Functor::Cursor& cursor, i32 column,
                                           const typename Functor::template Loaded<2>& in) const {
    const Vector<Raw, 2> raw = *reinterpret_cast<const Vector<Raw, 2>*>(&word);
    Vector<Element, 2> pair;
    Functor::template finish<2>(input.arguments, cursor, column, valid(column), in, raw.v, pair.v);
    if constexpr (ENDS_EARLY) {
#pragma unroll
      for (int i = 0; i < 2; ++i) pair.v[i] = i < valid(column) ? pair.v[i] : Element{};
    }
    return *reinterpret_cast<const u32*>(&pair);
  }

  __device__ __forceinline__ int valid(i32 column) const {
    return ENDS_EARLY ? count_among<2>(input.depth - column) : 2;
  }

  // The stage is not advanced until its multiplications have been issued.
  __device__ __forceinline__ void issue(Accumulator (&d)[1][Tile::COLUMNS / 2], const Fragments& a,
                                        typename Tile::Position& at, bool accumulate) const {
    const u64 b = Tile::StageB::descriptor(tile.stages + at.stage * Tile::STAGE_BYTES + Tile::STAGE_A_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      multiply(d[0], a[step], b + Tile::StageB::offset(0, step), accumulate || step);
    }
    wgmma_commit();
    at.advance();
  }
};

// Rows of one product of a batch, in an index space of (batch axes, rows, k).
template <int AXES> struct MatrixLines {
  i64 batch[AXES];
  u32 lines;
  i32 k;

  __device__ __forceinline__ MatrixLines(const BatchAxes<AXES>& batches, const TileWork& work, u32 lines)
      : lines(lines), k(work.first_block * REGISTER_STAGE_K) {
    digits<AXES>(batches.extent, work.batch, batch);
  }

  __device__ __forceinline__ void place(int, u32 row, i64 (&coordinate)[AXES + 2]) const {
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) coordinate[axis] = batch[axis];
    coordinate[AXES] = min(row, lines - 1);
  }
  __device__ __forceinline__ i32 column() const { return k; }
  __device__ __forceinline__ bool reads(int) const { return true; }
  __device__ __forceinline__ void advance() { k += REGISTER_STAGE_K; }
};
