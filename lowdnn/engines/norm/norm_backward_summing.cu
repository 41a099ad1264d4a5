// norm_backward_summing: the gradients of a norm,
//
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
//
// for each row, with xhat = (x - mean) * inverse, dy = prologue(...) and g = dy * scale. It also sums dy * xhat and
// (GRADIENTS = 2) dy over this block's rows, for each element of a row. Without CENTRED the mean is 0 and average(g) is
// left out.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row, the last of them cut into vectors
// (include/rows/rows.cuh); inverse and mean have one element for each row; the sums are [blocks / CLUSTER][elements of
// a row].
// Block: one row for each slot, then one grid further on, and so on, in a persistent grid; CLUSTER blocks share rows.
// Each thread has the same elements of all of its rows, and sums them in registers. STAGES rows are in flight to shared
// memory. CACHES_ROW: the current row stays in registers, unconverted, and its stage is refilled at once; otherwise it
// is read twice. The scales stay in registers or in shared memory (SCALES). No other thread reads a thread's part of a
// stage, or its scales, so that they need no barrier.
// Shared memory: RowTeam's and, with several slots, VECTOR sums for each thread; dynamic: STAGES rows of x, of dy, of
// inverse and (CENTRED) of mean, and the scales that are cached there.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW NORM_GROUP CHUNKED;
// INDEX: u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether there is a scale; GRADIENTS: 1 (dscale) or
// 2 (dscale and dbias); STAGES; CACHES_ROW; SCALES: a ScaleCache; IS_WHOLE: whether each thread has ITEMS groups of a
// row; AGAIN: whether rereading has a functor of its own, since Prologue stores tensors.

#include "include/cp_async.cuh"
#include "include/optional.cuh"
#include "include/rows/row_chunks.cuh"
#include "include/rows/row_team.cuh"
#include "generated.cuh"

// Optional functors: generated.cuh defines those that the kernel has.
struct Again;
struct Mean;
struct Scale;

// Where a thread caches its scales. UNCACHED scales are read at each use; ABSENT says that there are none.
enum ScaleCache { UNCACHED, REGISTERS, SHARED_MEMORY, ABSENT };

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, NORM_GROUP, ITEMS, SHARING,
                CLUSTER, CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, 1 + CENTRED> Team;
typedef Either<AGAIN, Again, Prologue>::Type Reread;

struct Numbers {
  RowSizes<Tile::RANK> sizes;
  Value share;  // 1 / elements of a row
  Value* gradients[GRADIENTS];
};

struct Params : Numbers,
                ArgsOf<Data>,
                ArgsOf<Prologue>,
                ArgsOf<Epilogue>,
                ArgsOf<Inverse>,
                ArgsOf<Mean, CENTRED>,
                ArgsOf<Scale, SCALED>,
                ArgsOf<Again, AGAIN> {};

// Whether x - mean is computed first. Otherwise xhat and dx subtract a multiple of the mean, which takes one operation
// less for each element. For x of 16 bits, that loses less than x's own rounding.
constexpr bool DEVIATES = CENTRED && sizeof(Data::Loaded<VECTOR>) > 2 * VECTOR;

// Calls `use(item, column)` for each group of a row that this thread has.
template <class Use> __device__ __forceinline__ void each_group(RowWalk<Tile>& walk, Use use) {
  if (!walk.exists) return;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    i64 column;
    const bool is_there = walk.locate(walk.group(0, item), column);
    if (IS_WHOLE || is_there) use(item, column);
  }
}

// A thread's elements of a row, unconverted, and the row's statistics.
struct Row {
  ReadChunk<Data, Tile> x;
  ReadChunk<Prologue, Tile> dy;
  Value mean = Value(0), inverse;

  // To be called before the elements are used once more.
  __device__ __forceinline__ void renew() {
    x.renew();
    dy.renew();
  }
  // Gives x, or x - mean with DEVIATES.
  __device__ __forceinline__ void get_x(const Params& p, const RowWalk<Tile>& walk, int item, i64 column,
                                        Value (&values)[VECTOR]) const {
    const Data::Args& args = args_of<Data>(p);
    Data::finish<VECTOR>(args, Data::cursor(args, walk.coordinate), column, VECTOR, x.in.whole[item], values);
#pragma unroll
    for (int v = 0; v < VECTOR && DEVIATES; ++v) values[v] -= mean;
  }
  // The mean that get_x has not subtracted.
  __device__ __forceinline__ Value remaining_mean() const { return DEVIATES ? Value(0) : mean; }

