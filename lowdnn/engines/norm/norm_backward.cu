// norm_backward: for each row, with xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// Without CENTRED the mean is 0 and average(g) is left out. A scale with one element for each row is a factor behind it
// all: then the sums that dx needs are of dy * xhat and of dy, which are the row's own gradients (SCALE_GRADIENT,
// BIAS_GRADIENT). JOINED neighbouring rows, the channels of a group, have mean, inverse and averages together, these of
// the rows' sums times their scales.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; SHARING blocks share rows. A row that fits on chip is
// read once; of a longer one chunks are read again. Long rows IN_TURNS are spread over many blocks, one after the other,
// while threads of roles (row_roles.cuh) have the sums of one and dx of another.
// Shared memory: RowTeam's; dynamic with STAYS `slots` slots of chunks of x, then of dy, with LOOKS_AHEAD the next row
// of both.
// Launch: THREADS threads, IN_TURNS of each role, any multiple of SHARING and CLUSTER blocks; where SHARING is more,
// cooperative, with workspace for each block: RowTeam::NUMBERS values, with SHARING blocks for each group of rows, or
// IN_TURNS RowMeeting::AREAS times as many of Told.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether each element has a scale; ROW_SCALE: whether each
// row has; SCALE_GRADIENT, BIAS_GRADIENT; STAYS; IN_RING: whether the chunks of one row after the other go through a
// ring of slots; IN_TURNS: whether blocks of a cooperative grid share these rows; AGAIN: whether what is read again has
// a functor of its own, since Prologue stores tensors; LOOKS_AHEAD: whether the next row is asked for when a row begins.

#include "block_team.cuh"
#include "include/rows/next_row.cuh"
#include "resident_chunks.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH, true, IN_TURNS> Team;
#if !AGAIN
typedef Prologue Again;
#endif

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value share;  // 1 / elements of a row
  i64 slots;
#if SHARING > CLUSTER
  Value* partials;
#endif
  Data::Args x;
  Prologue::Args dy;
  Epilogue::Args dx;
  Inverse::Args inverse;
#if CENTRED
  Mean::Args mean;
#endif
#if SCALED || ROW_SCALE
  Scale::Args scale;
#endif
#if SCALE_GRADIENT
  ScaleGradient::Args scale_gradient;
#endif
#if BIAS_GRADIENT
  BiasGradient::Args bias_gradient;
#endif
#if AGAIN
  Again::Args again;
#endif
};

constexpr int WIDTH = Tile::WIDTH;

__device__ __forceinline__ const Again::Args& again(const Params& p) {
#if AGAIN
  return p.again;
#else
  return p.dy;
#endif
}

#if IN_TURNS
typedef RowMeeting<Team, 2 * Tile::WIDTH, false> Meeting;
typedef RowStages<Tile, sizeof(Data::Loaded<VECTOR>) + sizeof(Prologue::Loaded<VECTOR>)> Slots;
#elif IN_RING
typedef RowRing<Tile> Slots;
#else
typedef ChunkSlots<Tile, STAYS> Slots;
#endif

// A chunk's scales, from dy to g.
template <bool ANY> struct Scales {
  __device__ __forceinline__ Scales(const Params&, RowWalk<Tile>&, i64) {}
  template <class Group> __device__ __forceinline__ void apply(Group, Value (&)[Group::SIZE]) const {}
};
#if SCALED
template <> struct Scales<true> {
  RowChunk<Scale, Tile, false> chunk;

  __device__ __forceinline__ Scales(const Params& p, RowWalk<Tile>& walk, i64 number) {
    chunk.load(p.scale, walk, number);
  }
  template <class Group> __device__ __forceinline__ void apply(Group group, Value (&g)[Group::SIZE]) const {
#pragma unroll
    for (int v = 0; v < Group::SIZE; ++v) g[v] *= chunk.values[group][v];
  }
};
#endif
// Where x and dy are held as they are read, scales are read whenever they are used: the cache has them.
typedef Scales<AS_READ> ScalesOnUse;

