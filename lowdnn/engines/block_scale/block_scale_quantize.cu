// block_scale_quantize: scales[b] = greatest |x| of block b / Y_LARGEST, rounded to S; y[i] = x[i] / scales[b(i)].
//
// Layouts: any strides over RANK axes: the outer ones, the blocks and, with COLUMNS, groups of columns. A block is
// BLOCK elements along the block axis, with strides x_step and y_step; the last one of an axis may be shorter.
// TILED 1: the scales lie in tiles of 128 by 4 (F8_128x4), rows along SCALE_ROW, columns along SCALE_COLUMN. The space
// has whole tiles; positions beyond `limits` have no elements and a scale of zero bits.
// COLUMNS 0: x is contiguous along the blocks. LANES neighbouring threads share a block, VECTOR elements each.
// COLUMNS 1: LANES threads of a warp share VECTOR adjacent blocks, one for each of VECTOR columns. Each thread reads
// every LANES-th row, CHUNK rows at a time, and reads them twice if they do not all fit in registers. Threads of the
// same row are neighbours, so that a warp reads whole lines.
// Block: THREADS threads on neighbouring blocks of the tensor. Shared memory: none.
// Launch: LANES threads for each item, which is a block or a group of columns; an item's coordinates are its digits
// over the radices `axes`. The number of items is rounded up to a multiple of SIDE, the items that a warp has at a
// time.
// Macros: X Y S Y_LARGEST RANK THREADS BLOCK VECTOR LANES COLUMNS CHUNK X_WIDTH Y_WIDTH S_WIDTH TILED SCALE_ROW
// SCALE_COLUMN INDEX. S_WIDTH is the width of accesses to scales of neighbouring columns, 0 if these are strided. INDEX
// is u32 up to 2^31 threads, otherwise i64.

#include "include/math/division.cuh"
#include "include/math/fp8_pairs.cuh"
#include "include/math/larger.cuh"
#include "include/vector.cuh"

struct Params {
  const X* x;
  Y* y;
  S* scales;
  i64 items;
  i64 extent;   // elements along the block axis
  i64 columns;  // elements of x along the column axis
  i64 scale_columns;  // scales along the column axis, including the padding of tiles
  i64 scale_tiles;  // tiles in a row of tiles
  i64 x_step, y_step;
  i64 x_strides[RANK];  // strides from block to block along the block axis, from element to element along the others
  i64 y_strides[RANK];
  i64 scale_strides[RANK];
  i64 limits[RANK];  // number of blocks along the block axis, of elements along the others
  Divider axes[RANK];  // axes[0] is not used
};

constexpr int BLOCK_AXIS = RANK - 1 - COLUMNS, COLUMN_AXIS = RANK - 1;
constexpr int SIDE = COLUMNS ? WARP_SIZE / LANES : 1;  // neighbouring threads of a row; the stride of an item's lanes

__device__ __forceinline__ int clamped_count(i64 remaining, int most) {
  return remaining >= most ? most : remaining > 0 ? int(remaining) : 0;
}

// Address of a block's scale, or of the scale of the block `next` columns after it.
__device__ __forceinline__ S* scale_at(const Params& p, const i64 (&coordinate)[RANK], int next) {
  i64 offset = COLUMNS ? next * p.scale_strides[COLUMN_AXIS] : 0;
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) offset += coordinate[axis] * p.scale_strides[axis];
  if constexpr (TILED) {
    const i64 row = coordinate[SCALE_ROW] + (COLUMNS && SCALE_ROW == COLUMN_AXIS ? next : 0);
    const i64 column = coordinate[SCALE_COLUMN] + (COLUMNS && SCALE_COLUMN == COLUMN_AXIS ? next : 0);
    offset += (row / 128 * p.scale_tiles + column / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
  }
  return p.scales + offset;
}

// Whether a coordinate lies inside the tensor along all axes except the columns, which are checked element by element.
__device__ __forceinline__ bool within_limits(const Params& p, const i64 (&coordinate)[RANK]) {
  bool within = true;
#pragma unroll
  for (int axis = 0; axis < RANK - COLUMNS; ++axis) within &= coordinate[axis] < p.limits[axis];
  return within;
}

// Divides elements by a stored scale; division by 0 gives 0.
template <class T> struct Divisor {
  f32 scale;

  __device__ __forceinline__ explicit Divisor(T stored) : scale(convert<f32>(stored)) {}
  __device__ __forceinline__ f32 divide(f32 x) const { return scale == 0.0f ? 0.0f : x / scale; }
};
// A power of two has an exact inverse, so multiplying by it gives the exact quotient.
template <> struct Divisor<e8m0> {
  f32 inverse;

  __device__ __forceinline__ explicit Divisor(e8m0 stored) : inverse(convert<f32>(e8m0{u8(254 - stored.bits)})) {}
  __device__ __forceinline__ f32 divide(f32 x) const { return x * inverse; }
};

