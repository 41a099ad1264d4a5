// The stages of a forward norm over rows, shared by norm_forward.cu and norm_forward_pipelined.cu:
//
//   y = epilogue((x - mean) * inverse * scale + bias)   with x = prologue(...)
//   inverse = 1 / sqrt(average of (x - mean)^2 + epsilon)
//
// with a mean and an inverse for each row. Without CENTRED the mean is 0. Scale and bias are the row's (ROW_SCALE,
// ROW_BIAS); those of single elements belong to the epilogue. NORM_GROUP neighbouring rows, the channels of a
// normalisation group, share mean and inverse.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Accuracy: first comes an estimate of the mean (`shift`), then the sums of x - shift and of its square over the whole
// row correct the estimate and give the variance. So neither the rounding of a large mean nor the cancellation of
// squares shows in y. Rows whose squares f32 cannot hold are normalised at the end (extreme_rows.cuh).
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW NORM_GROUP CHUNKED;
// INDEX: u32 below 2^31 rows and groups, else i64; CENTRED; TRAINING: whether the statistics are stored; RUNNING:
// whether the unbiased variance is used; HAS_EXTREMES: whether rows may be extreme; ROW_SCALE, ROW_BIAS: whether each
// row has them; CHUNKS_RESIDENT: whether chunks stay in shared memory; IN_RING: whether the chunks of successive rows
// go through a ring of slots; AGAIN: whether rereading has a functor of its own, since Prologue stores tensors;
// LOOKS_AHEAD: whether the next row is prefetched; IS_WHOLE: whether each block has one group of rows, and each thread
// ITEMS groups of a row; OPERANDS_AHEAD: groups by which Epilogue's operands are prefetched, in rows of one chunk;
// OVERLAPS_PREVIOUS: whether it is a dependent launch (dependent_launch.cuh).

#pragma once

#include "block_team.cuh"
#include "extreme_rows.cuh"
#include "include/rows/next_row.cuh"
#include "include/rows/row_numbers.cuh"
#include "resident_chunks.cuh"
#include "row_peers.cuh"
#include "generated.cuh"

// Optional functors: generated.cuh defines those that the kernel has.
struct Again;
struct Scale;
struct Bias;
struct Mean;
struct Inverse;
struct Variance;
constexpr bool HAS_MEAN = TRAINING && CENTRED, HAS_VARIANCE = TRAINING && RUNNING;

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, NORM_GROUP, ITEMS, SHARING,
                CLUSTER, CHUNKED, INDEX, 1, IS_WHOLE>
    Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef StoredChunk<Epilogue, Tile, OPERANDS_AHEAD> Stored;
typedef Either<AGAIN, Again, Prologue>::Type Reread;
constexpr int WIDTH = Tile::WIDTH;

struct Numbers {
  RowSizes<Tile::RANK> sizes;
  Value epsilon;
  Value first_share;  // 1 / elements in the average `shift`, for rows without a skew
  Value share;        // 1 / elements of a row
  Value unbiased;     // the factor from the variance to the unbiased one
  i64 slots;
  i64 step;  // distance, in groups, of the groups in the average `shift`
};

struct Params : Numbers,
                PartialsOf<Value, Tile::IN_GRID>,
                PeersOf<(PEERS > 1)>,
                ArgsOf<Prologue>,
                ArgsOf<Again, AGAIN>,
                ArgsOf<Epilogue>,
                ArgsOf<Scale, ROW_SCALE>,
                ArgsOf<Bias, ROW_BIAS>,
                ArgsOf<Mean, HAS_MEAN>,
                ArgsOf<Inverse, TRAINING>,
                ArgsOf<Variance, HAS_VARIANCE> {};

// Takes the position of SkippedRows in kernels whose rows cannot be extreme.
struct NoSkippedRows {
  __device__ __forceinline__ bool skips(const RowWalk<Tile>&, const Value (&)[WIDTH]) { return false; }
};
typedef Either<HAS_EXTREMES, SkippedRows<Tile>, NoSkippedRows>::Type Skipped;

// Adds a chunk to each row's sums: of the deviations from `shift`, then of their squares.
__device__ __forceinline__ void add_deviations(const Params& p, RowWalk<Tile>& walk, i64 chunk, Chunk& cached,
                                               const Value (&shift)[WIDTH], Value (&sums)[2 * WIDTH]) {
  cached.begin_pass();
  walk.each(chunk, [&](auto group, i64) {
    Value deviation[group.SIZE];
    cached.get(args_of<Prologue>(p), group, deviation);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      deviation[v] -= shift[v % WIDTH];
      sums[v % WIDTH] += deviation[v];
      sums[WIDTH + v % WIDTH] += deviation[v] * deviation[v];
    }
  });
}

// Adds a group to the sums that `shift` is computed from.
__device__ __forceinline__ void add_first(const Value (&x)[VECTOR], Value (&sums)[WIDTH]) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) sums[v % WIDTH] += x[v];
}

