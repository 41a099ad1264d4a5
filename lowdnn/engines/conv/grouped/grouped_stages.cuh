// Shared memory of the blocks of a grouped convolution, forward or backward in the data (grouped_walk.cuh): filters,
// boxes of inputs, places of outputs.
//
// Shared memory (dynamic): filters [block of 8 outputs][chunk of k][8 rows of 16 bytes] or, whole, [filter][pitch];
// barriers [stage or filters]; offsets in the box [chunk of k]; stages of (box [position][chunks of the slab], places
// [residue][tile position]): two, or one if every block has one tile.
// Macros: TYPE; BACKWARD; IN, OUT channels of a group; PACK groups of a pack; UNIT_PACKS, UNITS; TAPS of all classes,
// with a null tap where a class would end in half a step; CLASSES residues; RUN elements of one copy of filters;
// BLOCKS_M; THREADS; KEEPS_FILTERS; WHOLE_FILTERS: bulk copies load the filters; HALVED: boxes (pixel_box.cuh); MAPPED:
// boxes are copied by map (box_source.cuh); OUTPUT_RANK.

#pragma once

#include "box_source.cuh"
#include "include/epilogue/output_map.cuh"
#include "generated.cuh"

typedef OutputMap<OUTPUT_RANK, OUTPUT_RANK - 1> Map;

constexpr int AXES = BOX_AXES;
constexpr int WARPS = THREADS / int(WARP_SIZE);
constexpr int CHUNK_BYTES = BOX_CHUNK_BYTES;
constexpr int CHUNK = CHUNK_BYTES / int(sizeof(TYPE));  // elements
constexpr int BLOCK_N = 8;                              // output channels of one instruction
constexpr int IN_CHUNKS = PACK * IN / CHUNK;  // input channels of a pack, in chunks
constexpr int OUT_BLOCKS = PACK * OUT / BLOCK_N;
constexpr int UNIT_BLOCKS = UNIT_PACKS * OUT_BLOCKS;
constexpr int BLOCKS_N = (UNIT_BLOCKS + 1) / 2 * 2;  // blocks of a unit, padded to an even number
constexpr int SLAB_CHUNKS = UNITS * UNIT_PACKS * IN_CHUNKS;
constexpr int SLAB_BLOCKS = UNITS * BLOCKS_N;
constexpr int DEPTH = TAPS * IN_CHUNKS;                 // chunks of k
constexpr int FILTER_CHUNK_BYTES = 8 * CHUNK_BYTES;
constexpr int STAGES = 2;
constexpr int SET = BLOCKS_M * 16;  // output pixels that a warp computes in one pass over k
// Whether rows of a filter chunk, which are filters, are the depth of the product. ldmatrix transposes 16-bit elements
// only; elements of 32 bits are transposed by the copies.
constexpr bool FILTERS_ARE_DEPTH = BACKWARD && sizeof(TYPE) == 2;
constexpr int BARRIERS = STAGES + 1;
constexpr int OFFSET_BYTES = (BARRIERS * int(sizeof(u64)) + DEPTH * 4 + 127) / 128 * 128;  // barriers, too
// Whole filters in their memory layout, at a pitch of an odd number of chunks.
constexpr int FILTERS = UNITS * UNIT_PACKS * PACK * (BACKWARD ? IN : OUT);
constexpr int WHOLE_FILTER_BYTES = TAPS * (BACKWARD ? OUT : IN) * int(sizeof(TYPE));
constexpr int FILTER_PITCH = WHOLE_FILTER_BYTES | CHUNK_BYTES;
constexpr int FILTER_BYTES =
    WHOLE_FILTERS ? (FILTERS * FILTER_PITCH + 127) / 128 * 128 : SLAB_BLOCKS * DEPTH * FILTER_CHUNK_BYTES;