// The type in which magnitudes are compared: pairs of 16-bit elements at once.
template <class T, bool IS_PAIR> struct MagnitudeOf {
  typedef f32 Type;
  static __device__ __forceinline__ f32 of(const T* x) { return fabsf(convert<f32>(*x)); }
  static __device__ __forceinline__ f32 number(f32 magnitude, int) { return magnitude; }
  static __device__ __forceinline__ f32 of_lane(f32 magnitude, int distance) {
    return __shfl_xor_sync(0xffffffffu, magnitude, distance);
  }
};
template <class T> struct MagnitudeOf<T, true> {
  typedef Pair<T> Type;
  static __device__ __forceinline__ Pair<T> of(const T* x) { return {pair_of(x[0], x[1]).bits & 0x7fff7fff}; }
  static __device__ __forceinline__ f32 number(Pair<T> magnitude, int i) { return convert<f32>(magnitude.half(i)); }
  static __device__ __forceinline__ Pair<T> of_lane(Pair<T> magnitude, int distance) {
    return {__shfl_xor_sync(0xffffffffu, magnitude.bits, distance)};
  }
};

constexpr int TOGETHER = sizeof(X) == 2 && VECTOR > 1 ? 2 : 1;
typedef MagnitudeOf<X, TOGETHER == 2> Magnitudes;
typedef Magnitudes::Type Magnitude;

// The greatest magnitude so far at each position of a thread's vector; NaN counts as greater than all numbers.
struct Greatest {
  static constexpr int COUNT = VECTOR / TOGETHER;
  Magnitude of[COUNT] = {};

  __device__ __forceinline__ void take(const X (&x)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) of[i] = larger<true>(of[i], Magnitudes::of(x + i * TOGETHER));
  }

  // Combines the maxima of all positions into of[0] (of pairs: one for even and one for odd positions).
  __device__ __forceinline__ void join_places() {
#pragma unroll
    for (int i = 1; i < COUNT; ++i) of[0] = larger<true>(of[0], of[i]);
  }

  // Combines of[0] to of[PLACES - 1] over the LANES threads of an item; all of them get the maxima.
  template <int PLACES> __device__ __forceinline__ void join_lanes() {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
#pragma unroll
      for (int i = 0; i < PLACES; ++i) of[i] = larger<true>(of[i], Magnitudes::of_lane(of[i], lanes * SIDE));
    }
  }

  __device__ __forceinline__ f32 at(int place) const {
    return Magnitudes::number(of[place / TOGETHER], place % TOGETHER);
  }
};

__device__ __forceinline__ S scale_of(f32 largest) { return convert<S>(largest / Y_LARGEST); }

template <int WIDTH, int COUNT>
__device__ __forceinline__ void read(X (&to)[COUNT], const X* from, i64 stride, int valid) {
  if constexpr (WIDTH == 0) {
    load_strided(to, from, stride, valid);
  } else {
    load_row<Plain, WIDTH>(to, from, valid);
  }
}

template <int WIDTH, int COUNT>
__device__ __forceinline__ void write(Y* to, const Y (&from)[COUNT], i64 stride, int valid) {
  if constexpr (WIDTH == 0) {
    store_strided(to, from, stride, valid);
  } else {
    store_row<WIDTH>(to, from, valid);
  }
}

// Quantises one block with LANES threads, and returns its scale. Threads without a block take part in the exchange.
__device__ __forceinline__ S along_rows(const Params& p, const X* x, Y* y, i64 block, int lane) {
  const int first = lane * VECTOR;
  const int valid = clamped_count(p.extent - block * BLOCK - first, VECTOR);
  X in[VECTOR];
  read<X_WIDTH>(in, x + first, 1, valid);
  Greatest greatest;
  greatest.take(in);
  greatest.join_places();
  greatest.join_lanes<1>();
  const S stored = scale_of(larger<true>(greatest.at(0), greatest.at(TOGETHER - 1)));
  const Divisor<S> divisor(stored);
  f32 quotients[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) quotients[i] = divisor.divide(convert<f32>(in[i]));
  Y out[VECTOR];
  narrow_all(out, quotients);
  write<Y_WIDTH>(y + first * p.y_step, out, p.y_step, valid);
  return stored;
}

