// transform_misaligned: y[u, v] = x[u, v], if x is contiguous along u and y along v and rows of either are misaligned,
// for every coordinate of the other axes; converted if the types differ; several such copies in a launch.
//
// Layouts: x has u at stride 1, y has v at stride 1; all other strides are free.
// Block: one tile of SIDE_U u by SIDE_V v. From each of ROWS rows of x it reads the LANES_U aligned vectors of 16 bytes
// that contain its part of the row, and puts them into shared memory element by element. From there it writes aligned
// vectors of y. So that these are whole, a block's part of a row of y begins with the first aligned vector, up to
// Y_VECTOR - 1 elements before the tile. The block therefore also reads the last Y_VECTOR rows of x of the tile before.
// Only at the ends of y's rows are single elements written.
// Shared memory: rows of y, one after the other at a pitch that is not a multiple of two words; an element lies at the
// same position within its word as in y, so that vectors are read as words.
// Launch: THREADS threads, a block for each tile; the coordinates of tile t of a part are its digits over the radices
// `axes`: the OUTER other axes, tiles along u, tiles along v.
// Macros: X Y (of 4 bytes at most) LANES_U (8, 16 or 32) OUTER PARTS THREADS UNROLL (rows that a thread reads);
// OVERLAPS_PREVIOUS: whether it is a dependent launch.

#include "include/elements/transform.cuh"

constexpr int RANK = OUTER + 2;
constexpr int X_VECTOR = 16 / sizeof(X), Y_VECTOR = 16 / sizeof(Y), PER_WORD = 4 / sizeof(Y);
constexpr int STEP = THREADS / LANES_U, ROWS = STEP * UNROLL;
constexpr int SIDE_U = (LANES_U - 1) * X_VECTOR, SIDE_V = ROWS - Y_VECTOR;
constexpr int BEFORE = X_VECTOR - 1;  // elements of the first vector that may lie before the tile
constexpr int LANES_V = ROWS / Y_VECTOR, LINES = THREADS / LANES_V;

struct Part {
  const X* x;
  Y* y;
  i64 span;  // elements from x to just past its last
  i64 extent_u, extent_v;
  i64 x_strides[RANK];  // the outer axes, u (1), v
  i64 y_strides[RANK];  // the outer axes, u, v (1)
  Divider axes[RANK];   // the first is not used
};

struct Params {
  Part parts[PARTS];
  PartRounds<PARTS> rounds;
};

// Elements after the one at `at` up to the end of its aligned vector of `count` elements, a power of two.
template <class T> __device__ __forceinline__ int left_after(const T* at, int count) {
  return int(~(u64(at) / sizeof(T)) & (count - 1));
}

struct Tile {
  const X* x;  // its first element
  Y* y;
  int end_u;           // elements of the tile along u that exist
  int begin_v, end_v;  // rows of x that are read; number 0 is Y_VECTOR rows before the tile's first one

  __device__ __forceinline__ Tile(const Part& part, u32 block) : x(part.x), y(part.y) {
    i64 coordinate[RANK];
    digits<RANK>(part.axes, block, coordinate);
    coordinate[OUTER] *= SIDE_U;
    coordinate[OUTER + 1] *= SIDE_V;
#pragma unroll
    for (int axis = 0; axis < RANK; ++axis) {
      x += coordinate[axis] * part.x_strides[axis];
      y += coordinate[axis] * part.y_strides[axis];
    }
    const i64 left_u = part.extent_u - coordinate[OUTER], left_v = part.extent_v - coordinate[OUTER + 1];
    end_u = left_u < SIDE_U ? int(left_u) : SIDE_U;
    begin_v = coordinate[OUTER + 1] > 0 ? 0 : Y_VECTOR;
    end_v = Y_VECTOR + (left_v < SIDE_V ? int(left_v) : SIDE_V);
  }

  // Whether every vector with elements of the tile lies within x.
  __device__ __forceinline__ bool is_inside(const Part& part) const {
    const i64 pitch = part.x_strides[OUTER + 1];
    return x + (begin_v - Y_VECTOR) * pitch - X_VECTOR >= part.x &&
           x + (end_v - Y_VECTOR - 1) * pitch + LANES_U * X_VECTOR <= part.x + part.span;
  }