// mean = sums * share, or 0 where that is not finite, since deviations from it would be NaN.
__device__ __forceinline__ void finish_mean(const Value (&sums)[WIDTH], Value share, Value (&mean)[WIDTH]) {
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    mean[w] = sums[w] * share;
    if (mean[w] - mean[w] != Value(0)) mean[w] = Value(0);
  }
}

// Reads the elements of a thread's rows, from shared memory if chunks are resident there or the next row was
// prefetched.
struct Elements {
  const Params& p;
  const ResidentChunks<Prologue, Tile, CHUNKS_RESIDENT> resident;
  NextRow<Prologue, Tile, LOOKS_AHEAD> next;
  RowWalk<Tile> ahead;  // the next row

  __device__ __forceinline__ Elements(const Params& p, void* memory)
      : p(p), resident(memory, p.slots), next(memory), ahead(p.sizes) {
    ahead.begin();
    next.copy(args_of<Prologue>(p), ahead);
  }

  __device__ __forceinline__ void copy(RowWalk<Tile>& walk, i64 chunk, int slot) const {
    resident.copy(args_of<Prologue>(p), walk, chunk, slot);
  }

  __device__ __forceinline__ void load(RowWalk<Tile>& walk, i64 chunk, int slot, Chunk& cached) {
    if constexpr (LOOKS_AHEAD) {
      next.load(args_of<Prologue>(p), walk, cached);
      ahead.next();
      next.copy(args_of<Prologue>(p), ahead);
    } else {
      read<Prologue>(args_of<Prologue>(p), walk, chunk, slot, cached);
    }
  }

  __device__ __forceinline__ void load_again(RowWalk<Tile>& walk, i64 chunk, int slot, Chunk& cached) const {
    read<Reread>(args_of<Reread>(p), walk, chunk, slot, cached);
  }

 private:
  template <class Same>
  __device__ __forceinline__ void read(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot,
                                       Chunk& cached) const {
    auto&& read = cached.template reading<Same>();
    resident.load(args, walk, chunk, slot, read);
    cached.take(args, walk, chunk, read);
  }
};

// y = (x - shift) * factor + offset. The offset includes the correction of the shift, which costs one operation for a
// row instead of one for each element.
__device__ __forceinline__ void store_normalised(const Params& p, Stored& stored, RowWalk<Tile>& walk, i64 chunk,
                                                 const Chunk& cached, const Value (&shift)[WIDTH],
                                                 const Value (&factor)[WIDTH], const Value (&offset)[WIDTH]) {
  stored.store<Value>(args_of<Epilogue>(p), walk, chunk, [&](auto group, auto& y) {
    cached.get(args_of<Prologue>(p), group, y);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      y[v] -= shift[v % WIDTH];
      y[v] = CENTRED || ROW_BIAS ? y[v] * factor[v % WIDTH] + offset[v % WIDTH] : y[v] * factor[v % WIDTH];
    }
  });
}

// The statistics of a thread's rows: mean = shift + correction.
struct Moments {
  Value shift[WIDTH], correction[WIDTH], variance[WIDTH];

  // sums: the deviations from `shift`, then their squares, summed over whole rows.
  __device__ __forceinline__ Moments(const Params& p, const Value (&shift)[WIDTH], const Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      this->shift[w] = shift[w];
      correction[w] = CENTRED ? sums[w] * p.share : Value(0);
      variance[w] = sums[WIDTH + w] * p.share - correction[w] * correction[w];
    }
  }
};

// Joins shift, correction and variance of the parts of a row that ranks have, all of one length: deviations are taken
// from the shift of rank 0. The variance is the average of the parts' variances and of their means' squared distances.
struct JoinedMoments {
  static __device__ __forceinline__ void join(Value (&numbers)[3]) {
    constexpr Value SHARE = Value(1) / PEERS;
    const Value shift = RankLanes::first(numbers[0]);
    const Value distance = numbers[0] - shift + numbers[1];
    const Value correction = RankLanes::sum(distance) * SHARE;
    const Value rest = distance - correction;
    const Value variance = RankLanes::sum(numbers[2] + rest * rest) * SHARE;
    numbers[0] = shift;
    numbers[1] = correction;
    numbers[2] = variance;
  }
};
typedef Either<(PEERS > 1), RowPeers<Tile, Value, 3, JoinedMoments>, NoPeers>::Type Peers;

// Turns the moments of this rank's rows into those of all ranks; false if a rank is missing.
__device__ __forceinline__ bool join_peers(Peers& peers, const RowWalk<Tile>& walk, Moments& moments) {
  if constexpr (PEERS == 1) {
    return true;
  } else {
    Value values[3 * WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      values[w] = moments.shift[w];
      values[WIDTH + w] = moments.correction[w];
      values[2 * WIDTH + w] = moments.variance[w];
    }
    const bool are_there = peers.join(walk, values);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      moments.shift[w] = values[w];
      moments.correction[w] = values[WIDTH + w];
      moments.variance[w] = values[2 * WIDTH + w];
    }
    return are_there;
  }
}

