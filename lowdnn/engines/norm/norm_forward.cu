// norm_forward: y = epilogue((x - mean) * inverse * scale + bias) with x = prologue(...), for each row the mean and
// inverse = 1 / sqrt(average of (x - mean)^2 + epsilon); without CENTRED the mean is 0. Scale and bias are the row's
// (ROW_SCALE, ROW_BIAS); those of elements are part of the epilogue. JOINED neighbouring rows, the channels of a group,
// have mean and inverse together.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; SHARING blocks share rows. A row that fits on chip is
// read once: first an estimate of the mean (`shift`), then the sums of x - shift and of its square over the whole row,
// which correct the estimate and give the variance. So neither the rounding of a large mean nor the cancellation of
// squares shows in y. The estimate is the average of the first chunk; where blocks share rows, of TEAM groups from all
// over the row, which each of the blocks reads, so that they agree without meeting; so, too, where they have joined
// rows. Of a row that is too long, chunks are read again, backwards, as the cache still has them. Long rows IN_TURNS are
// spread over many blocks, one after the other, while threads of two roles have the sums of one and y of another.
// Shared memory: RowTeam's; dynamic with STAYS `slots` slots of chunks, with LOOKS_AHEAD the next row.
// Launch: THREADS threads, IN_TURNS of two roles, any multiple of SHARING and CLUSTER blocks; where SHARING is more,
// cooperative, with workspace for each block: RowTeam::NUMBERS values, with SHARING blocks for each group of rows, or
// IN_TURNS RowTeam::AREAS times as many of Told. OVERLAPS_PREVIOUS: as a dependent launch (dependent_launch.cuh).
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; TRAINING: whether the statistics are stored; RUNNING: whether the
// unbiased variance is used; ROW_SCALE, ROW_BIAS; STAYS; IN_RING: whether the chunks of one row after the other go
// through a ring of slots; IN_TURNS: whether blocks of a cooperative grid share these rows; AGAIN: whether what is read
// again has a functor of its own, since Prologue stores tensors; LOOKS_AHEAD: whether the next row is asked for when a
// row begins; IS_WHOLE: whether each block has one group of rows, and each thread ITEMS groups of a row; OPERANDS_AHEAD:
// groups before its turn that what Epilogue reads of a group is asked for, of rows of one chunk.

#if OVERLAPS_PREVIOUS
#include "include/dependent_launch.cuh"
#endif
#include "include/block_team.cuh"
#include "include/next_row.cuh"
#include "include/staying_chunks.cuh"
#include "generated.cuh"

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX, 1, IS_WHOLE>
    Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH, true, IN_TURNS> Team;
typedef StoredChunk<Epilogue, Tile, OPERANDS_AHEAD> Stored;
#if IN_TURNS
typedef RowStages<Tile> Slots;
#elif IN_RING
typedef RowRing<Tile> Slots;
#else
typedef ChunkSlots<Tile, STAYS> Slots;
#endif
#if !AGAIN
typedef Prologue Again;
#endif

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value epsilon;
  Value first_share;  // 1 / elements that `shift` is the average of, of a row without a skew
  Value share;        // 1 / elements of a row
  Value unbiased;     // elements of a row / (elements - 1)
  i64 slots;
  i64 step;  // groups from one of those that `shift` is the average of to the next
#if SHARING > CLUSTER
  Value* partials;
#endif
  Prologue::Args before;
#if AGAIN
  Again::Args again;
#endif
  Epilogue::Args after;
#if ROW_SCALE
  Scale::Args scale;
#endif
#if ROW_BIAS
  Bias::Args bias;
#endif
#if TRAINING
#if CENTRED
  Mean::Args mean;
#endif
  Inverse::Args inverse;
#if RUNNING
  Variance::Args variance;
#endif
#endif
};

constexpr int WIDTH = Tile::WIDTH;

// Adds what a chunk has of each row: the deviations from `shift`, then their squares.
__device__ __forceinline__ void add_deviations(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Chunk& held,
                                               const Value (&shift)[WIDTH], Value (&sums)[2 * WIDTH]) {
  walk.each(chunk, [&](auto group, i64) {
    Value deviation[group.SIZE];
    held.get(p.before, group, deviation);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      deviation[v] -= shift[v % WIDTH];
      sums[v % WIDTH] += deviation[v];
      sums[WIDTH + v % WIDTH] += deviation[v] * deviation[v];
    }
  });
}

__device__ __forceinline__ const Again::Args& again(const Params& p) {
#if AGAIN
  return p.again;
#else
  return p.before;
#endif
}

__device__ __forceinline__ void add_first(const Value (&x)[VECTOR], Value (&sums)[WIDTH]) {
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) sums[v % WIDTH] += x[v];
}

// Where blocks share rows, or have joined ones, the group of each member that `shift` is the average of: of the shared
// row, or of the first joined one, whose mean is no further from that of all than their deviation times the root of
// their number. It is asked for a row ahead, so that nothing waits for it when the row is there.
struct Sample {
  static constexpr bool ANY = CENTRED && CLUSTER * SHARING > 1;

