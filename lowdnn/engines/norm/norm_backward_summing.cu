// norm_backward_summing: for each row, with xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// and the sums over this block's rows of dy * xhat and (GRADIENTS = 2) of dy, for each element of a row. Without
// CENTRED the mean is 0 and average(g) is left out.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row, the last of them cut into vectors
// (include/rows/rows.cuh); inverse and mean one for each row; the sums [blocks / CLUSTER][elements of a row].
// Block: as many as are there at a time, with every row of a grid's width after the last; CLUSTER blocks share rows.
// Each thread has the same elements of all of its rows, and sums them in registers. PLACES rows are on their way to
// shared memory. HOLDS: the elements of the row at hand stay in registers as they are read, so that its place is another
// row's at once; otherwise they are read twice. The scales stay in registers or in shared memory (SCALES). Nobody else
// reads a thread's part of a place, or its scales, so that this needs no barrier.
// Shared memory: RowTeam's and, with several slots, VECTOR sums of each thread; dynamic: PLACES rows of x, of dy, of
// inverse and (CENTRED) of mean, and the scales that stay there.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether there is a scale; GRADIENTS: 1 (dscale) or 2
// (dscale and dbias); PLACES; HOLDS; SCALES: where the scales are; IS_WHOLE: whether each thread has ITEMS groups of a
// row; AGAIN: whether what is read again has a functor of its own, since Prologue stores tensors.

#include "include/cp_async.cuh"
#include "include/optional.cuh"
#include "include/rows/row_chunks.cuh"
#include "include/rows/row_team.cuh"
#include "generated.cuh"

// Functors that a kernel may be without.
struct Again;
struct Mean;
struct Scale;

// Where a thread has its scales: nowhere (it reads them whenever it uses them), in registers, or in shared memory; and
// that there are none.
enum ScalePlace { NOWHERE, REGISTERS, SHARED_MEMORY, ABSENT };

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
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

// Whether x less the mean is formed first. xhat and dx take the mean off instead, an operation less for each element,
// where x has 16 bits: that loses less than the rounding of such an x.
constexpr bool DEVIATES = CENTRED && sizeof(Data::Loaded<VECTOR>) > 2 * VECTOR;

// `use(item, column)` for each group of a row that this thread has.
template <class Use> __device__ __forceinline__ void each_group(RowWalk<Tile>& walk, Use use) {
  if (!walk.exists) return;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    i64 column;
    const bool is_there = walk.locate(walk.group(0, item), column);
    if (IS_WHOLE || is_there) use(item, column);
  }
}

// A thread's elements of a row, as they are read, and the row's statistics.
struct Row {
  ReadChunk<Data, Tile> x;
  ReadChunk<Prologue, Tile> dy;
  Value mean = Value(0), inverse;

  // Before the elements are used once more.
  __device__ __forceinline__ void renew() {
    x.renew();
    dy.renew();
  }
  // Less the mean where that is formed first.
  __device__ __forceinline__ void get_x(const Params& p, const RowWalk<Tile>& walk, int item, i64 column,
                                        Value (&values)[VECTOR]) const {
    Data::finish<VECTOR>(args_of<Data>(p), Data::cursor(args_of<Data>(p), walk.coordinate), column, VECTOR, x.in.whole[item], values);
#pragma unroll
    for (int v = 0; v < VECTOR && DEVIATES; ++v) values[v] -= mean;
  }
  // What of the mean is still in these values.
  __device__ __forceinline__ Value remaining_mean() const { return DEVIATES ? Value(0) : mean; }

  // By a functor that reads the same tensors.
  template <class Same>
  __device__ __forceinline__ void get_dy(const typename Same::Args& args, const RowWalk<Tile>& walk, int item,
                                         i64 column, Value (&values)[VECTOR]) const {
    typedef typename Same::template Loaded<VECTOR> Read;
    static_assert(sizeof(Read) == sizeof(dy.in.whole[item]), "the same tensors");
    Same::template finish<VECTOR>(args, Same::cursor(args, walk.coordinate), column, VECTOR,
                                  reinterpret_cast<const Read&>(dy.in.whole[item]), values);
  }
};

