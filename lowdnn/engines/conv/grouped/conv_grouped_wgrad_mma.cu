// conv_grouped_wgrad_mma: a grouped convolution backward in the filter on tensor cores with mma.sync:
//     slice[split][k, r, c] = sum over a part of (n, o) of dy[n, k, o] * x[n, g * IN + c, o * stride + offset(r)]
// with g the group of k; gemm/split_k_reduce.cu adds the slices up. FINISHES: there is one slice, and dw =
// epilogue(slice) directly.
//
// Layouts: x and dy channels-last with any other strides, their channels whole 16-byte chunks; slices [K][taps][IN] of
// accumulators; rows k and columns (r, c) map to dw as in output_map.cuh. There are always three spatial axes, with
// extents of 1 in front.
// Product: a task is TASK_BLOCKS blocks of 16 filters by 16 columns that share a group, for SET_TAPS taps: m = filters,
// n = columns, both with the pixels' stride between their elements, k = output pixels. The columns are channels of one
// tap or, if there are 8 channels in all, those of TAPS_ABREAST = 2 taps. Columns between two groups are not written.
// Block: TASK_WARPS tasks of a slab of UNITS packs, each by PARTS warps that divide the pixels. It walks over its
// split's tiles (image, axes) of output pixels; while one is multiplied, boxes of x and dy of the next ones are in
// flight. blockIdx = (slab * sets + set, split), a set being TASK_WARPS tasks.
// Shared memory (dynamic): STAGES tiles of dy, as many boxes of x, offset in the box of x [place], barriers [stage]; at
// the end the sums [part][task][pair][lane].
// Launch: 32 * TASK_WARPS * PARTS threads. It may be a dependent launch (dependent_launch.cuh).
// Macros: TYPE; IN, OUT channels and filters of a group; PACK groups of a pack, the fewest whose channels and filters
// are multiples of 16, or one of 8 channels; UNITS; TASK_BLOCKS, TASK_WARPS, PARTS; STAGES; MIN_BLOCKS on a
// multiprocessor; TAPS, SET_TAPS; HALVED: boxes of x (pixel_box.cuh); MAPPED: boxes come by map (box_source.cuh);
// FINISHES, with OUTPUT_RANK, ROW_AXES, VECTOR: neighbouring channels that the epilogue takes, 1 or 2.

#include "box_source.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"
#include "generated.cuh"

// A kernel that stores slices has no functor.
struct Functor;

typedef Mma<TYPE> Product;
typedef Product::Accumulator Accumulator;
struct alignas(2 * sizeof(Accumulator)) Pair { Accumulator v[2]; };

constexpr int BLOCK = 16;                                  // filters and columns of a task
constexpr int PIXELS = 32 / int(sizeof(TYPE));  // pixels of one instruction
constexpr int BLOCK_BYTES = BLOCK * int(sizeof(TYPE));
constexpr int CHANNELS = PACK * IN;
constexpr int FILTER_BLOCKS = PACK * OUT / BLOCK;
constexpr int CHANNEL_BLOCKS = (CHANNELS + BLOCK - 1) / BLOCK;
constexpr int TAPS_ABREAST = CHANNELS < BLOCK ? BLOCK / CHANNELS : 1;
constexpr int STEPS = SET_TAPS / TAPS_ABREAST;  // steps of a task, each with its 16 columns
constexpr int THREADS = 32 * TASK_WARPS * PARTS;
constexpr int TAP_SETS = (TAPS + SET_TAPS - 1) / SET_TAPS;
typedef PixelBox<TYPE, UNITS * CHANNELS * int(sizeof(TYPE)) / BOX_CHUNK_BYTES, THREADS, HALVED> Image;
typedef PixelBox<TYPE, UNITS * FILTER_BLOCKS * BLOCK_BYTES / BOX_CHUNK_BYTES, THREADS> Response;
static_assert(CHANNELS % BLOCK == 0 || TAPS_ABREAST == 2, "blocks of channels are whole or two taps'");
static_assert(SET_TAPS % TAPS_ABREAST == 0, "a set has whole steps");

struct Task {
  i32 filters, channels;  // index in the pack of the task's first block of 16 filters, and of its block of 16 channels
};

// The tasks of a pack: pairs of TASK_BLOCKS blocks of filters and a block of channels that have some group in common.
struct Tasks {
  Task list[FILTER_BLOCKS * CHANNEL_BLOCKS];
  int count;