  Again::Loaded<VECTOR> in = {};

  Sample() = default;
  __device__ __forceinline__ Sample(const Params& p, const RowWalk<Tile>& of) {
    RowWalk<Tile> walk = of.first_of_cluster();
    i64 column;
    if (!ANY || !locate(p, walk, column)) return;
    Again::load<VECTOR>(again(p), Again::cursor(again(p), walk.coordinate), column, VECTOR, in);
  }

  __device__ __forceinline__ void add(const Params& p, const RowWalk<Tile>& of, Value (&sums)[WIDTH]) const {
    RowWalk<Tile> walk = of.first_of_cluster();
    i64 column;
    Value x[VECTOR];
    if (!locate(p, walk, column)) return;
    Again::finish<VECTOR>(again(p), Again::cursor(again(p), walk.coordinate), column, VECTOR, in, x);
    add_first(x, sums);
  }

 private:
  __device__ __forceinline__ static bool locate(const Params& p, RowWalk<Tile>& walk, i64& column) {
    return walk.locate(walk.member() * p.step, column);
  }
};

// The sums of what `shift` is the average of: the first chunk's whole groups, which are held, or the sample.
__device__ __forceinline__ void first_sums(const Params& p, RowWalk<Tile>& walk, const Chunk& held,
                                           const Sample& sample, Value (&sums)[WIDTH]) {
  if constexpr (Sample::ANY) {
    sample.add(p, walk, sums);
  } else {
    walk.each_whole(0, [&](auto group, i64) {
      Value x[VECTOR];
      held.get(p.before, group, x);
      add_first(x, sums);
    });
  }
}

// 1 / elements that `shift` is the average of. Of rows with a skew one may have a group less than its neighbour.
__device__ __forceinline__ Value first_share(const Params& p, Team& team, const RowWalk<Tile>& walk) {
#if HAS_SKEW
  const i64 groups = walk.first_of_cluster().groups(), most = TEAM * (Sample::ANY ? 1 : ITEMS);
  Value elements[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) elements[w] = Value((groups < most ? groups : most) * VECTOR);
  if constexpr (Tile::APART == 1) team.neighbours<Plus>(elements);
  return reciprocal(elements[0]);
#else
  return p.first_share;
#endif
}

// What a thread reads of its rows: from shared memory where chunks stay there, or the next row was asked for.
struct Elements {
  const Params& p;
  const StayingChunks<Prologue, Tile, STAYS> staying;
  NextRow<Prologue, Tile, LOOKS_AHEAD> next;
  RowWalk<Tile> ahead;  // the next row

  __device__ __forceinline__ Elements(const Params& p, void* memory)
      : p(p), staying(memory, p.slots), next(memory), ahead(p.sizes) {
    ahead.begin();
    next.copy(p.before, ahead);
  }

  __device__ __forceinline__ void copy(RowWalk<Tile>& walk, i64 chunk, int slot) const {
    staying.copy(p.before, walk, chunk, slot);
  }

  __device__ __forceinline__ void load(RowWalk<Tile>& walk, i64 chunk, int slot, Chunk& held) {
#if LOOKS_AHEAD
    next.load(p.before, walk, held);
    ahead.next();
    next.copy(p.before, ahead);
#else
    read<Prologue>(p.before, walk, chunk, slot, held);
#endif
  }

  __device__ __forceinline__ void load_again(RowWalk<Tile>& walk, i64 chunk, int slot, Chunk& held) const {
    read<Again>(again(p), walk, chunk, slot, held);
  }

 private:
  template <class Same>
  __device__ __forceinline__ void read(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot,
                                       Chunk& held) const {
    auto&& read = held.template reading<Same>();
    staying.load(args, walk, chunk, slot, read);
    held.take(args, walk, chunk, read);
  }
};

// An estimate of each row's mean, the same in all blocks that share it; 0 where it is no finite number, since
// deviations from it would not be either.
__device__ __forceinline__ void first_mean(const Params& p, Team& team, RowWalk<Tile>& walk, const Chunk& held,
                                           const Sample& sample, Value (&mean)[WIDTH]) {
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) mean[w] = Value(0);
#if CENTRED
  Value sums[WIDTH] = {};
  first_sums(p, walk, held, sample, sums);
  team.all_of_block<Plus>(sums);
  if constexpr (Tile::APART == 1) team.neighbours<Plus>(sums);
  const Value share = first_share(p, team, walk);
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    mean[w] = sums[w] * share;
    if (mean[w] - mean[w] != Value(0)) mean[w] = Value(0);
  }
#endif
}

