// The columns of a filter gradient's product: blocks of 64 channels of one filter tap.
//
// A run is the blocks of the same 64 channels for TAP_RUN_ taps that are neighbours along the last axis (1, or all taps
// of that axis). Runs are numbered over the taps in the filter's order and, fastest, over the group's blocks of
// channels. The output's columns are (taps, channels) without gaps.

#pragma once

#include "include/math/division.cuh"
#include "include/epilogue/epilogue_wgmma.cuh"
#include "pixel_walk.cuh"

// channels: channels of a group. group_channels: channels in x from one group to the next. chunks: blocks of a tap, the
// last of which may be empty. runs: runs of all taps and channels.
// taps: the runs along each axis (outermost first). offset_first, offset_step: a run's distance in x from the walk, by
// the index of its first tap in the filter. run_first, run_step: the index in a run of the tap nearest to the walk, and
// the step to the next nearest.
template <int AXES, int TAP_RUN_> struct FilterColumns {
  Divider taps[AXES], chunks;
  i32 offset_first[AXES], offset_step[AXES];
  i32 run_first, run_step;
  u32 channels, group_channels, runs;

  // The box of channels of a run for its first tap along the walk; zeros for runs past the end.
  __device__ __forceinline__ PixelBox box(u32 group, u32 run) const {
    u32 tap = chunks.divide(run);
    PixelBox box = {run < runs ? i32(group * group_channels + (run - tap * chunks.divisor) * 64) : -64, {}};
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const u32 quotient = taps[axis].divide(tap);
      box.offset[axis] = u16(offset_first[axis] + offset_step[axis] * i32(tap - quotient * taps[axis].divisor));
      tap = quotient;
    }
    return box;
  }

  // Returns the tap of a run; only for TAP_RUN_ = 1.
  __device__ __forceinline__ u32 tap(u32 run) const { return chunks.divide(run); }

  // The output's columns for the product's columns from `column` on, a multiple of 64.
  __device__ __forceinline__ ColumnRange range(u32 column) const {
    const u32 block = column / 64, run = block / TAP_RUN_, within = block % TAP_RUN_;
    const u32 line = chunks.divide(run), chunk = run - line * chunks.divisor;
    const u32 tap = line * TAP_RUN_ + run_first + run_step * i32(within);
    return {tap * channels + chunk * 64, run < runs ? (tap + 1) * channels : 0};
  }
};
