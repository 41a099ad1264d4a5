// stem_unfold: x[n, c, h] = folded[n, i, (a, c)] where h = origin + gap * (i * |pace| + a) in each spatial axis, 0 if
// there is no such element. It inverts stem_fold if gap is 1 or -1 and each h has at most one (i, a).
//
// Layouts: as in stem_fold.cu.
// Block: 256 places of x, counted over (image, axes), with all their channels.
// Launch: 256 threads, ceil(places / 256) blocks.
// Macros: TYPE; CHANNELS of x; PHASES_0, PHASES_1, PHASES_2; FOLDED channels, padding included; OVERLAPS_PREVIOUS: as a
// dependent launch (dependent_launch.cuh).

#include "include/math/division.cuh"
#include "include/ptx/dependent_launch.cuh"

constexpr int AXES = 3;

struct Params {
  const TYPE* folded;
  TYPE* x;
  i64 image_stride;  // stride of x
  i32 strides[AXES], channel_stride;  // strides of x
  Divider extents[1 + AXES];  // extents of x: (image, axes)
  i32 origin[AXES], gap[AXES];
  Divider pace[AXES];
  i32 positions[AXES];  // positions of folded
  i32 places;
};

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  if constexpr (OVERLAPS_PREVIOUS) {
    wait_for_previous_kernel();
    allow_next_kernel();
  }
  constexpr i32 PHASES[AXES] = {PHASES_0, PHASES_1, PHASES_2};
  const u32 place = blockIdx.x * 256 + threadIdx.x;
  if (place >= u32(p.places)) return;
  i32 at[1 + AXES];
  digits<1 + AXES>(p.extents, place, at);

  i64 to = at[0] * p.image_stride;
  u32 position = at[0], phase = 0;
  bool exists = true;
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    to += i64(at[1 + axis]) * p.strides[axis];
    const u32 distance = p.gap[axis] * (at[1 + axis] - p.origin[axis]);
    const u32 i = p.pace[axis].divide(distance), a = distance - i * p.pace[axis].divisor;
    exists = exists && i < u32(p.positions[axis]) && a < u32(PHASES[axis]);
    position = position * p.positions[axis] + i;
    phase = phase * PHASES[axis] + a;
  }
  const TYPE* const from = p.folded + i64(position) * FOLDED + phase * CHANNELS;
#pragma unroll
  for (int channel = 0; channel < CHANNELS; ++channel)
    p.x[to + i64(channel) * p.channel_stride] = exists ? from[channel] : TYPE{};
}
