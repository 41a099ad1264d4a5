// b2b_causal_conv1d: back-to-back gated causal convolutions along sequences,
//
//     p_i[l] = sum over q < P of weights_proj[3 d + i, P - 1 - q] * x[3 d + i, l - q]        g = p_1 * p_2
//     y[l] = skip_bias[d] * g[l] + sum over q < M of weights_mixer[d, M - 1 - q] * g[l - q]        y_gated = y * p_0
//
// for each batch and channel d. Elements before a sequence are 0.
//
// Layouts: tensors have any strides; accesses are wide along the positions.
// Block: `chunk` positions of one channel (b2b_lines.cuh). It computes g of its positions and of the ones before it that
// the mixer reads, so x is read a little more than once, and nothing between x and y leaves the chip.
// Shared memory: x[3][mixer_halo + projection_halo + chunk], g[mixer_halo + chunk], taps[3][projection_halo],
// taps[mixer_halo], of COMPUTE.
// Launch: THREADS threads; one block for each batch, channel and chunk.
// Macros: X WP WM SKIP Y GATED COMPUTE (types) HAS_Y THREADS LANES CHANNELS ALONG_CHANNELS X_WIDTH Y_WIDTH GATED_WIDTH.

#include "b2b_lines.cuh"

struct Params {
  const X* x;
  const WP* projection;
  const WM* mixer;
  const SKIP* skip;
  Y* y;
  GATED* gated;
  Strides x_strides, y_strides, gated_strides;
  i64 projection_strides[2], mixer_strides[2], skip_stride;
  Sizes sizes;
};

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) Value memory[];
  const Sizes& sizes = p.sizes;
  const Work work(sizes);
  const i32 length = sizes.length, end = work.first + sizes.chunk;
  const i32 gates_begin = work.first - sizes.mixer_halo, begin = gates_begin - sizes.projection_halo;

  const Line lines[3] = {{memory, begin}, {memory + (end - begin), begin}, {memory + 2 * (end - begin), begin}};
  const Line gates = {memory + 3 * (end - begin), gates_begin};
  Value* const taps = gates.values + (end - gates_begin);
  Value* const mixer = taps + 3 * sizes.projection_halo;

  load_inputs(p, work, lines, end, taps);
  __syncthreads();

  FOR_GROUPS(position, gates_begin, end) {
    Group one, other, gate;
    find_gates(sizes, lines, taps, position, one, other, gate);
    gates.put(position, gate);
  }
  __syncthreads();

  const Value skip = convert<Value>(p.skip[work.channel * p.skip_stride]);
  Y* const y = HAS_Y ? p.y + work.batch * p.y_strides.batch + work.channel * p.y_strides.channel : nullptr;
  GATED* const gated = p.gated + work.batch * p.gated_strides.batch + work.channel * p.gated_strides.channel;
  FOR_GROUPS(position, work.first, end) {
    Group gate, own = {}, sums = {};
    gates.get(position, gate);
    add_taps<false>(sums, gates, position, mixer, sizes.mixer_taps, length);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) sums[i] += skip * gate[i];
    if constexpr (HAS_Y) store_group<Y_WIDTH>(sums, y, p.y_strides, position, length);
    add_taps<false>(own, lines[0], position, taps, sizes.projection_taps, length);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) sums[i] *= own[i];
    store_group<GATED_WIDTH>(sums, gated, p.gated_strides, position, length);
  }
}