// What a thread holds of its rows: x and dy as they are read, or the values of x - mean and dy, then of g.
struct Operands {
  RowChunk<Data, Tile, AS_READ> x;
  RowChunk<Prologue, Tile, AS_READ> dy;
  Value mean[WIDTH] = {};

  template <class Same>
  __device__ __forceinline__ void take(const Params& p, const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       const ReadChunk<Data, Tile>& read_x, const ReadChunk<Same, Tile>& read_dy) {
    x.take(p.x, walk, chunk, read_x);
    dy.take(args, walk, chunk, read_dy);
    centre(walk, chunk);
  }

  // From values of x to deviations.
  __device__ __forceinline__ void centre(RowWalk<Tile>& walk, i64 chunk) {
#if !AS_READ
    walk.each(chunk, [&](auto group, i64) { centre(x.values[group]); });
#endif
  }

  // From values of dy to g.
  __device__ __forceinline__ void scale(const Params& p, RowWalk<Tile>& walk, i64 chunk) {
#if !AS_READ
    const Scales<true> scales(p, walk, chunk);
    walk.each(chunk, [&](auto group, i64) { scales.apply(group, dy.values[group]); });
#endif
  }

  __device__ __forceinline__ void begin_pass() {
    x.begin_pass();
    dy.begin_pass();
  }

  template <class Group>
  __device__ __forceinline__ void get(const Params& p, Group group, Value (&deviation)[Group::SIZE],
                                      Value (&dy_of)[Group::SIZE]) const {
    x.get(p.x, group, deviation);
    dy.get(p.dy, group, dy_of);
#if AS_READ
    centre(deviation);
#endif
  }

 private:
  // From x to its deviation.
  template <int SIZE> __device__ __forceinline__ void centre(Value (&of_group)[SIZE]) const {
#pragma unroll
    for (int v = 0; v < SIZE; ++v) of_group[v] -= mean[v % WIDTH];
  }
};

// What a thread reads of its rows: from shared memory where chunks stay there, or the next row was asked for.
struct Elements {
  const Params& p;
  const StayingChunks<Data, Tile, STAYS> staying_x;
  const StayingChunks<Prologue, Tile, STAYS> staying_dy;
  NextRow<Data, Tile, LOOKS_AHEAD> next_x;
  NextRow<Prologue, Tile, LOOKS_AHEAD> next_dy;
  RowWalk<Tile> ahead;  // the next row

  __device__ __forceinline__ Elements(const Params& p, void* memory)
      : p(p), staying_x(memory, p.slots), staying_dy(staying_x.end(), p.slots), next_x(memory), next_dy(next_x.end()),
        ahead(p.sizes) {
    ahead.begin();
    copy_next();
  }

  __device__ __forceinline__ void copy(RowWalk<Tile>& walk, i64 chunk, int slot) const {
    staying_x.copy(p.x, walk, chunk, slot);
    staying_dy.copy(p.dy, walk, chunk, slot);
  }

  __device__ __forceinline__ void load(RowWalk<Tile>& walk, i64 chunk, int slot, Operands& held) {
#if LOOKS_AHEAD
    next_x.load(p.x, walk, held.x);
    next_dy.load(p.dy, walk, held.dy);
    held.centre(walk, chunk);
    ahead.next();
    copy_next();
#else
    read<Prologue>(p.dy, walk, chunk, slot, held);
#endif
    held.scale(p, walk, chunk);
  }

  __device__ __forceinline__ void load_again(RowWalk<Tile>& walk, i64 chunk, int slot, Operands& held) const {
    read<Again>(again(p), walk, chunk, slot, held);
    held.scale(p, walk, chunk);
  }