// y = (x - shift) * factor + offset: what corrects the shift is part of the offset, an operation for a row instead of
// one for each element.
__device__ __forceinline__ void store_normalised(const Params& p, Stored& stored, RowWalk<Tile>& walk, i64 chunk,
                                                 const Chunk& held, const Value (&shift)[WIDTH],
                                                 const Value (&factor)[WIDTH], const Value (&offset)[WIDTH]) {
  stored.store<Value>(p.after, walk, chunk, [&](auto group, auto& y) {
    held.get(p.before, group, y);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      y[v] -= shift[v % WIDTH];
      y[v] = CENTRED || ROW_BIAS ? y[v] * factor[v % WIDTH] + offset[v % WIDTH] : y[v] * factor[v % WIDTH];
    }
  });
}

// What a block has of its rows, and does with them: the first pass over one gives its sums, the second one y.
struct Rows {
  const Params& p;
  Team& team;
  Slots slots;
  Elements elements;
  Sample sample;

  __device__ __forceinline__ Rows(const Params& p, Team& team, void* memory, const RowWalk<Tile>& first)
      : p(p), team(team), slots(p.sizes, p.slots), elements(p, memory) {
    slots.begin(elements);
    sample = Sample(p, first);
  }

  __device__ __forceinline__ void first_pass(RowWalk<Tile>& walk, Chunk& held, Value (&shift)[WIDTH],
                                             Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] = Value(0);
    slots.first_pass(elements, walk, held, [&](i64 chunk, Chunk& held) {
      if (chunk == 0) first_mean(p, team, walk, held, sample, shift);
      held.begin_pass();
      add_deviations(p, walk, chunk, held, shift, sums);
    });
    look_ahead(walk);
  }

  // The same estimate of the row's mean without the pass.
  __device__ __forceinline__ void estimate(RowWalk<Tile>& walk, const Chunk& held, Value (&shift)[WIDTH]) {
    first_mean(p, team, walk, held, sample, shift);
    look_ahead(walk);
  }

  // scale, offset: of the row.
  __device__ __forceinline__ void second_pass(RowWalk<Tile>& walk, Chunk& held, Stored& stored,
                                              const Value (&shift)[WIDTH], const Value (&sums)[2 * WIDTH],
                                              const Value (&scale)[WIDTH], Value (&offset)[WIDTH]) {
    Value mean[WIDTH], correction[WIDTH], variance[WIDTH], inverse[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      correction[w] = CENTRED ? sums[w] * p.share : Value(0);
      variance[w] = sums[WIDTH + w] * p.share - correction[w] * correction[w];
      mean[w] = shift[w] + correction[w];
      inverse[w] = inverse_sqrt(variance[w] + p.epsilon);
    }
#if TRAINING
#if CENTRED
    store_of_row<Mean, JOINED>(p.mean, walk, mean);
#endif
    store_of_row<Inverse, JOINED>(p.inverse, walk, inverse);
#if RUNNING
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) variance[w] *= p.unbiased;
    store_of_row<Variance, JOINED>(p.variance, walk, variance);
#endif
#endif
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      if (ROW_SCALE) inverse[w] *= scale[w];
      offset[w] -= correction[w] * inverse[w];
    }
    held.begin_pass();
    slots.second_pass(elements, walk, held, [&](i64 chunk, const Chunk& held) {
      store_normalised(p, stored, walk, chunk, held, shift, inverse, offset);
    });
  }

 private:
  __device__ __forceinline__ void look_ahead(const RowWalk<Tile>& walk) {
    RowWalk<Tile> following = walk;
    following.next();
    sample = Sample(p, following);
  }
};

__device__ __forceinline__ void load_parameters(const Params& p, const RowWalk<Tile>& walk, Value (&scale)[WIDTH],
                                                Value (&offset)[WIDTH]) {
#if ROW_SCALE
  load_of_row<Scale>(p.scale, walk, scale);
#endif
#if ROW_BIAS
  load_of_row<Bias>(p.bias, walk, offset);
#endif
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  Team team = team_of_block<Team>(p);
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
#if OVERLAPS_PREVIOUS
  wait_for_previous_kernel();
  allow_next_kernel();
#endif
  walk.begin();
  Rows rows(p, team, memory, walk);

#if IN_TURNS
  team.begin_turns();
  if (role() == FIRST_PASS) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      Chunk held;
      Value shift[WIDTH], sums[2 * WIDTH];
      rows.first_pass(walk, held, shift, sums);
      team.tell_turn<Plus>(sums);
    }
    return;
  }
#endif
#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Chunk held;
    Value shift[WIDTH], sums[2 * WIDTH];
    // What is read of the row comes while its threads meet.
    Value scale[WIDTH] = {}, offset[WIDTH] = {};
#if IN_TURNS
    load_parameters(p, walk, scale, offset);
    rows.estimate(walk, held, shift);
    Stored stored(p.after, walk, 0);
    team.hear_turn<Plus>(sums);
#else
    rows.first_pass(walk, held, shift, sums);
    Stored stored(p.after, walk, 0);
    load_parameters(p, walk, scale, offset);
    team.all<Plus>(sums);
#endif
    team.neighbours<Plus>(sums);
    rows.second_pass(walk, held, stored, shift, sums, scale, offset);
    if (IS_WHOLE) break;  // nothing is kept in registers for a row that does not come
  }
  team.leave();
}
