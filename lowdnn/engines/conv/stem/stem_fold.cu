// stem_fold: folded[n, i, (a, c)] = x[n, c, origin + i * pace + a * gap] in each spatial axis, 0 where x has no such
// element. So a convolution of few channels becomes one of more channels and fewer taps (stem/fold.py): `a` counts the
// phases, the elements of an axis that are written into the channels of one position, over all axes, the last one
// fastest.
//
// Layouts: x has any strides; folded is dense, its channels innermost and padded with zeros. A filter is folded
// likewise, with its filters as images. There are always three spatial axes, with extents of 1 in front.
// Block: 256 threads, each with one item: one chunk (16 bytes) of the folded channels of a position. If VECTOR is 1 and
// a position has at most 8 chunks, an item is all of them, so that each element's phase is a compile-time value.
// Launch: 256 threads, ceil(items / 256) blocks.
// Macros: TYPE; CHANNELS of x; PHASES_0, PHASES_1, PHASES_2; FOLDED: channels of folded, padding included; VECTOR:
// phases of the last axis in one aligned access, with 1 channel; OVERLAPS_PREVIOUS: as a dependent launch
// (dependent_launch.cuh).

#include "include/math/division.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/vector.cuh"

constexpr int AXES = 3;
constexpr int CHUNK = 16 / int(sizeof(TYPE));  // elements
constexpr int CHUNKS = FOLDED / CHUNK;
constexpr int ITEM_CHUNKS = VECTOR == 1 && CHUNKS <= 8 ? CHUNKS : 1;
constexpr int POSITION_ITEMS = CHUNKS / ITEM_CHUNKS;
constexpr int PHASES = PHASES_0 * PHASES_1 * PHASES_2;
static_assert(VECTOR == 1 || CHANNELS == 1, "channels are phases of the last axis");

struct Params {
  const TYPE* x;
  TYPE* folded;
  i64 image_stride;  // stride of x
  i32 strides[AXES], channel_stride;  // strides of x
  i32 extents[AXES];  // extents of x
  i32 origin[AXES], pace[AXES], gap[AXES];
  Divider positions[1 + AXES];  // (image, axes)
  i32 items;
};

extern "C" __global__ void __launch_bounds__(256) KERNEL_NAME(const __grid_constant__ Params p) {
  if constexpr (OVERLAPS_PREVIOUS) {
    wait_for_previous_kernel();
    allow_next_kernel();
  }
  const u32 item = blockIdx.x * 256 + threadIdx.x;
  if (item >= u32(p.items)) return;
  const u32 position = item / POSITION_ITEMS, first_chunk = item % POSITION_ITEMS * ITEM_CHUNKS;
  i32 at[1 + AXES];
  digits<1 + AXES>(p.positions, position, at);
  const TYPE* const image = p.x + at[0] * p.image_stride;
  i32 first[AXES];
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) first[axis] = p.origin[axis] + at[1 + axis] * p.pace[axis];

#pragma unroll
  for (int chunk = 0; chunk < ITEM_CHUNKS; ++chunk) {
    Vector<TYPE, VECTOR> values[CHUNK / VECTOR] = {};
#pragma unroll
    for (int i = 0; i < CHUNK / VECTOR; ++i) {
      const u32 channel = (first_chunk + chunk) * CHUNK + i * VECTOR, phase = channel / CHANNELS;
      const i32 of_axis[AXES] = {i32(phase / (PHASES_1 * PHASES_2)), i32(phase / PHASES_2 % PHASES_1),
                                 i32(phase % PHASES_2)};
      bool exists = phase < PHASES;
      i64 offset = i64(channel % CHANNELS) * p.channel_stride;
#pragma unroll
      for (int axis = 0; axis < AXES; ++axis) {
        const i32 place = first[axis] + p.gap[axis] * of_axis[axis];
        exists = exists && u32(place) < u32(p.extents[axis]);
        offset += i64(place) * p.strides[axis];
      }
      load_where<VECTOR>(exists, values[i].v, image + offset);
    }
    store<CHUNK>(p.folded + (i64(item) * ITEM_CHUNKS + chunk) * CHUNK, reinterpret_cast<TYPE(&)[CHUNK]>(values));
  }
}