// What a functor reads of the rows on their way, COUNT groups of SIZE elements of each in a thread:
// [PLACES][COUNT][THREADS].
template <class Source, int SIZE, int COUNT> struct Places {
  typedef typename Source::template Loaded<SIZE> Loaded;

  Loaded* const first;

  __device__ __forceinline__ explicit Places(void* memory) : first(static_cast<Loaded*>(memory)) {}
  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + PLACES * COUNT * THREADS; }

  template <int RANK>
  __device__ __forceinline__ void copy(const typename Source::Args& args, const i64 (&coordinate)[RANK], i64 column,
                                       int place, int item) const {
    Source::template copy<SIZE>(args, Source::cursor(args, coordinate), column, SIZE, at(place, item));
  }
  __device__ __forceinline__ void fetch(int place, int item, Loaded& in) const {
    Source::template fetch<SIZE>(at(place, item), in);
  }

 private:
  __device__ __forceinline__ Loaded& at(int place, int item) const {
    return first[(place * COUNT + item) * THREADS + threadIdx.x];
  }
};

// One number of each row; 0 of one that does not exist, and where rows have none.
template <class Source, bool IS_THERE = true> struct RowNumbers {
  const Places<Source, 1, 1> places;

  __device__ __forceinline__ explicit RowNumbers(void* memory) : places(memory) {}
  __device__ __forceinline__ void* end() const { return places.end(); }

  __device__ __forceinline__ void copy(const Params& p, const RowWalk<Tile>& walk, int place) const {
    if (!walk.exists) return;
    i64 kept[KEPT];
    walk.locate_row(kept);
    places.copy(args_of<Source>(p), kept, walk.kept_column, place, 0);
  }
  __device__ __forceinline__ Value get(const Params& p, const RowWalk<Tile>& walk, int place) const {
    Value number[1] = {};
    if (!walk.exists) return number[0];
    typename Source::template Loaded<1> in;
    places.fetch(place, 0, in);
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

// The rows on their way.
struct ComingRows {
  const Params& p;
  const Places<Data, VECTOR, ITEMS> x;
  const Places<Prologue, VECTOR, ITEMS> dy;
  const RowNumbers<Inverse> inverse;
  const RowNumbers<Mean, CENTRED> mean;
  RowWalk<Tile> ahead;  // the row that is asked for next
  int place = 0;        // where it will lie, and the row at hand lies

  __device__ __forceinline__ ComingRows(const Params& p, void* memory)
      : p(p), x(memory), dy(x.end()), inverse(dy.end()), mean(inverse.end()), ahead(p.sizes) {
    ahead.begin();
#pragma unroll 1
    for (int i = 0; i < PLACES; ++i) ask();
  }

  // The row at hand: its statistics, and a group of it.
  __device__ __forceinline__ void fetch_numbers(const RowWalk<Tile>& walk, Row& row) const {
    row.inverse = inverse.get(p, walk, place);
    row.mean = mean.get(p, walk, place);
  }
  __device__ __forceinline__ void fetch_group(int item, Row& row) const {
    x.fetch(place, item, row.x.in.whole[item]);
    dy.fetch(place, item, row.dy.in.whole[item]);
  }

  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return mean.end(); }

  // Asks for a row, in the place of the one at hand.
  __device__ __forceinline__ void ask() {
    each_group(ahead, [&](int item, i64 column) {
      x.copy(args_of<Data>(p), ahead.coordinate, column, place, item);
      dy.copy(args_of<Prologue>(p), ahead.coordinate, column, place, item);
    });
    inverse.copy(p, ahead, place);
    mean.copy(p, ahead, place);
    cp_async_commit();
    ahead.next();
    place = place + 1 == PLACES ? 0 : place + 1;
  }
};

// The scales of a thread's elements, the same of all rows, from dy to g. `memory`: for SHARED_MEMORY.
template <class Source, int PLACE> struct ElementScales;

template <class Source> struct ElementScales<Source, ABSENT> {
  __device__ __forceinline__ ElementScales(const Params&, RowWalk<Tile>&, void*) {}
  __device__ __forceinline__ void apply(const Params&, const RowWalk<Tile>&, int, i64, const Value (&dy)[VECTOR],
                                        Value (&g)[VECTOR]) const {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) g[v] = dy[v];
  }
};

