// Boxes of positions of a channels-last tensor, copied to shared memory: with cp.async by all threads of a block, or,
// in whole lines, by tensor map (box_source.cuh).
//
// Positions have an image and BOX_AXES spatial axes. Tile (t0, t1, ...) has the box that begins at t * pace + origin in
// every axis. In shared memory positions are contiguous, and ldmatrix has no bank conflicts on neighbouring positions.
// A position of 4, 6 or 8 chunks takes a line of 128 bytes, or half of one, and is swizzled: chunk i lies at i ^ line %
// chunks. At a padded pitch, copies would write each line in two pieces. Positions of other sizes are padded to an odd
// number of chunks. IN_HALVES, for a reader of every second position of a row: the even columns come first, then the
// odd ones (over all rows if swizzled, otherwise in each row), so that it reads neighbours, too.

#pragma once

#include "include/cp_async.cuh"
#include "include/math/division.cuh"

constexpr int BOX_AXES = 3;
constexpr int BOX_CHUNK_BYTES = 16;

struct BoxGeometry {
  i64 image_stride, strides[BOX_AXES];  // elements
  i32 images, extents[BOX_AXES];  // extents of the tensor
  i32 channels;  // channels of the tensor, in whole chunks
  i32 image_pace, pace[BOX_AXES];  // positions from one tile's box to the next tile's, along each axis
  i32 origin[BOX_AXES];  // origin of the box of tile 0
  Divider box[1 + BOX_AXES];  // extents (image, axes)
  i32 rows;  // rows of the box: all extents but the last
  i32 places;  // places of the box in shared memory
  i32 row_places, half_places;  // places from one row to the next; places from the even columns to the odd ones
};

// CHUNKS: chunks (16 bytes) of channels at each position. BLOCK_THREADS: threads of the block. A swizzled box begins at
// a line of 128 bytes.
template <class T, int CHUNKS, int BLOCK_THREADS, bool IN_HALVES = false> struct PixelBox {
  static constexpr int ELEMENTS = BOX_CHUNK_BYTES / int(sizeof(T));  // elements of a chunk
  static constexpr bool IS_SWIZZLED = CHUNKS == 4 || CHUNKS == 6 || CHUNKS == 8;
  static constexpr int SPAN = CHUNKS == 6 ? 8 : CHUNKS;  // chunks of a swizzled position's space
  static constexpr int PITCH = (IS_SWIZZLED ? SPAN : CHUNKS | 1) * BOX_CHUNK_BYTES;
  static constexpr int COPIED_BYTES = CHUNKS * BOX_CHUNK_BYTES;  // bytes of a position
  static constexpr int HALVES = IN_HALVES ? 2 : 1;
  static constexpr int BOX_WARPS = BLOCK_THREADS / int(WARP_SIZE);
  static constexpr int POSITIONS = int(WARP_SIZE) / CHUNKS;  // positions that a warp copies at a time
  static constexpr int BATCH = 4;  // copies of a lane between two checks for the end of the row
  static constexpr bool IS_EVEN = !IN_HALVES || POSITIONS % 2 == 0;  // a lane's copies are in one half of a row
  static_assert(POSITIONS > 0, "a warp copies whole positions");

  // The address of a chunk after the swizzle.
  static __device__ __forceinline__ u32 swizzled(u32 address) {
    return IS_SWIZZLED ? address ^ (address >> 3 & (SPAN - 1) * BOX_CHUNK_BYTES) : address;
  }

  // Bytes of a box in shared memory.
  static __device__ __forceinline__ u32 bytes(const BoxGeometry& g) {
    return g.places * PITCH;
  }

  // Copies the box of `tile`, channels from `first_channel` on, to shared address `to`; positions outside the tensor
  // become 0. Called by all threads of the block; a warp copies a row at a time.
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

    // Each lane locates one of the warp's next 32 rows; then all lanes copy them.
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
  // Index of a position in shared memory.
  static __device__ __forceinline__ i32 place_of(const BoxGeometry& g, i32 row, i32 column) {
    return row * g.row_places + (IN_HALVES ? column % 2 * g.half_places + column / 2 : column);
  }

  static constexpr i64 NO_ROW = -1;  // rows begin at whole chunks

  // Elements from the tensor's beginning to row `row` of the box of `tile`, or NO_ROW if the tensor lacks it.
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