constexpr u32 OUTSIDE = ~0u;
typedef PixelBox<TYPE, SLAB_CHUNKS, THREADS, HALVED> Box;
static_assert(UNIT_BLOCKS == BLOCKS_N || UNITS * UNIT_PACKS == 1, "a block without channels is the output's last");
static_assert(!WHOLE_FILTERS || (KEEPS_FILTERS && PACK == 1 && IN_CHUNKS % 2 == 0), "steps of one tap, without zeros");

struct Tap {
  i32 offset;  // offset in the box from tile position 0, in bytes
  i32 index;  // index in w, or -1 for a null tap
};

struct OutputClass {
  i32 residue[AXES];
  i32 first_tap, end_tap;
};

struct Params {
  BoxSource<TYPE, MAPPED> in;
  const TYPE* w;
  BoxGeometry box;  // box of the inputs of a tile
  i32 out_extents[AXES], out_channels;
  i32 groups;
  i32 w_taps, w_channels;  // taps and channels of a filter in memory
  i32 in_step[AXES], out_step[AXES];  // in_step: in places of the box
  Divider slabs;
  Divider tiles[1 + AXES];  // (image, axes)
  Divider tile[1 + AXES];  // extents, in positions of each residue
  i32 tile_count, lanes;
  i32 class_places;  // places of one residue: whole sets of all warps that compute together
  Tap taps[TAPS];
  OutputClass classes[CLASSES];
  Map map;
  Functor::Args epilogue;
};

// One output of a tile: where its inputs begin in the box, and its row in the output.
struct Place {
  u32 box;  // bytes from the box's start to the position that a tap of offset 0 reads
  u32 row;  // row of the output, counted over (image, axes), or OUTSIDE
};

// The inputs of a tile, and its places.
struct Stage {
  u8* box;
  Place* places;
};

struct Shared {
  u8* filters;
  u64* barriers;  // one for each stage, then one for the filters
  u32* offsets;
  u8* stages;
  u32 box_bytes, stage_bytes;

  __device__ __forceinline__ Shared(u8* memory, const Params& p) {
    filters = memory;
    barriers = reinterpret_cast<u64*>(filters + FILTER_BYTES);
    offsets = reinterpret_cast<u32*>(barriers + BARRIERS);
    stages = reinterpret_cast<u8*>(barriers) + OFFSET_BYTES;
    box_bytes = Box::bytes(p.box);
    stage_bytes = box_bytes + CLASSES * p.class_places * sizeof(Place);
  }

  // The stage of the block's tile number `turn`.
  __device__ __forceinline__ Stage stage(u32 turn) const {
    u8* box = stages + turn % STAGES * stage_bytes;
    return {box, reinterpret_cast<Place*>(box + box_bytes)};
  }

  __device__ __forceinline__ u32 barrier(u32 turn) const { return shared_address(barriers + turn % STAGES); }
};

// ---- staging --------------------------------------------------------------------------------------------------------

// Starts the copies of a tile's box.
__device__ __forceinline__ void stage_box(const Params& p, const Shared& shared, const i32 (&tile)[1 + AXES], i32 slab,
                                          u32 turn) {
  const i32 channel = slab * (SLAB_CHUNKS * CHUNK);
  const u32 to = shared_address(shared.stage(turn).box);
  if (MAPPED && threadIdx.x > 0) return;
  if constexpr (MAPPED) mbarrier_expect(shared.barrier(turn), copied_bytes<Box>(p.box));
  copy_box<Box>(p.in, p.box, tile, channel, to, shared.barrier(turn));
}

// Waits for the cp.async groups of all threads except the last one, and for their stores.
__device__ __forceinline__ void await_copies() {
  cp_async_wait<1>();
  __syncthreads();
}

__device__ __forceinline__ void await_box(const Shared& shared, u32 turn) {
  await_copies();
  if constexpr (MAPPED) mbarrier_wait(shared.barrier(turn), turn / STAGES % 2);
}

