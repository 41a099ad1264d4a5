// Where sequences begin and end, and the samples before their first position.
//
// SEQUENCES says what `bounds` has: 0 nothing, since each batch is a sequence; 1 the lengths of the batches' sequences;
// 2 the ascending offsets of `count` sequences in one batch, and the end of the last. INDEX is its type. Values that lie
// outside of the batch count as its ends. HAS_STATES: whether the taps - 1 samples before each sequence are given.
// HAS_SLOTS: whether `slots`, of type SLOT, has the places of the sequences' states in a pool of them. A sequence whose
// place is outside of the pool is void: it counts as empty.
// HAS_BOUNDS: whether a tile needs to know the distances of its positions to the ends of their sequences.

#pragma once

#include "include/math/search.cuh"
#include "sequence_tile.cuh"

constexpr bool HAS_OFFSETS = SEQUENCES == 2;
constexpr bool HAS_BOUNDS = HAS_OFFSETS || HAS_STATES || HAS_SLOTS;

// Launch bounds of kernels with many sums: the distances take registers, of which ptxas would rather spill some than
// have fewer blocks on a multiprocessor.
#if SEQUENCES == 2 || HAS_STATES
#define KERNEL_BOUNDS __launch_bounds__(THREADS, 2)
#else
#define KERNEL_BOUNDS __launch_bounds__(THREADS)
#endif

struct Sequences {
  const INDEX* bounds;
  const SLOT* slots;
  const X* states;
  Strides state_strides;  // strides of sequence, channel, sample
  i64 bound_stride, slot_stride;
  i64 pool;               // the number of slots
  i32 count, length;      // length: positions of a batch

  __device__ __forceinline__ i32 bound(i64 number) const {
    return i32(clamped<i64>(i64(bounds[number * bound_stride]), 0, length));
  }
  // For last_not_above.
  __device__ __forceinline__ u32 operator[](u32 number) const { return u32(bound(number)); }

  // The place of a sequence's states among all; -1 where it is void.
  __device__ __forceinline__ i64 slot(i64 number) const {
    if constexpr (!HAS_SLOTS) return number;
    const i64 found = slots[number * slot_stride];
    return found >= 0 && found < pool ? found : -1;
  }
  __device__ __forceinline__ bool is_void(i64 number) const { return HAS_SLOTS && slot(number) < 0; }

  // The first position of sequence `number`, and the one behind its last; also of one that is void.
  __device__ __forceinline__ void range(i64 number, i32& begin, i32& end) const {
    begin = HAS_OFFSETS ? bound(number) : 0;
    end = SEQUENCES == 0 ? length : bound(HAS_OFFSETS ? number + 1 : number);
  }
  // The first position of all sequences of a batch, and the one behind the last.
  __device__ __forceinline__ void batch_range(i64 batch, i32& begin, i32& end) const {
    begin = HAS_OFFSETS ? bound(0) : 0;
    end = SEQUENCES == 0 ? length : bound(HAS_OFFSETS ? count : batch);
    if (!HAS_OFFSETS && is_void(batch)) end = begin;
  }
  // Sample `index` of the taps - 1 before a sequence that is not void.
  __device__ __forceinline__ X state(i64 sequence, i64 channel, i32 index) const {
    if constexpr (!HAS_STATES) return X{};
    const Strides& strides = state_strides;
    return states[slot(sequence) * strides.batch + channel * strides.channel + index * strides.position];
  }
};

// The sequence of each position of a tile, and how many of its positions are before and after that one; -1 where the
// position is in no sequence.
struct TileBounds {
  i32 sequence[POSITIONS], before[POSITIONS], after[POSITIONS];

  // begin, end: the range of all sequences of the batch, which follow each other without gaps.
  __device__ __forceinline__ void find(const Sequences& sequences, i64 batch, i32 first, i32 begin, i32 end) {
    if constexpr (!HAS_BOUNDS) return;
    const bool is_inside = begin < end && first + POSITIONS > begin && first < end;
    i32 number = HAS_OFFSETS ? 0 : i32(batch), from = begin, to = end;
    if constexpr (HAS_OFFSETS) {
      if (is_inside) {
        number = last_not_above(sequences, u32(sequences.count), u32(max(first, begin)));
        sequences.range(number, from, to);
      }
    }
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) {
      const i32 position = first + i;
      bool exists = is_inside && position >= begin && position < end;
      if constexpr (HAS_OFFSETS) {
        while (exists && position >= to) sequences.range(++number, from, to);
        if (exists && sequences.is_void(number)) exists = false;
      }
      sequence[i] = number;
      before[i] = exists ? position - from : -1;
      after[i] = exists ? to - 1 - position : -1;
    }
  }
};

// One of the 2 * POSITIONS samples of a tile `near` and the one before it, `far`: the one `back` positions before
// position i of the tile. AFTER: `far` follows the tile, and the one `back` positions after it.
template <bool AFTER, class T>
__device__ __forceinline__ T picked(const Packed<T>& near, const Packed<T>& far, int i, int back, int c) {
  const int at = AFTER ? i + back : i - back;
  return at >= 0 && at < POSITIONS ? near(at, c) : far(at & (POSITIONS - 1), c);
}
