// conv_grouped_wgmma: a grouped convolution forward, or backward in the data, with wgmma (grouped_walk.cuh), for
// sm_90a: 16-bit types, groups of whole chunks whose filters do not fit registers.
//
// Four neighbouring warps multiply together, each its own pixels. Pixels come through registers; wgmma reads the
// filters in shared memory.

#include "grouped_walk.cuh"
#include "include/ptx/ldmatrix.cuh"
#include "include/ptx/wgmma.cuh"

static_assert(PACK == 1 && UNIT_PACKS == 1 && IN_CHUNKS % 2 == 0 && UNIT_BLOCKS == BLOCKS_N,
              "steps of one tap, without zeros");
static_assert(sizeof(TYPE) == 2 && BLOCKS_M == 1 && !KEEPS_FILTERS, "one instruction a step");

constexpr int TAP_STEPS = IN_CHUNKS / 2;
typedef u32 Fragments[TAP_STEPS][4];  // fragments of one tap

DEFINE_WGMMA_A_IN_REGISTERS(multiply, OUT, f32.TYPE.TYPE)

// Filters in shared memory: core matrices of wgmma without swizzle, contiguous along k.
struct SharedFilters {
  const Params& p;
  u64 descriptor;  // descriptor of the unit's first step

  __device__ __forceinline__ SharedFilters(const Params& p, const Shared& shared, u32 unit) : p(p) {
    constexpr u64 K_BYTES = FILTER_CHUNK_BYTES, N_BYTES = DEPTH * FILTER_CHUNK_BYTES;
    const u32 address = shared_address(shared.filters) + unit * BLOCKS_N * u32(N_BYTES);
    descriptor = u64(address >> 4) | K_BYTES >> 4 << 16 | N_BYTES >> 4 << 32;
  }

  __device__ __forceinline__ u64 operand(int step) const {
    return descriptor + u32(step * (2 * FILTER_CHUNK_BYTES >> 4));
  }

  // Offset in the box of the lane's chunk of a tap's first step.
  __device__ __forceinline__ u32 offset(int tap) const {
    return p.taps[tap].offset + threadIdx.x % WARP_SIZE / 16 * CHUNK_BYTES;
  }
};

__device__ __forceinline__ void load(Fragments& a, u32 from) {
#pragma unroll
  for (int step = 0; step < TAP_STEPS; ++step) ldmatrix_x4(a[step], Box::swizzled(from + step * 2 * CHUNK_BYTES));
}

// Sets `sums` to the sums over the taps [first, end); no taps leave it as it is. row: shared-memory address of the
// lane's row.
__device__ __forceinline__ void add_taps(u32 row, const SharedFilters& filters, int first, int end,
                                         f32 (&sums)[Sums::COUNT]) {
  if (first == end) return;
  Fragments a[2];
  load(a[0], row + filters.offset(first));
  // The fragments of a tap are loaded while the tensor cores multiply those of the previous tap.
  const auto turn = [&](int tap, const Fragments& now, Fragments& next) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < TAP_STEPS; ++step)
      multiply<BACKWARD>(sums, now[step], filters.operand(tap * TAP_STEPS + step), tap > first || step > 0);
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
  for (f32& value : sums) hold(value);
}

struct WarpgroupWork {
  static constexpr int TEAM_WARPS = 4;

  static __device__ __forceinline__ SharedFilters filters(const Params& p, const Shared& shared, u32 unit) {
    cp_async_wait<1>();
    fence_async_shared();
    __syncthreads();
    return SharedFilters(p, shared, unit);
  }

  static __device__ __forceinline__ void add(const u32 (&rows)[1], const SharedFilters& filters,
                                             const OutputClass& output, Sums& sums) {
    auto& values = reinterpret_cast<f32(&)[Sums::COUNT]>(sums.values);
    if constexpr (CLASSES == 1) {
      add_taps(rows[0], filters, 0, TAPS, values);
    } else {
      add_taps(rows[0], filters, output.first_tap, output.end_tap, values);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) u8 memory[];
  allow_next_kernel();
  compute_tiles<WarpgroupWork>(p, memory);
}
