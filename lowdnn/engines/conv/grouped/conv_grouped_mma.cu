// conv_grouped_mma: a grouped convolution forward, or backward in the data, on tensor cores with mma.sync or wgmma:
//     out[n, g * OUT + k, a + i * out_step] = epilogue(sum over c, taps r of residue a of
//         in[n, g * IN + c, i * in_step + offset(r)] * w(g, k, c, r))
// in each spatial axis. Forward: in = x, out = y, out_step = 1 and in_step the stride. BACKWARD: in = dy, out = dx,
// out_step the stride and in_step = 1; every tap belongs to the one residue of dx that it reaches.
//
// Layouts: in channels-last with any other strides, its channels whole 16-byte chunks; w [filters][taps][channels of a
// group], dense; out anything. Spatial axes are always three, with extents of 1 in front.
// Product: a pack is the fewest groups whose channels fill chunks of 16 bytes on the input side and blocks of 8 on the
// output side; it is one block-diagonal product. m = 16 output pixels, n = 8 output channels, k = (taps, chunks).
// Block: a slab of UNITS units of UNIT_PACKS packs, whose filters it stages once, by every lanes-th tile of output
// positions (image, axes) of all residues. Each warp computes BLOCKS_M * 16 pixels of one unit at a time, while the box
// of input positions under the block's next tile comes. KEEPS_FILTERS: it has the filters of its unit in registers.
// BY_WARPGROUPS: four neighbouring warps compute together, each its own pixels, and wgmma reads the filters in shared
// memory.
// blockIdx.x = first tile * slabs + slab.
// Shared memory (dynamic): filters [block of 8 outputs][chunk of k][8 rows of 16 bytes] or, whole, [filter][pitch];
// barriers [stage or filters], offsets in the box [chunk of k], stages of (box [position][chunks of the slab], places
// [residue][tile position]): two, or one where every block has one tile.
// Launch: THREADS threads, lanes * slabs blocks. It may be a dependent launch (dependent_launch.cuh).
// Macros: TYPE; BACKWARD; IN, OUT channels of a group; PACK groups of a pack; UNIT_PACKS, UNITS; TAPS of all classes,
// with a null tap where a class would end in half a step; CLASSES residues; RUN elements of one copy of filters;
// BLOCKS_M; THREADS; MIN_BLOCKS of a multiprocessor; KEEPS_FILTERS; WHOLE_FILTERS: those come by bulk copies;
// BY_WARPGROUPS: for sm_90a; HALVED: boxes (pixel_box.cuh); MAPPED: they come by tensor map, for sm_90a; OUTPUT_RANK,
// VECTOR of the functor; WHOLE: 1 where 4 divides the output channels.

#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/mma.cuh"
#include "include/epilogue/output_map.cuh"
#include "pixel_box.cuh"
#if MAPPED
#include "box_source.cuh"
#endif
#if BY_WARPGROUPS
#include "include/ptx/tma.cuh"
#include "include/ptx/wgmma.cuh"
#endif
#include "generated.cuh"

typedef Mma<TYPE> Product;
typedef Product::Accumulator Accumulator;
typedef OutputMap<OUTPUT_RANK, OUTPUT_RANK - 1> Map;

