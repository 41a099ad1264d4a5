// The product of a recurrent step: sum[row][column] = sum over k of weights[row][k] * states[column][k], a tile of
// 8 * ROW_BLOCKS rows and 8 * COLUMN_BLOCKS columns, for few columns and weights that lie in the L2 cache.
//
// The warps of a block share k out, and each has all of the tile in registers: operands go from memory to registers
// without a stop, in pieces of a line, a weight's or a state's. Any order of k will do, so that on tensor cores the
// four lanes of a group read four neighbouring pieces of 8 bytes, the two words of a lane for one instruction
// (mma.cuh). Without tensor cores every lane reads the same 16 bytes of k, of its own rows and columns. Warps of all
// blocks of a cluster may share k out; their sums are added up in their order.
//
// Either way a lane has the sums of row 8 i + lane / 4 and of columns 8 j + lane % 4 * 2 and the next one.

#pragma once

#include "include/ptx/cluster.cuh"
#include "include/ptx/mma.cuh"
#include "include/vector.cuh"

// A piece of a line in registers, as words, or elements, of type Part.
template <class Part, int COUNT> struct Piece {
  Part part[COUNT];
};

// On tensor cores. Blocks of rows go in pairs; one without a partner is multiplied beside zeros.
template <class T_, int ROW_BLOCKS_, int COLUMN_BLOCKS_> struct TensorCoreSums {
  typedef T_ T;
  typedef f32 Value;
  typedef Piece<u32, 2> Operand;
  static constexpr int ROW_BLOCKS = ROW_BLOCKS_, COLUMN_BLOCKS = COLUMN_BLOCKS_, PAIRS = (ROW_BLOCKS + 1) / 2;
  static constexpr int LINES = COLUMN_BLOCKS;                // lines of states that a lane reads
  static constexpr int PIECE = sizeof(Operand) / sizeof(T);  // elements of k that a lane multiplies at a time
  static constexpr int STRIDE = 4 * PIECE;                   // elements of k that a warp multiplies at a time
  // Pieces of each line on their way, as many as find room in registers.
  static constexpr int AHEAD = ROW_BLOCKS + LINES <= 5 ? 4 : ROW_BLOCKS + LINES <= 8 ? 2 : 1;

  Value d[PAIRS][COLUMN_BLOCKS][4] = {};

  static __device__ __forceinline__ u32 column(int line, u32 lane) { return line * 8 + lane / 4; }
  static __device__ __forceinline__ i32 first_k(u32 lane) { return lane % 4 * PIECE; }

  __device__ __forceinline__ void multiply(const Operand (&a)[ROW_BLOCKS], const Operand (&b)[LINES]) {
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
      u32 words[4] = {};
#pragma unroll
      for (int i = 0; i < 2 && 2 * pair + i < ROW_BLOCKS; ++i) {
        words[i] = word(a[2 * pair + i], 0);
        words[2 + i] = word(a[2 * pair + i], 1);
      }
#pragma unroll
      for (int j = 0; j < COLUMN_BLOCKS; ++j) Mma<T>::apply(d[pair][j], words, word(b[j], 0), word(b[j], 1));
    }
  }

  __device__ __forceinline__ Value sum(int row_block, int column_block, int i) const {
    return d[row_block / 2][column_block][row_block % 2 * 2 + i];
  }

 private:
  static __device__ __forceinline__ u32 word(const Operand& piece, int i) { return Mma<T>::operand(piece.part[i]); }
};

// By fused multiply-adds in the type of the operands, f32 or f64.
template <class T_, int ROW_BLOCKS_, int COLUMN_BLOCKS_> struct FmaSums {
  typedef T_ T;
  typedef T_ Value;
  typedef Piece<T_, 16 / sizeof(T_)> Operand;
  static constexpr int ROW_BLOCKS = ROW_BLOCKS_, COLUMN_BLOCKS = COLUMN_BLOCKS_;
  static constexpr int LINES = 2 * COLUMN_BLOCKS, PIECE = sizeof(Operand) / sizeof(T), STRIDE = PIECE;
  static constexpr int AHEAD = ROW_BLOCKS + LINES <= 4 ? 4 : ROW_BLOCKS + LINES <= 8 ? 2 : 1;

  Value d[ROW_BLOCKS][COLUMN_BLOCKS][2] = {};

  static __device__ __forceinline__ u32 column(int line, u32 lane) { return line / 2 * 8 + lane % 4 * 2 + line % 2; }
  static __device__ __forceinline__ i32 first_k(u32) { return 0; }

  __device__ __forceinline__ void multiply(const Operand (&a)[ROW_BLOCKS], const Operand (&b)[LINES]) {
#pragma unroll
    for (int k = 0; k < PIECE; ++k) {
#pragma unroll
      for (int i = 0; i < ROW_BLOCKS; ++i) {
#pragma unroll
        for (int j = 0; j < LINES; ++j) {
          d[i][j / 2][j % 2] = fma(a[i].part[k], b[j].part[k], d[i][j / 2][j % 2]);
        }
      }
    }
  }

  __device__ __forceinline__ Value sum(int row_block, int column_block, int i) const {
    return d[row_block][column_block][i];
  }
};

