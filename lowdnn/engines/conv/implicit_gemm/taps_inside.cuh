// Which taps of an output pixel (a row of the im2col matrix) read inside x, in two forms of one interface:
//
//     Row row(geometry, start, exists)    what is known of a row; start: the position of its tap 0 along each axis
//     Tap tap(geometry, index, exists)    what is known of a tap with an index along each axis
//     bool reads(geometry, row, tap)      whether the row's tap lies inside x; never if one of them does not exist
//
// TapMasks has a bit for every tap of an axis: a register for each row, and a test of all axes at once. TapBounds
// compares positions with extents: AXES registers for each row and two instructions an axis, for any number of taps.

#pragma once

#include "include/math/division.cuh"

// AXES axes, outermost first.
template <int AXES> struct PixelGeometry {
  i32 extent[AXES];  // extents of x
  i32 unit_stride[AXES];  // strides of x, in units
  i32 image_stride;  // stride of x, in units
  Divider output[AXES];
  Divider taps[AXES];
  Divider channels;  // channels of one group, in units
  i32 stride[AXES], dilation[AXES], padding[AXES];
  i32 rows;  // images * output pixels
};

template <int AXES_> struct TapMasks {
  static constexpr int AXES = AXES_;
  static constexpr int BITS = 32 / AXES;  // bits of an axis, of which a filter may use all but one
  typedef u32 Row;  // the taps inside x; none for a row that does not exist
  typedef u32 Tap;  // one bit for each axis; all ones, which are in no row, for a tap that does not exist

  static __device__ __forceinline__ Row row(const PixelGeometry<AXES>& geometry, const i32 (&start)[AXES],
                                            bool exists) {
    u32 mask = 0;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      for (u32 tap = 0; tap < geometry.taps[axis].divisor; ++tap) {
        const i32 position = start[axis] + i32(tap) * geometry.dilation[axis];
        if (u32(position) < u32(geometry.extent[axis])) mask |= 1u << (axis * BITS + tap);
      }
    }
    return exists ? mask : 0;
  }

  static __device__ __forceinline__ Tap tap(const PixelGeometry<AXES>&, const u32 (&index)[AXES], bool exists) {
    u32 bits = 0;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) bits |= 1u << (axis * BITS + index[axis]);
    return exists ? bits : ~0u;
  }

  static __device__ __forceinline__ bool reads(const PixelGeometry<AXES>&, Row row, Tap tap) {
    return (tap & ~row) == 0;
  }
};

template <int AXES_> struct TapBounds {
  static constexpr int AXES = AXES_;
  struct Row {
    i32 start[AXES];  // positions of tap 0; the first lies outside x with every tap for a row that does not exist
  };
  struct Tap {
    i32 shift[AXES];  // distances from tap 0; the first leads any row outside x for a tap that does not exist
  };

  static __device__ __forceinline__ Row row(const PixelGeometry<AXES>& geometry, const i32 (&start)[AXES],
                                            bool exists) {
    Row row;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) row.start[axis] = start[axis];
    if (!exists) row.start[0] = geometry.dilation[0] < 0 ? -1 : geometry.extent[0];
    return row;
  }

  static __device__ __forceinline__ Tap tap(const PixelGeometry<AXES>& geometry, const u32 (&index)[AXES],
                                            bool exists) {
    Tap tap;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) tap.shift[axis] = i32(index[axis]) * geometry.dilation[axis];
    if (!exists) tap.shift[0] = i32(1u << 31);
    return tap;
  }

  static __device__ __forceinline__ bool reads(const PixelGeometry<AXES>& geometry, const Row& row, const Tap& tap) {
    bool inside = true;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      inside &= u32(row.start[axis]) + u32(tap.shift[axis]) < u32(geometry.extent[axis]);
    }
    return inside;
  }
};
