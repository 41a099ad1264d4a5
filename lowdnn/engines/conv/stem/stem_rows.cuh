// Images of few channels in shared memory, for convolutions in which k (or n) runs over the inputs that one output
// reads.
//
// For one row of taps an output reads ROW_TAPS neighbouring elements of a channels-last image. In shared memory, in
// whole words, they are operands of tensor cores in place. If the inputs of neighbouring outputs begin at a distance of
// an odd number of 16-bit elements, those of every second output begin inside a word: there are two classes of outputs,
// whose taps have different positions in words. There are always three spatial axes, with extents of 1 in front. Rows
// of the image are dense; rows, planes and images begin at whole copies of COPY elements, and rows end so.
// Macros: TYPE; CHANNELS; TAPS_0, TAPS_1, TAPS_2; STRIDE_0, STRIDE_1; GAP_0, GAP_1 between taps; STEP: elements from
// the inputs of one output to those of the next; LEAD: elements from a row's beginning in shared memory to the first
// output's inputs; TILE_H, TILE_W outputs of a tile; PITCH, COPY elements of a row and of one copy; THREADS of a block.

#pragma once

#include "include/cp_async.cuh"
#include "include/math/division.cuh"

constexpr int AXES = 3;
constexpr int SIZE = int(sizeof(TYPE));  // bytes of an element
constexpr int WORD = 4 / SIZE;           // elements of a word
constexpr int CLASSES = STEP % WORD == 0 ? 1 : WORD;
constexpr int TAP_ROWS = TAPS_0 * TAPS_1, ROW_TAPS = TAPS_2 * CHANNELS;
constexpr int ROW_WORDS = ((CLASSES == 1 ? LEAD % WORD : WORD - 1) + ROW_TAPS + WORD - 1) / WORD;
constexpr int WORDS = TAP_ROWS * ROW_WORDS;
constexpr int BOX_H = (TILE_H - 1) * STRIDE_1 + (TAPS_1 - 1) * GAP_1 + 1, BOX_ROWS = TAPS_0 * BOX_H;
constexpr int BOX_BYTES = (BOX_ROWS * PITCH * SIZE + 15) / 16 * 16;

// The taps that a word of an output's inputs holds: those of row `row` of the filter, from `element` on, which may be
// negative.
struct TapWord {
  i32 row, element;

  __device__ __forceinline__ TapWord(u32 word, u32 of_class)
      : row(word / ROW_WORDS), element(i32(word % ROW_WORDS) * WORD - (LEAD + of_class) % WORD) {}

  __device__ __forceinline__ bool has(int i) const { return row < TAP_ROWS && u32(element + i) < u32(ROW_TAPS); }
};

// Bytes from the first word of an output's inputs to word `word`; 0 for a word without taps.
__device__ __forceinline__ u32 word_offset(u32 word) {
  const u32 row = word / ROW_WORDS;
  return word < WORDS ? (row / TAPS_1 * BOX_H + row % TAPS_1 * GAP_1) * (PITCH * SIZE) + word % ROW_WORDS * 4 : 0;
}

// Bytes from the box to the first word of the output in this row and column of the tile.
__device__ __forceinline__ u32 output_offset(u32 row, u32 column) {
  return row * (STRIDE_1 * PITCH * SIZE) + (LEAD + column * STEP) / WORD * 4;
}

// Copies ROWS rows of ROW_PIECES pieces of PIECE elements to shared memory; a warp takes a part of a row at a time. If
// row_of(row, from) and element_of(i, e) are true, piece i of a row is copied from element e of `from`; otherwise it
// becomes 0. It goes to byte to_of(row, i). Pieces of less than a word, which no asynchronous copy takes, are loaded in
// batches.
template <int PIECE, int ROWS, int ROW_PIECES, class RowOf, class ElementOf, class ToOf>
__device__ __forceinline__ void stage_rows(u8* to, RowOf row_of, ElementOf element_of, ToOf to_of) {
  constexpr bool IS_ASYNC = PIECE * SIZE >= 4;
  constexpr int BATCH = 4, PART = BATCH * int(WARP_SIZE), PARTS = (ROW_PIECES + PART - 1) / PART;
  const u32 lane = threadIdx.x % WARP_SIZE, shared = shared_address(to);
#pragma unroll 1
  for (u32 number = threadIdx.x / WARP_SIZE; number < u32(ROWS * PARTS); number += THREADS / WARP_SIZE) {
    const i32 row = number / PARTS, first = number % PARTS * PART + lane;
    const TYPE* from;
    const bool has_row = row_of(row, from);
    Vector<TYPE, PIECE> pieces[BATCH] = {};
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const i32 piece = first + i * int(WARP_SIZE);
      i32 element;
      const bool exists = element_of(piece, element) && has_row;
      if constexpr (IS_ASYNC) {
        if (piece < ROW_PIECES) cp_async<PIECE * SIZE>(shared + to_of(row, piece), from + element, exists);
      } else {
        load_where<PIECE>(exists && piece < ROW_PIECES, pieces[i].v, from + element);
      }
    }
    if constexpr (!IS_ASYNC) {
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const i32 piece = first + i * int(WARP_SIZE);
        if (piece < ROW_PIECES) *reinterpret_cast<Vector<TYPE, PIECE>*>(to + to_of(row, piece)) = pieces[i];
      }
    }
  }
}

struct StemImage {
  const TYPE* x;
  i64 image_stride, strides[AXES - 1];
  i32 extents[AXES];  // extents of the image; the last one in elements
  i32 origin[AXES];  // origin of the box of tile 0; the last one in elements
};

// Copies the box of inputs of a tile (image, axes) to `to`: BOX_ROWS rows of PITCH elements. Elements outside x become
// 0.
__device__ __forceinline__ void stage_box(const StemImage& p, const i32 (&tile)[1 + AXES], u8* to) {
  const i32 depth = tile[1] * STRIDE_0 + p.origin[0], height = tile[2] * (TILE_H * STRIDE_1) + p.origin[1];
  const i32 first = tile[3] * (TILE_W * STEP) + p.origin[2];
  const TYPE* const image = p.x + tile[0] * p.image_stride;
  stage_rows<COPY, BOX_ROWS, PITCH / COPY>(
      to,
      [&](i32 row, const TYPE*& from) {
        const i32 d = depth + row / BOX_H * GAP_0, h = height + row % BOX_H;
        from = image + d * p.strides[0] + h * p.strides[1];
        return u32(d) < u32(p.extents[0]) && u32(h) < u32(p.extents[1]);
      },
      [&](i32 piece, i32& element) {
        element = first + piece * COPY;
        return u32(element) < u32(p.extents[2]);
      },
      [](i32 row, i32 piece) { return u32(row * PITCH + piece * COPY) * SIZE; });
}