  __device__ __forceinline__ bool reads_row(int v) const { return v >= begin_v && v < end_v; }
};

// Stores the elements of one vector of x as a column of the tile in shared memory.
__device__ __forceinline__ void scatter(Y* to, int pitch, const X (&from)[X_VECTOR]) {
#pragma unroll
  for (int i = 0; i < X_VECTOR; ++i) to[i * pitch] = Moved<Y, X>::of(from[i]);
}

// The Y_VECTOR elements from `at` on, an address aligned to a word.
__device__ __forceinline__ Vector<Y, Y_VECTOR> words_from(const Y* at) {
  Vector<u32, 4> words;
#pragma unroll
  for (int i = 0; i < 4; ++i) words.v[i] = reinterpret_cast<const u32*>(at)[i];
  return *reinterpret_cast<const Vector<Y, Y_VECTOR>*>(&words);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ alignas(16) Y lines[(LANES_U + 1) * X_VECTOR * (ROWS + PER_WORD) + PER_WORD];

  u32 block = blockIdx.x;
  const Part& part = p.parts[p.rounds.part_of(block)];
  const Tile tile(part, block);
  const i64 x_pitch = part.x_strides[OUTER + 1], y_pitch = part.y_strides[OUTER];
  const int odd = int(y_pitch) & (PER_WORD - 1), pitch = ROWS + (odd == 0 ? PER_WORD : odd);
  // Element (u, v) lies (u + BEFORE) * pitch + v + Y_VECTOR elements after this. No term of an address in shared memory
  // may be negative.
  Y* const own = lines + (PER_WORD - 1 - left_after(tile.y - BEFORE * y_pitch - Y_VECTOR, PER_WORD));

  {  // x -> shared memory: eight lanes read a line of 128 bytes of a row, a warp four rows
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = (lane % 8 + warp % (LANES_U / 8) * 8) * X_VECTOR, first = lane / 8 + warp / (LANES_U / 8) * 4;
    const X* row = tile.x + (first - Y_VECTOR) * x_pitch - BEFORE;
    begin_launch<OVERLAPS_PREVIOUS>();
    if (tile.is_inside(part)) {
      Vector<X, X_VECTOR> in[UNROLL];
      int at[UNROLL];
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) {
        at[k] = column + left_after(row + BEFORE, X_VECTOR);
        in[k] = {};
        load_where<X_VECTOR>(at[k] < tile.end_u + BEFORE && tile.reads_row(first + k * STEP), in[k].v, row + at[k]);
        row += STEP * x_pitch;
      }
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) scatter(own + at[k] * pitch + first + k * STEP, pitch, in[k].v);
    } else {
#pragma unroll 1
      for (int v = first; v < ROWS; v += STEP, row += STEP * x_pitch) {
        X in[X_VECTOR] = {};
        const int at = column + left_after(row + BEFORE, X_VECTOR);
#pragma unroll
        for (int i = 0; i < X_VECTOR; ++i) {
          if (tile.reads_row(v) && at + i >= BEFORE && at + i < tile.end_u + BEFORE) in[i] = row[at + i];
        }
        scatter(own + at * pitch + v, pitch, in);
      }
    }
  }
  __syncthreads();

  // shared memory -> y: LINES rows at a time
  const int column = threadIdx.x % LANES_V * Y_VECTOR;
  if (column >= SIDE_V) return;
  Y* row = tile.y + threadIdx.x / LANES_V * y_pitch - Y_VECTOR;
#pragma unroll 2
  for (int u = threadIdx.x / LANES_V; u < tile.end_u; u += LINES, row += LINES * y_pitch) {
    const int v = column + 1 + left_after(row, Y_VECTOR);
    const Vector<Y, Y_VECTOR> out = words_from(own + (u + BEFORE) * pitch + v);
    if (v >= tile.begin_v && v + Y_VECTOR <= tile.end_v) {
      store<Y_VECTOR>(row + v, out.v);
      continue;
    }
#pragma unroll
    for (int i = 0; i < Y_VECTOR; ++i) {
      if (tile.reads_row(v + i)) row[v + i] = out.v[i];
    }
  }
}