constexpr int AXES = BOX_AXES;
constexpr int WARPS = THREADS / int(WARP_SIZE);
constexpr int CHUNK_BYTES = BOX_CHUNK_BYTES;
constexpr int CHUNK = CHUNK_BYTES / int(sizeof(TYPE));  // elements
constexpr int BLOCK_N = 8;                              // output channels of one instruction
constexpr int IN_CHUNKS = PACK * IN / CHUNK;            // of a pack
constexpr int OUT_BLOCKS = PACK * OUT / BLOCK_N;
constexpr int UNIT_BLOCKS = UNIT_PACKS * OUT_BLOCKS;
constexpr int BLOCKS_N = (UNIT_BLOCKS + 1) / 2 * 2;  // of a unit; a last one without channels makes them even
constexpr int SLAB_CHUNKS = UNITS * UNIT_PACKS * IN_CHUNKS;
constexpr int SLAB_BLOCKS = UNITS * BLOCKS_N;
constexpr int DEPTH = TAPS * IN_CHUNKS;                 // chunks of k
constexpr int FILTER_CHUNK_BYTES = 8 * CHUNK_BYTES;
constexpr int STAGES = 2;
constexpr int SET = BLOCKS_M * 16;  // pixels that a warp computes at a time
constexpr int TEAM_WARPS = BY_WARPGROUPS ? 4 : 1;  // that compute together
// Rows of a filter chunk are filters: the rows of the product forward, its depth backward. ldmatrix transposes 16-bit
// elements only; those of 32 bits are transposed by the copies.
constexpr bool FILTERS_ARE_DEPTH = BACKWARD && sizeof(TYPE) == 2;
constexpr int BARRIERS = STAGES + 1;
constexpr int OFFSET_BYTES = (BARRIERS * int(sizeof(u64)) + DEPTH * 4 + 127) / 128 * 128;  // with barriers, whole lines
// Whole filters, as they lie in memory but for an odd number of chunks from one to the next.
constexpr int FILTERS = UNITS * UNIT_PACKS * PACK * (BACKWARD ? IN : OUT);
constexpr int WHOLE_FILTER_BYTES = TAPS * (BACKWARD ? OUT : IN) * int(sizeof(TYPE));
constexpr int FILTER_PITCH = WHOLE_FILTER_BYTES | CHUNK_BYTES;
constexpr int FILTER_BYTES =
    WHOLE_FILTERS ? (FILTERS * FILTER_PITCH + 127) / 128 * 128 : SLAB_BLOCKS * DEPTH * FILTER_CHUNK_BYTES;
constexpr u32 OUTSIDE = ~0u;
typedef PixelBox<TYPE, SLAB_CHUNKS, THREADS, HALVED> Box;
static_assert(UNIT_BLOCKS == BLOCKS_N || UNITS * UNIT_PACKS == 1, "a block without channels is the output's last");
static_assert(WARPS % (UNITS * TEAM_WARPS) == 0, "every warp has one unit");
static_assert(!BY_WARPGROUPS || (PACK == 1 && UNIT_PACKS == 1 && IN_CHUNKS % 2 == 0 && UNIT_BLOCKS == BLOCKS_N),
              "steps of one tap, without zeros");
static_assert(!BY_WARPGROUPS || (sizeof(TYPE) == 2 && BLOCKS_M == 1 && !KEEPS_FILTERS), "one instruction a step");
static_assert(!WHOLE_FILTERS || (KEEPS_FILTERS && PACK == 1 && IN_CHUNKS % 2 == 0), "steps of one tap, without zeros");

struct Tap {
  i32 offset;  // in the box, from tile position 0 on, in bytes
  i32 index;   // in w, or -1: a null tap
};

struct OutputClass {
  i32 residue[AXES];
  i32 first_tap, end_tap;
};

struct Params {
#if MAPPED
  TensorMap in;
#else
  const TYPE* in;
#endif
  const TYPE* w;
  BoxGeometry box;  // of inputs under a tile
  i32 out_extents[AXES], out_channels;
  i32 groups;
  i32 w_taps, w_channels;  // of one filter in memory
  i32 in_step[AXES], out_step[AXES];  // in_step: in places of the box
  Divider slabs;
  Divider tiles[1 + AXES];  // (image, axes)
  Divider tile[1 + AXES];   // extents, in positions of each residue
  i32 tile_count, lanes;
  i32 class_places;         // places of one residue: whole sets of all warps that compute together
  Tap taps[TAPS];
  OutputClass classes[CLASSES];
  Map map;
  Functor::Args epilogue;
};

