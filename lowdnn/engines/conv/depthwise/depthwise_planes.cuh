// Common parts of the depthwise kernels that walk along the planes: the copy of a block's planes of the source to
// shared memory, and the taps between sources and targets.
//
// Along rows and columns a target reads the sources at (first + target * STEP + tap) / UP, if that is whole. Forwards
// STEP is the stride and UP 1; backwards UP is the stride and the taps are reversed. A thread's targets begin at a
// multiple of UP, so that the same taps connect the same positions of every thread's window.
// Macros: LANES (words of channels side by side) THREADS.

#pragma once

#include "include/cp_async.cuh"
#include "depthwise.cuh"

// One axis of a thread's work: TARGETS neighbouring targets, FILTER taps, WINDOW positions inside the tensor that they
// read. PHASE: the tap between target 0 and the window's first position, possibly past the filter's last.
template <int TARGETS_, int FILTER_, int WINDOW_, int STEP, int UP, int PHASE> struct PlaneAxis {
  static constexpr int TARGETS = TARGETS_, FILTER = FILTER_, WINDOW = WINDOW_;

  // The tap between a target and a position of the window; it may not exist.
  static constexpr int tap(int target, int position) { return position * UP + PHASE - target * STEP; }
  static constexpr bool meets(int target, int position) {
    return tap(target, position) >= 0 && tap(target, position) < FILTER;
  }
};

// A ring of PLANES planes of a block's box of positions in shared memory: [PLANES][rows][columns][LANES] words of
// neighbouring channels, rows to a pitch of whole copies. Positions and channels outside the tensor are zeros, written
// once.
// COUNT: copies of a thread for a plane.  BYTES: bytes of a copy.
// DENSE: the positions of a row are contiguous in memory, with LANES words each, and rows begin at a copy: a copy has
// neighbouring bytes, whatever positions they belong to.
template <class T, int PLANES, int COUNT, int BYTES, bool DENSE> struct StagedPlanes {
  static constexpr int WORD_CHANNELS = 4 / sizeof(T), POSITION_BYTES = LANES * 4;
  static constexpr int PITCH = THREADS * BYTES;  // bytes from one copy of a thread to the next
  static constexpr int STAGE_BYTES = COUNT * PITCH;
  static_assert(DENSE || POSITION_BYTES % BYTES == 0, "a position is a whole number of copies");
  static_assert(COUNT <= 32, "a copy is a bit of a mask");

  // strides: elements between rows and between columns.  extents: rows and columns of the tensor.
  struct Box {
    i32 rows;
    Divider row_copies;
    i32 strides[2], extents[2];
    i32 channels;
  };

  // first_row, first_column, first_channel: beginning of the box, possibly outside the tensor.
  __device__ __forceinline__ StagedPlanes(const Box& box, i32 first_row, i32 first_column, i32 first_channel,
                                          const unsigned char* shared)
      : row_pitch(box.row_copies.divisor * BYTES),
        first_position(shared_address(shared) + (DENSE ? (first_column * POSITION_BYTES) & (BYTES - 1) : 0)),
        destination(shared_address(shared) + threadIdx.x * BYTES) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const u32 number = threadIdx.x + i * THREADS, row = box.row_copies.divide(number);
      const i32 source_row = first_row + i32(row), copy = number - row * box.row_copies.divisor;
      const i32 line = source_row * box.strides[0] * i32(sizeof(T));
      bool is_inside = row < u32(box.rows) && u32(source_row) < u32(box.extents[0]);
      if constexpr (DENSE) {
        const i32 byte = ((first_column * POSITION_BYTES) & -BYTES) + copy * BYTES;
        is_inside &= u32(byte) < u32(box.extents[1] * POSITION_BYTES);
        offsets[i] = line + byte;
      } else {
        constexpr int OF_POSITION = POSITION_BYTES / BYTES;
        const i32 column = first_column + copy / OF_POSITION;
        const i32 channel = first_channel + copy % OF_POSITION * int(BYTES / sizeof(T));
        is_inside &= u32(column) < u32(box.extents[1]) && channel < box.channels;
        offsets[i] = line + (column * box.strides[1] + channel) * i32(sizeof(T));
      }
      exists |= u32(is_inside) << i;
    }
    asm volatile("" : "+r"(destination));  // keeps it in a register instead of recomputing it for every copy
#pragma unroll
    for (int stage = 0; stage < PLANES; ++stage) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        if (!(exists >> i & 1)) cp_async<BYTES>(place(stage, i), nullptr, false);
      }
    }
  }

  // Starts to copy a plane into a stage.
  __device__ __forceinline__ void copy(const T* plane, int stage) const {
    const char* from = reinterpret_cast<const char*>(plane);
    asm volatile("" : "+l"(from));  // one pointer to advance
    const u32 to = place(stage, 0);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (exists >> i & 1) cp_async<BYTES>(to + i * PITCH, from + offsets[i], true);
    }
  }

  // Address in stage 0 of a word of a position of the box.
  __device__ __forceinline__ u32 word(i32 row, i32 column, u32 lane) const {
    return first_position + row * row_pitch + column * POSITION_BYTES + lane * 4;
  }

  // The stage after `stage` in the ring.
  static __device__ __forceinline__ int next(int stage) { return stage + 1 == PLANES ? 0 : stage + 1; }

  const u32 row_pitch;  // in bytes

 private:
  u32 first_position;  // address in stage 0
  u32 destination;  // address of the thread's first copy
  u32 exists = 0;
  i32 offsets[COUNT];  // in a plane, in bytes

  __device__ __forceinline__ u32 place(int stage, int copy) const {
    return destination + stage * STAGE_BYTES + copy * PITCH;
  }
};

// Reads a row of a thread's window from shared memory, widened.
template <class T, int POSITIONS, int WIDTH>
__device__ __forceinline__ void read_window(f32 (&values)[POSITIONS][WIDTH], u32 at) {
  RowWindow<T, POSITIONS, WIDTH> window;
#pragma unroll
  for (int j = 0; j < POSITIONS; ++j) window.words[j][0] = load_shared_32(at + j * (LANES * 4));
  window.widen_to(values);
}