  constexpr Tasks() : list(), count(0) {
    for (int f = 0; f < FILTER_BLOCKS; f += TASK_BLOCKS) {
      for (int c = 0; c < CHANNEL_BLOCKS; ++c) {
        const bool before = ((f + TASK_BLOCKS) * BLOCK - 1) / OUT < c * BLOCK / IN;
        const bool behind = f * BLOCK / OUT > (c * BLOCK + BLOCK - 1) / IN;
        if (!before && !behind) list[count++] = {f, c};
      }
    }
  }
};
constexpr Tasks TASKS;
constexpr int TASK_COUNT = UNITS * TASKS.count * TAP_SETS;  // tasks of a slab
constexpr int TASK_SETS = (TASK_COUNT + TASK_WARPS - 1) / TASK_WARPS;

// Returns task `index` of the list. The unrolled selection keeps the list out of memory.
__device__ __forceinline__ Task task_at(int index) {
  Task task = {index / CHANNEL_BLOCKS * TASK_BLOCKS, index % CHANNEL_BLOCKS};
  if constexpr (TASKS.count * TASK_BLOCKS < FILTER_BLOCKS * CHANNEL_BLOCKS) {
#pragma unroll
    for (int i = 0; i < TASKS.count; ++i) {
      if (index == i) task = Task{TASKS.list[i].filters, TASKS.list[i].channels};
    }
  }
  return task;
}

// Stores a task's raw sums to the slice of this split.
struct SliceTarget {
  Accumulator* slices;
  i64 pitch, slice_stride;

  typedef Accumulator* Row;  // row of a filter
  __device__ __forceinline__ Row row(i32 filter) const {
    return slices + i32(blockIdx.y) * slice_stride + filter * pitch;
  }

  // Stores the sums of two neighbouring columns. is_ours[i]: whether column i is a channel of the filter's group; for
  // even IN both or none are, and the caller has checked it.
  __device__ __forceinline__ void store(Row row, i32 column, const bool (&is_ours)[2], const Pair& sum) const {
    if constexpr (IN % 2 == 0) {
      *reinterpret_cast<Pair*>(row + column) = sum;
    } else {
      if (is_ours[0]) row[column] = sum.v[0];
      if (is_ours[1]) row[column + 1] = sum.v[1];
    }
  }
};

// Stores sums through the epilogue, WIDTH neighbouring columns at a time.
template <class Functor, int RANK, int LEADING, int WIDTH> struct OutputTarget {
  OutputMap<RANK, LEADING> output;
  typename Functor::Args epilogue;

  typedef i32 Row;
  __device__ __forceinline__ Row row(i32 filter) const { return filter; }

  __device__ __forceinline__ void store(Row row, i32 column, const bool (&is_ours)[2], const Pair& sum) const {
#pragma unroll
    for (int v = 0; v < 2; v += WIDTH) {
      if (!is_ours[v]) continue;
      i64 at[RANK] = {};
      const i64 along = output.locate(row, column + v, at);
      Accumulator values[WIDTH];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) values[i] = sum.v[v + i];
      Functor::template apply<WIDTH>(epilogue, Functor::cursor(epilogue, at), along, WIDTH, values);
    }
  }
};
typedef Either<FINISHES, OutputTarget<Functor, OUTPUT_RANK, ROW_AXES, VECTOR>, SliceTarget>::Type Target;

struct Params {
  BoxSource<TYPE, MAPPED> x, dy;
  BoxGeometry image, response;
  i32 step[BOX_AXES];  // places of the box of x from one output to the next, along each axis
  i32 groups;
  Divider tiles[1 + BOX_AXES];
  i32 turns, longer_splits;  // tiles of a split; the first longer_splits splits have one more
  i32 places;  // places of a tile, rounded up to PIXELS
  u32 offsets[TAP_SETS * SET_TAPS];  // offsets of the taps in the box, in bytes
  Target target;
};

// A task's sums over the pixels of its warp.
struct Sums {
  static constexpr int LINES = TASK_BLOCKS * 2;    // filters of a lane
  static constexpr int PAIRS = LINES * STEPS * 2;  // pairs of columns
  Accumulator values[TASK_BLOCKS][STEPS][2][4];

