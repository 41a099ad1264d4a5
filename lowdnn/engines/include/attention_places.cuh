// Where rows of heads lie in memory: a stride apart, in pages of a cache, or as sequences packed one behind the other.
//
// Of each kind there are: how many rows of a batch exist, of as many as there may be; what gives the addresses of the
// rows from one on, of which at least one exists (those of others may be anything).
// Macros: Q_PLACE, K_PLACE, V_PLACE: IN_STRIDES, IN_PAGES, IN_LARGE_PAGES or PACKED, as q, k and v are.

#pragma once

#include "include/attention_mma.cuh"
#include "include/attention_packed.cuh"

enum { IN_STRIDES, IN_PAGES, IN_LARGE_PAGES, PACKED };

template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const Heads<const T>& heads, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {heads.at(batch, head, row), heads.strides[2]};
}

// Row r of a batch is row r % 2^shift of the page that its table has at r / 2^shift.
template <class T> struct PagedHeads {
  Heads<T> pages;  // strides of page, head, row
  const i32* table;
  i64 table_strides[2];  // of batch, entry
  i32 shift;
};

// Strides of entries and of rows are 32-bit here.
template <class T> struct PagedRows {
  const PagedHeads<const T>& heads;
  const T* head;     // in a page
  const i32* table;  // of the batch
  i32 first, last;

  __device__ __forceinline__ const T* operator()(int row, int further) const {
    const i32 at = min(first + row + further, last), inside = at & ((1 << heads.shift) - 1);
    const i32 page = table[i64(at >> heads.shift) * i32(heads.table_strides[1])];
    return head + page * heads.pages.strides[0] + i64(inside) * i32(heads.pages.strides[2]);
  }
};

template <class T> __device__ __forceinline__ i32 existing_rows(const PagedHeads<const T>& heads, i32 batch, i32 most) {
  return most;
}
template <class T>
__device__ __forceinline__ PagedRows<T> rows_from(const PagedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                                  i32 existing) {
  return {heads, heads.pages.at(0, head, 0), heads.table + batch * heads.table_strides[0], row, row + existing - 1};
}

// Pages of whole tiles: the rows that are asked for together lie in one of them.
template <class T> struct LargePagedHeads {
  PagedHeads<T> heads;
};

template <class T>
__device__ __forceinline__ i32 existing_rows(const LargePagedHeads<const T>& large, i32 batch, i32 most) {
  return most;
}
template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const LargePagedHeads<const T>& large, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {rows_from(large.heads, batch, head, row, existing)(0, 0), large.heads.pages.strides[2]};
}

template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const PackedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {heads.at(batch, head, row), heads.padded.strides[2]};
}

template <int PLACE> struct HeadsIn;
template <> struct HeadsIn<IN_STRIDES> { typedef Heads<const TYPE> Type; };
template <> struct HeadsIn<IN_PAGES> { typedef PagedHeads<const TYPE> Type; };
template <> struct HeadsIn<IN_LARGE_PAGES> { typedef LargePagedHeads<const TYPE> Type; };
template <> struct HeadsIn<PACKED> { typedef PackedHeads<const TYPE> Type; };
typedef HeadsIn<Q_PLACE>::Type QueryHeads;
typedef HeadsIn<K_PLACE>::Type KeyHeads;
typedef HeadsIn<V_PLACE>::Type ValueHeads;
