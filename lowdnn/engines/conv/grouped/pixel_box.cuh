// Boxes of positions of a channels-last tensor, copied to shared memory: with cp.async by all threads of a block, or, in
// whole lines, by tensor map (box_source.cuh).
//
// Positions have an image and BOX_AXES spatial axes. A tile numbered (t0, t1, ...) lies over the box that begins at
// t * pace + origin in every axis. In shared memory position follows position, so that ldmatrix meets no bank twice in
// neighbouring positions. A position is a line of 128 bytes, or half of one, with chunk i in the place of i ^ line %
// chunks, since copies would write lines at a padded pitch in two pieces; six chunks lie as if there were eight. Other
// positions have an odd number of chunks. For a reader of every second position of a row, boxes lie IN_HALVES: first
// even columns, then odd ones, of all rows in swizzled boxes and of each row in others. So it reads neighbours, too.

#pragma once

#include "include/cp_async.cuh"
#include "include/math/division.cuh"

constexpr int BOX_AXES = 3;
constexpr int BOX_CHUNK_BYTES = 16;

struct BoxGeometry {
  i64 image_stride, strides[BOX_AXES];  // elements
  i32 images, extents[BOX_AXES];        // of the tensor
  i32 channels;                         // of the tensor, whole chunks
  i32 image_pace, pace[BOX_AXES];       // from tile to tile
  i32 origin[BOX_AXES];                 // of the box of tile 0
  Divider box[1 + BOX_AXES];            // extents (image, axes)
  i32 rows;                             // of the box: all extents but the last
  i32 places;                           // of the box in shared memory
  i32 row_places, halves_apart;         // from row to row, from the even to the odd columns
};

// CHUNKS: of 16 bytes of channels at every position.  BLOCK_THREADS: of the thread block. Boxes of whole lines begin a
// line.
template <class T, int CHUNKS, int BLOCK_THREADS, bool IN_HALVES = false> struct PixelBox {
  static constexpr int ELEMENTS = BOX_CHUNK_BYTES / int(sizeof(T));  // of a chunk
  static constexpr bool IS_SWIZZLED = CHUNKS == 4 || CHUNKS == 6 || CHUNKS == 8;
  static constexpr int SPAN = CHUNKS == 6 ? 8 : CHUNKS;  // of a swizzled position
  static constexpr int PITCH = (IS_SWIZZLED ? SPAN : CHUNKS | 1) * BOX_CHUNK_BYTES;
  static constexpr int COPIED_BYTES = CHUNKS * BOX_CHUNK_BYTES;  // of a position
  static constexpr int HALVES = IN_HALVES ? 2 : 1;
  static constexpr int BOX_WARPS = BLOCK_THREADS / int(WARP_SIZE);
  static constexpr int POSITIONS = int(WARP_SIZE) / CHUNKS;  // that a warp copies at a time
  static constexpr int BATCH = 4;                            // copies of a lane under way before the next check
  static constexpr bool IS_EVEN = !IN_HALVES || POSITIONS % 2 == 0;  // copies of a lane are in one half of a row
  static_assert(POSITIONS > 0, "a warp copies whole positions");

  // Where a chunk lies that without a swizzle would lie at `address`.
  static __device__ __forceinline__ u32 swizzled(u32 address) {
    return IS_SWIZZLED ? address ^ (address >> 3 & (SPAN - 1) * BOX_CHUNK_BYTES) : address;
  }

  // The size of a box in shared memory.
  static __device__ __forceinline__ u32 bytes(const BoxGeometry& g) {
    return g.places * PITCH;
  }

  // Copies the box of `tile`, channels from `first_channel` on, to shared address `to`; what the tensor does not have
  // becomes 0. Every thread of the block takes part; a warp copies a row at a time.
  static __device__ __forceinline__ void copy(const T* tensor, const BoxGeometry& g, const i32 (&tile)[1 + BOX_AXES],
                                              i32 first_channel, u32 to) {
    const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const i32 channel = first_channel + lane % CHUNKS * ELEMENTS, first_step = lane / CHUNKS;
    const i32 columns = g.box[BOX_AXES].divisor, extent = g.extents[BOX_AXES - 1];
    const i32 end_step = first_step < POSITIONS ? columns : 0;
    const i32 first_column = tile[BOX_AXES] * g.pace[BOX_AXES - 1] + g.origin[BOX_AXES - 1];
    const i64 stride = g.strides[BOX_AXES - 1];
    tensor += (first_column + first_step) * stride + channel;
    to += lane % CHUNKS * BOX_CHUNK_BYTES;

    // A lane locates one of the warp's next 32 rows, for all lanes to copy.
#pragma unroll 1
    for (i32 next = warp; next < g.rows; next += BOX_WARPS * int(WARP_SIZE)) {
      const i64 located = row_offset(g, tile, next + lane * BOX_WARPS);
#pragma unroll 1
      for (i32 i = 0, row = next; i < int(WARP_SIZE) && row < g.rows; ++i, row += BOX_WARPS) {
        const i64 offset = __shfl_sync(~0u, located, i);
        const bool exists = offset != NO_ROW && channel < g.channels;
        const T* from = tensor + offset;
#pragma unroll 1
        for (i32 batch = first_step; batch < end_step; batch += BATCH * POSITIONS) {
          const i32 place = place_of(g, row, batch);
#pragma unroll
          for (int copy = 0; copy < BATCH; ++copy, from += POSITIONS * stride) {
            const i32 step = batch + copy * POSITIONS;
            const bool inside = exists && u32(first_column + step) < u32(extent);
            const i32 at = IS_EVEN ? place + copy * (IN_HALVES ? POSITIONS / 2 : POSITIONS)
                                   : place_of(g, row, step);
            if (step < end_step) cp_async<BOX_CHUNK_BYTES>(swizzled(to + at * PITCH), from, inside);
          }
        }
      }
    }
  }

 private:
  // The place of a position in shared memory.
  static __device__ __forceinline__ i32 place_of(const BoxGeometry& g, i32 row, i32 column) {
    return row * g.row_places + (IN_HALVES ? column % 2 * g.halves_apart + column / 2 : column);
  }

  static constexpr i64 NO_ROW = -1;  // rows begin whole chunks

  // Elements from the tensor's beginning to row `row` of the box of `tile`, or NO_ROW where the tensor has none.
  static __device__ __forceinline__ i64 row_offset(const BoxGeometry& g, const i32 (&tile)[1 + BOX_AXES], i32 row) {
    i32 at[BOX_AXES];  // image and the axes before the last
    digits<BOX_AXES>(g.box, u32(row), at);
    const i32 image = tile[0] * g.image_pace + at[0];
    bool exists = image < g.images;
    i64 offset = image * g.image_stride;
#pragma unroll
    for (int axis = 0; axis < BOX_AXES - 1; ++axis) {
      const i32 position = tile[1 + axis] * g.pace[axis] + g.origin[axis] + at[1 + axis];
      exists = exists && u32(position) < u32(g.extents[axis]);
      offset += position * g.strides[axis];
    }
    return exists ? offset : NO_ROW;
  }
};
