// causal_conv1d_dstates: the gradients of the samples before sequences,
//
//     dstates[n, d, s] = sum over r <= s of w[d, s - r] * g[r]        r: positions of sequence n, from its first on
//     g = dy, or dy * silu'(z) (HAS_SILU), with z[r] = bias + sum over j < taps of w[d, j] * sample[r - (taps - 1) + j]
//
// Layouts: any strides.
// Thread: one channel of one sequence. It computes g again for each sum that it counts in, which is cheap for filters of
// few taps; those of many are given g (HAS_SILU 0).
// Shared memory: none.
// Launch: THREADS threads; ceil(sequences * channels / THREADS) blocks.
// Macros: X W BIAS G DSTATES COMPUTE (types) INDEX SEQUENCES HAS_STATES SLOT HAS_SLOTS HAS_BIAS HAS_SILU THREADS LANES
// CHANNELS ALONG_CHANNELS.

#include "sequence_bounds.cuh"
#include "silu.cuh"

struct Params {
  const X* x;
  const W* w;
  const BIAS* bias;
  const G* g;
  DSTATES* dstates;
  Sequences sequences;
  Strides x_strides, g_strides, dstates_strides;
  i64 w_strides[2], bias_stride;
  Divider channels;
  i32 count, taps;  // count: sequences times channels
};

// g of a sequence's position r.
struct Gradient {
  const Params& p;
  i64 sequence, channel;
  i32 begin, end;

  __device__ __forceinline__ Value weight(i32 j) const {
    return convert<Value>(p.w[channel * p.w_strides[0] + j * p.w_strides[1]]);
  }
  __device__ __forceinline__ Value operator()(i32 r) const {
    const i64 batch = HAS_OFFSETS ? 0 : sequence;
    const Strides &of_g = p.g_strides, &of_x = p.x_strides;
    const Value g = convert<Value>(p.g[batch * of_g.batch + channel * of_g.channel + (begin + r) * of_g.position]);
    if constexpr (!HAS_SILU) return g;
    Value z = HAS_BIAS ? convert<Value>(p.bias[channel * p.bias_stride]) : Value(0);
    for (i32 j = 0; j < p.taps; ++j) {
      const i32 at = r - (p.taps - 1) + j;
      const X sample = at < 0 ? p.sequences.state(sequence, channel, at + p.taps - 1)
                              : p.x[batch * of_x.batch + channel * of_x.channel + (begin + at) * of_x.position];
      z += weight(j) * convert<Value>(sample);
    }
    return g * silu_slope(z);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 8) KERNEL_NAME(const __grid_constant__ Params p) {
  const u32 number = blockIdx.x * THREADS + threadIdx.x;
  if (number >= u32(p.count)) return;
  const u32 sequence = p.channels.divide(number), channel = number - sequence * p.channels.divisor;
  Gradient gradient = {p, i64(sequence), i64(channel), 0, 0};
  p.sequences.range(sequence, gradient.begin, gradient.end);
  const i32 states = p.taps - 1;
  DSTATES* const dstates = p.dstates + sequence * p.dstates_strides.batch + channel * p.dstates_strides.channel;
  for (i32 s = 0; s < states; ++s) {
    Value sum = 0;
    for (i32 r = 0; r <= s && r < gradient.end - gradient.begin; ++r) sum += gradient.weight(s - r) * gradient(r);
    dstates[s * p.dstates_strides.position] = convert<DSTATES>(sum);
  }
}
