// norm_forward: y = epilogue((x - mean) * inverse * scale + bias) with x = prologue(...), for each row the mean and
// inverse = 1 / sqrt(average of (x - mean)^2 + epsilon); without CENTRED the mean is 0. Scale and bias are the row's
// (ROW_SCALE, ROW_BIAS); those of elements are part of the epilogue. JOINED neighbouring rows, the channels of a group,
// have mean and inverse together.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; SHARING blocks share rows. A row that fits on chip is
// read once: first an estimate of the mean (`shift`), then the sums of x - shift and of its square over the whole row,
// which correct the estimate and give the variance. So neither the rounding of a large mean nor the cancellation of
// squares shows in y. The estimate is the average of the first chunk; where blocks share rows, of TEAM groups from all
// over the row, which each of the blocks reads, so that they agree without meeting; so, too, where they have joined
// rows. Of a row that is too long, chunks are read again, backwards, as the cache still has them. Long rows IN_TURNS are
// spread over many blocks, one after the other, while threads of roles (row_roles.cuh) have the sums of one and y of
// another. Rows whose squares f32 cannot hold are normalised at the end (extreme_rows.cuh).
// Shared memory: RowTeam's; dynamic with STAYS `slots` slots of chunks, with LOOKS_AHEAD the next row.
// Launch: THREADS threads, IN_TURNS of each role, any multiple of SHARING and CLUSTER blocks; where SHARING is more,
// cooperative, with workspace for each block: RowTeam::NUMBERS values, with SHARING blocks for each group of rows, or
// IN_TURNS RowMeeting::AREAS times as many of Told. OVERLAPS_PREVIOUS: as a dependent launch (dependent_launch.cuh).
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; TRAINING: whether the statistics are stored; RUNNING: whether the
// unbiased variance is used; HAS_EXTREMES: whether rows may be extreme (extreme_rows.cuh); ROW_SCALE, ROW_BIAS; STAYS;
// IN_RING: whether the chunks of one row after the other go through a ring of slots; IN_TURNS: whether blocks of a
// cooperative grid share these rows; AGAIN: whether what is read again has a functor of its own, since Prologue stores
// tensors; LOOKS_AHEAD: whether the next row is asked for when a row begins; IS_WHOLE: whether each block has one group
// of rows, and each thread ITEMS groups of a row; OPERANDS_AHEAD: groups before its turn that what Epilogue reads of a
// group is asked for, of rows of one chunk.

#if OVERLAPS_PREVIOUS
#include "include/ptx/dependent_launch.cuh"
#endif
#include "block_team.cuh"
#if HAS_EXTREMES
#include "extreme_rows.cuh"
#endif
#include "include/rows/next_row.cuh"
#include "resident_chunks.cuh"
#include "generated.cuh"

typedef RowTile<Prologue::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX, 1, IS_WHOLE>
    Tile;
typedef RowChunk<Prologue, Tile, AS_READ> Chunk;
typedef Prologue::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH, true, IN_TURNS> Team;
typedef StoredChunk<Epilogue, Tile, OPERANDS_AHEAD> Stored;
#if IN_TURNS
typedef RowMeeting<Team, 2 * Tile::WIDTH, (JOINED > 1)> Meeting;
typedef RowStages<Tile, sizeof(Prologue::Loaded<VECTOR>)> Slots;
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
  Value unbiased;     // from the variance to the unbiased one
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

#if HAS_EXTREMES
typedef LeftRows<Tile> Left;
#else
struct Left {
  __device__ __forceinline__ bool leaves(const RowWalk<Tile>&, const Value (&)[WIDTH]) { return false; }
};
#endif

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

#if IN_TURNS
// Where blocks take turns, the groups of MEMBERS of a team that `shift` is the average of, from all over the row. They
// come with the row's first chunk.
struct Sample {
  static constexpr bool ANY = CENTRED;
  static constexpr int MEMBERS = TEAM < 4 ? TEAM : 4, ROWS = 8;
  static_assert(ROWS > MOST_ROWS, "a row's place is another's when it has been used");