 private:
  template <class Same>
  __device__ __forceinline__ void read(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot,
                                       Operands& held) const {
    auto&& read_x = held.x.template reading<Data>();
    auto&& read_dy = held.dy.template reading<Same>();
    staying_x.load(p.x, walk, chunk, slot, read_x);
    staying_dy.load(args, walk, chunk, slot, read_dy);
    held.take(p, args, walk, chunk, read_x, read_dy);
  }

  __device__ __forceinline__ void copy_next() {
    next_x.copy(p.x, ahead);
    next_dy.copy(p.dy, ahead);
  }
};

// Adds what a chunk has of each row: g, then its products with the deviations.
__device__ __forceinline__ void add_products(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& held,
                                             Value (&sums)[2 * WIDTH]) {
  const ScalesOnUse scales(p, walk, chunk);
  walk.each(chunk, [&](auto group, i64) {
    Value deviation[group.SIZE], g[group.SIZE];
    held.get(p, group, deviation, g);
    scales.apply(group, g);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      sums[v % WIDTH] += g[v];
      sums[WIDTH + v % WIDTH] += g[v] * deviation[v];
    }
  });
}

// dx = (g * of_g + (x - mean) * of_x + constant) * inverse: what the row has of the formula is in four numbers. None of
// them has the square of inverse, which f32 cannot hold where rows are extreme.
struct Gradient {
  Value of_g[WIDTH], of_x[WIDTH], constant[WIDTH], inverse[WIDTH];

  // scale: of the row, with ROW_SCALE.  averages: of g and of g * xhat, where g has the scale if rows are joined.
  __device__ __forceinline__ Gradient(const Value (&of_row)[WIDTH], const Value (&scale)[WIDTH],
                                      const Value (&averages)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      inverse[w] = of_row[w];
      of_g[w] = ROW_SCALE ? scale[w] : Value(1);
      const Value factor = JOINED > 1 ? Value(1) : of_g[w];
      of_x[w] = -factor * averages[WIDTH + w] * inverse[w];
      constant[w] = -factor * averages[w];
    }
  }

  __device__ __forceinline__ void store(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& held) const {
    const ScalesOnUse scales(p, walk, chunk);
    store_chunk<Epilogue, Value>(p.dx, walk, chunk, [&](auto group, auto& dx) {
      Value deviation[group.SIZE];
      held.get(p, group, deviation, dx);
      scales.apply(group, dx);
#pragma unroll
      for (int v = 0; v < group.SIZE; ++v) {
        Value rest = deviation[v] * of_x[v % WIDTH];
        if (CENTRED) rest += constant[v % WIDTH];
        dx[v] = (dx[v] * of_g[v % WIDTH] + rest) * inverse[v % WIDTH];
      }
    });
  }
};

// dscale and dbias of rows that have a scale and a bias each.
__device__ __forceinline__ void store_row_gradients(const Params& p, const RowWalk<Tile>& walk,
                                                    const Value (&sums)[2 * WIDTH]) {
  Value of_bias[WIDTH], of_scale[WIDTH];
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) {
    of_bias[w] = sums[w];
    of_scale[w] = sums[WIDTH + w];
  }
#if SCALE_GRADIENT
  store_of_row<ScaleGradient>(p.scale_gradient, walk, of_scale);
#endif
#if BIAS_GRADIENT
  store_of_row<BiasGradient>(p.bias_gradient, walk, of_bias);
#endif
}

// What a block has of its rows, and does with them: the first pass over one gives its sums, the second one dx.
struct Rows {
  const Params& p;
  Slots slots;
  Elements elements;

  __device__ __forceinline__ Rows(const Params& p, void* memory) : p(p), slots(p.sizes, p.slots), elements(p, memory) {
    slots.begin(elements);
  }

  __device__ __forceinline__ void first_pass(RowWalk<Tile>& walk, Operands& held, Value (&sums)[2 * WIDTH]) {
    slots.first_pass(elements, walk, held, [&](i64 chunk, const Operands& held) {
      add_products(p, walk, chunk, held, sums);
    });
  }