// A tile position of one residue.
struct Place {
  u32 box;  // offset of its tap at the origin, in bytes
  u32 row;  // of the output, counted over (image, axes), or OUTSIDE
};

// The inputs of a tile, and its places.
struct Stage {
  u8* box;
  Place* places;
};

struct Shared {
  u8* filters;
  u64* barriers;  // of the stages, of the filters
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

  // The stage of the block's turn-th tile.
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
#if MAPPED
  if (threadIdx.x > 0) return;
  mbarrier_expect(shared.barrier(turn), copied_bytes<Box>(p.box));
  copy_box<Box>(p.in, p.box, tile, channel, to, shared.barrier(turn));
#else
  Box::copy(p.in, p.box, tile, channel, to);
#endif
}

// Awaits what all threads had copied before the last group, or stored.
__device__ __forceinline__ void await_copies() {
  cp_async_wait<1>();
  __syncthreads();
}

__device__ __forceinline__ void await_box(const Shared& shared, u32 turn) {
  await_copies();
#if MAPPED
  mbarrier_wait(shared.barrier(turn), turn / STAGES % 2);
#endif
}

// Copies the slab's filters, with zeros where input and output channel belong to different groups of a pack.
__device__ __forceinline__ void stage_filters(const Params& p, i32 slab, u8* filters) {
  constexpr int RUNS = CHUNK / RUN;  // of a row
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

#if WHOLE_FILTERS
// Starts their copies, by the first warp.
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
#endif

// The offsets of the chunks of k.
__device__ __forceinline__ void stage_offsets(const Params& p, u32* offsets) {
  for (u32 chunk = threadIdx.x; chunk < u32(DEPTH); chunk += THREADS)
    offsets[chunk] = p.taps[chunk / IN_CHUNKS].offset + chunk % IN_CHUNKS * CHUNK_BYTES;
}

// The places of all residues of a tile.
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

// ---- product --------------------------------------------------------------------------------------------------------

// The operands of a unit's filters and their places, read again for every set.
struct ReadFilters {
  static constexpr int UNROLL = 2;
  u32 filters;  // shared address of the lane's row of the unit's first chunks
  const u32* offsets;

  __device__ __forceinline__ ReadFilters(const Params&, const Shared& shared, u32 unit) : offsets(shared.offsets) {
    const u32 lane = threadIdx.x % WARP_SIZE, block = unit * BLOCKS_N + lane / 16;
    filters = shared_address(shared.filters) + block * (DEPTH * FILTER_CHUNK_BYTES) + lane % 16 * CHUNK_BYTES;
  }

  // Of two neighbouring blocks.
  __device__ __forceinline__ void operands(u32 (&b)[4], int block, int step) const {
    const u32 from = filters + (block * DEPTH + 2 * step) * FILTER_CHUNK_BYTES;
    if constexpr (FILTERS_ARE_DEPTH) {
      ldmatrix_x4_transposed(b, from);
    } else {
      ldmatrix_x4(b, from);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) b[word] = Product::operand(b[word]);
  }

  // In the box, of the lane's chunk.
  __device__ __forceinline__ u32 offset(int step) const { return offsets[2 * step + threadIdx.x % WARP_SIZE / 16]; }
};

// The operands among whole filters.
struct WholeFilters {
  const Params& p;
  u32 filters;  // shared address of the lane's row of the unit's first chunks, in the filter's first tap

  __device__ __forceinline__ WholeFilters(const Params& p, const Shared& shared, u32 unit) : p(p) {
    const u32 lane = threadIdx.x % WARP_SIZE, block = lane / 16, chunk = lane / 8 % 2, row = lane % 8;
    const u32 filter = BACKWARD ? unit * IN + chunk * 8 + row : unit * OUT + block * 8 + row;
    filters = shared_address(shared.filters) + filter * FILTER_PITCH + (BACKWARD ? block : chunk) * CHUNK_BYTES;
  }

  __device__ __forceinline__ void operands(u32 (&b)[4], int block, int step) const {
    const int chunk = 2 * step % IN_CHUNKS;
    const u32 tap = filters + p.taps[2 * step / IN_CHUNKS].index * (WHOLE_FILTER_BYTES / TAPS);
    if constexpr (BACKWARD) {
      ldmatrix_x4_transposed(b, tap + chunk * 8 * FILTER_PITCH + block * CHUNK_BYTES);
    } else {
      ldmatrix_x4(b, tap + block * 8 * FILTER_PITCH + chunk * CHUNK_BYTES);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) b[word] = Product::operand(b[word]);
  }
};

// The operands kept in registers.
struct KeptFilters {
  static constexpr int UNROLL = DEPTH / 2;
  const Params& p;
  u32 words[DEPTH / 2][BLOCKS_N / 2][4];

  template <class From> __device__ __forceinline__ KeptFilters(const Params& p, const From& from) : p(p) {
#pragma unroll
    for (int step = 0; step < DEPTH / 2; ++step) {
#pragma unroll
      for (int pair = 0; pair < BLOCKS_N / 2; ++pair) from.operands(words[step][pair], 2 * pair, step);
    }
  }

  __device__ __forceinline__ void operands(u32 (&b)[4], int block, int step) const {
#pragma unroll
    for (int word = 0; word < 4; ++word) b[word] = words[step][block / 2][word];
  }

  __device__ __forceinline__ u32 offset(int step) const {
    const u32 half = threadIdx.x % WARP_SIZE / 16;
    const int chunk = 2 * step, first = chunk / IN_CHUNKS, second = (chunk + 1) / IN_CHUNKS;
    if (first == second) return p.taps[first].offset + (chunk % IN_CHUNKS + half) * CHUNK_BYTES;
    const u32 last_chunk = chunk % IN_CHUNKS * CHUNK_BYTES;
    return half ? p.taps[second].offset : p.taps[first].offset + last_chunk;
  }
};

#if BY_WARPGROUPS
DEFINE_WGMMA_A_IN_REGISTERS(multiply, OUT, f32.TYPE.TYPE)

// The operands in shared memory: core matrices of wgmma without swizzle, neighbours along k side by side.
struct SharedFilters {
  const Params& p;
  u64 descriptor;  // of the unit's first step

  __device__ __forceinline__ SharedFilters(const Params& p, const Shared& shared, u32 unit) : p(p) {
    constexpr u64 K_BYTES = FILTER_CHUNK_BYTES, N_BYTES = DEPTH * FILTER_CHUNK_BYTES;
    const u32 address = shared_address(shared.filters) + unit * BLOCKS_N * u32(N_BYTES);
    descriptor = u64(address >> 4) | K_BYTES >> 4 << 16 | N_BYTES >> 4 << 32;
  }

  __device__ __forceinline__ u64 operand(int step) const {
    return descriptor + u32(step * (2 * FILTER_CHUNK_BYTES >> 4));
  }

  // In the box, of the lane's chunk of a tap's first step.
  __device__ __forceinline__ u32 offset(int tap) const {
    return p.taps[tap].offset + threadIdx.x % WARP_SIZE / 16 * CHUNK_BYTES;
  }
};
#endif

// The filters of a unit, once they are there.
__device__ __forceinline__ auto filters_of(const Params& p, const Shared& shared, u32 unit) {
#if BY_WARPGROUPS
  cp_async_wait<1>();
  fence_async_shared();
  __syncthreads();
  return SharedFilters(p, shared, unit);
#elif WHOLE_FILTERS
  __syncthreads();  // the barrier is
  mbarrier_wait(shared_address(shared.barriers + STAGES), 0);
  return KeptFilters(p, WholeFilters(p, shared, unit));
#elif KEEPS_FILTERS
  await_copies();
  return KeptFilters(p, ReadFilters(p, shared, unit));
#else
  return ReadFilters(p, shared, unit);
#endif
}

struct Sums {
  static constexpr int COUNT = BLOCKS_M * BLOCKS_N * 4;
  Accumulator values[BLOCKS_M][BLOCKS_N][4];

  // Adds the steps [first, end) of two chunks of k. rows: shared addresses of the lane's rows of each block of 16 pixels.
  template <class Filters>
  __device__ __forceinline__ void add(const u32 (&rows)[BLOCKS_M], const Filters& filters, int first, int end) {
#pragma unroll Filters::UNROLL
    for (int step = first; step < end; ++step) {
      const u32 offset = filters.offset(step);
      u32 a[UNIT_PACKS][BLOCKS_M][4];
#pragma unroll
      for (int pack = 0; pack < UNIT_PACKS; ++pack) {
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
          ldmatrix_x4(a[pack][i], Box::swizzled(rows[i] + offset + pack * IN_CHUNKS * CHUNK_BYTES));
#pragma unroll
          for (int word = 0; word < 4; ++word) a[pack][i][word] = Product::operand(a[pack][i][word]);
        }
      }
#pragma unroll
      for (int block = 0; block < BLOCKS_N; block += 2) {
        u32 b[4];
        filters.operands(b, block, step);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
          Product::apply(values[i][block], a[block / OUT_BLOCKS][i], b[0], b[1]);
          if (block + 1 < UNIT_BLOCKS)
            Product::apply(values[i][block + 1], a[(block + 1) / OUT_BLOCKS % UNIT_PACKS][i], b[2], b[3]);
        }
      }
    }
  }

