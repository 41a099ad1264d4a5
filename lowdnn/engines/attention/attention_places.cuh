// Rows of heads in each of the layouts that q, k and v may have.
//
// Each layout has functions for the number of existing rows of a batch and for the addresses of rows; addresses of rows
// that do not exist may be anything. Rows that are copied later are addressed in two steps. One thread copies the
// page-table entry to 4 bytes of shared memory (a note) asynchronously, if any row exists; then all threads compute
// addresses from the note. The entry may be prefetched into the L2 cache before, and so may the rows, by a warp, if
// that takes at most one entry.
// Macros: Q_PLACE, K_PLACE, V_PLACE: IN_STRIDES, IN_PAGES, IN_LARGE_PAGES or PACKED, as q, k and v are.

#pragma once

#include "attention_mma.cuh"
#include "attention_packed.cuh"
#include "include/ptx/prefetch.cuh"

template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const Heads<const T>& heads, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {heads.at(batch, head, row), heads.strides[2]};
}

// Prefetches the lines of the first `existing` of Rows::ROWS rows; a whole warp calls it.
template <class Rows, class T>
__device__ __forceinline__ void prefetch_lines(const StridedRows<T>& rows, i32 existing) {
  constexpr int ELEMENTS = 128 / sizeof(T), LINES = (Rows::SIZE + ELEMENTS - 1) / ELEMENTS;
#pragma unroll
  for (int i = threadIdx.x % WARP_SIZE; i < Rows::ROWS * LINES; i += WARP_SIZE) {
    if (i / LINES < existing) prefetch_to_l2(rows.at(i / LINES) + i % LINES * ELEMENTS);
  }
}
template <class Rows, class T>
__device__ __forceinline__ void prefetch_rows(const Heads<const T>& heads, i32 batch, i32 head, i32 row, i32 existing) {
  prefetch_lines<Rows>(rows_from(heads, batch, head, row, existing), existing);
}

// Row r of a batch is row r % 2^shift of the page that its table has at r / 2^shift.
template <class T> struct PagedHeads {
  Heads<T> pages;  // strides of page, head, row
  const i32* table;
  i64 table_strides[2];  // strides of batches and of entries
  i32 shift, count;      // log2 of the rows of a page; number of pages
};

// Rows of one head in pages; strides of entries and of rows are 32-bit here.
template <class T> struct PagedRows {
  const PagedHeads<const T>* heads;
  const T* head;     // the head's rows in page 0
  const i32* table;  // the batch's entries of the page table
  i32 first, last;

  __device__ __forceinline__ const T* at(int row) const {
    const i32 here = min(first + row, last), inside = here & ((1 << heads->shift) - 1);
    const i32 page = table[i64(here >> heads->shift) * i32(heads->table_strides[1])];
    return head + page * heads->pages.strides[0] + i64(inside) * i32(heads->pages.strides[2]);
  }
  __device__ __forceinline__ const T* below(const T* from, int row, int rows) const { return at(row + rows); }
};

template <class T> __device__ __forceinline__ i32 existing_rows(const PagedHeads<const T>& heads, i32 batch, i32 most) {
  return most;
}
template <class T>
__device__ __forceinline__ PagedRows<T> rows_from(const PagedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                                  i32 existing) {
  return {&heads, heads.pages.at(0, head, 0), heads.table + batch * heads.table_strides[0], row, row + existing - 1};
}

// Pages of whole tiles: rows that are addressed together lie in one page.
template <class T> struct LargePagedHeads {
  PagedHeads<T> paged;

  __device__ __forceinline__ const i32* entry(i32 batch, i32 row) const {
    return paged.table + batch * paged.table_strides[0] + (row >> paged.shift) * paged.table_strides[1];
  }
  __device__ __forceinline__ T* at(i32 page, i32 head, i32 row) const {
    return paged.pages.at(page, head, row & ((1 << paged.shift) - 1));
  }
};

template <class T>
__device__ __forceinline__ i32 existing_rows(const LargePagedHeads<const T>& heads, i32 batch, i32 most) {
  return most;
}
template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const LargePagedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {heads.at(*heads.entry(batch, row), head, row), heads.paged.pages.strides[2]};
}
template <class T>
__device__ __forceinline__ void note_rows(const LargePagedHeads<const T>& heads, i32 batch, i32 row, bool exists,
                                          u32 note) {
  if (exists) cp_async<4>(note, heads.entry(batch, row), true);
}
template <class T>
__device__ __forceinline__ void prefetch_note(const LargePagedHeads<const T>& heads, i32 batch, i32 row) {
  prefetch_to_l2(heads.entry(batch, row));
}
// The previous kernel may still be writing the entry: any value that is read is clamped to a page, whose rows are
// prefetched.
template <class Rows, class T>
__device__ __forceinline__ void prefetch_rows(const LargePagedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                              i32 existing) {
  const i32 page = clamped(load_relaxed(heads.entry(batch, row)), 0, heads.paged.count - 1);
  prefetch_lines<Rows>(StridedRows<T>{heads.at(page, head, row), heads.paged.pages.strides[2]}, existing);
}
template <class T>
__device__ __forceinline__ StridedRows<T> noted_rows(const LargePagedHeads<const T>& heads, i32 batch, i32 head,
                                                     i32 row, i32 existing, u32 note) {
  return {heads.at(i32(load_shared_32(note)), head, row), heads.paged.pages.strides[2]};
}

template <class T>
__device__ __forceinline__ StridedRows<T> rows_from(const PackedHeads<const T>& heads, i32 batch, i32 head, i32 row,
                                                    i32 existing) {
  return {heads.at(batch, head, row), heads.padded.strides[2]};
}

template <class Heads_>
__device__ __forceinline__ void note_rows(const Heads_& heads, i32 batch, i32 row, bool exists, u32 note) {}
template <class Heads_> __device__ __forceinline__ void prefetch_note(const Heads_& heads, i32 batch, i32 row) {}
template <class Rows, class Heads_>
__device__ __forceinline__ void prefetch_rows(const Heads_& heads, i32 batch, i32 head, i32 row, i32 existing) {}
template <class Heads_>
__device__ __forceinline__ auto noted_rows(const Heads_& heads, i32 batch, i32 head, i32 row, i32 existing, u32 note) {
  return rows_from(heads, batch, head, row, existing);
}

template <int PLACE> struct HeadsIn;
template <> struct HeadsIn<IN_STRIDES> { typedef Heads<const TYPE> Type; };
template <> struct HeadsIn<IN_PAGES> { typedef PagedHeads<const TYPE> Type; };
template <> struct HeadsIn<IN_LARGE_PAGES> { typedef LargePagedHeads<const TYPE> Type; };
template <> struct HeadsIn<PACKED> { typedef PackedHeads<const TYPE> Type; };
typedef HeadsIn<Q_PLACE>::Type QueryHeads;
typedef HeadsIn<K_PLACE>::Type KeyHeads;
typedef HeadsIn<V_PLACE>::Type ValueHeads;
