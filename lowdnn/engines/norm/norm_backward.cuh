// The stages of a backward norm over rows, shared by norm_backward.cu and norm_backward_pipelined.cu:
//
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
//
// for each row, with xhat = (x - mean) * inverse, dy = prologue(...) and g = dy * scale.
// Without CENTRED the mean is 0 and average(g) is left out. A scale with one element for a whole row is factored out:
// the sums that dx needs are then of dy * xhat and of dy, which are the row's own gradients (SCALE_GRADIENT,
// BIAS_GRADIENT). NORM_GROUP neighbouring rows, the channels of a normalisation group, share mean, inverse and
// averages; the latter are over the rows' sums times their scales.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows/rows.cuh).
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW NORM_GROUP CHUNKED;
// INDEX: u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether each element has a scale; ROW_SCALE:
// whether each row has; SCALE_GRADIENT, BIAS_GRADIENT: whether they are stored; CHUNKS_RESIDENT: whether chunks stay in
// shared memory; IN_RING: whether the chunks of successive rows go through a ring of slots; AGAIN: whether rereading
// has a functor of its own, since Prologue stores tensors; LOOKS_AHEAD: whether the next row is prefetched.

#pragma once

#include "block_team.cuh"
#include "include/rows/next_row.cuh"
#include "include/rows/row_numbers.cuh"
#include "resident_chunks.cuh"
#include "row_peers.cuh"
#include "generated.cuh"

// Optional functors: generated.cuh defines those that the kernel has.
struct Again;
struct Mean;
struct Scale;
struct ScaleGradient;
struct BiasGradient;

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, NORM_GROUP, ITEMS, SHARING,
                CLUSTER, CHUNKED, INDEX>
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
                PeersOf<(PEERS > 1)>,
                ArgsOf<Data>,
                ArgsOf<Prologue>,
                ArgsOf<Epilogue>,
                ArgsOf<Inverse>,
                ArgsOf<Mean, CENTRED>,
                ArgsOf<Scale, SCALED || ROW_SCALE>,
                ArgsOf<ScaleGradient, SCALE_GRADIENT>,
                ArgsOf<BiasGradient, BIAS_GRADIENT>,
                ArgsOf<Again, AGAIN> {};

// A chunk's scales, which turn dy into g.
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
// If x and dy are cached unconverted, scales are read at each use: they come from the hardware's cache.
typedef Scales<Scale, SCALED && !AS_READ> ScalesOnce;
typedef Scales<Scale, SCALED && AS_READ> ScalesOnUse;

// The operands of a thread's rows: x and dy unconverted, or the values of x - mean and of dy, later g.
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

  // Turns values of x into deviations.
  __device__ __forceinline__ void centre(RowWalk<Tile>& walk, i64 chunk) { centre_values(x, walk, chunk); }

  // Turns values of dy into g.
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
  // Unconverted elements have no values yet to change.
  template <class Chunk>
  __device__ __forceinline__ void centre_values(Chunk& cached, RowWalk<Tile>& walk, i64 chunk) const {
    if constexpr (!AS_READ) walk.each(chunk, [&](auto group, i64) { centre(cached.values[group]); });
  }
  template <class Chunk>
  __device__ __forceinline__ void scale_values(Chunk& cached, const Params& p, RowWalk<Tile>& walk, i64 chunk) const {
    if constexpr (!AS_READ) {
      const ScalesOnce scales(p, walk, chunk);
      walk.each(chunk, [&](auto group, i64) { scales.apply(group, cached.values[group]); });
    }
  }

  // Turns x into its deviation.
  template <int SIZE> __device__ __forceinline__ void centre(Value (&of_group)[SIZE]) const {
#pragma unroll
    for (int v = 0; v < SIZE; ++v) of_group[v] -= mean[v % WIDTH];
  }
};

// Reads the elements of a thread's rows, from shared memory if chunks are resident there or the next row was
// prefetched.
struct Elements {
  const Params& p;
  const ResidentChunks<Data, Tile, CHUNKS_RESIDENT> resident_x;
  const ResidentChunks<Prologue, Tile, CHUNKS_RESIDENT> resident_dy;
  NextRow<Data, Tile, LOOKS_AHEAD> next_x;
  NextRow<Prologue, Tile, LOOKS_AHEAD> next_dy;
  RowWalk<Tile> ahead;  // the next row

  __device__ __forceinline__ Elements(const Params& p, void* memory)
      : p(p), resident_x(memory, p.slots), resident_dy(resident_x.end(), p.slots), next_x(memory),
        next_dy(next_x.end()), ahead(p.sizes) {
    ahead.begin();
    copy_next();
  }

  __device__ __forceinline__ void copy(RowWalk<Tile>& walk, i64 chunk, int slot) const {
    resident_x.copy(args_of<Data>(p), walk, chunk, slot);
    resident_dy.copy(args_of<Prologue>(p), walk, chunk, slot);
  }

