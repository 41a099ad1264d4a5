// norm_backward_summing: for each row, with xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// and the sums over this block's rows of dy * xhat and (GRADIENTS = 2) of dy, for each element of a row. Without
// CENTRED the mean is 0 and average(g) is left out.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row, the last of them cut into vectors
// (include/rows.cuh); inverse and mean one for each row; the sums [blocks / CLUSTER][elements of a row].
// Block: as many as are there at a time, with every row of a grid's width after the last; CLUSTER blocks share rows.
// Each thread has the same elements of all of its rows, and sums them in registers. What it reads is copied to shared
// memory STAGES rows ahead, so that memory works while the threads of a row meet: each place is filled anew as soon as
// what lay there has been read for the last time. Nobody else reads a thread's places, so that no barrier is needed.
// Shared memory: RowTeam's and, with several slots, VECTOR sums of each thread; dynamic: STAGES stages of x, of dy, of
// inverse and (CENTRED) of mean.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether there is a scale; GRADIENTS: 1 (dscale) or 2
// (dscale and dbias); STAGES; AGAIN: whether what is read again has a functor of its own, since Prologue stores tensors.

#include "include/row_team.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, 2> Team;
#if !AGAIN
typedef Prologue Again;
#endif

struct Params {
  RowSizes<Tile::RANK> sizes;
  Value share;  // 1 / elements of a row
  Value* gradients[GRADIENTS];
  Data::Args x;
  Prologue::Args dy;
  Epilogue::Args dx;
  Inverse::Args inverse;
#if CENTRED
  Mean::Args mean;
#endif
#if SCALED
  Scale::Args scale;
#endif
#if AGAIN
  Again::Args again;
#endif
};

// What a functor reads of rows on their way, COUNT groups of SIZE elements in a thread: [STAGES][COUNT][THREADS].
template <class Source, int SIZE, int COUNT> struct Stages {
  typedef typename Source::template Loaded<SIZE> Loaded;

  Loaded* const first;

  __device__ __forceinline__ explicit Stages(void* memory) : first(static_cast<Loaded*>(memory)) {}
  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + STAGES * COUNT * THREADS; }

  template <int RANK>
  __device__ __forceinline__ void copy(const typename Source::Args& args, const i64 (&coordinate)[RANK], i64 column,
                                       int stage, int item) const {
    Source::template copy<SIZE>(args, Source::cursor(args, coordinate), column, SIZE, place(stage, item));
  }

  // The values, by a functor that reads the same tensors.
  template <class Same, int RANK>
  __device__ __forceinline__ void get(const typename Same::Args& args, const i64 (&coordinate)[RANK], i64 column,
                                      int stage, int item, Value (&values)[SIZE]) const {
    typedef typename Same::template Loaded<SIZE> Copied;
    static_assert(sizeof(Copied) == sizeof(Loaded), "the same tensors");
    Copied in;
    Same::template fetch<SIZE>(reinterpret_cast<const Copied&>(place(stage, item)), in);
    Same::template finish<SIZE>(args, Same::cursor(args, coordinate), column, SIZE, in, values);
  }

 private:
  __device__ __forceinline__ Loaded& place(int stage, int item) const {
    return first[(stage * COUNT + item) * THREADS + threadIdx.x];
  }
};

// The number of a row that its elements are centred or divided by.
template <class Source> struct RowStages : Stages<Source, 1, 1> {
  using Stages<Source, 1, 1>::Stages;

  __device__ __forceinline__ void copy(const typename Source::Args& args, const RowWalk<Tile>& walk, int stage) const {
    i64 kept[KEPT];
    walk.locate_row(kept);
    Stages<Source, 1, 1>::copy(args, kept, walk.kept_column, stage, 0);
  }
  __device__ __forceinline__ Value get(const typename Source::Args& args, const RowWalk<Tile>& walk, int stage) const {
    i64 kept[KEPT];
    walk.locate_row(kept);
    Value value[1];
    Stages<Source, 1, 1>::template get<Source>(args, kept, walk.kept_column, stage, 0, value);
    return value[0];
  }
};

struct Staged {
  const Params& p;
  const Stages<Data, VECTOR, ITEMS> x;
  const Stages<Prologue, VECTOR, ITEMS> dy;
  const RowStages<Inverse> inverse;
#if CENTRED
  const RowStages<Mean> mean;
#endif

  __device__ __forceinline__ Staged(const Params& p, void* memory)
      : p(p), x(memory), dy(x.end()), inverse(dy.end())
#if CENTRED
        , mean(inverse.end())
#endif
  {}

  __device__ __forceinline__ void copy_statistics(const RowWalk<Tile>& walk, int stage) const {
    if (!walk.exists) return;
    inverse.copy(p.inverse, walk, stage);
#if CENTRED
    mean.copy(p.mean, walk, stage);
#endif
  }

  __device__ __forceinline__ void copy_group(RowWalk<Tile>& walk, int stage, int item) const {
    i64 column;
    if (!walk.locate(walk.group(0, item), column)) return;
    x.copy(p.x, walk.coordinate, column, stage, item);
    dy.copy(p.dy, walk.coordinate, column, stage, item);
  }
};

// What xhat is made with of a row that exists.
struct Statistics {
  Value mean = Value(0), inverse = Value(0);

