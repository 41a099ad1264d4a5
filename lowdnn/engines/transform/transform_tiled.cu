// transform_tiled: y[u, v] = x[u, v], if x is contiguous along u and y along v, for every coordinate of the other axes;
// converted if the types differ; several such copies in a launch. Along v y may be longer than x; it is zero there.
//
// Layouts: x has u at stride 1, y has v at stride 1; all other strides are free.
// Block: one tile of (LANES_U * MICRO) u by (LANES_V * MICRO) v. Thread (lane_u, lane_v) reads MICRO rows of MICRO
// neighbours along u, transposes this square in its registers and writes it as MICRO vectors along v to shared memory.
// From there the block writes rows of y. Accesses on both sides are as wide as the layouts allow. If rows of x are
// misaligned, MICRO neighbours come from two aligned accesses.
// Shared memory: vectors of MICRO elements of y, LANES_V of them for each u. The low bits of a vector's number are
// exclusive-ored with the number of its square, so that no two threads of a phase access the same bank.
// Launch: LANES_U * LANES_V threads (the bound leaves registers for the square), a block for each tile. The coordinates
// of tile t of a part are its digits over the radices `axes`: the OUTER other axes, tiles along u, tiles along v.
// Macros: X Y MICRO LANES_U LANES_V OUTER PARTS X_WIDTH Y_WIDTH; HAS_TAIL: whether y ends within a square;
// OVERLAPS_PREVIOUS: whether it is a dependent launch.

#include "include/elements/transform.cuh"

constexpr int RANK = OUTER + 2;
constexpr int THREADS = LANES_U * LANES_V;
constexpr int SIDE_U = LANES_U * MICRO, SIDE_V = LANES_V * MICRO;

struct Part {
  const X* x;
  Y* y;
  i64 span;  // elements from x to just past its last
  i64 extent_u, x_extent_v, y_extent_v;
  i64 x_strides[RANK];  // the outer axes, u (1), v
  i64 y_strides[RANK];  // the outer axes, u, v (1)
  Divider axes[RANK];   // the first is not used
};

struct Params {
  Part parts[PARTS];
  PartRounds<PARTS> rounds;
};

// The slot of vector `column` of row u among the tile's vectors. A phase, the threads that shared memory serves at
// once, moves 128 bytes: PHASE vectors.
__device__ __forceinline__ int slot(int u, int column) {
  constexpr int BYTES = MICRO * sizeof(Y);
  constexpr int PHASE = BYTES > 4 ? 128 / BYTES : 32;
  constexpr int STEP = PHASE > LANES_U ? PHASE / LANES_U : 1;
  return (u * LANES_V + column) ^ (u / MICRO * STEP & (PHASE - 1));
}

typedef Elements<X, MICRO, X_WIDTH> Row;

template <bool WHOLE>
__device__ __forceinline__ void read_square(
    const Part& part, Row (&to)[MICRO], const X* from, i64 pitch, int valid_u, int valid_v) {
#pragma unroll
  for (int j = 0; j < MICRO; ++j) {
    const int valid = WHOLE ? MICRO : j < valid_v ? valid_u : 0;
    to[j].load(from + j * pitch, 1, valid, part.x, part.x + part.span);
  }
}

// Writes this thread's MICRO elements of row u of the tile, `valid` of which exist.
__device__ __forceinline__ void write_row(Y* to, const Y* tile, int u, int lane_v, int valid) {
  const int column = lane_v * MICRO;
  if (column >= valid) return;
  const Vector<Y, MICRO> out = Plain::load<Y, MICRO>(tile + slot(u, lane_v) * MICRO);
  store_neighbours<Y_WIDTH>(to + column, out.v, HAS_TAIL ? clamped_count<MICRO>(valid - column) : MICRO);
}

extern "C" __global__ void __launch_bounds__(THREADS, 384 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ alignas(16) Y tile[SIDE_U * SIDE_V];

  u32 block = blockIdx.x;
  const Part& part = p.parts[p.rounds.part_of(block)];
  i64 coordinate[RANK];
  digits<RANK>(part.axes, block, coordinate);
  const X* x = part.x;
  Y* y = part.y;
#pragma unroll
  for (int axis = 0; axis < OUTER; ++axis) {
    x += coordinate[axis] * part.x_strides[axis];
    y += coordinate[axis] * part.y_strides[axis];
  }
  const i64 first_u = coordinate[OUTER] * SIDE_U, first_v = coordinate[OUTER + 1] * SIDE_V;

  {  // x -> registers: a square of MICRO by MICRO, row j at v + j
    const int lane_u = threadIdx.x % LANES_U, lane_v = threadIdx.x / LANES_U;
    const i64 u = first_u + lane_u * MICRO, v = first_v + lane_v * MICRO;
    const int valid_u = clamped_count<MICRO>(part.extent_u - u), valid_v = clamped_count<MICRO>(part.x_extent_v - v);
    const i64 pitch = part.x_strides[OUTER + 1];
    const X* from = x + u + v * pitch;
    begin_launch<OVERLAPS_PREVIOUS>();
    Row read[MICRO];
    if (valid_u == MICRO && valid_v == MICRO) {
      read_square<true>(part, read, from, pitch, MICRO, MICRO);
    } else {
      read_square<false>(part, read, from, pitch, valid_u, valid_v);
    }
    Vector<X, MICRO> in[MICRO];
#pragma unroll
    for (int j = 0; j < MICRO; ++j) in[j] = read[j].get();
    // registers -> shared memory: the square's columns
    transpose(in);
#pragma unroll
    for (int i = 0; i < MICRO; ++i) {
      typedef typename Word<MICRO * sizeof(Y)>::Type Whole;
      Vector<Y, MICRO> column;
#pragma unroll
      for (int j = 0; j < MICRO; ++j) column.v[j] = Moved<Y, X>::of(in[i].v[j]);
      *reinterpret_cast<Whole*>(tile + slot(lane_u * MICRO + i, lane_v) * MICRO) = *reinterpret_cast<Whole*>(&column);
    }
  }
  __syncthreads();

  // shared memory -> y: LANES_U rows at a time
  const int lane_v = threadIdx.x % LANES_V, row = threadIdx.x / LANES_V;
  const i64 pitch = part.y_strides[OUTER], remaining = part.y_extent_v - first_v;
  const int valid = remaining < SIDE_V ? int(remaining) : SIDE_V;
#pragma unroll
  for (int i = 0; i < MICRO; ++i) {
    const int u = row + i * LANES_U;
    if (first_u + u < part.extent_u) write_row(y + first_v + (first_u + u) * pitch, tile, u, lane_v, valid);
  }
}