// Copies the slab's filters, with zeros where input and output channel belong to different groups of a pack.
__device__ __forceinline__ void stage_filters(const Params& p, i32 slab, u8* filters) {
  constexpr int RUNS = CHUNK / RUN;  // runs of a row
  for (u32 item = threadIdx.x; item < u32(SLAB_BLOCKS * DEPTH * 8 * RUNS); item += THREADS) {
    const u32 run = item % RUNS, row = item / RUNS % 8, step = item / (8 * RUNS) % DEPTH,
        block = item / (8 * RUNS * DEPTH);
    const u32 pack = block / OUT_BLOCKS;
    // Channels in the pack of the run's first element.
    const u32 along_n = block % OUT_BLOCKS * BLOCK_N, along_k = step % IN_CHUNKS * CHUNK;
    const u32 out = along_n + (FILTERS_ARE_DEPTH ? run * RUN : row);
    const u32 in = along_k + (FILTERS_ARE_DEPTH ? row : run * RUN);
    const u32 group = (slab * UNITS * UNIT_PACKS + pack) * PACK + out / OUT;
    const i32 tap = p.taps[step / IN_CHUNKS].index;
    const bool exists = tap >= 0 && out / OUT == in / IN && group < u32(p.groups);
    const u32 filter = group * (BACKWARD ? IN : OUT) + (BACKWARD ? in % IN : out % OUT);
    const u32 channel = BACKWARD ? out % OUT : in % IN;
    const TYPE* from = p.w + (i64(filter) * p.w_taps + tap) * p.w_channels + channel;
    cp_async<RUN * int(sizeof(TYPE))>(shared_address(filters) + item * RUN * int(sizeof(TYPE)), from, exists);
  }
}

// Starts the copies of whole filters, by the first warp.
__device__ __forceinline__ void load_filters(const Params& p, const Shared& shared, i32 slab) {
  if (threadIdx.x >= WARP_SIZE) return;
  const u32 barrier = shared_address(shared.barriers + STAGES);
  if (threadIdx.x == 0) mbarrier_expect(barrier, FILTERS * WHOLE_FILTER_BYTES);
  __syncwarp();
  for (u32 filter = threadIdx.x; filter < u32(FILTERS); filter += WARP_SIZE) {
    const TYPE* from = p.w + i64(slab * FILTERS + filter) * (WHOLE_FILTER_BYTES / int(sizeof(TYPE)));
    bulk_load(shared_address(shared.filters) + filter * FILTER_PITCH, from, WHOLE_FILTER_BYTES, barrier);
  }
}

// Writes the offset in the box of each chunk of k, from the position of a tap of offset 0.
__device__ __forceinline__ void stage_offsets(const Params& p, u32* offsets) {
  for (u32 chunk = threadIdx.x; chunk < u32(DEPTH); chunk += THREADS)
    offsets[chunk] = p.taps[chunk / IN_CHUNKS].offset + chunk % IN_CHUNKS * CHUNK_BYTES;
}

// Writes the Place of each output of a tile, residue by residue.
__device__ __forceinline__ void stage_places(const Params& p, const i32 (&tile)[1 + AXES], Place* places) {
  for (u32 index = threadIdx.x; index < u32(CLASSES * p.class_places); index += THREADS) {
    const u32 number = CLASSES == 1 ? 0 : index / p.class_places;
    i32 at[1 + AXES];
    digits<1 + AXES>(p.tile, index - number * p.class_places, at);
    const i32 image = tile[0] * p.tile[0].divisor + at[0];
    bool exists = u32(at[0]) < p.tile[0].divisor && image < p.box.images;
    u32 box = at[0], row = image;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      const i32 step = tile[1 + axis] * p.tile[1 + axis].divisor + at[1 + axis];
      const i32 position = step * p.out_step[axis] + p.classes[number].residue[axis];
      exists = exists && position < p.out_extents[axis];
      const u32 pitch = axis + 1 < AXES ? p.box.box[1 + axis].divisor : p.box.row_places;
      box = box * pitch + at[1 + axis] * p.in_step[axis];
      row = row * p.out_extents[axis] + position;
    }
    places[index] = exists ? Place{box * Box::PITCH, row} : Place{0, OUTSIDE};
  }
}
