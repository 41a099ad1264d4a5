// The stages of a backward norm over rows, which norm_backward.cu and norm_backward_turns.cu share: for each row, with
// xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// Without CENTRED the mean is 0 and average(g) is left out. A scale with one element for each row is a factor behind it
// all: then the sums that dx needs are of dy * xhat and of dy, which are the row's own gradients (SCALE_GRADIENT,
// BIAS_GRADIENT). JOINED neighbouring rows, the channels of a group, have mean, inverse and averages together, these of
// the rows' sums times their scales.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether each element has a scale; ROW_SCALE: whether each
// row has; SCALE_GRADIENT, BIAS_GRADIENT; STAYS: whether chunks stay in shared memory; IN_RING: whether the chunks of one
// row after the other go through a ring of slots; AGAIN: whether what is read again has a functor of its own, since
// Prologue stores tensors; LOOKS_AHEAD: whether the next row is asked for when a row begins.

#pragma once

#include "block_team.cuh"
#include "include/rows/next_row.cuh"
#include "include/rows/row_numbers.cuh"
#include "resident_chunks.cuh"
#include "generated.cuh"

// Functors that a kernel may be without.
struct Again;
struct Mean;
struct Scale;
struct ScaleGradient;
struct BiasGradient;

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef Either<AGAIN, Again, Prologue>::Type Reread;
constexpr int WIDTH = Tile::WIDTH;

struct Numbers {
  RowSizes<Tile::RANK> sizes;
  Value share;  // 1 / elements of a row
  i64 slots;
};

struct Params : Numbers,
                PartialsOf<Value, Tile::IN_GRID>,
                ArgsOf<Data>,
                ArgsOf<Prologue>,
                ArgsOf<Epilogue>,
                ArgsOf<Inverse>,
                ArgsOf<Mean, CENTRED>,
                ArgsOf<Scale, SCALED || ROW_SCALE>,
                ArgsOf<ScaleGradient, SCALE_GRADIENT>,
                ArgsOf<BiasGradient, BIAS_GRADIENT>,
                ArgsOf<Again, AGAIN> {};

// A chunk's scales, from dy to g.
template <class Source, bool ANY> struct Scales {
  __device__ __forceinline__ Scales(const Params&, RowWalk<Tile>&, i64) {}
  template <class Group> __device__ __forceinline__ void apply(Group, Value (&)[Group::SIZE]) const {}
};
template <class Source> struct Scales<Source, true> {
  RowChunk<Source, Tile, false> chunk;

  __device__ __forceinline__ Scales(const Params& p, RowWalk<Tile>& walk, i64 number) {
    chunk.load(args_of<Source>(p), walk, number);
  }
  template <class Group> __device__ __forceinline__ void apply(Group group, Value (&g)[Group::SIZE]) const {
#pragma unroll
    for (int v = 0; v < Group::SIZE; ++v) g[v] *= chunk.values[group][v];
  }
};
// Where x and dy are held as they are read, scales are read whenever they are used: the cache has them.
typedef Scales<Scale, SCALED && !AS_READ> ScalesOnce;
typedef Scales<Scale, SCALED && AS_READ> ScalesOnUse;

// What a thread holds of its rows: x and dy as they are read, or the values of x - mean and dy, then of g.
struct Operands {
  RowChunk<Data, Tile, AS_READ> x;
  RowChunk<Prologue, Tile, AS_READ> dy;
  Value mean[WIDTH] = {};

  template <class Same>
  __device__ __forceinline__ void take(const Params& p, const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       const ReadChunk<Data, Tile>& read_x, const ReadChunk<Same, Tile>& read_dy) {
    x.take(args_of<Data>(p), walk, chunk, read_x);
    dy.take(args, walk, chunk, read_dy);
    centre(walk, chunk);
  }

  // From values of x to deviations.
  __device__ __forceinline__ void centre(RowWalk<Tile>& walk, i64 chunk) { centre_values(x, walk, chunk); }

  // From values of dy to g.
  __device__ __forceinline__ void scale(const Params& p, RowWalk<Tile>& walk, i64 chunk) {
    scale_values(dy, p, walk, chunk);
  }

  __device__ __forceinline__ void begin_pass() {
    x.begin_pass();
    dy.begin_pass();
  }

