// causal_conv1d_sums: dweight[d, j] = sum over s of parts[s, j, d], and dbias[d] = sum over s of parts[s, taps, d].
//
// Layouts: parts [part][taps + 1][channel] of COMPUTE; dweight and dbias have any strides.
// Block: COLUMNS neighbouring elements (j, d) with SHARES threads each. Each thread adds every SHARES-th part, then these
// are added in ascending order, so that equal inputs give equal bits.
// Shared memory: sums[SHARES][COLUMNS].
// Launch: COLUMNS * SHARES threads; ceil((taps + HAS_BIAS) * channels / COLUMNS) blocks; it may be a dependent launch
// (dependent_launch.cuh).
// Macros: DWEIGHT DBIAS COMPUTE (types) HAS_BIAS COLUMNS SHARES.

#include "include/ptx/dependent_launch.cuh"

typedef COMPUTE Value;

struct Params {
  const Value* parts;
  DWEIGHT* dweight;
  DBIAS* dbias;
  i64 count, channels, taps;  // count: parts
  i64 dweight_strides[2], dbias_stride;
};

extern "C" __global__ void __launch_bounds__(COLUMNS * SHARES) KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Value sums[SHARES][COLUMNS];
  const u32 column = threadIdx.x % COLUMNS, share = threadIdx.x / COLUMNS;
  const i64 element = i64(blockIdx.x) * COLUMNS + column, pitch = (p.taps + 1) * p.channels;
  const bool exists = element < (p.taps + HAS_BIAS) * p.channels;
  Value sum = 0;
  wait_for_previous_kernel();
  if (exists) {
#pragma unroll 8
    for (i64 part = share; part < p.count; part += SHARES) sum += p.parts[part * pitch + element];
  }
  sums[share][column] = sum;
  __syncthreads();
  if (share > 0 || !exists) return;
#pragma unroll
  for (int other = 1; other < SHARES; ++other) sum += sums[other][column];

  const i64 tap = element / p.channels, channel = element - tap * p.channels;
  if (tap < p.taps) {
    p.dweight[channel * p.dweight_strides[0] + tap * p.dweight_strides[1]] = convert<DWEIGHT>(sum);
  } else if constexpr (HAS_BIAS) {
    p.dbias[channel * p.dbias_stride] = convert<DBIAS>(sum);
  }
}