  __device__ __forceinline__ Statistics(const Staged& staged, const RowWalk<Tile>& walk, int stage) {
    if (!walk.exists) return;
    inverse = staged.inverse.get(staged.p.inverse, walk, stage);
#if CENTRED
    mean = staged.mean.get(staged.p.mean, walk, stage);
#endif
  }

  __device__ __forceinline__ void normalise(Value (&of_group)[VECTOR]) const {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) of_group[v] = (of_group[v] - mean) * inverse;
  }
};

// From dy to g.
__device__ __forceinline__ void apply_scale(const Params& p, const RowWalk<Tile>& walk, i64 column,
                                            Value (&g)[VECTOR]) {
#if SCALED
  Value scale[VECTOR];
  Scale::apply<VECTOR>(p.scale, Scale::cursor(p.scale, walk.coordinate), column, VECTOR, scale);
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) g[v] *= scale[v];
#endif
}

__device__ __forceinline__ void add_row(const Staged& staged, RowWalk<Tile>& walk, int stage, const Statistics& row,
                                        Value (&gradients)[GRADIENTS][ITEMS][VECTOR], Value (&sums)[2]) {
  const Params& p = staged.p;
  walk.each(0, [&](auto group, i64 column) {
    Value xhat[VECTOR], g[VECTOR];
    staged.x.get<Data>(p.x, walk.coordinate, column, stage, group.item, xhat);
    staged.dy.get<Prologue>(p.dy, walk.coordinate, column, stage, group.item, g);
    row.normalise(xhat);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      gradients[0][group.item][v] += g[v] * xhat[v];
      if (GRADIENTS > 1) gradients[GRADIENTS - 1][group.item][v] += g[v];
    }
    apply_scale(p, walk, column, g);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      sums[0] += g[v];
      sums[1] += g[v] * xhat[v];
    }
  });
}

// Stores dx, and fills each place with what the row `ahead` has there.
__device__ __forceinline__ void store_row(const Staged& staged, RowWalk<Tile>& walk, RowWalk<Tile>& ahead, int stage,
                                          const Statistics& row, const Value (&averages)[2]) {
  const Params& p = staged.p;
#if AGAIN
  const Again::Args& again = p.again;
#else
  const Again::Args& again = p.dy;
#endif
  walk.each(0, [&](auto group, i64 column) {
    Value xhat[VECTOR], dx[VECTOR];
    staged.x.get<Data>(p.x, walk.coordinate, column, stage, group.item, xhat);
    staged.dy.get<Again>(again, walk.coordinate, column, stage, group.item, dx);
    staged.copy_group(ahead, stage, group.item);
    row.normalise(xhat);
    apply_scale(p, walk, column, dx);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value centred = CENTRED ? dx[v] - averages[0] : dx[v];
      dx[v] = row.inverse * (centred - xhat[v] * averages[1]);
    }
    Epilogue::apply<VECTOR>(p.dx, Epilogue::cursor(p.dx, walk.coordinate), column, VECTOR, dx);
  });
}

// The sums of a block's slots joined in order, and stored at the elements of a row.
__device__ __forceinline__ void store_gradients(const Params& p, RowWalk<Tile>& walk, Value (&sums)[ITEMS][VECTOR],
                                                Value* gradients) {
  __shared__ Value joined[Tile::SLOTS > 1 ? THREADS : 1][VECTOR];
  Value* const own = gradients + i64(blockIdx.x / SHARING) * p.sizes.groups * VECTOR;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if constexpr (Tile::SLOTS > 1) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) joined[threadIdx.x][v] = sums[i][v];
      __syncthreads();
      if (threadIdx.x < TEAM) {
        for (int slot = 1; slot < Tile::SLOTS; ++slot) {
#pragma unroll
          for (int v = 0; v < VECTOR; ++v) sums[i][v] += joined[slot * TEAM + threadIdx.x][v];
        }
      }
      __syncthreads();
    }
    const i64 group = walk.group(0, i);
    if (threadIdx.x < TEAM && group < p.sizes.groups) store<VECTOR>(own + group * VECTOR, sums[i]);
  }
}

extern "C" __global__ void ROW_KERNEL KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ Team::Shared shared;
  extern __shared__ __align__(16) u8 memory[];
  const Staged staged(p, memory);
  Team team(shared);
  RowWalk<Tile> walk(p.sizes), ahead(p.sizes);
  Value gradients[GRADIENTS][ITEMS][VECTOR] = {};

  ahead.begin();
#pragma unroll 1
  for (int stage = 0; stage < STAGES; ++stage) {
    staged.copy_statistics(ahead, stage);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) staged.copy_group(ahead, stage, item);
    cp_async_commit();
    ahead.next();
  }

  int stage = 0;
#pragma unroll 1
  for (walk.begin(); walk.is_within(); walk.next()) {
    cp_async_wait<STAGES - 1>();
    const Statistics row(staged, walk, stage);
    Value sums[2] = {};
    add_row(staged, walk, stage, row, gradients, sums);
    team.all<Plus>(sums);
#pragma unroll
    for (int k = 0; k < 2; ++k) sums[k] *= p.share;
    staged.copy_statistics(ahead, stage);
    store_row(staged, walk, ahead, stage, row, sums);
    cp_async_commit();
    ahead.next();
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
#pragma unroll
  for (int k = 0; k < GRADIENTS; ++k) store_gradients(p, walk, gradients[k], p.gradients[k]);
  team.leave();
}