// WARPS_: warps of a block.  BLOCKS: blocks of a cluster.  IS_WHOLE_: whether lines begin at multiples of 16 bytes, and
// k ends with a piece.
template <class Sums, int WARPS_, int BLOCKS, bool IS_WHOLE_> struct StepProduct {
  typedef typename Sums::T T;
  typedef typename Sums::Value Value;
  typedef typename Sums::Operand Operand;
  static constexpr int ROW_BLOCKS = Sums::ROW_BLOCKS, LINES = Sums::LINES, AHEAD = Sums::AHEAD;
  static constexpr int ROWS = 8 * ROW_BLOCKS, TILE_COLUMNS = 8 * Sums::COLUMN_BLOCKS;
  // Elements of a row in shared memory: 8 more than a multiple of 32 words, against bank conflicts.
  static constexpr int PITCH = TILE_COLUMNS % 32 == 8 ? TILE_COLUMNS : TILE_COLUMNS + 8;
  static constexpr int SHARED_BYTES = WARPS_ * ROWS * PITCH * int(sizeof(Value));
  static constexpr int WALKERS = WARPS_ * BLOCKS;  // warps that share k out

  const u32 rank;  // the block's rank in its cluster
  const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  Sums sums;
  Operand weights[AHEAD][ROW_BLOCKS];

  // The row and the column of a line of this lane.
  __device__ __forceinline__ u32 row(int block) const { return block * 8 + lane / 4; }
  __device__ __forceinline__ u32 column(int line) const { return Sums::column(line, lane); }

  // Reads the first pieces of the weights. rows: lines of weights, null for one of zeros.  depth: elements of k.
  __device__ __forceinline__ void begin(const T* const (&rows)[ROW_BLOCKS], i32 depth) {
    load_group(weights, rows, first_k(), depth);
  }

  // Adds the products, behind `begin` with the same rows. columns: lines of states, null for one of zeros.
  __device__ __forceinline__ void add(const T* const (&rows)[ROW_BLOCKS], const T* const (&columns)[LINES], i32 depth) {
#pragma unroll 1
    for (i32 base = first_k(); base < depth; base += AHEAD * WALKERS * Sums::STRIDE) {
      Operand states[AHEAD][LINES];
      load_group(states, columns, base, depth);
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) sums.multiply(weights[i], states[i]);
      load_group(weights, rows, base + AHEAD * WALKERS * Sums::STRIDE, depth);
    }
  }

  // Puts the warps' sums into shared memory: SHARED_BYTES for all threads of the cluster, which meet.
  __device__ __forceinline__ void share(Value* shared) const {
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS; ++i) {
#pragma unroll
      for (int j = 0; j < Sums::COLUMN_BLOCKS; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          shared[(warp * ROWS + i * 8 + lane / 4) * PITCH + j * 8 + lane % 4 * 2 + e] = sums.sum(i, j, e);
        }
      }
    }
    __syncthreads();
    if constexpr (BLOCKS > 1) {
      for (u32 place = threadIdx.x; place < ROWS * TILE_COLUMNS; place += WARPS_ * WARP_SIZE) {
        const u32 row = place / TILE_COLUMNS, column = place % TILE_COLUMNS;
        shared[row * PITCH + column] = of_block(shared, row, column);
      }
      cluster_sync();
    }
  }

  // The sum of a place of the tile, behind `share`.
  static __device__ __forceinline__ Value total(const Value* shared, u32 row, u32 column) {
    if constexpr (BLOCKS == 1) return of_block(shared, row, column);
    Value sum = Value(0);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) sum += load_of_block(shared + row * PITCH + column, block);
    return sum;
  }

  // No block may end while others read its sums.
  static __device__ __forceinline__ void finish() {
    if constexpr (BLOCKS > 1) cluster_sync();
  }

 private:
  __device__ __forceinline__ i32 first_k() const { return (rank * WARPS_ + warp) * Sums::STRIDE; }

  static __device__ __forceinline__ Value of_block(const Value* shared, u32 row, u32 column) {
    Value sum = shared[row * PITCH + column];
#pragma unroll
    for (int warp = 1; warp < WARPS_; ++warp) sum += shared[(warp * ROWS + row) * PITCH + column];
    return sum;
  }

  template <int COUNT>
  __device__ __forceinline__ void load_group(Operand (&pieces)[AHEAD][COUNT], const T* const (&lines)[COUNT],
                                             i32 base, i32 depth) const {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const i32 k = base + i * WALKERS * Sums::STRIDE + Sums::first_k(lane);
#pragma unroll
      for (int line = 0; line < COUNT; ++line) load_piece(pieces[i][line], lines[line], k, depth);
    }
  }

  static __device__ __forceinline__ void load_piece(Operand& piece, const T* line, i32 k, i32 depth) {
    const i32 valid = line ? min(depth - k, Sums::PIECE) : 0;
    piece = Operand{};
    if constexpr (IS_WHOLE_) {
      const auto from = reinterpret_cast<const Operand*>(line + k);
      if (valid > 0) load<Plain, Sums::PIECE>(piece.part, from->part);
    } else {
      T elements[Sums::PIECE];
      load_strided(elements, line + k, 1, valid);
      piece = *reinterpret_cast<const Operand*>(elements);
    }
  }
};
