// conv_stem_dgrad_mma: a convolution of few channels backward in the data, on tensor cores with mma.sync:
//     dx[n, c, o * stride + r * gap - pad] += dy[n, k, o] * w(k, c, r) for all outputs o, filters k and taps r
//
// Layouts: dy has dense pixels of FILTERS elements, whole pieces of 16 bytes, and its other strides are whole pieces,
// too; dx channels-last with dense rows; w any strides. There are always three spatial axes, with extents of 1 in
// front.
// Product: position q of a row of dx is the STRIDE_2 columns from q * STRIDE_2 - BASE on. Outputs q - shift reach it,
// for shift < SHIFTS. m = 16 positions, n = 8 of a position's STRIDE_2 * CHANNELS elements, k = 16 filters of one
// output. n also runs over the taps along the rows: one row of dy adds to TAPS_1 rows of dx. k may number the filters
// in any order that both operands share: lane % 4 = t holds words 4t .. 4t + 3 of each 64 bytes, for two steps of k,
// and loads them at once.
// Warp: takes units of SEGMENT positions of a row and GROUP steps of STRIDE_1 rows of a plane of dx. It walks down the
// rows of dy and multiplies each by all its taps; then it stores the rows of dx that are complete and moves the sums of
// the others up. Block i of a segment has 16 positions, i, i + BLOCKS_M, ..., so that the outputs of every shift are
// whole blocks, too: the warp loads LOADED blocks of outputs once for all shifts.
// Shared memory (dynamic): filters [depth tap][chunk][shift][block of n][lane] of 16 bytes.
// Launch: THREADS threads, any number of blocks; it may be a dependent launch (dependent_launch.cuh).
// Macros: TYPE; CHANNELS; FILTERS; TAPS_0, TAPS_1, TAPS_2; STRIDE_0, STRIDE_1, STRIDE_2; GAP_0: the dilation of the
// first axis; PAD_0, PAD_1; SHIFT: 1 if positions begin a column before the padding, so that pairs of elements are
// whole words, otherwise 0; BASE: the padding of the last axis plus SHIFT; BLOCKS_M; GROUP; TOGETHER elements of a
// store; THREADS; MIN_BLOCKS on a multiprocessor.

#include "include/ptx/dependent_launch.cuh"
#include "include/math/division.cuh"
#include "include/ptx/mma.cuh"
#include "include/ptx/shared_memory.cuh"
#include "include/vector.cuh"

typedef Mma<TYPE> Product;

constexpr int AXES = 3;
constexpr int SIZE = int(sizeof(TYPE)), WARPS = THREADS / int(WARP_SIZE);
constexpr int STEP = STRIDE_2 * CHANNELS, COLUMN_BLOCKS = (STEP + 7) / 8;
constexpr int SHIFTS = (TAPS_2 + SHIFT + STRIDE_2 - 1) / STRIDE_2;
constexpr int OPEN = TAPS_1 > STRIDE_1 ? TAPS_1 : STRIDE_1, REACH = (TAPS_1 - 1) / STRIDE_1;
constexpr int BLOCKS_N = TAPS_1 * COLUMN_BLOCKS;
constexpr int LANE_FILTERS = 16 / SIZE, CHUNK = 4 * LANE_FILTERS, CHUNKS = (FILTERS + CHUNK - 1) / CHUNK;
constexpr int SEGMENT = BLOCKS_M * 16, LOADED = BLOCKS_M + SHIFTS - 1;
constexpr int PART = SHIFTS * BLOCKS_N * int(WARP_SIZE);  // 16-byte items of one chunk's filters
static_assert(FILTERS % LANE_FILTERS == 0, "a lane's filters are there or not");

struct Params {
  const TYPE* dy;
  const TYPE* w;
  TYPE* dx;
  i64 dy_image, dy_strides[2], dx_image, dx_strides[2];
  i64 w_first, w_filter, w_channel, w_taps[AXES];  // offset of w's first tap; strides of w
  i32 filters;  // filters of w; the others are 0
  i32 extents[AXES];  // extents of dx; the last one in elements
  i32 outputs[AXES];
  i32 first_step, end_step, first_position;  // steps of STRIDE_1 rows that a plane of dx has; a row's first position
  Divider units[4];  // (image, plane of dx, group, segment)
  i32 unit_count;
};

__device__ __forceinline__ void stage_filters(const Params& p, u32 filters) {
  for (u32 item = threadIdx.x; item < u32(TAPS_0 * CHUNKS * PART); item += THREADS) {
    const u32 lane = item % WARP_SIZE, block = item / WARP_SIZE % BLOCKS_N;
    const u32 shift = item / (WARP_SIZE * BLOCKS_N) % SHIFTS, chunk = item / PART % CHUNKS;
    const u32 depth = item / PART / CHUNKS;
    const i32 column = block % COLUMN_BLOCKS * 8 + lane / 4, tap = shift * STRIDE_2 + column / CHANNELS - SHIFT;
    const bool exists = column < STEP && u32(tap) < u32(TAPS_2);
    const i64 at = p.w_first + depth * p.w_taps[0] + block / COLUMN_BLOCKS * p.w_taps[1] + tap * p.w_taps[2] +
                   column % CHANNELS * p.w_channel;
    union {
      TYPE values[LANE_FILTERS];
      u32 words[4];
    } own;
#pragma unroll
    for (int i = 0; i < LANE_FILTERS; ++i) {
      const i32 filter = chunk * CHUNK + lane % 4 * LANE_FILTERS + i;
      own.values[i] = exists && filter < p.filters ? p.w[at + filter * p.w_filter] : TYPE{};
    }
    store_shared_16(filters + item * 16, own.words[0], own.words[1], own.words[2], own.words[3]);
  }
}

