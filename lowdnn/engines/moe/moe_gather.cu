// moe_gather: gathered[r, k] = token[index[r], k], for kernels that load rows by tensor map.
//
// Layouts: token has any strides; gathered is dense with k innermost, in whole chunks of 16 bytes, with zeros past the
// depth.
// Block: 256 chunks. BY_CHUNK: token's chunks are contiguous, aligned and whole; otherwise elements are read one by
// one.
// Launch: 256 threads.

#include "include/math/division.cuh"

constexpr u32 THREADS = 256;
constexpr int CHUNK = 16 / sizeof(TYPE);
struct alignas(16) Chunk { TYPE v[CHUNK]; };

struct Params {
  const TYPE* token;
  Chunk* gathered;
  const i32* index;
  i64 index_stride, row_stride, k_stride;
  Divider row_chunks;
  u32 chunks, depth;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 chunk = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (chunk >= p.chunks) return;
  const u32 row = p.row_chunks.divide(u32(chunk)), first = (u32(chunk) - row * p.row_chunks.divisor) * CHUNK;
  const TYPE* from = p.token + p.index[row * p.index_stride] * p.row_stride + first * p.k_stride;
  Chunk copied;
  if constexpr (BY_CHUNK) {
    copied = *reinterpret_cast<const Chunk*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) copied.v[i] = first + i < p.depth ? from[i * p.k_stride] : TYPE{};
  }
  p.gathered[chunk] = copied;
}