  // Adds the products of PIXELS pixels. filters: shared-memory address of the task's first filter in dy's first pixel.
  // box: the address of the task's first channel at place 0 of x. Both are before the swizzle.
  __device__ __forceinline__ void add(u32 filters, u32 box, const u32* places, const u32* offsets) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    u32 a[TASK_BLOCKS][4];
    if constexpr (sizeof(TYPE) == 2) {
      const u32 pixel = lane % 8 + lane / 16 * 8, row = filters + pixel * Response::PITCH + lane / 8 % 2 * 16;
#pragma unroll
      for (int block = 0; block < TASK_BLOCKS; ++block)
        ldmatrix_x4_transposed(a[block], Response::swizzled(row + block * BLOCK_BYTES));
      const u32 from = box + places[lane % 16];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        u32 b[4];
        const u32 half = lane < 16 ? half_offset(offsets, step, 0) : half_offset(offsets, step, 1);
        ldmatrix_x4_transposed(b, Image::swizzled(from + half));
#pragma unroll
        for (int block = 0; block < TASK_BLOCKS; ++block) {
          Product::apply(values[block][step][0], a[block], b[0], b[1]);
          Product::apply(values[block][step][1], a[block], b[2], b[3]);
        }
      }
    } else {
      const u32 row = lane / 4, pixel = lane % 4;
#pragma unroll
      for (int block = 0; block < TASK_BLOCKS; ++block) {
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const u32 filter = block * BLOCK + row + word % 2 * 8;
          a[block][word] = operand<Response>(filters + (pixel + word / 2 * 4) * Response::PITCH + filter * 4);
        }
      }
      const u32 first = box + places[pixel] + row * 4, second = box + places[pixel + 4] + row * 4;
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 at = half_offset(offsets, step, half);
          const u32 b0 = operand<Image>(first + at), b1 = operand<Image>(second + at);
#pragma unroll
          for (int block = 0; block < TASK_BLOCKS; ++block) Product::apply(values[block][step][half], a[block], b0, b1);
        }
      }
    }
  }

  // Returns the sums of two neighbouring columns. number: counts over (line, step, block of 8 columns).
  __device__ __forceinline__ Pair pair(int number) const {
    const int line = number / (2 * STEPS);
    const Accumulator(&of_block)[4] = values[line / 2][number / 2 % STEPS][number % 2];
    return {of_block[line % 2 * 2], of_block[line % 2 * 2 + 1]};
  }

 private:
  // Bytes from a place to a block of 8 columns: the second block has the next channels, or those of the next tap.
  static __device__ __forceinline__ u32 half_offset(const u32* offsets, int step, int half) {
    if constexpr (TAPS_ABREAST == 2) return offsets[2 * step + half];
    return offsets[step] + half * (BLOCK_BYTES / 2);
  }

  template <class Box> static __device__ __forceinline__ u32 operand(u32 address) {
    return Product::operand(load_shared_32(Box::swizzled(address)));
  }
};

// ---- staging --------------------------------------------------------------------------------------------------------

// Layout of shared memory.
struct Shared {
  u32 image_bytes, response_bytes;  // bytes of a stage
  u32 images;  // offset of the stages of x
  u32* places;  // offsets of a tile's places in the box of x
  u32 start, barriers;  // shared-memory addresses

  __device__ __forceinline__ Shared(const Params& p, u8* memory) {
    image_bytes = Image::bytes(p.image);
    response_bytes = p.places * Response::PITCH;
    images = STAGES * response_bytes;
    places = reinterpret_cast<u32*>(memory + images + STAGES * image_bytes);
    barriers = shared_address(places + p.places);
    start = shared_address(memory);
  }

  __device__ __forceinline__ u32 response(u32 stage) const { return start + stage * response_bytes; }
  __device__ __forceinline__ u32 image(u32 stage) const { return start + images + stage * image_bytes; }
  __device__ __forceinline__ u32 barrier(u32 stage) const { return barriers + stage * MBARRIER_BYTES; }
};

// Initialises the stages' barriers; called by one thread.
__device__ __forceinline__ void make_barriers(const Params& p, const Shared& shared) {
  prefetch_source(p.x);
  prefetch_source(p.dy);
#pragma unroll
  for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(shared.barrier(stage), 1);
  mbarrier_fence_init();
}

