// norm_backward: for each row, with xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// Without CENTRED the mean is 0 and average(g) is left out. A scale with one element for each row is a factor behind it
// all: then the sums that dx needs are of dy * xhat and of dy, which are the row's own gradients (SCALE_GRADIENT,
// BIAS_GRADIENT). JOINED neighbouring rows, the channels of a group, have mean, inverse and averages together, these of
// the rows' sums times their scales.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row (include/rows.cuh).
// Block: one group of rows for each slot, then the next grid's; SHARING blocks share rows. A row that fits on chip is
// read once; of a longer one chunks are read again.
// Shared memory: RowTeam's; dynamic with STAYS `slots` slots of chunks of x, then of dy, with LOOKS_AHEAD the next row
// of both.
// Launch: THREADS threads, any multiple of SHARING blocks; where that is more than CLUSTER, cooperative, with SHARING
// blocks for each group of rows and RowTeam::NUMBERS values of workspace for each block.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether each element has a scale; ROW_SCALE: whether each
// row has; SCALE_GRADIENT, BIAS_GRADIENT; STAYS; AGAIN: whether what is read again has a functor of its own, since
// Prologue stores tensors; LOOKS_AHEAD: whether the next row is asked for when a row begins.

#include "include/next_row.cuh"
#include "include/row_team.cuh"
#include "include/staying_chunks.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, 2 * Tile::WIDTH> Team;
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

#if IN_RING
typedef RowRing<Tile> Slots;
#else
typedef ChunkSlots<STAYS> Slots;
#endif

// What stays of x and dy.
struct Staying {
  const Slots& slots;
  const StayingChunks<Data, Tile, Slots> x;
  const StayingChunks<Prologue, Tile, Slots> dy;

  __device__ __forceinline__ Staying(void* memory, const Slots& slots)
      : slots(slots),
        x{static_cast<StayingChunks<Data, Tile, Slots>::Loaded*>(memory), slots},
        dy{static_cast<StayingChunks<Prologue, Tile, Slots>::Loaded*>(x.end()), slots} {}

  __device__ __forceinline__ void copy(const Params& p, RowWalk<Tile>& walk, i64 chunk, int slot) const {
    x.copy(p.x, walk, chunk, slot);
    dy.copy(p.dy, walk, chunk, slot);
  }
};

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

// What a thread holds of its rows: x and dy as they are read, or the values of xhat and dy, then of g.
struct Operands {
  RowChunk<Data, Tile, AS_READ> x;
  RowChunk<Prologue, Tile, AS_READ> dy;
  Value mean[WIDTH] = {}, inverse[WIDTH] = {};

  // Without elements.
  __device__ __forceinline__ Operands of_rows() const {
    Operands others;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) {
      others.mean[w] = mean[w];
      others.inverse[w] = inverse[w];
    }
    return others;
  }

  template <class Same>
  __device__ __forceinline__ void take(const Params& p, const typename Same::Args& args, RowWalk<Tile>& walk, i64 chunk,
                                       const ReadChunk<Data, Tile>& read_x, const ReadChunk<Same, Tile>& read_dy) {
    x.take(p.x, walk, chunk, read_x);
    dy.take(args, walk, chunk, read_dy);
    normalise(walk, chunk);
  }

  // From values of x to xhat.
  __device__ __forceinline__ void normalise(RowWalk<Tile>& walk, i64 chunk) {
#if !AS_READ
    walk.each(chunk, [&](auto group, i64) { normalise(x.values[group]); });
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
  __device__ __forceinline__ void get(const Params& p, Group group, Value (&xhat)[Group::SIZE],
                                      Value (&dy_of)[Group::SIZE]) const {
    x.get(p.x, group, xhat);
    dy.get(p.dy, group, dy_of);
#if AS_READ
    normalise(xhat);
#endif
  }

 private:
  // From x to xhat.
  template <int SIZE> __device__ __forceinline__ void normalise(Value (&of_group)[SIZE]) const {
#pragma unroll
    for (int v = 0; v < SIZE; ++v) of_group[v] = (of_group[v] - mean[v % WIDTH]) * inverse[v % WIDTH];
  }
};

// The row after the one that the thread works on.
struct Next {
  const Params& p;
  NextRow<Data, Tile, LOOKS_AHEAD> x;
  NextRow<Prologue, Tile, LOOKS_AHEAD> dy;
  RowWalk<Tile> walk;

  __device__ __forceinline__ Next(const Params& p, void* memory) : p(p), x(memory), dy(x.end()), walk(p.sizes) {
    walk.begin();
    copy();
  }

  // The row that has come, and a request for the one after it.
  __device__ __forceinline__ void load(RowWalk<Tile>& own, Operands& held) {
    x.load(p.x, own, held.x);
    dy.load(p.dy, own, held.dy);
    held.normalise(own, 0);
    walk.next();
    copy();
  }

 private:
  __device__ __forceinline__ void copy() {
    x.copy(p.x, walk);
    dy.copy(p.dy, walk);
  }
};

// A chunk for the first time, on the way to the last one, and again, on the way back.
__device__ __forceinline__ void load_first(const Params& p, const Staying& staying, RowWalk<Tile>& walk, i64 chunk,
                                           Operands& held) {
  auto&& read_x = held.x.reading<Data>();
  auto&& read_dy = held.dy.reading<Prologue>();
  staying.slots.wait(chunk);
  staying.x.load(p.x, walk, chunk, read_x);
  staying.dy.load(p.dy, walk, chunk, read_dy);
  held.take(p, p.dy, walk, chunk, read_x, read_dy);
#if !IN_RING
  staying.slots.go_on(chunk, [&](i64 later) { staying.copy(p, walk, later, staying.slots.of(later)); });
#endif
}

