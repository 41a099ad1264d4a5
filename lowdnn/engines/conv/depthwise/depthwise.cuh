// Common parts of the depthwise kernels: residue classes of an axis, and windows of rows in registers.
//
// A correlation takes sources to targets: x to y forwards, dy to dx backwards. Along an axis the targets fall into
// classes. The k-th target of a class is at target + k * target_step; its tap t, the filter's tap + t * tap_step, reads
// the source at source + (k * step + t) * spacing. That covers strides and dilations in both directions.

#pragma once

#include "include/math/division.cuh"
#include "include/vector.cuh"

// One class of targets. In step k of a walk along the axis, tap t < Axis::step reads position source + (k * step + t) *
// spacing.
struct AxisClass {
  i32 target, source;
  i32 tap, taps;  // tap 0's index in the filter; number of taps, 0 if the targets are 0
  i32 count;  // number of targets
  i32 first_step, end_step;  // range of steps that read inside the tensor
};

struct Axis {
  i32 extent;  // extent of the source
  i32 step, spacing, target_step, tap_step;
  AxisClass classes[CLASSES];
};

// Neighbouring elements of a row: POSITIONS positions of WIDTH neighbouring channels, unconverted, one or two elements
// in a word. IN_LINES: accesses prefetch the 256 bytes around them, which neighbours will read.
template <class T, int POSITIONS, int WIDTH, bool IN_LINES = false> struct RowWindow {
  static_assert(POSITIONS <= 64, "a position is a bit of a mask");
  static constexpr int BYTES = WIDTH * int(sizeof(T)), WORDS = BYTES < 4 ? 1 : BYTES / 4;
  static constexpr u64 ALL = ~u64(0) >> (64 - POSITIONS);
  u32 words[POSITIONS][WORDS];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < POSITIONS; ++j) {
#pragma unroll
      for (int i = 0; i < WORDS; ++i) words[j][i] = 0;
    }
  }

  // Loads the window. at: address of position 0; the others follow at `stride` bytes. Positions without a bit in `mask`
  // become 0. IS_PREDICATED: their accesses are predicated off, instead of branched around.
  template <bool IS_PREDICATED> __device__ __forceinline__ void load(const char* at, i64 stride, u64 mask) {
    if (mask == ALL) {
      load_positions<true, IS_PREDICATED>(at, stride, mask);
    } else {
      load_positions<false, IS_PREDICATED>(at, stride, mask);
    }
  }

  // BY_HALVES: halves of registers are named separately, which saves instructions and takes more registers.
  template <bool BY_HALVES = false> __device__ __forceinline__ void widen_to(f32 (&values)[POSITIONS][WIDTH]) const {
#pragma unroll
    for (int j = 0; j < POSITIONS; ++j) {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        if constexpr (sizeof(T) == 4) {
          values[j][v] = __uint_as_float(words[j][v]);
        } else if constexpr (WIDTH == 1) {
          values[j][v] = widen(T{u16(words[j][v])});
        } else if constexpr (BY_HALVES) {
          values[j][v] = widen(T{half(words[j][v / 2], v % 2)});
        } else {
          values[j][v] = widen_half(T(), words[j][v / 2], v % 2);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ u16 half(u32 word, int index) {
    u16 halves[2];
    asm("mov.b32 {%0, %1}, %2;" : "=h"(halves[0]), "=h"(halves[1]) : "r"(word));
    return halves[index];
  }

  static __device__ __forceinline__ f32 widen_half(f16, u32 word, bool is_upper) {
    return widen(f16{u16(word >> (is_upper ? 16 : 0))});
  }

  // Masks the word: a half extracted from it would take another instruction to shift up.
  static __device__ __forceinline__ f32 widen_half(bf16, u32 word, bool is_upper) {
    return __uint_as_float(is_upper ? word & 0xffff0000 : word << 16);
  }

  template <bool ALL_EXIST, bool IS_PREDICATED>
  __device__ __forceinline__ void load_positions(const char* at, i64 stride, u64 mask) {
    if (!ALL_EXIST) clear();
#pragma unroll
    for (int j = 0; j < POSITIONS; ++j) {
      const u32 bits = j < 32 ? u32(mask) : u32(mask >> 32);
      const bool exists = ALL_EXIST || bits >> (j % 32) & 1;
      if constexpr (IS_PREDICATED && !ALL_EXIST) {
        load_where<WORDS>(exists, words[j], reinterpret_cast<const u32*>(at));
      } else if (exists) {
        load_words(words[j], at);
      }
      at += stride;
      asm volatile("" : "+l"(at));  // one pointer to advance, not a multiple for each position
    }
  }

  // One access to read-only memory, cached in L1: neighbouring threads read the same element.
  static __device__ __forceinline__ void load_words(u32 (&to)[WORDS], const char* at) {
    if constexpr (BYTES == 2) {
      to[0] = load_word<u16>(at);
    } else if constexpr (BYTES == 4) {
      to[0] = load_word<u32>(at);
    } else if constexpr (BYTES == 8) {
      const uint2 word = load_word<uint2>(at);
      to[0] = word.x, to[1] = word.y;
    } else {
      const uint4 word = load_word<uint4>(at);
      to[0] = word.x, to[1] = word.y, to[2] = word.z, to[3] = word.w;
    }
  }

  template <class Word> static __device__ __forceinline__ Word load_word(const char* at) {
    if constexpr (IN_LINES) {
      Word word;
      load_in_lines(word, at);
      return word;
    } else {
      return __ldg(reinterpret_cast<const Word*>(at));
    }
  }
};

// Adds a cursor: the functor's cursor is linear in the coordinates, so a sum of coordinates has the sum of cursors.
template <class Cursor> __device__ __forceinline__ void move(Cursor& cursor, const Cursor& by) {
  constexpr int FIELDS = sizeof(Cursor) / sizeof(i64);
  if constexpr (FIELDS > 0) {
    i64(&to)[FIELDS] = reinterpret_cast<i64(&)[FIELDS]>(cursor);
    const i64(&add)[FIELDS] = reinterpret_cast<const i64(&)[FIELDS]>(by);
#pragma unroll
    for (int i = 0; i < FIELDS; ++i) to[i] += add[i];
  }
}

// Keeps a cursor in registers, so that the compiler does not recompute it at each use.
template <class Cursor> __device__ __forceinline__ void keep(Cursor& cursor) {
  constexpr int FIELDS = sizeof(Cursor) / sizeof(i64);
  if constexpr (FIELDS > 0) {
    i64(&fields)[FIELDS] = reinterpret_cast<i64(&)[FIELDS]>(cursor);
#pragma unroll
    for (int i = 0; i < FIELDS; ++i) asm volatile("" : "+l"(fields[i]));
  }
}

// Bit j: whether first + j * spacing lies inside an extent, for j below `count`.
__device__ __forceinline__ u64 inside_mask(i32 first, i32 spacing, i32 extent, int count) {
  u64 mask = 0;
#pragma unroll 8
  for (int j = 0; j < count; ++j) mask |= u64(u32(first + j * spacing) < u32(extent)) << j;
  return mask;
}

// Reads the source rows of a walk along an axis. A step has PHASES * PLANES * NEXT_CHANNELS of them (subrows): PHASES
// neighbouring rows, in each of PLANES planes, for each of NEXT_CHANNELS channels, the channels fastest.
template <class T, int POSITIONS, int WIDTH, int PHASES, int PLANES, int NEXT_CHANNELS, bool IS_PREDICATED = false,
          bool IN_LINES = false>
struct RowReader {
  static constexpr int SUBROWS = PHASES * PLANES * NEXT_CHANNELS;
  typedef RowWindow<T, POSITIONS, WIDTH, IN_LINES> Window;

  // channel: address of the thread's first channel in an image; strides of n, c, planes, rows, columns.
  __device__ __forceinline__ RowReader(const T* channel, const i64 (&strides_)[5])
      : at(reinterpret_cast<const char*>(channel)) {
#pragma unroll
    for (int i = 0; i < 5; ++i) strides[i] = strides_[i] * i64(sizeof(T));
  }

  // Sets the first plane, row or column, the spacing, and the tensor's extent; planes are set before rows.
  __device__ __forceinline__ void set_planes(i32 first, i32 spacing, i32 extent, i32 count) {
    at += first * strides[2];
    strides[2] *= spacing;
    planes = u32(inside_mask(first, spacing, extent, PLANES));
    if (count < PLANES) planes &= (1u << count) - 1;
  }
  __device__ __forceinline__ void set_rows(i32 first, i32 spacing, i32 extent) {
    at += first * strides[3];
    strides[3] *= spacing;
    row = first;
    row_spacing = spacing;
    row_extent = PLANES == 1 && !planes ? 0 : extent;  // with a single plane, a row's check covers the plane
  }
  __device__ __forceinline__ void set_columns(i32 first, i32 spacing, i32 extent) {
    at += first * strides[4];
    strides[4] *= spacing;
    columns = inside_mask(first, spacing, extent, POSITIONS);
  }

  // Loads the subrow-th row of the next step, zeros if it does not exist; the last one moves on to the next step.
  __device__ __forceinline__ void load(Window& window, int subrow) {
    const int phase = subrow / (PLANES * NEXT_CHANNELS), plane = subrow / NEXT_CHANNELS % PLANES;
    const bool exists = u32(row + phase * row_spacing) < u32(row_extent) && (PLANES == 1 || planes >> plane & 1);
    if (exists) {
      const i64 offset = phase * strides[3] + plane * strides[2] + subrow % NEXT_CHANNELS * strides[1];
      window.template load<IS_PREDICATED>(at + offset, strides[4], columns);
    } else {
      window.clear();
    }
    if (subrow + 1 < SUBROWS) return;
    at += PHASES * strides[3];
    asm volatile("" : "+l"(at));  // advances one pointer, not one for each column
    row += PHASES * row_spacing;
  }

 private:
  const char* at;  // the next step's first row and column, possibly outside the tensor
  i64 strides[5];  // strides in bytes between the walk's positions
  i32 row, row_spacing, row_extent;
  u64 columns;  // a bit for each column inside the tensor
  u32 planes;  // a bit for each plane inside the tensor
};

// The digits of an index over radices, the first one fastest.
template <int COUNT> struct Digits {
  Divider radices[COUNT];

  __device__ __forceinline__ void split(u32 index, u32 (&digits)[COUNT]) const {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const u32 rest = i + 1 < COUNT ? radices[i].divide(index) : 0;
      digits[i] = index - rest * radices[i].divisor;
      index = rest;
    }
  }
};

// The sum of an index's digits times their strides.
template <int COUNT>
__device__ __forceinline__ i64 offset_of(const Digits<COUNT>& radices, const i64 (&strides)[COUNT], u32 index) {
  u32 digits[COUNT];
  radices.split(index, digits);
  i64 offset = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) offset += digits[i] * strides[i];
  return offset;
}
