// The targets of depthwise correlations of lines that a block computes, and the epilogue of their sums.
//
// Macros: RUN, the neighbouring targets that the epilogue gets at a time (along the lanes, or along the line if LANES
// is 1), and those of depthwise_lines.cuh. The functor's axes: n, c, two more spatial axes, the line.

#pragma once

#include "depthwise_lines.cuh"
#include "generated.cuh"

// A block's part of the targets: one class, and `targets` positions of a line from `first` on.
struct BlockTargets {
  const AxisClass& one;
  i32 first, first_channel, first_batch;
};

struct LineTargets {
  static constexpr int RANK = 5;

  Axis axis;
  Rows rows;
  Divider runs;  // runs of a row
  i32 targets;  // targets of a row
  Digits<4> blocks;  // class, tile of the line, block of channels, block of batches
  Functor::Args epilogue;

  __device__ __forceinline__ BlockTargets block() const {
    u32 digits[4];
    blocks.split(blockIdx.x, digits);
    return {axis.classes[digits[0]], i32(digits[1]) * targets, i32(digits[2]) * rows.block_channels(),
            i32(digits[3]) * rows.own_batches};
  }

  // Hands all targets of the block to the epilogue. sums: [row][target][LANES] in shared memory. PITCH: elements from
  // one target to the next.
  template <int PITCH> __device__ __forceinline__ void finish(const BlockTargets& block, const f32* sums) const {
#pragma unroll 1
    for (u32 number = threadIdx.x; number < rows.count() * runs.divisor; number += blockDim.x) {
      const u32 row = runs.divide(number), element = (number - row * runs.divisor) * RUN;
      f32 values[RUN];
      read_run<PITCH>(values, sums + (row * targets + element / LANES) * PITCH + element % LANES);
      finish_run(block, row, element, values);
    }
  }

 private:
  template <int PITCH> static __device__ __forceinline__ void read_run(f32 (&values)[RUN], const f32* from) {
    if constexpr (PITCH % CHUNK == 0 || LANES == 1) {
      read_neighbours(values, from);
    } else {
#pragma unroll
      for (int i = 0; i < RUN; ++i) values[i] = from[i];
    }
  }

  __device__ __forceinline__ void finish_run(const BlockTargets& block, u32 row, u32 element,
                                             const f32 (&values)[RUN]) const {
    const i32 k = block.first + i32(element / LANES), batch = block.first_batch + i32(rows.batch_of(row));
    const i32 channel = block.first_channel + i32(LANES > 1 ? element % LANES : rows.channel_of(row));
    const i32 valid = min(LANES > 1 ? rows.channel_count - channel : block.one.count - k, RUN);
    if (batch >= rows.batch_count || channel >= rows.channel_count || k >= block.one.count) return;
    u32 outer[3];
    rows.batches.split(batch, outer);
    const i64 coordinate[RANK] = {outer[2], channel, outer[1], outer[0], block.one.target + k * axis.target_step};
    Functor::apply<RUN>(epilogue, Functor::cursor(epilogue, coordinate), coordinate[LANES > 1 ? 1 : RANK - 1], valid,
                        values);
  }
};