  template <class Group>
  __device__ __forceinline__ void get(const Params& p, Group group, Value (&deviation)[Group::SIZE],
                                      Value (&dy_of)[Group::SIZE]) const {
    x.get(args_of<Data>(p), group, deviation);
    dy.get(args_of<Prologue>(p), group, dy_of);
    if constexpr (AS_READ) centre(deviation);
  }

 private:
  // What is held as it was read has no values yet.
  template <class Chunk>
  __device__ __forceinline__ void centre_values(Chunk& held, RowWalk<Tile>& walk, i64 chunk) const {
    if constexpr (!AS_READ) walk.each(chunk, [&](auto group, i64) { centre(held.values[group]); });
  }
  template <class Chunk>
  __device__ __forceinline__ void scale_values(Chunk& held, const Params& p, RowWalk<Tile>& walk, i64 chunk) const {
    if constexpr (!AS_READ) {
      const ScalesOnce scales(p, walk, chunk);
      walk.each(chunk, [&](auto group, i64) { scales.apply(group, held.values[group]); });
    }
  }

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
    staying_x.copy(args_of<Data>(p), walk, chunk, slot);
    staying_dy.copy(args_of<Prologue>(p), walk, chunk, slot);
  }

  __device__ __forceinline__ void load(RowWalk<Tile>& walk, i64 chunk, int slot, Operands& held) {
    if constexpr (LOOKS_AHEAD) {
      next_x.load(args_of<Data>(p), walk, held.x);
      next_dy.load(args_of<Prologue>(p), walk, held.dy);
      held.centre(walk, chunk);
      ahead.next();
      copy_next();
    } else {
      read<Prologue>(args_of<Prologue>(p), walk, chunk, slot, held);
    }
    held.scale(p, walk, chunk);
  }

  __device__ __forceinline__ void load_again(RowWalk<Tile>& walk, i64 chunk, int slot, Operands& held) const {
    read<Reread>(args_of<Reread>(p), walk, chunk, slot, held);
    held.scale(p, walk, chunk);
  }

 private:
  template <class Same>
  __device__ __forceinline__ void read(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot,
                                       Operands& held) const {
    auto&& read_x = held.x.template reading<Data>();
    auto&& read_dy = held.dy.template reading<Same>();
    staying_x.load(args_of<Data>(p), walk, chunk, slot, read_x);
    staying_dy.load(args, walk, chunk, slot, read_dy);
    held.take(p, args, walk, chunk, read_x, read_dy);
  }

  __device__ __forceinline__ void copy_next() {
    next_x.copy(args_of<Data>(p), ahead);
    next_dy.copy(args_of<Prologue>(p), ahead);
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
    store_chunk<Epilogue, Value>(args_of<Epilogue>(p), walk, chunk, [&](auto group, auto& dx) {
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
  store_number<ScaleGradient, SCALE_GRADIENT>(p, walk, of_scale);
  store_number<BiasGradient, BIAS_GRADIENT>(p, walk, of_bias);
}

// What a block has of its rows, and does with them: the first pass over one gives its sums, the second one dx.
// Slots: where chunks stay between the two.
template <class Slots> struct RowPasses {
  const Params& p;
  Slots slots;
  Elements elements;

  __device__ __forceinline__ RowPasses(const Params& p, void* memory)
      : p(p), slots(p.sizes, p.slots), elements(p, memory) {
    slots.begin(elements);
  }

  __device__ __forceinline__ void first_pass(RowWalk<Tile>& walk, Operands& held, Value (&sums)[2 * WIDTH]) {
    slots.first_pass(elements, walk, held, [&](i64 chunk, const Operands& held) {
      add_products(p, walk, chunk, held, sums);
    });
  }

  // sums: of all that is in the row; JOINED ones are not joined.
  template <class Team>
  __device__ __forceinline__ void second_pass(Team& team, RowWalk<Tile>& walk, Operands& held,
                                              const Value (&inverse)[WIDTH], const Value (&scale)[WIDTH],
                                              Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sums[WIDTH + w] *= inverse[w];
    store_row_gradients(p, walk, sums);
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] *= ROW_SCALE && JOINED > 1 ? p.share * scale[k % WIDTH] : p.share;
    team.template neighbours<Plus>(sums);

    const Gradient gradient(inverse, scale, sums);
    held.begin_pass();
    slots.second_pass(elements, walk, held, [&](i64 chunk, const Operands& held) {
      gradient.store(p, walk, chunk, held);
    });
  }
};
