// conv_narrow_mma:
//     out[p, n] = epilogue(sum over k of in[p, k] * w(n, k))
// a convolution of one tap with few channels, forward (in = x, out = y) or backward in the data (in = dy, out = dx), on
// tensor cores with mma.sync; for sm_90a.
//
// Layouts: in and out are dense rows of pixels; all pixels are a whole number of 16-byte pieces, each pixel a whole
// number of words; w has any strides.
// Warp: every workers-th tile of PIXELS neighbouring pixels, whose inputs and outputs are one stretch of memory each,
// moved by one bulk copy, STAGES tiles ahead. Warps do not wait for each other.
// Product: m = 16 pixels, n = 8 outputs, k = 2 * 16 bytes of inputs. k and n may number inputs and outputs in any order
// that the staged filter shares. Lane % 4 = t has the words 4t .. 4t + 3 of a chunk of 64 bytes of a pixel's inputs, in
// two steps of k, and the 8 outputs from 8t on of a run of 32, two from each of 4 blocks. So it reads 16 bytes of a
// pixel at once, and writes 8 neighbouring outputs. Shared memory (dynamic): filters [run of 32
// outputs][block][chunk][lane] of 16 bytes, inputs [warp][stage], outputs [warp], barriers [warp][stage].
// Launch: THREADS threads, up to a block for each multiprocessor; it may be a dependent launch (dependent_launch.cuh).
// Macros: TYPE; IN, OUT channels of a pixel; BLOCKS_M blocks of 16 pixels in a tile; STAGES; THREADS; OUTPUT_RANK of
// the functor, which hands back the stored values.

#include "include/ptx/dependent_launch.cuh"
#include "include/ptx/mbarrier.cuh"
#include "include/ptx/mma.cuh"
#include "include/epilogue/output_map.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/ptx/tma.cuh"
#include "include/vector.cuh"
#include "conv/whole_part.cuh"
#include "generated.cuh"

typedef Mma<TYPE> Product;
typedef Product::Accumulator Accumulator;
typedef Functor::Result Result;
typedef OutputMap<OUTPUT_RANK, OUTPUT_RANK - 1> Map;

constexpr int WARPS = THREADS / int(WARP_SIZE);
constexpr int PIXELS = BLOCKS_M * 16;
constexpr int WORD = 4 / int(sizeof(TYPE));  // inputs of a word
constexpr int LANE_WORDS = 4;
constexpr int PIXEL_WORDS = IN / WORD;
constexpr int CHUNKS = (PIXEL_WORDS + 15) / 16;
constexpr int RUN = 8;       // outputs of a lane
constexpr int BLOCKS_N = 4;  // blocks of 8 in a run of 32
constexpr int RUNS = (OUT + 31) / 32;
constexpr int FILTER_BYTES = RUNS * BLOCKS_N * CHUNKS * int(WARP_SIZE) * 16;
constexpr int IN_BYTES = PIXELS * IN * int(sizeof(TYPE)), OUT_BYTES = PIXELS * OUT * int(sizeof(Result));
constexpr int INPUTS_AT = FILTER_BYTES, OUTPUTS_AT = INPUTS_AT + WARPS * STAGES * IN_BYTES;
constexpr int BARRIERS_AT = OUTPUTS_AT + WARPS * OUT_BYTES;
static_assert(IN % WORD == 0, "a pixel has whole words");

constexpr int READ_WORDS = whole_part(PIXEL_WORDS, LANE_WORDS);
constexpr int WRITE_WIDTH = whole_part(OUT, RUN), WRITE_BYTES = WRITE_WIDTH * int(sizeof(Result));
static_assert(WRITE_BYTES % 4 == 0, "an output pixel has whole words, too");

struct Params {
  const TYPE* in;
  const TYPE* w;
  Result* out;
  i64 w_out_stride, w_in_stride;
  i32 pixels, tiles;
  Map map;
  Functor::Args epilogue;
};