  typedef Again::Loaded<VECTOR> Loaded;
  Loaded (*const places)[MEMBERS * SIDE];  // [ROWS]
  u32 row = 0;                             // of this role, in turn

  __device__ __forceinline__ Sample() : places(memory()) {}

  // Of the next row, by the threads that copy.
  __device__ __forceinline__ void copy(const Params& p, RowWalk<Tile>& walk) {
    const u32 place = row++ % ROWS;
    i64 column;
    if (!ANY || walk.member() >= MEMBERS || !walk.locate(walk.member() * p.step, column)) return;
    Again::copy<VECTOR>(again(p), Again::cursor(again(p), walk.coordinate), column, VECTOR, places[place][threadIdx.x]);
  }

  // Adds what one side has of the next row.
  __device__ __forceinline__ void add(const Params& p, RowWalk<Tile>& walk, Value (&sums)[WIDTH]) {
    const u32 place = row++ % ROWS;
#pragma unroll
    for (int member = 0; member < MEMBERS; ++member) {
      i64 column;
      if (!walk.locate(member * p.step, column)) continue;
      Loaded in;
      Value x[VECTOR];
      Again::fetch<VECTOR>(places[place][member * SIDE + threadIdx.x % SIDE], in);
      Again::finish<VECTOR>(again(p), Again::cursor(again(p), walk.coordinate), column, VECTOR, in, x);
      add_first(x, sums);
    }
  }

 private:
  __device__ __forceinline__ static Loaded (*memory())[MEMBERS * SIDE] {
    __shared__ __align__(16) Loaded all[ROWS][MEMBERS * SIDE];
    return all;
  }
};
#else
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
#endif

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

// From sums; 0 where it is no finite number, since deviations from it would not be either.
__device__ __forceinline__ void finish_mean(const Value (&sums)[WIDTH], Value share, Value (&mean)[WIDTH]) {
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    mean[w] = sums[w] * share;
    if (mean[w] - mean[w] != Value(0)) mean[w] = Value(0);
  }
}

// An estimate of each row's mean, the same in all blocks that share it.
#if IN_TURNS
__device__ __forceinline__ void first_mean(const Params& p, const Meeting& meeting, RowWalk<Tile>& walk, Sample& sample,
                                           Value (&mean)[WIDTH]) {
  Value sums[WIDTH] = {};
  sample.add(p, walk, sums);
  meeting.join_rows<Plus>(sums);
  finish_mean(sums, p.first_share, mean);
}
#else
__device__ __forceinline__ void first_mean(const Params& p, Team& team, RowWalk<Tile>& walk, const Chunk& held,
                                           const Sample& sample, Value (&mean)[WIDTH]) {
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) mean[w] = Value(0);
#if CENTRED
  Value sums[WIDTH] = {};
  first_sums(p, walk, held, sample, sums);
  team.all_of_block<Plus>(sums);
  if constexpr (Tile::APART == 1) team.neighbours<Plus>(sums);
  finish_mean(sums, first_share(p, team, walk), mean);
#endif
}
#endif

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
  Left left;

  __device__ __forceinline__ Rows(const Params& p, Team& team, void* memory, const RowWalk<Tile>& first)
      : p(p), team(team), slots(p.sizes, p.slots), elements(p, memory) {
    slots.begin(elements);
#if !IN_TURNS
    sample = Sample(p, first);
#endif
  }

#if IN_TURNS
  __device__ __forceinline__ void copy(RowWalk<Tile>& walk) {
    slots.copy_row([&](int chunk, int slot) {
      if (chunk == 0) sample.copy(p, walk);
      elements.copy(walk, chunk, slot);
    });
  }

  // Keeps the estimate of a row's mean, if there is one, for its passes.
  __device__ __forceinline__ void begin_row(const Meeting& meeting, u32 number, RowWalk<Tile>& walk) {
    if (!CENTRED || !walk.is_within()) return;
    Value shift[WIDTH];
    slots.wait_for_row();
    first_mean(p, meeting, walk, sample, shift);
    meeting.keep(number, shift);
  }