#if BY_WARPGROUPS
  static constexpr int TAP_STEPS = IN_CHUNKS / 2;
  typedef u32 Fragments[TAP_STEPS][4];

  // Sums the taps [first, end). row: shared address of the lane's row.
  __device__ __forceinline__ void sum(u32 row, const SharedFilters& filters, int first, int end) {
    if (first == end) return;
    Fragments a[2];
    load(a[0], row + filters.offset(first));
    // The fragments of a tap come while the tensor cores multiply those of the one before.
    const auto turn = [&](int tap, const Fragments& now, Fragments& next) {
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < TAP_STEPS; ++step)
        multiply<BACKWARD>(of_warpgroup(), now[step], filters.operand(tap * TAP_STEPS + step), tap > first || step > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (tap + 1 < end) load(next, row + filters.offset(tap + 1));
    };
#pragma unroll (CLASSES == 1 && TAPS <= 9 ? (TAPS + 1) / 2 : 1)
    for (int tap = first; tap < end; tap += 2) {
      turn(tap, a[0], a[1]);
      if (tap + 1 < end) turn(tap + 1, a[1], a[0]);
    }
    wgmma_wait<0>();
    for (f32& value : of_warpgroup()) hold(value);
  }
#endif

  // Whether any sum may be a NaN: infinities may look like one.
  __device__ __forceinline__ bool may_have_nan() const {
    Accumulator total = 0;
    each([&](int, const Accumulator& value) { total += value; });
    return total != total;
  }

  // By their numbers, which only the program knows.
  __device__ __forceinline__ bool is_nan(int number) const {
    bool is = false;
    each([&](int index, const Accumulator& value) { is |= (index == number) & (value != value); });
    return is;
  }

  __device__ __forceinline__ void put(int number, Accumulator sum) {
#pragma unroll
    for (int index = 0; index < COUNT; ++index) {
      Accumulator& value = values[index / 4 / BLOCKS_N][index / 4 % BLOCKS_N][index % 4];
      value = index == number ? sum : value;
    }
  }

  // Four neighbouring output channels for each lane: even lanes get those of `block`, odd ones those of `block` + 1.
  __device__ __forceinline__ void exchange(int i, int half, int block, Accumulator (&four)[4]) const {
    const bool odd = threadIdx.x & 1;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const Accumulator even_block = values[i][block][2 * half + v], odd_block = values[i][block + 1][2 * half + v];
      const Accumulator kept = odd ? odd_block : even_block;
      const Accumulator other = __shfl_xor_sync(~0u, odd ? even_block : odd_block, 1);
      four[v] = odd ? other : kept;
      four[2 + v] = odd ? kept : other;
    }
  }

 private:
#if BY_WARPGROUPS
  __device__ __forceinline__ f32 (&of_warpgroup())[COUNT] { return reinterpret_cast<f32(&)[COUNT]>(values); }

  static __device__ __forceinline__ void load(Fragments& a, u32 from) {
#pragma unroll
    for (int step = 0; step < TAP_STEPS; ++step) ldmatrix_x4(a[step], Box::swizzled(from + step * 2 * CHUNK_BYTES));
  }
#endif

  template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
    for (int index = 0; index < COUNT; ++index)
      visit(index, values[index / 4 / BLOCKS_N][index / 4 % BLOCKS_N][index % 4]);
  }
};

__device__ __forceinline__ f32 operand_value(f32 x) { return __uint_as_float(Mma<f32>::operand(__float_as_uint(x))); }
template <class T> __device__ __forceinline__ f32 operand_value(T x) { return widen(x); }

// The sum of one output by its own group's elements alone: a zero of the block diagonal, or of a null tap, times an
// infinity or a NaN gives a NaN that the convolution does not have.
// place: bytes from the filters.
__device__ f32 own_sum(const Params& p, const Shared& shared, const OutputClass& output, u32 place, u32 block,
                       u32 column) {
  const u32 pack = block / OUT_BLOCKS;
  const u32 group = (block % OUT_BLOCKS * BLOCK_N + column) / OUT;
  const TYPE* filters = reinterpret_cast<const TYPE*>(shared.filters);
  place += pack * IN_CHUNKS * CHUNK_BYTES;
  f32 sum = 0;
#pragma unroll 1
  for (u32 chunk = output.first_tap * IN_CHUNKS; chunk < u32(output.end_tap * IN_CHUNKS); ++chunk) {
    if (p.taps[chunk / IN_CHUNKS].index < 0) continue;
    const TYPE* row = filters + (block * DEPTH + chunk) * (8 * CHUNK);
    const TYPE* in = reinterpret_cast<const TYPE*>(shared.filters + Box::swizzled(place + shared.offsets[chunk]));
#pragma unroll 1
    for (u32 k = 0; k < CHUNK; ++k) {
      if ((chunk % IN_CHUNKS * CHUNK + k) / IN != group) continue;
      const TYPE w = FILTERS_ARE_DEPTH ? row[k * CHUNK + column] : row[column * CHUNK + k];
      sum += operand_value(in[k]) * operand_value(w);
    }
  }
  return sum;
}