  // sums: of all that is in the row; JOINED ones are not joined.
  __device__ __forceinline__ void second_pass(Team& team, RowWalk<Tile>& walk, Operands& held,
                                              const Value (&inverse)[WIDTH], const Value (&scale)[WIDTH],
                                              Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sums[WIDTH + w] *= inverse[w];
    store_row_gradients(p, walk, sums);
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] *= ROW_SCALE && JOINED > 1 ? p.share * scale[k % WIDTH] : p.share;
    team.neighbours<Plus>(sums);

    const Gradient gradient(inverse, scale, sums);
    held.begin_pass();
    slots.second_pass(elements, walk, held, [&](i64 chunk, const Operands& held) {
      gradient.store(p, walk, chunk, held);
    });
  }
};

__device__ __forceinline__ void load_mean(const Params& p, const RowWalk<Tile>& walk, Value (&mean)[WIDTH]) {
#if CENTRED
  load_of_row<Mean, JOINED>(p.mean, walk, mean);
#endif
}

__device__ __forceinline__ void load_scale(const Params& p, const RowWalk<Tile>& walk, Value (&scale)[WIDTH]) {
#if ROW_SCALE
  load_of_row<Scale>(p.scale, walk, scale);
#endif
}

#if IN_TURNS
// What is read of a row for its second pass.
struct OfRow {
  Value mean[WIDTH] = {}, inverse[WIDTH] = {}, scale[WIDTH] = {};

  __device__ __forceinline__ OfRow(const Params& p, const RowWalk<Tile>& walk) {
    load_mean(p, walk, mean);
    load_of_row<Inverse, JOINED>(p.inverse, walk, inverse);
    load_scale(p, walk, scale);
  }
};

// What threads of each role do for one row after the other.
__device__ __forceinline__ void take_turns(const Params& p, Team& team, Rows& rows, RowWalk<Tile>& walk) {
  Meeting meeting = meeting_of_block<Meeting>(p);
  if (role() == COPYING) {
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      rows.slots.copy_row([&](int chunk, int slot) { rows.elements.copy(walk, chunk, slot); });
    }
  } else if (role() == FIRST_PASS) {
    Operands held;
    load_mean(p, walk, held.mean);
#pragma unroll 1
    while (walk.is_within()) {
      Value sums[2 * WIDTH] = {};
      rows.first_pass(walk, held, sums);
      walk.next();
      load_mean(p, walk, held.mean);  // comes while the row before it is handed over
      meeting.hand_over<Plus>(sums);
    }
  } else if (role() == SECOND_PASS) {
    OfRow of_row(p, walk);
#pragma unroll 1
    while (walk.is_within()) {
      Operands held;
      Value sums[2 * WIDTH];
      meeting.take(sums);
      RowWalk<Tile> following = walk;
      following.next();
      const OfRow next(p, following);  // comes while the row before it is stored
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) held.mean[w] = of_row.mean[w];
      rows.second_pass(team, walk, held, of_row.inverse, of_row.scale, sums);
      walk = following;
      of_row = next;
    }
  } else {
    meeting.begin_turns();
#pragma unroll 1
    for (; walk.is_within(); walk.next()) {
      if (role() == TELLING) meeting.tell<Plus>();
      else meeting.hear<Plus>();
    }
  }
}
#endif

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  Team team = team_of_block<Team>(p);
  extern __shared__ __align__(16) u8 memory[];
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  Rows rows(p, memory);

#if IN_TURNS
  take_turns(p, team, rows, walk);
#else
#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Operands held;
    Value inverse[WIDTH] = {}, scale[WIDTH] = {}, sums[2 * WIDTH] = {};
    load_mean(p, walk, held.mean);
    load_of_row<Inverse, JOINED>(p.inverse, walk, inverse);
    rows.first_pass(walk, held, sums);
    load_scale(p, walk, scale);  // comes while the row's threads meet
    team.all<Plus>(sums);
    rows.second_pass(team, walk, held, inverse, scale, sums);
  }
  team.leave();
#endif
}