#endif

  __device__ __forceinline__ void first_pass(RowWalk<Tile>& walk, Chunk& held, Value (&shift)[WIDTH],
                                             Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] = Value(0);
    slots.first_pass(elements, walk, held, [&](i64 chunk, Chunk& held) {
#if !IN_TURNS
      if (chunk == 0) first_mean(p, team, walk, held, sample, shift);
#endif
      held.begin_pass();
      add_deviations(p, walk, chunk, held, shift, sums);
    });
    look_ahead(walk);
  }

  // scale, offset: of the row.
  __device__ __forceinline__ void second_pass(RowWalk<Tile>& walk, Chunk& held, Stored& stored,
                                              const Value (&shift)[WIDTH], const Value (&sums)[2 * WIDTH],
                                              const Value (&scale)[WIDTH], Value (&offset)[WIDTH]) {
    Value correction[WIDTH], variance[WIDTH], spread[WIDTH], inverse[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      correction[w] = CENTRED ? sums[w] * p.share : Value(0);
      variance[w] = sums[WIDTH + w] * p.share - correction[w] * correction[w];
      spread[w] = variance[w] + p.epsilon;
      inverse[w] = inverse_sqrt(spread[w]);
    }
    const bool is_left = left.leaves(walk, spread);
    if (!is_left) store_statistics(walk, shift, correction, variance, inverse);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      if (ROW_SCALE) inverse[w] *= scale[w];
      offset[w] -= correction[w] * inverse[w];
    }
    held.begin_pass();
    slots.second_pass(elements, walk, held, [&](i64 chunk, const Chunk& held) {
      if (!is_left) store_normalised(p, stored, walk, chunk, held, shift, inverse, offset);
    });
  }

 private:
  __device__ __forceinline__ void store_statistics(const RowWalk<Tile>& walk, const Value (&shift)[WIDTH],
                                                   const Value (&correction)[WIDTH], Value (&variance)[WIDTH],
                                                   const Value (&inverse)[WIDTH]) const {
#if TRAINING
#if CENTRED
    Value mean[WIDTH];
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) mean[w] = shift[w] + correction[w];
    store_of_row<Mean, JOINED>(p.mean, walk, mean);
#endif
    store_of_row<Inverse, JOINED>(p.inverse, walk, inverse);
#if RUNNING
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) variance[w] *= p.unbiased;
    store_of_row<Variance, JOINED>(p.variance, walk, variance);
#endif
#endif
  }

  __device__ __forceinline__ void look_ahead(const RowWalk<Tile>& walk) {
#if !IN_TURNS
    RowWalk<Tile> following = walk;
    following.next();
    sample = Sample(p, following);
#endif
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

#if IN_TURNS
// What is kept of the row at hand: the estimate of its mean.
__device__ __forceinline__ void get_shift(const Meeting& meeting, Value (&shift)[WIDTH]) {
#if CENTRED
  meeting.get_kept(shift);
#else
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) shift[w] = Value(0);
#endif
}