// Writes the filters of every lane to shared memory, in the order in which they are read.
__device__ __forceinline__ void stage_filters(const Params& p, u8* filters) {
  for (u32 item = threadIdx.x; item < u32(FILTER_BYTES / 16); item += THREADS) {
    const u32 lane = item % WARP_SIZE, chunk = item / WARP_SIZE % CHUNKS, block = item / (WARP_SIZE * CHUNKS);
    const u32 column = lane / 4, run = block / BLOCKS_N;
    const u32 n = run * 32 + column / 2 * RUN + block % BLOCKS_N * 2 + column % 2;
    const u32 k = (chunk * 16 + lane % 4 * LANE_WORDS) * WORD;
    union {
      TYPE values[LANE_WORDS * WORD];
      u32 words[LANE_WORDS];
    } own;
#pragma unroll
    for (int i = 0; i < LANE_WORDS * WORD; ++i) {
      const bool exists = n < OUT && k + i < IN;
      own.values[i] = exists ? p.w[n * p.w_out_stride + (k + i) * p.w_in_stride] : TYPE{};
    }
#pragma unroll
    for (int i = 0; i < LANE_WORDS; ++i) own.words[i] = Product::operand(own.words[i]);
    store_shared_16(shared_address(filters) + item * 16, own.words[0], own.words[1], own.words[2], own.words[3]);
  }
}

// A lane's inputs of a tile, for two pixels of each block of 16; 0 past a pixel's last word and past the last pixel.
struct Inputs {
  u32 words[BLOCKS_M][CHUNKS][2][LANE_WORDS];

  __device__ __forceinline__ explicit Inputs(const u8* tile, i32 pixels) {
    const u32 lane = threadIdx.x % WARP_SIZE, first_word = lane % 4 * LANE_WORDS;
    const u32* own = reinterpret_cast<const u32*>(tile) + lane / 4 * PIXEL_WORDS + first_word;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
          for (int word = 0; word < LANE_WORDS; word += READ_WORDS) {
            u32 part[READ_WORDS] = {};
            const int at = chunk * 16 + word;
            const bool is_word = at + 3 * LANE_WORDS < PIXEL_WORDS || first_word + at < PIXEL_WORDS;
            if (is_word && i32(i * 16 + half * 8 + lane / 4) < pixels)
              load<Plain, READ_WORDS>(part, own + (i * 16 + half * 8) * PIXEL_WORDS + at);
#pragma unroll
            for (int j = 0; j < READ_WORDS; ++j) words[i][chunk][half][word + j] = Product::operand(part[j]);
          }
        }
      }
    }
  }
};

// Sums of a run of 32 outputs: a lane's 8 outputs of two pixels of each block of 16.
struct Sums {
  Accumulator values[BLOCKS_M][BLOCKS_N][4];

  // filters: shared-memory address of the run's filters.
  __device__ __forceinline__ void add(const Inputs& in, u32 filters) {
    filters += threadIdx.x % WARP_SIZE * 16;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
      for (int block = 0; block < BLOCKS_N; ++block) {
        const uint4 b = load_shared_128(filters + (block * CHUNKS + chunk) * (WARP_SIZE * 16));
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
          const u32(&pixels)[2][LANE_WORDS] = in.words[i][chunk];
          const u32 first[4] = {pixels[0][0], pixels[1][0], pixels[0][1], pixels[1][1]};
          const u32 second[4] = {pixels[0][2], pixels[1][2], pixels[0][3], pixels[1][3]};
          Product::apply(values[i][block], first, b.x, b.y);
          Product::apply(values[i][block], second, b.z, b.w);
        }
      }
    }
  }

  __device__ __forceinline__ void run(int i, int half, Accumulator (&own)[RUN]) const {
#pragma unroll
    for (int v = 0; v < RUN; ++v) own[v] = values[i][v / 2][2 * half + v % 2];
  }
};