  // Gives dy by a functor that reads the same tensors as Prologue.
  template <class Same>
  __device__ __forceinline__ void get_dy(const typename Same::Args& args, const RowWalk<Tile>& walk, int item,
                                         i64 column, Value (&values)[VECTOR]) const {
    typedef typename Same::template Loaded<VECTOR> Read;
    static_assert(sizeof(Read) == sizeof(dy.in.whole[item]), "the same tensors");
    Same::template finish<VECTOR>(args, Same::cursor(args, walk.coordinate), column, VECTOR,
                                  reinterpret_cast<const Read&>(dy.in.whole[item]), values);
  }
};

// A functor's operands for the rows in flight, COUNT groups of SIZE elements of each in a thread:
// [STAGES][COUNT][THREADS].
template <class Source, int SIZE, int COUNT> struct StagedRows {
  typedef typename Source::template Loaded<SIZE> Loaded;

  Loaded* const first;

  __device__ __forceinline__ explicit StagedRows(void* memory) : first(static_cast<Loaded*>(memory)) {}
  // The address after this object's shared memory.
  __device__ __forceinline__ void* end() const { return first + STAGES * COUNT * THREADS; }

  template <int RANK>
  __device__ __forceinline__ void copy(const typename Source::Args& args, const i64 (&coordinate)[RANK], i64 column,
                                       int stage, int item) const {
    Source::template copy<SIZE>(args, Source::cursor(args, coordinate), column, SIZE, at(stage, item));
  }
  __device__ __forceinline__ void fetch(int stage, int item, Loaded& in) const {
    Source::template fetch<SIZE>(at(stage, item), in);
  }

 private:
  __device__ __forceinline__ Loaded& at(int stage, int item) const {
    return first[(stage * COUNT + item) * THREADS + threadIdx.x];
  }
};

// One number for each row in flight; 0 for a row that does not exist, and if rows have no such number.
template <class Source, bool IS_THERE = true> struct RowNumbers {
  const StagedRows<Source, 1, 1> stages;

  __device__ __forceinline__ explicit RowNumbers(void* memory) : stages(memory) {}
  __device__ __forceinline__ void* end() const { return stages.end(); }

  __device__ __forceinline__ void copy(const Params& p, const RowWalk<Tile>& walk, int stage) const {
    if (!walk.exists) return;
    i64 kept[KEPT];
    walk.locate_row(kept);
    stages.copy(args_of<Source>(p), kept, walk.kept_column, stage, 0);
  }
  __device__ __forceinline__ Value get(const Params& p, const RowWalk<Tile>& walk, int stage) const {
    Value number[1] = {};
    if (!walk.exists) return number[0];
    typename Source::template Loaded<1> in;
    stages.fetch(stage, 0, in);
    Source::template finish<1>(args_of<Source>(p), {}, 0, 1, in, number);
    return number[0];
  }
};
template <class Source> struct RowNumbers<Source, false> {
  void* const memory;

  __device__ __forceinline__ explicit RowNumbers(void* memory) : memory(memory) {}
  __device__ __forceinline__ void* end() const { return memory; }

  __device__ __forceinline__ void copy(const Params&, const RowWalk<Tile>&, int) const {}
  __device__ __forceinline__ Value get(const Params&, const RowWalk<Tile>&, int) const { return Value(0); }
};

// The rows in flight.
struct PrefetchedRows {
  const Params& p;
  const StagedRows<Data, VECTOR, ITEMS> x;
  const StagedRows<Prologue, VECTOR, ITEMS> dy;
  const RowNumbers<Inverse> inverse;
  const RowNumbers<Mean, CENTRED> mean;
  RowWalk<Tile> ahead;  // the row that is copied next
  int stage = 0;        // the stage of the current row, to which the next copy goes afterwards

