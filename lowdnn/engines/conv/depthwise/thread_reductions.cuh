// Reductions in the epilogue of a kernel whose threads walk along pixels, each with a few channels: one value of the
// functor is reduced for each channel, and over all elements.
//
// A thread keeps the totals of its channels in registers and stores them in the workspace at its end; a warp stores one
// total of everything. reduction/reduction_combine.cu combines them as slices. So the order of summation depends only
// on the plan.
// Operators, computed in f32: include/math/reduction_operators.cuh.

#pragma once

#include "include/math/reduction_operators.cuh"

// Reduces over the pixels, for the OWNED channels of a thread.
template <class Operator, int OWNED> struct ChannelReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* channel_totals;  // [slices][channels]
    i64 all_channels;
  };

  Total totals[OWNED];

  __device__ __forceinline__ ChannelReduction() {
#pragma unroll
    for (int v = 0; v < OWNED; ++v) totals[v] = Operator::template neutral<f32>();
  }

  __device__ __forceinline__ void add(int channel, f32 value) {
    totals[channel] = Operator::combine(totals[channel], Operator::prepare(value));
  }

  // first: the thread's first channel.
  __device__ __forceinline__ void store(const Output& output, u32 slice, u32 first) const {
    Total* to = output.channel_totals + slice * output.all_channels + first;
#pragma unroll
    for (int v = 0; v < OWNED; ++v) to[v] = totals[v];
  }
};
template <int OWNED> struct ChannelReduction<NoOperator, OWNED> {
  static constexpr bool EXISTS = false;

  struct Output {};
  __device__ __forceinline__ void add(int, f32) const {}
  __device__ __forceinline__ void store(const Output&, u32, u32) const {}
};

// Reduces over everything.
template <class Operator> struct ThreadReduction {
  typedef typename TotalOf<Operator, f32>::Type Total;
  static constexpr bool EXISTS = true;

  struct Output {
    Total* warp_totals;  // [blocks][warps]
  };

  Total total = Operator::template neutral<f32>();

  __device__ __forceinline__ void add(f32 value) { total = Operator::combine(total, Operator::prepare(value)); }

  // Called by all lanes; their totals are combined in a tree.
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
template <> struct ThreadReduction<NoOperator> {
  static constexpr bool EXISTS = false;

  struct Output {};
  __device__ __forceinline__ void add(f32) const {}
  __device__ __forceinline__ void store(const Output&) const {}
};

// Both reductions of a thread.
template <int OWNED, class ChannelOperator, class WholeOperator> struct ThreadReductions {
  typedef ChannelReduction<ChannelOperator, OWNED> Channels;
  typedef ThreadReduction<WholeOperator> Whole;
  static constexpr bool EXIST = Channels::EXISTS || Whole::EXISTS;

  struct Output : Channels::Output, Whole::Output {};

  Channels channels;
  Whole whole;

  // Hands WIDTH values to the functor, and adds the first `valid` of those that it hands back: values of neighbouring
  // channels, or of one channel (IS_RUN).
  template <class Functor, int WIDTH, bool IS_RUN>
  __device__ __forceinline__ void apply(const typename Functor::Args& arguments, const typename Functor::Cursor& cursor,
                                        i64 along, i32 valid, const f32 (&values)[WIDTH]) {
    if constexpr (EXIST) {
      f32 reductions[WIDTH];
      Functor::template apply<WIDTH>(arguments, cursor, along, valid, values, reductions);
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        if (v >= valid) continue;
        channels.add(IS_RUN ? 0 : v, reductions[v]);
        whole.add(reductions[v]);
      }
    } else {
      Functor::template apply<WIDTH>(arguments, cursor, along, valid, values);
    }
  }
};