// Starts the copies of a tile of x and dy to a stage; called by all threads, or by the first one if copies go by map.
__device__ __forceinline__ void stage_tile(const Params& p, const Shared& shared, u32 number, i32 slab, u32 stage) {
  i32 tile[1 + BOX_AXES];
  digits<1 + BOX_AXES>(p.tiles, number, tile);
  const u32 x_to = shared.image(stage), dy_to = shared.response(stage);
  const i32 channel = slab * (UNITS * CHANNELS), filter = slab * (UNITS * FILTER_BLOCKS * BLOCK);
  if (MAPPED && threadIdx.x > 0) return;
  const u32 barrier = shared.barrier(stage);
  if constexpr (MAPPED) mbarrier_expect(barrier, copied_bytes<Image>(p.image) + copied_bytes<Response>(p.response));
  copy_box<Image>(p.x, p.image, tile, channel, x_to, barrier);
  copy_box<Response>(p.dy, p.response, tile, filter, dy_to, barrier);
}

// Waits for the tile number `turn` of the block.
__device__ __forceinline__ void await_tile(const Shared& shared, u32 turn) {
  if constexpr (MAPPED) {
    mbarrier_wait(shared.barrier(turn % STAGES), turn / STAGES % 2);
  } else {
    cp_async_wait<STAGES - 1>();
    __syncthreads();
  }
}

// Writes the offsets of a tile's places in the box of x, and zeros of dy for places past the tile's last one.
__device__ __forceinline__ void stage_places(const Params& p, const Shared& shared) {
  const u32 tile_places = p.response.rows * p.response.box[BOX_AXES].divisor;
  for (u32 place = threadIdx.x; place < u32(p.places); place += THREADS) {
    i32 at[1 + BOX_AXES];
    digits<1 + BOX_AXES>(p.response.box, place, at);
    u32 position = at[0];
#pragma unroll
    for (int axis = 0; axis < BOX_AXES; ++axis)
      position = position * (axis + 1 < BOX_AXES ? p.image.box[1 + axis].divisor : p.image.row_places) +
                 at[1 + axis] * p.step[axis];
    shared.places[place] = place < tile_places ? position * Image::PITCH : 0;
  }
  for (u32 at = tile_places * Response::PITCH + threadIdx.x * 16; at < shared.response_bytes; at += THREADS * 16) {
#pragma unroll
    for (u32 to = 0; to < STAGES; ++to) store_shared_16(shared.response(to) + at, 0, 0, 0, 0);
  }
}

// ---- tasks ----------------------------------------------------------------------------------------------------------

// A warp's task: blocks of filters and channels of a unit for a set of taps.
struct Assigned {
  u32 part;  // part of the tile's places that this warp sums
  u32 unit;
  Task blocks;
  i32 first_group, first_tap;
  bool exists;

  __device__ __forceinline__ Assigned(const Params& p, u32 warp, i32 set, i32 slab) {
    const u32 task = set * TASK_WARPS + warp % TASK_WARPS, pair = task / TAP_SETS;
    part = warp / TASK_WARPS;
    unit = pair / TASKS.count;
    blocks = task_at(pair % TASKS.count);
    first_group = (slab * UNITS + unit) * PACK;
    first_tap = TAP_SETS == 1 ? 0 : task % TAP_SETS * SET_TAPS;
    exists = task < TASK_COUNT && first_group < p.groups;
  }

  // Bytes from a position's channels in a stage to those of the task: filters of dy, channels of x.
  __device__ __forceinline__ u32 filters() const { return (unit * FILTER_BLOCKS + blocks.filters) * BLOCK_BYTES; }
  __device__ __forceinline__ u32 channels() const { return (unit * CHANNEL_BLOCKS + blocks.channels) * BLOCK_BYTES; }
};

// The exchange between the parts of a task in shared memory: each part adds up a share of the task's pairs.
struct Handed {
  Pair* all;  // [part][task][pair][lane]
  u32 warp, lane;

  static constexpr __device__ __forceinline__ int begin(int share) { return Sums::PAIRS * share / PARTS; }

  // The lane's pairs of a part of the task.
  __device__ __forceinline__ Pair* of(u32 part) const {
    return all + (part * TASK_WARPS + warp % TASK_WARPS) * (Sums::PAIRS * WARP_SIZE) + lane;
  }

  // Writes a part's sums for the shares of the others.
  __device__ __forceinline__ void put(u32 part, const Sums& own) const {
#pragma unroll
    for (int share = 0; share < PARTS; ++share) {
      if (u32(share) == part) continue;
#pragma unroll
      for (int number = begin(share); number < begin(share + 1); ++number)
        of(part)[number * WARP_SIZE] = own.pair(number);
    }
  }

