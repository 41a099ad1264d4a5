// The walk over tiles of the kernels of a grouped convolution, forward or backward in the data:
//     out[n, g * OUT + k, a + i * out_step] = epilogue(sum over c, taps r of residue a of
//         in[n, g * IN + c, i * in_step + offset(r)] * w(g, k, c, r))
// in each spatial axis. Forward: in = x, out = y, out_step = 1 and in_step the stride. BACKWARD: in = dy, out = dx,
// out_step the stride and in_step = 1; every tap belongs to the one residue of dx that it reaches.
//
// Layouts: in channels-last with any other strides, its channels whole 16-byte chunks; w [filters][taps][channels of a
// group], dense; out has any layout. There are always three spatial axes, with extents of 1 in front.
// Product: a pack is the fewest groups whose channels fill chunks of 16 bytes on the input side and blocks of 8 on the
// output side. Its groups are multiplied as one block-diagonal matrix: m = 16 output pixels, n = 8 output channels, k =
// (taps, chunks).
// Block: persistent; it computes a slab of UNITS units of UNIT_PACKS packs, whose filters it copies to shared memory
// once, for every lanes-th tile of output positions (image, axes), in all residues. Each warp computes BLOCKS_M * 16
// pixels of one unit at a time, while the box of inputs of the block's next tile is copied. blockIdx.x = first tile *
// slabs + slab. Shared memory: grouped_stages.cuh.
// Launch: THREADS threads, lanes * slabs blocks. It may be a dependent launch (dependent_launch.cuh).
// Macros: as in grouped_stages.cuh and grouped_sums.cuh, and MIN_BLOCKS on a multiprocessor.

#pragma once

#include "grouped_sums.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "own_sums.cuh"

// Starts the copies of the block's tile `number`, if it exists, and locates its pixels.
__device__ __forceinline__ void stage_tile(const Params& p, const Shared& shared, i32 number, i32 slab, u32 turn) {
  if (number >= p.tile_count) return;
  i32 tile[1 + AXES];
  digits<1 + AXES>(p.tiles, u32(number), tile);
  stage_box(p, shared, tile, slab, turn);
  stage_places(p, tile, shared.stage(turn).places);
}

// Starts the copies of the filters and of the first two tiles, in two groups: the first group has the filters.
__device__ __forceinline__ void stage_first(const Params& p, const Shared& shared, i32 first_tile, i32 slab) {
  if (MAPPED && threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < BARRIERS; ++i) mbarrier_init(shared_address(shared.barriers + i), 1);
    mbarrier_fence_init();
    prefetch_source(p.in);
  }
  stage_offsets(p, shared.offsets);
  wait_for_previous_kernel();
  stage_tile(p, shared, first_tile, slab, 0);
  if constexpr (WHOLE_FILTERS) {
    load_filters(p, shared, slab);
  } else {
    stage_filters(p, slab, shared.filters);
    cp_async_commit();
  }
  stage_tile(p, shared, first_tile + p.lanes, slab, 1);
  cp_async_commit();
}

// Computes the block's tiles. Work:
//     TEAM_WARPS                               neighbouring warps that compute together
//     Filters filters(p, shared, unit)         loads the filters of a unit, once they have arrived
//     void add(rows, filters, output, sums)    adds the products of a set of pixels with the filters of their class
// rows: shared-memory addresses of the lane's rows of each block of 16 pixels.
template <class Work> __device__ __forceinline__ void compute_tiles(const Params& p, u8* memory) {
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0), lane = threadIdx.x % WARP_SIZE;
  const Shared shared(memory, p);
  const i32 first_tile = p.slabs.divide(blockIdx.x), slab = blockIdx.x - first_tile * p.slabs.divisor;
  stage_first(p, shared, first_tile, slab);

  // Computes this warp's unit, tile by tile and set of pixels by set.
  static_assert(WARPS % (UNITS * Work::TEAM_WARPS) == 0, "every warp has one unit");
  const u32 team = warp / Work::TEAM_WARPS, unit = team % UNITS, first_block = unit * BLOCKS_N;
  const i32 first_set = (team / UNITS * Work::TEAM_WARPS + warp % Work::TEAM_WARPS) * SET;
  const auto filters = Work::filters(p, shared, unit);
  u32 turn = 0;
#pragma unroll 1
  for (i32 number = first_tile; number < p.tile_count; number += p.lanes, ++turn) {
    await_box(shared, turn);
    const Stage from = shared.stage(turn);
    const u32 unit_box = shared_address(from.box) + unit * UNIT_PACKS * IN_CHUNKS * CHUNK_BYTES;
#pragma unroll 1
    for (i32 set = first_set; set < CLASSES * p.class_places; set += WARPS / UNITS * SET) {
      const OutputClass& output = p.classes[CLASSES == 1 ? 0 : set / p.class_places];
      u32 rows[BLOCKS_M];
#pragma unroll
      for (int i = 0; i < BLOCKS_M; ++i) rows[i] = unit_box + from.places[set + i * 16 + lane % 16].box;
      Sums sums = {};
      Work::add(rows, filters, output, sums);
      if constexpr (PACK > 1 || IN_CHUNKS % 2 != 0) {
        if (__any_sync(~0u, may_have_nan(sums)))  // votes, so that the warp does not diverge
          replace_nans(p, shared, output, from.box, from.places + set + lane / 4, first_block, sums);
      }
      finish(p, sums, from.places + set + lane / 4, slab, first_block);
    }
    __syncthreads();
    stage_tile(p, shared, number + STAGES * p.lanes, slab, turn + STAGES);
    cp_async_commit();
  }
}