// A thread's part of VECTOR blocks of `rows` rows with `valid` elements each: row `lane` and every LANES-th row after
// it.
struct Columns {
  const X* x;
  Y* y;
  int rows;
  int valid;
  int lane;

  __device__ __forceinline__ int count(int row) const { return row < rows ? valid : 0; }
};

// Reads CHUNK rows of a thread. WHOLE: all of them exist.
template <bool WHOLE>
__device__ __forceinline__ void read_rows(X (&to)[CHUNK][VECTOR], const Params& p, const Columns& columns, int first) {
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const int row = first + i * LANES + columns.lane;
    const int valid = WHOLE ? VECTOR : columns.count(row);
    read<X_WIDTH>(to[i], columns.x + row * p.x_step, p.x_strides[COLUMN_AXIS], valid);
  }
}

template <bool WHOLE>
__device__ __forceinline__ void write_rows(
    const X (&from)[CHUNK][VECTOR], const S (&stored)[VECTOR], const Params& p, const Columns& columns, int first) {
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const int row = first + i * LANES + columns.lane;
    f32 quotients[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) quotients[v] = Divisor<S>(stored[v]).divide(convert<f32>(from[i][v]));
    Y out[VECTOR];
    narrow_all(out, quotients);
    const int valid = WHOLE ? VECTOR : columns.count(row);
    write<Y_WIDTH>(columns.y + row * p.y_step, out, p.y_strides[COLUMN_AXIS], valid);
  }
}

// Quantises VECTOR blocks with LANES threads, and returns their scales. Threads without blocks take part in the
// exchange.
// WHOLE: all blocks of a warp are whole. It is not checked for each row: where the two branches join, the compiler
// would split packed words.
template <bool WHOLE>
__device__ __forceinline__ void along_columns(const Params& p, const Columns& columns, S (&stored)[VECTOR]) {
  X in[CHUNK][VECTOR];
  Greatest greatest;
#pragma unroll 1
  for (int first = 0; first < BLOCK; first += CHUNK * LANES) {
    read_rows<WHOLE>(in, p, columns, first);
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) greatest.take(in[i]);
  }
  greatest.join_lanes<Greatest::COUNT>();
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) stored[v] = scale_of(greatest.at(v));
#pragma unroll 1
  for (int first = 0; first < BLOCK; first += CHUNK * LANES) {
    if (CHUNK * LANES < BLOCK) read_rows<WHOLE>(in, p, columns, first);
    write_rows<WHOLE>(in, stored, p, columns, first);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const INDEX thread = INDEX(blockIdx.x) * THREADS + threadIdx.x;
  const INDEX item = thread / (SIDE * LANES) * SIDE + thread % SIDE;
  const int lane = threadIdx.x / SIDE % LANES;
  const bool exists = item < p.items;
  i64 coordinate[RANK];
  digits<RANK>(p.axes, INDEX(exists ? item : 0), coordinate);
  if (COLUMNS) coordinate[COLUMN_AXIS] *= VECTOR;
  const X* x = p.x;
  Y* y = p.y;
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) {
    x += coordinate[axis] * p.x_strides[axis];
    y += coordinate[axis] * p.y_strides[axis];
  }
  // Positions that do not exist lie past the end of their axis.
  const bool is_there = exists && (!TILED || within_limits(p, coordinate));
  const i64 block = is_there ? coordinate[BLOCK_AXIS] : p.extent;
  if constexpr (COLUMNS) {
    const int rows = clamped_count(p.extent - block * BLOCK, BLOCK);
    const int valid = clamped_count(p.columns - coordinate[COLUMN_AXIS], VECTOR);
    const bool is_whole = rows == BLOCK && valid == VECTOR && BLOCK % (CHUNK * LANES) == 0;
    S scales[VECTOR];
    if (__all_sync(0xffffffffu, is_whole)) {
      along_columns<true>(p, {x, y, rows, valid, lane}, scales);
    } else {
      along_columns<false>(p, {x, y, rows, valid, lane}, scales);
    }
    if (!exists || lane != 0) return;
    const int there = clamped_count(p.scale_columns - coordinate[COLUMN_AXIS], VECTOR);
    if constexpr (S_WIDTH > 0) {
      store_row<S_WIDTH>(scale_at(p, coordinate, 0), scales, there);
    } else {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) {
        if (i < there) *scale_at(p, coordinate, i) = scales[i];
      }
    }
  } else {
    const S scale = along_rows(p, x, y, block, lane);
    if (exists && lane == 0) *scale_at(p, coordinate, 0) = scale;
  }
}