// Puts the own sums in the place of the lane's NaNs. places: of its first pixel; first_block: of its unit.
__device__ __forceinline__ void replace_nans(const Params& p, const Shared& shared, const OutputClass& output,
                                             const u8* box, const Place* places, u32 first_block, Sums& sums) {
  constexpr int PIXEL_SUMS = 4 * BLOCKS_N;  // of 16 pixels
#pragma unroll 1
  for (int number = 0; number < BLOCKS_M * PIXEL_SUMS; ++number) {
    const int pixel = number / PIXEL_SUMS * 16 + number / 2 % 2 * 8, block = number / 4 % BLOCKS_N;
    if (!sums.is_nan(number)) continue;
    const u32 column = threadIdx.x % 4 * 2 + number % 2;
    sums.put(number, own_sum(p, shared, output, box - shared.filters + places[pixel].box, first_block + block, column));
  }
}

// Adds the products of a set's pixels with the filters of their class. rows: as `Sums::add` takes them.
template <class Filters>
__device__ __forceinline__ void add_class(const u32 (&rows)[BLOCKS_M], const Filters& filters,
                                          const OutputClass& output, Sums& sums) {
#if BY_WARPGROUPS
  if constexpr (CLASSES == 1) {
    sums.sum(rows[0], filters, 0, TAPS);
  } else {
    sums.sum(rows[0], filters, output.first_tap, output.end_tap);
  }
#else
  if constexpr (CLASSES == 1) {
    sums.add(rows, filters, 0, DEPTH / 2);
  } else {
    sums.add(rows, filters, output.first_tap * IN_CHUNKS / 2, output.end_tap * IN_CHUNKS / 2);
  }
#endif
}