// Writes the outputs of a lane's run of a pixel to shared memory. column: that of the first output.
__device__ __forceinline__ void put(const Params& p, const Accumulator (&sums)[RUN], i32 pixel, i32 column, u32 to) {
  i64 coordinate[Map::RANK];
  p.map.locate_row(pixel, coordinate);
  coordinate[Map::RANK - 1] = 0;
  const Functor::Cursor cursor = Functor::cursor(p.epilogue, coordinate);
  Result results[RUN];
  const i32 valid = OUT % RUN == 0 ? RUN : count_among<RUN>(OUT - column);
  Functor::apply<RUN>(p.epilogue, cursor, column, valid, sums, results);
#pragma unroll
  for (int v = 0; v < RUN; v += WRITE_WIDTH) {
    if (column + v >= OUT) continue;
    Vector<Result, WRITE_WIDTH> part;
#pragma unroll
    for (int j = 0; j < WRITE_WIDTH; ++j) part.v[j] = results[v + j];
    const u32* words = reinterpret_cast<const u32*>(&part);
    if constexpr (WRITE_BYTES % 16 == 0) {
#pragma unroll
      for (int i = 0; i < WRITE_BYTES / 4; i += 4)
        store_shared_16(to + v * sizeof(Result) + i * 4, words[i], words[i + 1], words[i + 2], words[i + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < WRITE_BYTES / 4; ++i) store_shared_32(to + v * sizeof(Result) + i * 4, words[i]);
    }
  }
}

// Multiplies a warp's tile by the filters, and writes the outputs to the warp's area of shared memory.
__device__ __forceinline__ void multiply(const Params& p, const Inputs& in, const u8* memory, i32 tile, i32 rows,
                                         u32 lane, u32 outputs) {
#pragma unroll 1
  for (int run = 0; run < RUNS; ++run) {
    Sums sums = {};
    sums.add(in, shared_address(memory) + run * (FILTER_BYTES / RUNS));
    const i32 column = run * 32 + lane % 4 * RUN;
#pragma unroll
    for (int half = 0; half < 2 * BLOCKS_M; ++half) {
      Accumulator own[RUN];
      sums.run(half / 2, half % 2, own);
      const i32 row = half * 8 + lane / 4;
      if (row < rows && column < OUT)
        put(p, own, tile * PIXELS + row, column, outputs + (row * OUT + column) * u32(sizeof(Result)));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const u32 warp = __shfl_sync(~0u, threadIdx.x / WARP_SIZE, 0), lane = threadIdx.x % WARP_SIZE;
  const i32 worker = blockIdx.x * WARPS + warp, workers = gridDim.x * WARPS;
  u8* const inputs = memory + INPUTS_AT + warp * (STAGES * IN_BYTES);
  const u32 outputs = shared_address(memory) + OUTPUTS_AT + warp * OUT_BYTES;
  const u32 barriers = shared_address(memory) + BARRIERS_AT + warp * (STAGES * MBARRIER_BYTES);

  const auto rows_of = [&](i32 tile) { return min(p.pixels - tile * PIXELS, PIXELS); };
  const auto load_tile = [&](i32 tile, u32 stage) {
    const u32 bytes = rows_of(tile) * (IN * u32(sizeof(TYPE)));
    mbarrier_expect(barriers + stage * MBARRIER_BYTES, bytes);
    bulk_load(shared_address(inputs) + stage * IN_BYTES, p.in + i64(tile) * (PIXELS * IN), bytes,
              barriers + stage * MBARRIER_BYTES);
  };
  if (lane == 0) {
    for (u32 stage = 0; stage < STAGES; ++stage) mbarrier_init(barriers + stage * MBARRIER_BYTES, 1);
    mbarrier_fence_init();
  }
  __syncwarp();  // other lanes wait at these barriers, which must be initialised before
  wait_for_previous_kernel();
  allow_next_kernel();
  if (lane == 0) {
    for (u32 stage = 0; stage < STAGES; ++stage) {
      const i32 tile = worker + stage * workers;
      if (tile < p.tiles) load_tile(tile, stage);
    }
  }
  stage_filters(p, memory);
  __syncthreads();

  u32 stage = 0, parity = 0;
#pragma unroll 1
  for (i32 tile = worker; tile < p.tiles; tile += workers) {
    mbarrier_wait(barriers + stage * MBARRIER_BYTES, parity);
    const i32 rows = rows_of(tile);
    const Inputs in(inputs + stage * IN_BYTES, rows);
    fence_async_shared();  // orders the reads before the next copy to the same memory
    __syncwarp();
    if (lane == 0) {
      if (tile + STAGES * workers < p.tiles) load_tile(tile + STAGES * workers, stage);
      bulk_wait_read<0>();  // the store of the previous tile has read its memory
    }
    __syncwarp();
    if (++stage == STAGES) stage = 0, parity ^= 1;

    multiply(p, in, memory, tile, rows, lane, outputs);
    fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      bulk_store(p.out + i64(tile) * (PIXELS * OUT), outputs, rows * (OUT * u32(sizeof(Result))));
      bulk_commit();
    }
  }
  if (lane == 0) bulk_wait<0>();
}