  __device__ __forceinline__ PrefetchedRows(const Params& p, void* memory)
      : p(p), x(memory), dy(x.end()), inverse(dy.end()), mean(inverse.end()), ahead(p.sizes) {
    ahead.begin();
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) prefetch_next();
  }

  // Read the current row's statistics, and one of its groups, from its stage to registers.
  __device__ __forceinline__ void fetch_numbers(const RowWalk<Tile>& walk, Row& row) const {
    row.inverse = inverse.get(p, walk, stage);
    row.mean = mean.get(p, walk, stage);
  }
  __device__ __forceinline__ void fetch_group(int item, Row& row) const {
    x.fetch(stage, item, row.x.in.whole[item]);
    dy.fetch(stage, item, row.dy.in.whole[item]);
  }

  // The address after this object's shared memory.
  __device__ __forceinline__ void* end() const { return mean.end(); }

  // Begins the copies of the next row to the current row's stage.
  __device__ __forceinline__ void prefetch_next() {
    each_group(ahead, [&](int item, i64 column) {
      x.copy(args_of<Data>(p), ahead.coordinate, column, stage, item);
      dy.copy(args_of<Prologue>(p), ahead.coordinate, column, stage, item);
    });
    inverse.copy(p, ahead, stage);
    mean.copy(p, ahead, stage);
    cp_async_commit();
    ahead.next();
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
};

// The scales of a thread's elements, the same for all rows, which turn dy into g. `memory`: for SHARED_MEMORY.
template <class Source, int CACHE> struct ElementScales;

template <class Source> struct ElementScales<Source, ABSENT> {
  __device__ __forceinline__ ElementScales(const Params&, RowWalk<Tile>&, void*) {}
  __device__ __forceinline__ void apply(const Params&, const RowWalk<Tile>&, int, i64, const Value (&dy)[VECTOR],
                                        Value (&g)[VECTOR]) const {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) g[v] = dy[v];
  }
};

template <class Source> struct ElementScales<Source, UNCACHED> {
  __device__ __forceinline__ ElementScales(const Params&, RowWalk<Tile>&, void*) {}
  __device__ __forceinline__ void apply(const Params& p, const RowWalk<Tile>& walk, int, i64 column,
                                        const Value (&dy)[VECTOR], Value (&g)[VECTOR]) const {
    Value scale[VECTOR];
    const typename Source::Args& args = args_of<Source>(p);
    Source::template apply<VECTOR>(args, Source::cursor(args, walk.coordinate), column, VECTOR, scale);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) g[v] = dy[v] * scale[v];
  }
};

// A thread's scales, unconverted, group by group in registers.
template <class Source, int CACHE> struct CachedScales {
  typedef typename Source::template Loaded<VECTOR> Loaded;

  Loaded in[ITEMS] = {};

  __device__ __forceinline__ explicit CachedScales(void*) {}
  __device__ __forceinline__ void store_group(int item, const Loaded& read) { in[item] = read; }
  __device__ __forceinline__ const Loaded& fetched(int item) const { return in[item]; }
};
// Scales in shared memory: [ITEMS][PIECES][THREADS], so that neighbouring threads access neighbouring words.
template <class Source> struct CachedScales<Source, SHARED_MEMORY> {
  typedef typename Source::template Loaded<VECTOR> Loaded;
  typedef typename Word<sizeof(Loaded) < 16 ? sizeof(Loaded) : 16>::Type Piece;
  static constexpr int PIECES = sizeof(Loaded) / sizeof(Piece);

  Piece* const first;

  __device__ __forceinline__ explicit CachedScales(void* memory) : first(static_cast<Piece*>(memory)) {}
  __device__ __forceinline__ void store_group(int item, const Loaded& read) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) piece(item, i) = reinterpret_cast<const Piece*>(&read)[i];
  }
  __device__ __forceinline__ Loaded fetched(int item) const {
    alignas(16) Loaded read;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) reinterpret_cast<Piece*>(&read)[i] = piece(item, i);
    return read;
  }

 private:
  __device__ __forceinline__ Piece& piece(int item, int i) const {
    return first[(item * PIECES + i) * THREADS + threadIdx.x];
  }
};

