// b2b_causal_conv1d_backward: dx of back-to-back gated causal convolutions, and parts of the filters' gradients.
//
//     h = dy * p_0        dg[l] = skip_bias * h[l] + sum over q < M of weights_mixer[M - 1 - q] * h[l + q]
//     dp_0 = dy * y       dp_1 = dg * p_2       dp_2 = dg * p_1
//     dx[3 d + i, l] = sum over q < P of weights_proj[3 d + i, P - 1 - q] * dp_i[l + q]
//     dweights_proj[3 d + i, P - 1 - q] = sum over b, l of dp_i[l] * x[3 d + i, l - q]
//     dweights_mixer[d, M - 1 - q] = sum over b, l of h[l] * g[l - q]        dskip_bias[d] = sum over b, l of h[l] * g[l]
//
// p and g: as b2b_causal_conv1d.cu computes them. Sums end with their sequence.
//
// Layouts: tensors have any strides; parts of the projection [part][P + 1][3 * channels], whose last rows are unused,
// parts of the mixer [part][M + 1][channels], whose last row is for dskip_bias, both of COMPUTE.
// Block: `chunk` positions of one channel (b2b_lines.cuh), and what lies before and after them as far as its sums read.
// Its parts of the filters' gradients cover its own positions; a warp adds one of them at a time, in a fixed order.
// Shared memory: eight lines of 2 * (projection_halo + mixer_halo) + chunk elements: x[3], h, dp[3], g; then
// taps[3][projection_halo], taps[mixer_halo], all of COMPUTE.
// Launch: THREADS threads; one block for each batch, channel and chunk.
// Macros: X WP WM SKIP Y DY DX COMPUTE (types) THREADS LANES CHANNELS ALONG_CHANNELS X_WIDTH Y_WIDTH DY_WIDTH DX_WIDTH.

#include "b2b_lines.cuh"

struct Params {
  const X* x;
  const WP* projection;
  const WM* mixer;
  const SKIP* skip;
  const Y* y;
  const DY* dy;
  DX* dx;
  Value* projection_parts;
  Value* mixer_parts;
  Strides x_strides, y_strides, dy_strides, dx_strides;
  i64 projection_strides[2], mixer_strides[2], skip_stride;
  Sizes sizes;
};

// The sum over the positions from `first` to `end` of a[l] * b[l - back], by a warp; every lane has it.
__device__ __forceinline__ Value product_sum(const Line& a, const Line& b, i32 back, i32 first, i32 end) {
  Value sum = 0;
  for (i32 position = first + i32(threadIdx.x % 32); position < end; position += 32) {
    sum += *a.at(position) * *b.at(position - back);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  return sum;
}

// The lines and taps of a block, and where its steps begin and end.
struct Block {
  Line x[3], dp[3], h, gates;
  Value *taps, *mixer;
  i32 mixed_begin, first, last, projected_end, end;

  __device__ __forceinline__ Block(const Sizes& sizes, const Work& work, Value* memory) {
    first = work.first, last = first + sizes.chunk;
    mixed_begin = first - sizes.mixer_halo;
    projected_end = last + sizes.projection_halo;
    end = projected_end + sizes.mixer_halo;
    const i32 begin = mixed_begin - sizes.projection_halo, pitch = end - begin;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      x[i] = {memory + i * pitch, begin};
      dp[i] = {memory + (4 + i) * pitch, begin};
    }
    h = {memory + 3 * pitch, begin};
    gates = {memory + 7 * pitch, begin};
    taps = memory + 8 * pitch;
    mixer = taps + 3 * sizes.projection_halo;
  }
};

// h and dp_0, which need p_0.
__device__ __forceinline__ void find_own_gradients(const Params& p, const Work& work, const Block& block) {
  const i32 length = p.sizes.length;
  const DY* const dy = p.dy + work.batch * p.dy_strides.batch + work.channel * p.dy_strides.channel;
  const Y* const y = p.y + work.batch * p.y_strides.batch + work.channel * p.y_strides.channel;
  FOR_GROUPS(position, block.first, block.end) {
    Group gradient, projected = {}, stored;
    load_group<DY_WIDTH>(dy, p.dy_strides, position, length, gradient);
    load_group<Y_WIDTH>(y, p.y_strides, position, length, stored);
    add_taps<false>(projected, block.x[0], position, block.taps, p.sizes.projection_taps, length);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) {
      projected[i] = position + i < length ? projected[i] * gradient[i] : Value(0);
      stored[i] *= gradient[i];
    }
    block.h.put(position, projected);
    if (position < block.projected_end) block.dp[0].put(position, stored);
  }
}