__device__ __forceinline__ void store_statistics(const Params& p, const RowWalk<Tile>& walk, const Moments& of,
                                                 const Value (&inverse)[WIDTH]) {
  Value mean[WIDTH], variance[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) mean[w] = of.shift[w] + of.correction[w];
  store_number<Mean, HAS_MEAN, NORM_GROUP>(p, walk, mean);
  store_number<Inverse, TRAINING, NORM_GROUP>(p, walk, inverse);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) variance[w] = of.variance[w] * p.unbiased;
  store_number<Variance, HAS_VARIANCE, NORM_GROUP>(p, walk, variance);
}

__device__ __forceinline__ void load_parameters(const Params& p, const RowWalk<Tile>& walk, Value (&scale)[WIDTH],
                                                Value (&offset)[WIDTH]) {
  load_number<Scale, ROW_SCALE>(p, walk, scale);
  load_number<Bias, ROW_BIAS>(p, walk, offset);
}

// A block's rows, and the second pass over one of them, which gives y. Slots keep its chunks after the first pass,
// which gives the row's sums.
template <class Slots> struct RowPasses {
  const Params& p;
  Slots slots;
  Elements elements;
  Skipped skipped;

  __device__ __forceinline__ RowPasses(const Params& p, void* memory)
      : p(p), slots(p.sizes, p.slots), elements(p, memory) {
    slots.begin(elements);
  }

  // scale, offset: the row's.  is_known: whether the statistics may be stored.
  __device__ __forceinline__ void second_pass(RowWalk<Tile>& walk, Chunk& cached, Stored& stored, const Moments& of,
                                              const Value (&scale)[WIDTH], Value (&offset)[WIDTH],
                                              bool is_known = true) {
    Value spread[WIDTH], inverse[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      spread[w] = of.variance[w] + p.epsilon;
      inverse[w] = inverse_sqrt(spread[w]);
    }
    const bool is_skipped = skipped.skips(walk, spread);
    if (!is_skipped && is_known) store_statistics(p, walk, of, inverse);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      if (ROW_SCALE) inverse[w] *= scale[w];
      offset[w] -= of.correction[w] * inverse[w];
    }
    cached.begin_pass();
    slots.second_pass(elements, walk, cached, [&](i64 chunk, const Chunk& cached) {
      if (!is_skipped) store_normalised(p, stored, walk, chunk, cached, of.shift, inverse, offset);
    });
  }
};

// Normalises the WIDTH rows at a position; all threads of the block call it.
template <class Source>
__device__ __forceinline__ void normalise_extreme(const Params& p, RowWalk<Tile>& walk, i64 position, f32* parts) {
#pragma unroll 1
  for (int w = 0; w < WIDTH; ++w) {
    walk.move_to_row(position);
    const ScaledStatistics of =
        scaled_statistics<CENTRED, Source>(args_of<Source>(p), walk, position * WIDTH + w, p.share, p.epsilon, parts);
    Value scale = Value(1), bias = Value(0);
    load_one_number<Scale, ROW_SCALE>(p, walk, w, scale);
    load_one_number<Bias, ROW_BIAS>(p, walk, w, bias);
    each_element<Source>(args_of<Source>(p), walk, w, [&](i64 column, Value x) {
      const Value y[1] = {of.deviation(x) * of.inverse * scale + bias};
      Epilogue::apply<1>(args_of<Epilogue>(p), Epilogue::cursor(args_of<Epilogue>(p), walk.coordinate), column, 1, y);
    });
    if (TRAINING && threadIdx.x == 0 && threadIdx.y == 0) {
      store_one_number<Mean, HAS_MEAN, NORM_GROUP>(p, walk, w, Value((of.mean + of.correction) / of.scale));
      store_one_number<Inverse, TRAINING, NORM_GROUP>(p, walk, w, Value(of.inverse * of.scale));
      const Value variance = of.variance / of.scale / of.scale * p.unbiased;
      store_one_number<Variance, HAS_VARIANCE, NORM_GROUP>(p, walk, w, variance);
    }
  }
}

// Shared memory in which the warps of a block reduce numbers at its end: dynamic memory, if there is some, since the
// rows in it are done with.
template <bool IS_DYNAMIC> __device__ __forceinline__ f32* memory_for_extremes(void* dynamic) {
  if constexpr (IS_DYNAMIC) {
    return static_cast<f32*>(dynamic);
  } else {
    __shared__ f32 parts[THREADS / WARP_SIZE + 1];
    return parts;
  }
}

// Normalises, at the kernel's end, the extreme rows that the passes skipped.
template <class Rows>
__device__ __forceinline__ void finish_extremes(const Params& p, const Rows& skipped, void* memory) {
  if constexpr (HAS_EXTREMES) {
    f32* const parts = memory_for_extremes<CHUNKS_RESIDENT || LOOKS_AHEAD>(memory);
    each_skipped(RowWalk<Tile>(p.sizes), skipped, [&](RowWalk<Tile>& there, i64 position) {
      normalise_extreme<Reread>(p, there, position, parts);
    });
  }
}