// What threads of each role do for one row after the other.
__device__ __forceinline__ void take_turns(const Params& p, Rows& rows, RowWalk<Tile>& walk) {
  Meeting meeting = meeting_of_block<Meeting>(p);
  if (role() == COPYING) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) rows.copy(walk);
  } else if (role() == FIRST_PASS) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      Chunk held;
      Value shift[WIDTH], sums[2 * WIDTH];
      get_shift(meeting, shift);
      rows.first_pass(walk, held, shift, sums);
      meeting.hand_over<Plus>(sums);
    }
  } else if (role() == SECOND_PASS) {
    Value scale[WIDTH] = {}, offset[WIDTH] = {};
    load_parameters(p, walk, scale, offset);
#pragma unroll 1
    while (walk.is_within()) {
      Chunk held;
      Value shift[WIDTH], sums[2 * WIDTH];
      Stored stored(p.after, walk, 0);
      get_shift(meeting, shift);
      meeting.take(sums);
      RowWalk<Tile> following = walk;
      following.next();
      Value next_scale[WIDTH] = {}, next_offset[WIDTH] = {};
      load_parameters(p, following, next_scale, next_offset);  // come while the row before them is stored
      rows.second_pass(walk, held, stored, shift, sums, scale, offset);
      walk = following;
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) {
        scale[w] = next_scale[w];
        offset[w] = next_offset[w];
      }
    }
  } else {
    meeting.begin_turns();
    if (role() == HEARING) {
#pragma unroll 1
      for (; walk.is_within(); walk.next()) meeting.hear<Plus>();
    } else {
      rows.begin_row(meeting, 0, walk);
#pragma unroll 1
      while (walk.is_within()) {
        walk.next();
        rows.begin_row(meeting, meeting.turn + 1, walk);
        meeting.tell<Plus>();
      }
    }
  }
}
#endif

#if HAS_EXTREMES
// Normalises the WIDTH rows at a place; all threads of the block call it.
__device__ __forceinline__ void normalise_extreme(const Params& p, RowWalk<Tile>& walk, i64 place, f32* parts) {
#pragma unroll 1
  for (int w = 0; w < WIDTH; ++w) {
    walk.move_to_row(place);
    const ScaledStatistics of =
        scaled_statistics<CENTRED, Again>(again(p), walk, place * WIDTH + w, p.share, p.epsilon, parts);
    Value scale = Value(1), bias = Value(0);
#if ROW_SCALE
    load_of_one_row<Scale>(p.scale, walk, w, scale);
#endif
#if ROW_BIAS
    load_of_one_row<Bias>(p.bias, walk, w, bias);
#endif
    each_element<Again>(again(p), walk, w, [&](i64 column, Value x) {
      const Value y[1] = {of.deviation(x) * of.inverse * scale + bias};
      Epilogue::apply<1>(p.after, Epilogue::cursor(p.after, walk.coordinate), column, 1, y);
    });
#if TRAINING
    if (threadIdx.x == 0 && threadIdx.y == 0) {
#if CENTRED
      store_of_one_row<Mean, JOINED>(p.mean, walk, w, (of.mean + of.correction) / of.scale);
#endif
      store_of_one_row<Inverse, JOINED>(p.inverse, walk, w, of.inverse * of.scale);
#if RUNNING
      store_of_one_row<Variance, JOINED>(p.variance, walk, w, of.variance / of.scale / of.scale * p.unbiased);
#endif
    }
#endif
  }
}
#endif

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
  take_turns(p, rows, walk);
#else
#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Chunk held;
    Value shift[WIDTH], sums[2 * WIDTH];
    // What is read of the row comes while its threads meet.
    Value scale[WIDTH] = {}, offset[WIDTH] = {};
    rows.first_pass(walk, held, shift, sums);
    Stored stored(p.after, walk, 0);
    load_parameters(p, walk, scale, offset);
    team.all<Plus>(sums);
    team.neighbours<Plus>(sums);
    rows.second_pass(walk, held, stored, shift, sums, scale, offset);
    if (IS_WHOLE) break;  // nothing is kept in registers for a row that does not come
  }
#endif
#if HAS_EXTREMES
#if STAYS || LOOKS_AHEAD
  f32* const parts = reinterpret_cast<f32*>(memory);  // rows have been read
#else
  __shared__ f32 parts[THREADS / WARP_SIZE + 1];
#endif
  each_left(RowWalk<Tile>(p.sizes), rows.left, [&](RowWalk<Tile>& there, i64 place) {
    normalise_extreme(p, there, place, parts);
  });
#endif
#if !IN_TURNS
  team.leave();
#endif
}