  __device__ __forceinline__ void load(RowWalk<Tile>& walk, i64 chunk, int slot, Operands& cached) {
    if constexpr (LOOKS_AHEAD) {
      next_x.load(args_of<Data>(p), walk, cached.x);
      next_dy.load(args_of<Prologue>(p), walk, cached.dy);
      cached.centre(walk, chunk);
      ahead.next();
      copy_next();
    } else {
      read<Prologue>(args_of<Prologue>(p), walk, chunk, slot, cached);
    }
    cached.scale(p, walk, chunk);
  }

  __device__ __forceinline__ void load_again(RowWalk<Tile>& walk, i64 chunk, int slot, Operands& cached) const {
    read<Reread>(args_of<Reread>(p), walk, chunk, slot, cached);
    cached.scale(p, walk, chunk);
  }

 private:
  template <class Same>
  __device__ __forceinline__ void read(const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk, int slot,
                                       Operands& cached) const {
    auto&& read_x = cached.x.template reading<Data>();
    auto&& read_dy = cached.dy.template reading<Same>();
    resident_x.load(args_of<Data>(p), walk, chunk, slot, read_x);
    resident_dy.load(args, walk, chunk, slot, read_dy);
    cached.take(p, args, walk, chunk, read_x, read_dy);
  }

  __device__ __forceinline__ void copy_next() {
    next_x.copy(args_of<Data>(p), ahead);
    next_dy.copy(args_of<Prologue>(p), ahead);
  }
};

// Adds a chunk to each row's sums: of g, then of g times the deviations.
__device__ __forceinline__ void add_products(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& cached,
                                             Value (&sums)[2 * WIDTH]) {
  const ScalesOnUse scales(p, walk, chunk);
  walk.each(chunk, [&](auto group, i64) {
    Value deviation[group.SIZE], g[group.SIZE];
    cached.get(p, group, deviation, g);
    scales.apply(group, g);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      sums[v % WIDTH] += g[v];
      sums[WIDTH + v % WIDTH] += g[v] * deviation[v];
    }
  });
}

// The row's four numbers in dx = (g * of_g + (x - mean) * of_x + constant) * inverse. None of them has the square of
// inverse, which f32 cannot hold for extreme rows.
struct Gradient {
  Value of_g[WIDTH], of_x[WIDTH], constant[WIDTH], inverse[WIDTH];

  // scale: the row's, with ROW_SCALE.  averages: the averages of g and of g * xhat; g includes the scale if rows share
  // statistics.
  __device__ __forceinline__ Gradient(const Value (&parameters)[WIDTH], const Value (&scale)[WIDTH],
                                      const Value (&averages)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      inverse[w] = parameters[w];
      of_g[w] = ROW_SCALE ? scale[w] : Value(1);
      const Value factor = NORM_GROUP > 1 ? Value(1) : of_g[w];
      of_x[w] = -factor * averages[WIDTH + w] * inverse[w];
      constant[w] = -factor * averages[w];
    }
  }

  __device__ __forceinline__ void store(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& cached) const {
    const ScalesOnUse scales(p, walk, chunk);
    store_chunk<Epilogue, Value>(args_of<Epilogue>(p), walk, chunk, [&](auto group, auto& dx) {
      Value deviation[group.SIZE];
      cached.get(p, group, deviation, dx);
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

// Stores dscale and dbias of rows that have a scale and a bias each.
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

// Adds up numbers in the order of the ranks.
struct SumOverRanks {
  template <int COUNT> static __device__ __forceinline__ void join(Value (&numbers)[COUNT]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) numbers[k] = RankLanes::sum(numbers[k]);
  }
};
typedef Either<(PEERS > 1), RowPeers<Tile, Value, 2, SumOverRanks>, NoPeers>::Type Peers;

// The two passes over a block's rows: the first gives a row's sums, the second dx. Slots keep its chunks in between.
template <class Slots> struct RowPasses {
  const Params& p;
  Slots slots;
  Elements elements;

  __device__ __forceinline__ RowPasses(const Params& p, void* memory)
      : p(p), slots(p.sizes, p.slots), elements(p, memory) {
    slots.begin(elements);
  }

  __device__ __forceinline__ void first_pass(RowWalk<Tile>& walk, Operands& cached, Value (&sums)[2 * WIDTH]) {
    slots.first_pass(elements, walk, cached, [&](i64 chunk, const Operands& cached) {
      add_products(p, walk, chunk, cached, sums);
    });
  }

  // sums: over the whole row; those of a normalisation group are still separate.
  template <class Team>
  __device__ __forceinline__ void second_pass(Team& team, Peers& peers, RowWalk<Tile>& walk, Operands& cached,
                                              const Value (&inverse)[WIDTH], const Value (&scale)[WIDTH],
                                              Value (&sums)[2 * WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) sums[WIDTH + w] *= inverse[w];
    store_row_gradients(p, walk, sums);
    peers.join(walk, sums);
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] *= ROW_SCALE && NORM_GROUP > 1 ? p.share * scale[k % WIDTH] : p.share;
    team.template neighbours<Plus>(sums);

    const Gradient gradient(inverse, scale, sums);
    cached.begin_pass();
    slots.second_pass(elements, walk, cached, [&](i64 chunk, const Operands& cached) {
      gradient.store(p, walk, chunk, cached);
    });
  }
};