// A warp's sums for the OPEN rows of dx that are unfinished. The current row of dy adds to the first TAPS_1 of them.
struct Sums {
  f32 values[OPEN][COLUMN_BLOCKS][BLOCKS_M][4];

  // Adds the products of one row of dy with all taps of a depth tap to TAPS_1 rows of dx. from: the row's first
  // element. first: index of the lane's first output. filters: shared-memory address of the lane's filters of the depth
  // tap.
  __device__ __forceinline__ void add(const TYPE* from, i32 first, i32 outputs, u32 filters) {
    const u32 own = threadIdx.x % 4 * LANE_FILTERS;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const bool has = chunk * CHUNK + own < FILTERS;
      Vector<TYPE, LANE_FILTERS> a[LOADED][2] = {};
#pragma unroll
      for (int block = 0; block < LOADED; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const i32 output = first + block + half * (8 * BLOCKS_M);
          load_where<LANE_FILTERS>(has && u32(output) < u32(outputs), a[block][half].v,
                                   from + output * FILTERS + chunk * CHUNK + own);
        }
      }
#pragma unroll
      for (int shift = 0; shift < SHIFTS; ++shift) {
#pragma unroll
        for (int block = 0; block < BLOCKS_N; ++block) {
          const uint4 b = load_shared_128(filters + (chunk * PART + (shift * BLOCKS_N + block) * int(WARP_SIZE)) * 16);
#pragma unroll
          for (int i = 0; i < BLOCKS_M; ++i) {
            const int x = i + SHIFTS - 1 - shift;
            const uint4 low = *reinterpret_cast<const uint4*>(&a[x][0]);
            const uint4 high = *reinterpret_cast<const uint4*>(&a[x][1]);
            f32(&sum)[4] = values[block / COLUMN_BLOCKS][block % COLUMN_BLOCKS][i];
            const u32 even[4] = {low.x, high.x, low.y, high.y}, odd[4] = {low.z, high.z, low.w, high.w};
            Product::apply(sum, even, b.x, b.y);
            Product::apply(sum, odd, b.z, b.w);
          }
        }
      }
    }
  }

  // Stores the sums of `row` at `to` in dx. first: the element of the lane's first position.
  __device__ __forceinline__ void put(int row, TYPE* to, i32 first, i32 extent) const {
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS_M; ++i) {
#pragma unroll
      for (int block = 0; block < COLUMN_BLOCKS; ++block) {
#pragma unroll
        for (int v = 0; v < 2; v += TOGETHER) {
          const i32 column = block * 8 + threadIdx.x % 4 * 2 + v;
          const i32 element = first + (i / 2 + i % 2 * (8 * BLOCKS_M)) * STEP + column;
          TYPE part[TOGETHER];
#pragma unroll
          for (int j = 0; j < TOGETHER; ++j) part[j] = convert<TYPE>(values[row][block][i / 2][i % 2 * 2 + v + j]);
          if (column < STEP && u32(element) < u32(extent)) store<TOGETHER>(to + element, part);
        }
      }
    }
  }

  // Moves the sums of unfinished rows up by STRIDE_1, and begins new ones.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int row = 0; row < OPEN; ++row)
#pragma unroll
      for (int block = 0; block < COLUMN_BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
          for (int v = 0; v < 4; ++v)
            values[row][block][i][v] = row + STRIDE_1 < OPEN ? values[(row + STRIDE_1) % OPEN][block][i][v] : 0;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const u32 filters = shared_address(memory), lane = threadIdx.x % WARP_SIZE;
  wait_for_previous_kernel();
  allow_next_kernel();
  stage_filters(p, filters);
  __syncthreads();

#pragma unroll 1
  for (i32 unit = blockIdx.x * WARPS + threadIdx.x / WARP_SIZE; unit < p.unit_count; unit += gridDim.x * WARPS) {
    i32 at[4];
    digits<4>(p.units, u32(unit), at);
    const i32 depth = at[1], begin = p.first_step + at[2] * GROUP, end = min(begin + GROUP, p.end_step);
    const i32 position = p.first_position + at[3] * SEGMENT + i32(lane / 4) * BLOCKS_M;
    const TYPE* const image = p.dy + at[0] * p.dy_image;
    TYPE* const plane = p.dx + at[0] * p.dx_image + depth * p.dx_strides[0];
    Sums sums = {};
#pragma unroll 1
    for (i32 step = begin - REACH; step < end; ++step) {
      if (u32(step) < u32(p.outputs[1])) {
#pragma unroll 1
        for (int tap = 0; tap < TAPS_0; ++tap) {
          const i32 distance = depth + PAD_0 - tap * GAP_0, output = distance / STRIDE_0;
          if (distance < 0 || distance % STRIDE_0 != 0 || output >= p.outputs[0]) continue;
          sums.add(image + output * p.dy_strides[0] + step * p.dy_strides[1], position - (SHIFTS - 1), p.outputs[2],
                   filters + (tap * CHUNKS * PART + lane) * 16);
        }
      }
      if (step >= begin) {
#pragma unroll
        for (int row = 0; row < STRIDE_1; ++row) {
          const i32 height = step * STRIDE_1 - PAD_1 + row;
          if (u32(height) < u32(p.extents[1]))
            sums.put(row, plane + height * p.dx_strides[1], position * STEP - BASE * CHANNELS, p.extents[2]);
        }
      }
      sums.advance();
    }
  }
}