template <class Source, int CACHE> struct ElementScales {
  CachedScales<Source, CACHE> kept;

  __device__ __forceinline__ ElementScales(const Params& p, RowWalk<Tile>& walk, void* memory) : kept(memory) {
    each_group(walk, [&](int item, i64 column) {
      alignas(16) typename Source::template Loaded<VECTOR> read = {};
      const typename Source::Args& args = args_of<Source>(p);
      Source::template load<VECTOR>(args, Source::cursor(args, walk.coordinate), column, VECTOR, read);
      kept.store_group(item, read);
    });
  }

  __device__ __forceinline__ void apply(const Params& p, const RowWalk<Tile>& walk, int item, i64 column,
                                        const Value (&dy)[VECTOR], Value (&g)[VECTOR]) const {
    Value scale[VECTOR];
    const typename Source::Args& args = args_of<Source>(p);
    Source::template finish<VECTOR>(args, Source::cursor(args, walk.coordinate), column, VECTOR, kept.fetched(item),
                                    scale);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) g[v] = dy[v] * scale[v];
  }
};
typedef ElementScales<Scale, SCALED ? SCALES : ABSENT> Scales;

// Adds a row to the gradients, and to the sums over the row of g * xhat and (CENTRED) of g.
__device__ __forceinline__ void add_row(const PrefetchedRows& prefetched, RowWalk<Tile>& walk, Row& row,
                                        const Scales& scales, Value (&gradients)[GRADIENTS][ITEMS][VECTOR],
                                        Value (&sums)[1 + CENTRED]) {
  const Params& p = prefetched.p;
  const Value shift = -row.remaining_mean() * row.inverse;
  each_group(walk, [&](int item, i64 column) {
    if (!CACHES_ROW) prefetched.fetch_group(item, row);
    Value x[VECTOR], dy[VECTOR], g[VECTOR];
    row.get_x(p, walk, item, column, x);
    row.get_dy<Prologue>(args_of<Prologue>(p), walk, item, column, dy);
    scales.apply(p, walk, item, column, dy, g);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value xhat = x[v] * row.inverse + shift;
      gradients[0][item][v] += dy[v] * xhat;
      if (GRADIENTS > 1) gradients[GRADIENTS - 1][item][v] += dy[v];
      sums[0] += g[v] * xhat;
      if (CENTRED) sums[CENTRED] += g[v];
    }
  });
}

// Stores dx = (g + slope * x + offset) * inverse. No factor has the square of inverse, which f32 cannot hold for
// extreme rows.
__device__ __forceinline__ void store_row(const PrefetchedRows& prefetched, RowWalk<Tile>& walk, Row& row,
                                          const Scales& scales, const Value (&sums)[1 + CENTRED]) {
  const Params& p = prefetched.p;
  const Value inverse = row.inverse;
  const Value slope = -inverse * (sums[0] * p.share);
  const Value offset = CENTRED ? -slope * row.remaining_mean() - sums[CENTRED] * p.share : Value(0);
  each_group(walk, [&](int item, i64 column) {
    if (!CACHES_ROW) prefetched.fetch_group(item, row);
    Value x[VECTOR], dy[VECTOR], dx[VECTOR];
    row.get_x(p, walk, item, column, x);
    row.get_dy<Reread>(args_of<Reread>(p), walk, item, column, dy);
    scales.apply(p, walk, item, column, dy, dx);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      dx[v] = (slope * x[v] + (CENTRED ? dx[v] + offset : dx[v])) * inverse;
    }
    const Epilogue::Args& args = args_of<Epilogue>(p);
    Epilogue::apply<VECTOR>(args, Epilogue::cursor(args, walk.coordinate), column, VECTOR, dx);
  });
}

// Adds the sums of a block's slots in order, and stores them at the elements of a row.
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
  PrefetchedRows prefetched(p, memory);
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  const Scales scales(p, walk, prefetched.end());
  Value gradients[GRADIENTS][ITEMS][VECTOR] = {};

#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Row row;
    cp_async_wait<STAGES - 1>();
    prefetched.fetch_numbers(walk, row);
    if (CACHES_ROW) {
      each_group(walk, [&](int item, i64) { prefetched.fetch_group(item, row); });
      prefetched.prefetch_next();
    }
    Value sums[1 + CENTRED] = {};
    add_row(prefetched, walk, row, scales, gradients, sums);
    team.all<Plus>(sums);
    if (CACHES_ROW) row.renew();
    store_row(prefetched, walk, row, scales, sums);
    if (!CACHES_ROW) prefetched.prefetch_next();
  }
#pragma unroll
  for (int k = 0; k < GRADIENTS; ++k) store_gradients(p, walk, gradients[k], p.gradients[k]);
  team.leave();
}