// The sums of a set's pixels to the functor. places: of the lane's first pixel.
__device__ __forceinline__ void finish(const Params& p, const Sums& sums, const Place* places, i32 slab,
                                       u32 first_block) {
  const u32 lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * BLOCKS_M; ++i) {
    const Place place = places[i * 8];
    i64 coordinate[Map::RANK];
    p.map.locate_row(place.row, coordinate);
    coordinate[Map::RANK - 1] = 0;
    const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
#pragma unroll
    for (int pair = 0; pair < BLOCKS_N; pair += 2) {
      Accumulator four[4];
      sums.exchange(i / 2, i % 2, pair, four);
      const u32 block = first_block + pair + lane % 2, column = lane % 4 / 2 * 4;
      const i32 channel = (slab * SLAB_BLOCKS + block) * BLOCK_N + column;
      if (place.row == OUTSIDE || channel >= p.out_channels) continue;
#pragma unroll
      for (int v = 0; v < 4; v += VECTOR) {
        Accumulator part[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) part[j] = four[v + j];
        const i32 valid = WHOLE ? VECTOR : min(p.out_channels - channel - v, VECTOR);
        if (valid > 0) Functor::apply<VECTOR>(p.epilogue, cursor, channel + v, valid, part);
      }
    }
  }
}

// ---- kernel ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 memory[];
  allow_next_kernel();
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0), lane = threadIdx.x % WARP_SIZE;
  const Shared shared(memory, p);
  const i32 first_tile = p.slabs.divide(blockIdx.x), slab = blockIdx.x - first_tile * p.slabs.divisor;
  const auto stage_tile = [&](i32 number, u32 turn) {
    if (number >= p.tile_count) return;
    i32 tile[1 + AXES];
    digits<1 + AXES>(p.tiles, u32(number), tile);
    stage_box(p, shared, tile, slab, turn);
    stage_places(p, tile, shared.stage(turn).places);
  };
#if MAPPED
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < BARRIERS; ++i) mbarrier_init(shared_address(shared.barriers + i), 1);
    mbarrier_fence_init();
    prefetch(p.in);
  }
#endif
  stage_offsets(p, shared.offsets);
  wait_for_previous_kernel();
  stage_tile(first_tile, 0);
#if WHOLE_FILTERS
  load_filters(p, shared, slab);
#else
  stage_filters(p, slab, shared.filters);
  cp_async_commit();
#endif
  stage_tile(first_tile + p.lanes, 1);
  cp_async_commit();

  // This warp's unit, tile by tile and set by set.
  const u32 team = warp / TEAM_WARPS, unit = team % UNITS, first_block = unit * BLOCKS_N;
  const i32 first_set = (team / UNITS * TEAM_WARPS + warp % TEAM_WARPS) * SET;
  const auto filters = filters_of(p, shared, unit);
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
      add_class(rows, filters, output, sums);
      if constexpr (PACK > 1 || IN_CHUNKS % 2 != 0) {
        if (__any_sync(~0u, sums.may_have_nan()))  // of the warp: it stays together
          replace_nans(p, shared, output, from.box, from.places + set + lane / 4, first_block, sums);
      }
      finish(p, sums, from.places + set + lane / 4, slab, first_block);
    }
    __syncthreads();
    stage_tile(number + STAGES * p.lanes, turn + STAGES);
    cp_async_commit();
  }
}
