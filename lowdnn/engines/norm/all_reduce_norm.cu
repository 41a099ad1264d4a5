// all_reduce_norm: sums over ranks, with a residual and an RMS norm behind them, in one launch on each rank:
//
//   s = (x of rank 0 + x of rank 1 + ...) + residual          y = s * weight / sqrt(average of s^2 + epsilon)
//
// in f32, and s is stored, rounded once, as the next residual.
//
// Layouts: x, residual, y and the next residual [rows][columns], weight [columns]; y may be x, and the next residual
// the residual. A rank's buffer has room for `most_rows` rows. Behind its header (peers.cuh) it has counts [rows] u32,
// of the exchanges that there have been; flags [2][PEERS][rows] u32; rows [2][PEERS][rows][columns].
// Block: rows blockIdx.x, blockIdx.x + gridDim.x, ... First it writes all of them to every peer's buffer, each followed
// by a flag with the number of the exchange. Then it waits for the peers' flags, row by row, and finishes the row. A
// thread has groups t, t + THREADS, ... of VECTOR elements, at most ITEMS of them.
// Order of summation: ranks in order, then the residual; squares: a thread's own in order, the lanes of a warp as a
// tree, the warps in order. So the results are the same bits on each rank and in each run.
// Exchanges: successive ones use the two halves of a buffer in turn. A rank that writes to a half has ended the launch
// of the exchange before, which needed a row from every peer, and that peer wrote it when its launch of the exchange
// before that one had ended. If a rank is missing, y is NaN and the next residual is not stored.
// Shared memory (static): a number for each warp.
// Launch: THREADS threads, at most a block for each multiprocessor, cooperative.
// Macros: ELEMENT, the type of all tensors; PEERS; THREADS; VECTOR; ITEMS.

#include "include/vector.cuh"
#include "include/pointwise.cuh"
#include "peers.cuh"

typedef ELEMENT T;

struct Params {
  i64 rows, columns, most_rows;
  f32 epsilon;
  f32 share;  // 1 / columns
  const T* x;
  const T* residual;
  const T* weight;
  T* y;
  T* next_residual;
  u8* buffers[PEERS];  // the own one, then those of the ranks after it, and behind the last rank those from rank 0 on
};

typedef Vector<T, VECTOR> Group;
constexpr int WARPS = THREADS / WARP_SIZE;

// A rank's buffer.
struct Buffer {
  const Params& p;
  u8* const memory;

  __device__ __forceinline__ PeerHeader* header() const { return reinterpret_cast<PeerHeader*>(memory); }
  __device__ __forceinline__ u32* count(i64 row) const { return reinterpret_cast<u32*>(header() + 1) + row; }
  __device__ __forceinline__ u32* flag(u32 half, u32 writer, i64 row) const {
    return count(p.most_rows) + (half * PEERS + writer) * p.most_rows + row;
  }
  // Behind the flags, at a multiple of 16 bytes.
  __device__ __forceinline__ T* row(u32 half, u32 writer, i64 row) const {
    const i64 words = (p.most_rows * (1 + 2 * PEERS) + 3) / 4 * 4;
    T* const rows = reinterpret_cast<T*>(count(0) + words);
    return rows + ((half * PEERS + writer) * p.most_rows + row) * p.columns;
  }
};

__device__ __forceinline__ Buffer buffer_of(const Params& p, int peer) { return Buffer{p, p.buffers[peer]}; }

// Calls `use(item, column)` for each group of a row that the thread has.
template <class Use> __device__ __forceinline__ void each_group(const Params& p, Use use) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const i64 column = (i64(item) * THREADS + threadIdx.x) * VECTOR;
    if (column < p.columns) use(item, column);
  }
}
__device__ __forceinline__ const Group& group_at(const T* row, i64 column) {
  return *reinterpret_cast<const Group*>(row + column);
}

// The number of a row's exchange in this launch; until it is counted, every thread may ask.
__device__ __forceinline__ u32 sequence_of(const Params& p, i64 row) { return *buffer_of(p, 0).count(row) + 1; }

