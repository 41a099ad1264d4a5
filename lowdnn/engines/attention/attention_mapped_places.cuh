// Rows of heads in each of the layouts that q, k and v may have, read through tensor maps.
//
// Each layout has existing_rows(batch, most), the number of existing rows, and at(batch, head, existing), the head's
// rows. Rows after the first `existing` arrive as zeros if the layout is PACKED; otherwise they may be anything.
// Macros: Q_PLACE, K_PLACE, V_PLACE; K_BOX, V_BOX: rows of a copy from pages, of which pages and tiles are multiples.

#pragma once

#include "attention.cuh"
#include "attention_wgmma.cuh"
#include "ragged.cuh"

// Rows with strides, through a map of (elements, rows, heads, batches).
struct MappedHeads {
  TensorMap map;
  i32 sharing, batches;  // heads of q for each head; batches of the map, 1 where all share one

  __device__ __forceinline__ i32 existing_rows(i32 batch, i32 most) const { return most; }
  __device__ __forceinline__ MappedHead at(i32 batch, i32 head, i32 existing) const {
    return {map, head / sharing, min(batch, batches - 1)};
  }
};

// A packed sequence's rows of a head, in a map of (elements, rows before END, heads, ends of sequences, 1 + END) whose
// last two strides are that of a row and 2^64 / END less: coordinates (.., END - length + row, .., end, END) are at
//
//   (END - length + row) stride + end stride + END (2^64 / END - stride) = (end - length + row) stride    modulo 2^64,
//
// so that rows behind the end of the sequence lie outside of the map: they arrive as zeros, without being read.
struct PackedMappedHead {
  static constexpr i32 END = 1 << 30;

  const TensorMap& map;
  i32 head;
  i32 length, end;  // rows of this sequence, and of all sequences up to its end

  // Starts the copies of rows, as MappedHead does.
  template <class Rows_> __device__ __forceinline__ void copy(const Rows_& to, i32 row, u32 barrier) const {
#pragma unroll
    for (int box = 0; box < Rows_::BOXES; ++box) {
      tma_load<1>(to.address + box * Rows_::BOX_BYTES, map, barrier, 0, box * Rows_::BOX_ELEMENTS, END - length + row,
                  head, end, END);
    }
  }
};

struct PackedMappedHeads {
  MappedHeads heads;
  Offsets offsets;

  __device__ __forceinline__ i32 existing_rows(i32 batch, i32 most) const { return offsets.rows(own(batch), most); }
  __device__ __forceinline__ PackedMappedHead at(i32 batch, i32 head, i32 existing) const {
    return {heads.map, head / heads.sharing, existing, i32(offsets.rows_before(own(batch))) + existing};
  }

 private:
  __device__ __forceinline__ i32 own(i32 batch) const { return min(batch, heads.batches - 1); }
};

// A head in pages: row r is row r % 2^shift of the page that the table has at r / 2^shift.
template <int BOX> struct PagedHead {
  const TensorMap& map;
  i32 head;
  const i32* table;
  i32 stride, shift;
  i32 last;  // the last row that exists

  // Starts the copies of rows, as MappedHead does. For rows after the last one its page is read again, since the table
  // may hold anything there.
  template <class Rows_> __device__ __forceinline__ void copy(const Rows_& to, i32 row, u32 barrier) const {
    static_assert(Rows_::ROWS % BOX == 0 && BOX % 8 == 0, "whole boxes, whole swizzle patterns");
#pragma unroll 1
    for (int first = 0; first < Rows_::ROWS; first += BOX) {
      const i32 page = table[i64(min(row + first, last) >> shift) * stride];
#pragma unroll
      for (int box = 0; box < Rows_::BOXES; ++box) {
        tma_load<1>(to.address + box * Rows_::BOX_BYTES + first * Rows_::ROW_BYTES, map, barrier, 0,
                    box * Rows_::BOX_ELEMENTS, (row + first) & ((1 << shift) - 1), head, page);
      }
    }
  }
};

// Rows in pages, through a map of (elements, rows of a page, heads, pages).
template <int BOX> struct PagedMappedHeads {
  MappedHeads heads;
  const i32* table;
  i64 table_strides[2];  // strides of batches and of entries
  i32 shift;

  __device__ __forceinline__ i32 existing_rows(i32 batch, i32 most) const { return most; }
  __device__ __forceinline__ PagedHead<BOX> at(i32 batch, i32 head, i32 existing) const {
    const i32* const own = table + min(batch, heads.batches - 1) * table_strides[0];
    return {heads.map, head / heads.sharing, own, i32(table_strides[1]), shift, existing - 1};
  }
};

template <int PLACE, int BOX> struct MappedIn { typedef PagedMappedHeads<BOX> Type; };
template <int BOX> struct MappedIn<IN_STRIDES, BOX> { typedef MappedHeads Type; };
template <int BOX> struct MappedIn<PACKED, BOX> { typedef PackedMappedHeads Type; };
