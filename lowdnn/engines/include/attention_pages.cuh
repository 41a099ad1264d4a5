// Rows of heads in pages of a cache, and where heads are that may be in pages.
//
// Macros: K_PAGED, V_PAGED: whether k and v are.

#pragma once

#include "include/attention_mma.cuh"

// Row r of a batch is row r % 2^shift of the page that its table has at r / 2^shift.
template <class T> struct PagedHeads {
  Heads<T> pages;  // strides of page, head, row
  const i32* table;
  i64 table_strides[2];  // of batch, entry
  i32 shift;
};

// Some rows of a head, from one on.
template <class T> struct PagedRows {
  const PagedHeads<const T>& heads;
  const T* head;     // in a page
  const i32* table;  // of the batch
  i32 first, last;

  __device__ __forceinline__ const T* operator()(int row) const {
    const i32 at = min(first + row, last), inside = at & ((1 << heads.shift) - 1);
    return head + table[(at >> heads.shift) * heads.table_strides[1]] * heads.pages.strides[0] +
           inside * heads.pages.strides[2];
  }
};

// The rows of a head from `row` on, of which `existing`, at least one, exist: others may be anywhere in memory.
template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const Heads<const T>& heads, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {heads.at(batch, head, row), heads.strides[2]};
}
template <class T>
__device__ __forceinline__ PagedRows<T> rows_from(const PagedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                                  i32 existing) {
  return {heads, heads.pages.at(0, head, 0), heads.table + batch * heads.table_strides[0], row, row + existing - 1};
}

template <bool IS_PAGED> struct HeadsIn { typedef Heads<const TYPE> Type; };
template <> struct HeadsIn<true> { typedef PagedHeads<const TYPE> Type; };
typedef HeadsIn<K_PAGED>::Type KeyHeads;
typedef HeadsIn<V_PAGED>::Type ValueHeads;
