// conv_grouped_mma: a grouped convolution forward, or backward in the data, with mma.sync (grouped_walk.cuh).
//
// Each warp multiplies its own pixels. KEEPS_FILTERS: it keeps the filters of its unit in registers.

#include "grouped_filters.cuh"
#include "grouped_walk.cuh"

// Adds the products of steps [first, end), each of two chunks of k. rows: as in compute_tiles.
template <class Filters>
__device__ __forceinline__ void add_steps(const u32 (&rows)[BLOCKS_M], const Filters& filters, int first, int end,
                                          Sums& sums) {
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
        Product::apply(sums.values[i][block], a[block / OUT_BLOCKS][i], b[0], b[1]);
        if (block + 1 < UNIT_BLOCKS)
          Product::apply(sums.values[i][block + 1], a[(block + 1) / OUT_BLOCKS % UNIT_PACKS][i], b[2], b[3]);
      }
    }
  }
}

struct WarpWork {
  static constexpr int TEAM_WARPS = 1;

  static __device__ __forceinline__ auto filters(const Params& p, const Shared& shared, u32 unit) {
    return filters_of(p, shared, unit);
  }

  template <class Filters>
  static __device__ __forceinline__ void add(const u32 (&rows)[BLOCKS_M], const Filters& filters,
                                             const OutputClass& output, Sums& sums) {
    if constexpr (CLASSES == 1) {
      add_steps(rows, filters, 0, DEPTH / 2, sums);
    } else {
      add_steps(rows, filters, output.first_tap * IN_CHUNKS / 2, output.end_tap * IN_CHUNKS / 2, sums);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 memory[];
  allow_next_kernel();
  compute_tiles<WarpWork>(p, memory);
}