template <class Source> struct ElementScales<Source, NOWHERE> {
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

// What is read of a thread's scales, group by group, in registers.
template <class Source, int PLACE> struct KeptScales {
  typedef typename Source::template Loaded<VECTOR> Loaded;

  Loaded in[ITEMS] = {};

  __device__ __forceinline__ explicit KeptScales(void*) {}
  __device__ __forceinline__ void keep(int item, const Loaded& read) { in[item] = read; }
  __device__ __forceinline__ const Loaded& fetched(int item) const { return in[item]; }
};
// Scales kept in shared memory: [ITEMS][PIECES][THREADS], so that neighbours have neighbouring words.
template <class Source> struct KeptScales<Source, SHARED_MEMORY> {
  typedef typename Source::template Loaded<VECTOR> Loaded;
  typedef typename Word<sizeof(Loaded) < 16 ? sizeof(Loaded) : 16>::Type Piece;
  static constexpr int PIECES = sizeof(Loaded) / sizeof(Piece);

  Piece* const first;

  __device__ __forceinline__ explicit KeptScales(void* memory) : first(static_cast<Piece*>(memory)) {}
  __device__ __forceinline__ void keep(int item, const Loaded& read) {
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

template <class Source, int PLACE> struct ElementScales {
  KeptScales<Source, PLACE> kept;

  __device__ __forceinline__ ElementScales(const Params& p, RowWalk<Tile>& walk, void* memory) : kept(memory) {
    each_group(walk, [&](int item, i64 column) {
      alignas(16) typename Source::template Loaded<VECTOR> read = {};
      const typename Source::Args& args = args_of<Source>(p);
      Source::template load<VECTOR>(args, Source::cursor(args, walk.coordinate), column, VECTOR, read);
      kept.keep(item, read);
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

// Adds to the gradients, and to the sums over a row of g * xhat and (CENTRED) of g.
__device__ __forceinline__ void add_row(const ComingRows& coming, RowWalk<Tile>& walk, Row& row, const Scales& scales,
                                        Value (&gradients)[GRADIENTS][ITEMS][VECTOR], Value (&sums)[1 + CENTRED]) {
  const Params& p = coming.p;
  const Value shift = -row.remaining_mean() * row.inverse;
  each_group(walk, [&](int item, i64 column) {
    if (!HOLDS) coming.fetch_group(item, row);
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

// dx = (g + slope * x + offset) * inverse. Nothing has the square of inverse, which f32 cannot hold of extreme rows.
__device__ __forceinline__ void store_row(const ComingRows& coming, RowWalk<Tile>& walk, Row& row,
                                          const Scales& scales, const Value (&sums)[1 + CENTRED]) {
  const Params& p = coming.p;
  const Value inverse = row.inverse;
  const Value slope = -inverse * (sums[0] * p.share);
  const Value offset = CENTRED ? -slope * row.remaining_mean() - sums[CENTRED] * p.share : Value(0);
  each_group(walk, [&](int item, i64 column) {
    if (!HOLDS) coming.fetch_group(item, row);
    Value x[VECTOR], dy[VECTOR], dx[VECTOR];
    row.get_x(p, walk, item, column, x);
    row.get_dy<Reread>(args_of<Reread>(p), walk, item, column, dy);
    scales.apply(p, walk, item, column, dy, dx);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      dx[v] = (slope * x[v] + (CENTRED ? dx[v] + offset : dx[v])) * inverse;
    }
    Epilogue::apply<VECTOR>(args_of<Epilogue>(p), Epilogue::cursor(args_of<Epilogue>(p), walk.coordinate), column, VECTOR, dx);
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
  ComingRows coming(p, memory);
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);
  walk.begin();
  const Scales scales(p, walk, coming.end());
  Value gradients[GRADIENTS][ITEMS][VECTOR] = {};

#pragma unroll 1
  for (; walk.is_within(); walk.next()) {
    Row row;
    cp_async_wait<PLACES - 1>();
    coming.fetch_numbers(walk, row);
    if (HOLDS) {
      each_group(walk, [&](int item, i64) { coming.fetch_group(item, row); });
      coming.ask();
    }
    Value sums[1 + CENTRED] = {};
    add_row(coming, walk, row, scales, gradients, sums);
    team.all<Plus>(sums);
    if (HOLDS) row.renew();
    store_row(coming, walk, row, scales, sums);
    if (!HOLDS) coming.ask();
  }
#pragma unroll
  for (int k = 0; k < GRADIENTS; ++k) store_gradients(p, walk, gradients[k], p.gradients[k]);
  team.leave();
}