  // Returns a pair of the part's own share plus the same pair of the other parts, in their order.
  __device__ __forceinline__ Pair joined(int part, int number, const Sums& own) const {
    Pair all = own.pair(number);
#pragma unroll
    for (int other = 0; other < PARTS; ++other) {
      if (other == part) continue;
      const Pair one = of(other)[number * WARP_SIZE];
      all.v[0] += one.v[0];
      all.v[1] += one.v[1];
    }
    return all;
  }
};

// Stores the pairs of the part's share.
__device__ __forceinline__ void finish(const Params& p, const Assigned& task, const Handed& handed, const Sums& sums,
                                       u32 lane) {
  const Task blocks = task.blocks;
  i32 groups[Sums::LINES];  // group in the pack
  Target::Row rows[Sums::LINES];
#pragma unroll
  for (int line = 0; line < Sums::LINES; ++line) {
    const i32 filter = blocks.filters * BLOCK + line * 8 + i32(lane / 4);
    groups[line] = filter / OUT;
    rows[line] = p.target.row(task.first_group * OUT + filter);
  }
  const auto put = [&](int number, const Pair& sum) {
    const int line = number / (2 * STEPS), step = number / 2 % STEPS, half = number % 2;
    const i32 channel = blocks.channels * BLOCK + (TAPS_ABREAST == 1 ? half * 8 : 0) + i32(lane % 4 * 2);
    const i32 tap = task.first_tap + step * TAPS_ABREAST + (TAPS_ABREAST == 1 ? 0 : half), group = groups[line];
    const bool is_ours[2] = {PACK == 1 || channel / IN == group, PACK == 1 || (channel + 1) / IN == group};
    if (PACK > 1 && (task.first_group + group >= p.groups || !(is_ours[0] || is_ours[1]))) return;
    if (TAPS % SET_TAPS != 0 && tap >= TAPS) return;
    p.target.store(rows[line], tap * IN + channel - group * IN, is_ours, sum);
  };
#pragma unroll
  for (int share = 0; share < PARTS; ++share) {
    if (u32(share) != task.part) continue;
#pragma unroll
    for (int number = Handed::begin(share); number < Handed::begin(share + 1); ++number)
      put(number, handed.joined(share, number, sums));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 memory[];
  allow_next_kernel();
  const u32 warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const i32 set = blockIdx.x % TASK_SETS, slab = blockIdx.x / TASK_SETS, split = blockIdx.y;
  const Shared shared(p, memory);

  // The range of tiles of this split. With tensor maps, one thread starts the first copies before anything else.
  const u32 first = split * p.turns + min(split, p.longer_splits), turns = p.turns + (split < p.longer_splits);
  const auto stage = [&](u32 turn) {
    if (turn < turns) stage_tile(p, shared, first + turn, slab, turn % STAGES);
  };
  if (MAPPED && threadIdx.x == 0) {
    make_barriers(p, shared);
    wait_for_previous_kernel();
#pragma unroll 1
    for (u32 turn = 0; turn < STAGES; ++turn) stage(turn);
  }
  stage_places(p, shared);

  const Assigned task(p, warp, set, slab);
  // Addresses of the task's first blocks in shared memory, in the first stages.
  const u32 filters = task.filters(), channels = shared.images + task.channels();
  Sums sums = {};
  wait_for_previous_kernel();
  if constexpr (!MAPPED) {
#pragma unroll 1
    for (u32 turn = 0; turn < STAGES; ++turn) {
      stage(turn);
      cp_async_commit();
    }
  }
  __syncthreads();
#pragma unroll 1
  for (u32 turn = 0; turn < turns; ++turn) {
    await_tile(shared, turn);
    const u32 dy = shared.start + turn % STAGES * shared.response_bytes + filters;
    const u32 x = shared.start + turn % STAGES * shared.image_bytes + channels;
    if (task.exists) {
      for (i32 place = task.part * PIXELS; place < p.places; place += PARTS * PIXELS)
        sums.add(dy + place * Response::PITCH, x, shared.places + place, p.offsets + task.first_tap);
    }
    if (turn + STAGES < turns) {
      __syncthreads();
      stage(turn + STAGES);
    }
    if constexpr (!MAPPED) cp_async_commit();
  }

  const Handed handed{reinterpret_cast<Pair*>(memory), warp, lane};
  if constexpr (PARTS > 1) {
    __syncthreads();
    handed.put(task.part, sums);
    __syncthreads();
  }
  if (task.exists) finish(p, task, handed, sums, lane);
}