// dp_1 and dp_2, from p_2 and p_1 in their places.
__device__ __forceinline__ void find_gate_gradients(const Params& p, const Work& work, const Block& block) {
  const Value skip = convert<Value>(p.skip[work.channel * p.skip_stride]);
  FOR_GROUPS(position, block.first, block.projected_end) {
    Group sums = {}, own, one, other;
    add_taps<true>(sums, block.h, position, block.mixer, p.sizes.mixer_taps, p.sizes.length);
    block.h.get(position, own);
    block.dp[1].get(position, one);
    block.dp[2].get(position, other);
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) {
      const Value gradient = sums[i] + skip * own[i];
      one[i] *= gradient;
      other[i] *= gradient;
    }
    block.dp[1].put(position, one);
    block.dp[2].put(position, other);
  }
}

__device__ __forceinline__ void store_dx(const Params& p, const Work& work, const Block& block) {
  const Sizes& sizes = p.sizes;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    DX* const dx = p.dx + work.batch * p.dx_strides.batch + (3 * work.channel + i) * p.dx_strides.channel;
    const Value* const taps = block.taps + i * sizes.projection_halo;
    FOR_GROUPS(position, block.first, block.last) {
      Group sums = {};
      add_taps<true>(sums, block.dp[i], position, taps, sizes.projection_taps, sizes.length);
      store_group<DX_WIDTH>(sums, dx, p.dx_strides, position, sizes.length);
    }
  }
}

// The block's parts of the filters' gradients, of which each warp adds one at a time.
__device__ __forceinline__ void store_parts(const Params& p, const Work& work, const Block& block) {
  const Sizes& sizes = p.sizes;
  const i32 own_end = min(block.last, sizes.length), projections = 3 * sizes.projection_taps;
  const i64 channels = sizes.channels.divisor, mixer_pitch = (sizes.mixer_taps + 1) * channels;
  Value* const mixer_part = p.mixer_parts + work.part * mixer_pitch + work.channel;
  Value* const projection_part = p.projection_parts + work.part * 3 * channels * (sizes.projection_taps + 1);
  for (i32 number = threadIdx.x / 32; number < projections + sizes.mixer_taps + 1; number += THREADS / 32) {
    Value* to;
    Value sum;
    if (number < projections) {
      const i32 i = number / sizes.projection_taps, back = number - i * sizes.projection_taps;
      sum = product_sum(block.dp[i], block.x[i], back, block.first, own_end);
      to = projection_part + (sizes.projection_taps - 1 - back) * 3 * channels + 3 * work.channel + i;
    } else {
      const i32 back = number - projections;  // behind the taps: that of dskip_bias
      const bool is_tap = back < sizes.mixer_taps;
      sum = product_sum(block.h, block.gates, is_tap ? back : 0, block.first, own_end);
      to = mixer_part + (is_tap ? sizes.mixer_taps - 1 - back : back) * channels;
    }
    if (threadIdx.x % 32 == 0) *to = sum;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) Value memory[];
  const Work work(p.sizes);
  const Block block(p.sizes, work, memory);
  load_inputs(p, work, block.x, block.end, block.taps);
  __syncthreads();

  find_own_gradients(p, work, block);
  FOR_GROUPS(position, block.mixed_begin, block.projected_end) {
    Group one, other, gate;
    find_gates(p.sizes, block.x, block.taps, position, one, other, gate);
    block.gates.put(position, gate);
    block.dp[1].put(position, other);
    block.dp[2].put(position, one);
  }
  __syncthreads();

  find_gate_gradients(p, work, block);
  __syncthreads();

  store_dx(p, work, block);
  store_parts(p, work, block);
}