__device__ __forceinline__ void load_again(const Params& p, const Staying& staying, RowWalk<Tile>& walk, i64 chunk,
                                           Operands& held) {
  auto&& read_x = held.x.reading<Data>();
  auto&& read_dy = held.dy.reading<Again>();
#if !IN_RING
  staying.slots.wait_back(chunk);
#endif
  staying.x.load(p.x, walk, chunk, read_x);
  staying.dy.load(again(p), walk, chunk, read_dy);
  held.take(p, again(p), walk, chunk, read_x, read_dy);
#if !IN_RING
  staying.slots.go_back(chunk, [&](i64 earlier) { staying.copy(p, walk, earlier, staying.slots.of(earlier)); });
#endif
}

__device__ __forceinline__ void add_products(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& held,
                                             Value (&sums)[2 * WIDTH]) {
  const ScalesOnUse scales(p, walk, chunk);
  walk.each(chunk, [&](auto group, i64) {
    Value xhat[group.SIZE], g[group.SIZE];
    held.get(p, group, xhat, g);
    scales.apply(group, g);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      sums[v % WIDTH] += g[v];
      sums[WIDTH + v % WIDTH] += g[v] * xhat[v];
    }
  });
}

// scale: of joined rows.  factor: behind it all.
__device__ __forceinline__ void store_gradient(const Params& p, RowWalk<Tile>& walk, i64 chunk, const Operands& held,
                                               const Value (&scale)[WIDTH], const Value (&factor)[WIDTH],
                                               const Value (&averages)[2 * WIDTH]) {
  const ScalesOnUse scales(p, walk, chunk);
  store_chunk<Epilogue, Value>(p.dx, walk, chunk, [&](auto group, auto& dx) {
    Value xhat[group.SIZE];
    held.get(p, group, xhat, dx);
    scales.apply(group, dx);
#pragma unroll
    for (int v = 0; v < group.SIZE; ++v) {
      if (JOINED > 1 && ROW_SCALE) dx[v] *= scale[v % WIDTH];
      const Value centred = CENTRED ? dx[v] - averages[v % WIDTH] : dx[v];
      dx[v] = factor[v % WIDTH] * (centred - xhat[v] * averages[WIDTH + v % WIDTH]);
    }
  });
}

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

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  extern __shared__ __align__(16) u8 memory[];
  const i64 chunks = Tile::chunks(p.sizes);
#if IN_RING
  Slots slots(p.sizes, p.slots);
#else
  const Slots slots = {chunks, p.slots};
#endif
  const Staying staying(memory, slots);
#if SHARING > CLUSTER
  Team team(shared, p.partials);
#else
  Team team(shared);
#endif
  RowWalk<Tile> walk(p.sizes);
  Next next(p, memory);
#if IN_RING
  const auto copy = [&](RowWalk<Tile>& of, int chunk, int slot) { staying.copy(p, of, chunk, slot); };
  slots.begin(copy);
#endif

#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    Operands held;
    Value scale[WIDTH] = {}, factor[WIDTH], sums[2 * WIDTH] = {};
#if CENTRED
    load_of_row<Mean, JOINED>(p.mean, walk, held.mean);
#endif
    load_of_row<Inverse, JOINED>(p.inverse, walk, held.inverse);
#if !IN_RING
    const auto copy = [&](i64 chunk) { staying.copy(p, walk, chunk, slots.of(chunk)); };
    slots.begin(copy);
#endif
#if IN_RING && CHUNKED
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Operands one = held.of_rows();
      load_first(p, staying, walk, chunk, one);
      one.scale(p, walk, chunk);
      add_products(p, walk, chunk, one, sums);
    }
#else
#if LOOKS_AHEAD
    next.load(walk, held);
#else
    load_first(p, staying, walk, 0, held);
#endif
    held.scale(p, walk, 0);
    add_products(p, walk, 0, held, sums);
#pragma unroll 1
    for (i64 chunk = 1; chunk < chunks; ++chunk) {
      load_first(p, staying, walk, chunk, held);
      held.scale(p, walk, chunk);
      add_products(p, walk, chunk, held, sums);
    }
#endif
    team.all<Plus>(sums);
    store_row_gradients(p, walk, sums);
#if ROW_SCALE
    load_of_row<Scale>(p.scale, walk, scale);
#endif
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) factor[w] = ROW_SCALE && JOINED == 1 ? held.inverse[w] * scale[w] : held.inverse[w];
#pragma unroll
    for (int k = 0; k < 2 * WIDTH; ++k) sums[k] *= ROW_SCALE && JOINED > 1 ? p.share * scale[k % WIDTH] : p.share;
    team.neighbours<Plus>(sums);

#if IN_RING && CHUNKED
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Operands one = held.of_rows();
      load_again(p, staying, walk, chunk, one);
      slots.release(chunk, copy);
      one.scale(p, walk, chunk);
      store_gradient(p, walk, chunk, one, scale, factor, sums);
    }
    slots.next_row();
#else
    held.begin_pass();
#if IN_RING
    slots.release(0, copy);
    slots.next_row();
#endif
    store_gradient(p, walk, chunks - 1, held, scale, factor, sums);
#if !IN_RING
    slots.turn_back(copy);
#endif
#pragma unroll 1
    for (i64 chunk = chunks - 2; chunk >= 0; --chunk) {
      load_again(p, staying, walk, chunk, held);
      held.scale(p, walk, chunk);
      store_gradient(p, walk, chunk, held, scale, factor, sums);
    }
#endif
  }
  team.leave();
}