// Writes a row to every peer, and then a flag.
__device__ __forceinline__ void send_row(const Params& p, u32 rank, i64 row) {
  const u32 sequence = sequence_of(p, row), half = sequence & 1;
  each_group(p, [&](int, i64 column) {
    const Group own = group_at(p.x + row * p.columns, column);
#pragma unroll
    for (int peer = 1; peer < PEERS; ++peer) {
      *reinterpret_cast<Group*>(buffer_of(p, peer).row(half, rank, row) + column) = own;
    }
  });
  __syncthreads();
  if (threadIdx.x > 0 && threadIdx.x < PEERS) {
#pragma unroll
    for (int peer = 1; peer < PEERS; ++peer) {
      if (threadIdx.x == peer) store_release_system(buffer_of(p, peer).flag(half, rank, row), sequence);
    }
  }
}

// Waits for a row of every peer and, once all threads have the exchange's number, counts it. Returns false, in all
// threads, if a rank is missing.
__device__ __forceinline__ bool receive_row(const Params& p, u32 rank, i64 row, u32 sequence) {
  const Buffer own = buffer_of(p, 0);
  bool is_there = true;
  if (threadIdx.x < PEERS && threadIdx.x != rank) {
    const u32* const flag = own.flag(sequence & 1, threadIdx.x, row);
    is_there = wait_for_peers(own.header(), [&] { return load_acquire_system(flag) == sequence; },
                              [] { return threadIdx.x; });
  }
  const bool are_there = __syncthreads_and(is_there);
  if (threadIdx.x == 0) *own.count(row) = sequence;
  return are_there;
}

// The sum of squares over the row, in all threads.
__device__ __forceinline__ f32 sum_of_block(f32 value) {
  __shared__ f32 warps[WARPS];
#pragma unroll
  for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % WARP_SIZE == 0) warps[threadIdx.x / WARP_SIZE] = value;
  __syncthreads();
  f32 total = warps[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; ++warp) total += warps[warp];
  __syncthreads();  // the next row's sums may be written
  return total;
}

// Adds up a row of all ranks and the residual, and stores y and the next residual.
__device__ __forceinline__ void finish_row(const Params& p, u32 rank, i64 row, u32 half, bool are_there) {
  const i64 first = row * p.columns;
  f32 sums[ITEMS][VECTOR], squares = 0.0f;
  each_group(p, [&](int item, i64 column) {
#pragma unroll
    for (u32 writer = 0; writer < PEERS; ++writer) {
      const Group one = group_at(writer == rank ? p.x + first : buffer_of(p, 0).row(half, writer, row), column);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) sums[item][v] = (writer == 0 ? 0.0f : sums[item][v]) + convert<f32>(one.v[v]);
    }
    const Group before = group_at(p.residual + first, column);
    Group next;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      sums[item][v] += convert<f32>(before.v[v]);
      squares += sums[item][v] * sums[item][v];
      next.v[v] = convert<T>(sums[item][v]);
    }
    if (are_there) *reinterpret_cast<Group*>(p.next_residual + first + column) = next;
  });
  const f32 average = sum_of_block(squares) * p.share;
  const f32 inverse = are_there ? inverse_sqrt(average + p.epsilon) : __uint_as_float(0x7fffffff);
  each_group(p, [&](int item, i64 column) {
    const Group weight = group_at(p.weight, column);
    Group y;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) y.v[v] = convert<T>(sums[item][v] * inverse * convert<f32>(weight.v[v]));
    *reinterpret_cast<Group*>(p.y + first + column) = y;
  });
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 rank = buffer_of(p, 0).header()->rank;
#pragma unroll 1
  for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) send_row(p, rank, row);
#pragma unroll 1
  for (i64 row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const u32 sequence = sequence_of(p, row);
    const bool are_there = receive_row(p, rank, row, sequence);
    finish_row(p, rank, row, sequence & 1, are_there);
  }
}
