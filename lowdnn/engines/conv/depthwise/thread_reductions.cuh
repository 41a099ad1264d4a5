// Reductions at the exits of a kernel whose threads walk along pixels, each with a few channels of its own: of each
// channel, and of all elements of one value of the functor's.
//
// A thread keeps the totals of its channels in registers and leaves them in the workspace at its end, a warp one total
// of everything; reduction/reduction_combine.cu joins them, as slices. So the order depends on the plan only.
// Operators, computed in f32: include/math/reduction_operators.cuh.

#pragma once

#include "include/math/reduction_operators.cuh"

// Operator over the pixels, for OWNED channels of a thread.
template <class Operator, int OWNED> struct ChannelExit {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* channel_totals;  // [slices][channels]
    i64 all_channels;
  };

  Total totals[OWNED];

  __device__ __forceinline__ ChannelExit() {
#pragma unroll
    for (int v = 0; v < OWNED; ++v) totals[v] = Operator::template neutral<f32>();
  }

  __device__ __forceinline__ void add(int channel, f32 value) {
    totals[channel] = Operator::combine(totals[channel], Operator::prepare(value));
  }

  // `first`: the thread's first channel.
  __device__ __forceinline__ void store(const Output& output, u32 slice, u32 first) const {
    Total* to = output.channel_totals + slice * output.all_channels + first;
#pragma unroll
    for (int v = 0; v < OWNED; ++v) to[v] = totals[v];
  }
};
template <int OWNED> struct ChannelExit<NoOperator, OWNED> {
  static constexpr bool EXISTS = false;

  struct Output {};
  __device__ __forceinline__ void add(int, f32) const {}
  __device__ __forceinline__ void store(const Output&, u32, u32) const {}
};

// Operator over everything.
template <class Operator> struct ThreadExit {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* warp_totals;  // [blocks][warps]
  };

  Total total = Operator::template neutral<f32>();

  __device__ __forceinline__ void add(f32 value) { total = Operator::combine(total, Operator::prepare(value)); }

  // All lanes, whose totals are joined as a tree.
  __device__ __forceinline__ void store(const Output& output) {
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
      total = Operator::combine(total, shuffle_down(total, offset));
    }
    if (threadIdx.x % WARP_SIZE == 0) {
      output.warp_totals[blockIdx.x * (blockDim.x / WARP_SIZE) + threadIdx.x / WARP_SIZE] = total;
    }
  }
};
template <> struct ThreadExit<NoOperator> {
  static constexpr bool EXISTS = false;

  struct Output {};
  __device__ __forceinline__ void add(f32) const {}
  __device__ __forceinline__ void store(const Output&) const {}
};

// Both of them.
template <int OWNED, class ChannelOperator, class WholeOperator> struct ThreadExits {
  typedef ChannelExit<ChannelOperator, OWNED> Channels;
  typedef ThreadExit<WholeOperator> Whole;
  static constexpr bool EXIST = Channels::EXISTS || Whole::EXISTS;

  struct Output : Channels::Output, Whole::Output {};

  Channels channels;
  Whole whole;

  // Hands WIDTH values to the functor, and adds what it hands back of the first `valid`: of neighbouring channels, or
  // of one channel (IS_RUN).
  template <class Functor, int WIDTH, bool IS_RUN>
  __device__ __forceinline__ void apply(const typename Functor::Args& arguments, const typename Functor::Cursor& cursor,
                                        i64 along, i32 valid, const f32 (&values)[WIDTH]) {
    if constexpr (EXIST) {
      f32 exits[WIDTH];
      Functor::template apply<WIDTH>(arguments, cursor, along, valid, values, exits);
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        if (v >= valid) continue;
        channels.add(IS_RUN ? 0 : v, exits[v]);
        whole.add(exits[v]);
      }
    } else {
      Functor::template apply<WIDTH>(arguments, cursor, along, valid, values);
    }
  }
};
