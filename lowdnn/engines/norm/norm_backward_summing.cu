// norm_backward_summing: for each row, with xhat = (x - mean) * inverse and g = dy * scale, dy = prologue(...),
//   dx = epilogue(inverse * (g - average(g) - xhat * average(g * xhat)))
// and the sums over this block's rows of dy * xhat and (GRADIENTS = 2) of dy, for each element of a row. Without
// CENTRED the mean is 0 and average(g) is left out.
//
// Layouts: any strides over RANK axes: KEPT kept ones, then those of a row, the last of them cut into vectors
// (include/rows.cuh); inverse and mean one for each row; the sums [blocks / CLUSTER][elements of a row].
// Block: as many as are there at a time, with every row of a grid's width after the last; CLUSTER blocks share rows.
// Each thread has the same elements of all of its rows, and sums them in registers. A team has AT_HAND rows at a time,
// so that its threads meet and read the scales once for these. PLACES rows lie in shared memory or are on their way
// there: each thread's part of a place is filled with what a later row has there as soon as it has been read for the
// last time. Nobody else reads it, so that this needs no barrier.
// Shared memory: RowTeam's and, with several slots, VECTOR sums of each thread; dynamic: PLACES rows of x, of dy, of
// inverse and (CENTRED) of mean.
// Launch: THREADS threads, any multiple of CLUSTER blocks.
// Macros: THREADS TEAM SIDE ITEMS SHARING CLUSTER AS_READ RESIDENT VECTOR KEPT IS_ROW HAS_SKEW JOINED CHUNKED; INDEX:
// u32 below 2^31 rows and groups, else i64; CENTRED; SCALED: whether there is a scale; GRADIENTS: 1 (dscale) or 2
// (dscale and dbias); AT_HAND; PLACES, a multiple of it; AGAIN: whether what is read again has a functor of its own,
// since Prologue stores tensors.

#include "include/row_team.cuh"
#include "generated.cuh"

typedef RowTile<Data::RANK, KEPT, IS_ROW, HAS_SKEW, VECTOR, THREADS, TEAM, SIDE, JOINED, ITEMS, SHARING, CLUSTER,
                CHUNKED, INDEX>
    Tile;
typedef Data::Result Value;
typedef RowTeam<Tile, Value, 2 * AT_HAND> Team;
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

// AT_HAND rows of a team, from the one `steps` after `walk` on, with places from `first_place` on.
struct Rows {
  RowWalk<Tile> walks[AT_HAND];
  const int first_place;

  __device__ __forceinline__ Rows(const RowWalk<Tile>& walk, int steps, int first_place) : first_place(first_place) {
#pragma unroll
    for (int row = 0; row < AT_HAND; ++row) {
      walks[row] = walk;
      walks[row].next(steps + row);
    }
  }
  __device__ __forceinline__ RowWalk<Tile>& operator[](int row) { return walks[row]; }
  __device__ __forceinline__ int place(int row) const { return first_place + row; }
};

// What a functor reads of the next rows, COUNT groups of SIZE elements of each in a thread: [PLACES][COUNT][THREADS].
template <class Source, int SIZE, int COUNT> struct NextRows {
  typedef typename Source::template Loaded<SIZE> Loaded;

  Loaded* const first;

  __device__ __forceinline__ explicit NextRows(void* memory) : first(static_cast<Loaded*>(memory)) {}
  // Where the next area may begin.
  __device__ __forceinline__ void* end() const { return first + PLACES * COUNT * THREADS; }

  template <int RANK>
  __device__ __forceinline__ void copy(const typename Source::Args& args, const i64 (&coordinate)[RANK], i64 column,
                                       int place, int item) const {
    Source::template copy<SIZE>(args, Source::cursor(args, coordinate), column, SIZE, address(place, item));
  }

  // The values, by a functor that reads the same tensors.
  template <class Same, int RANK>
  __device__ __forceinline__ void get(const typename Same::Args& args, const i64 (&coordinate)[RANK], i64 column,
                                      int place, int item, Value (&values)[SIZE]) const {
    typedef typename Same::template Loaded<SIZE> Copied;
    static_assert(sizeof(Copied) == sizeof(Loaded), "the same tensors");
    Copied in;
    Same::template fetch<SIZE>(reinterpret_cast<const Copied&>(address(place, item)), in);
    Same::template finish<SIZE>(args, Same::cursor(args, coordinate), column, SIZE, in, values);
  }

 private:
  __device__ __forceinline__ Loaded& address(int place, int item) const {
    return first[(place * COUNT + item) * THREADS + threadIdx.x];
  }
};

// One number of each row.
template <class Source> struct NextNumbers : NextRows<Source, 1, 1> {
  typedef NextRows<Source, 1, 1> Base;
  using Base::Base;

  __device__ __forceinline__ void copy(const typename Source::Args& args, const RowWalk<Tile>& walk, int place) const {
    i64 kept[KEPT];
    walk.locate_row(kept);
    Base::copy(args, kept, walk.kept_column, place, 0);
  }
  __device__ __forceinline__ Value get(const typename Source::Args& args, const RowWalk<Tile>& walk, int place) const {
    i64 kept[KEPT];
    walk.locate_row(kept);
    Value value[1];
    Base::template get<Source>(args, kept, walk.kept_column, place, 0, value);
    return value[0];
  }
};

struct Next {
  const Params& p;
  const NextRows<Data, VECTOR, ITEMS> x;
  const NextRows<Prologue, VECTOR, ITEMS> dy;
  const NextNumbers<Inverse> inverse;
#if CENTRED
  const NextNumbers<Mean> mean;
#endif

  __device__ __forceinline__ Next(const Params& p, void* memory)
      : p(p), x(memory), dy(x.end()), inverse(dy.end())
#if CENTRED
        , mean(inverse.end())
#endif
  {}

  __device__ __forceinline__ void copy_numbers(const RowWalk<Tile>& walk, int place) const {
    if (!walk.exists) return;
    inverse.copy(p.inverse, walk, place);
#if CENTRED
    mean.copy(p.mean, walk, place);
#endif
  }

  __device__ __forceinline__ void copy_group(RowWalk<Tile>& walk, int place, int item) const {
    i64 column;
    if (!walk.locate(walk.group(0, item), column)) return;
    x.copy(p.x, walk.coordinate, column, place, item);
    dy.copy(p.dy, walk.coordinate, column, place, item);
  }
};

// The mean and the inverse of a row that exists; and what dx is made with besides.
struct Statistics {
  Value mean = Value(0), inverse = Value(0);
  Value offset, slope;  // of dx = inverse * g - offset - slope * (x - mean)

  __device__ __forceinline__ void load(const Next& next, const RowWalk<Tile>& walk, int place) {
    if (!walk.exists) return;
    inverse = next.inverse.get(next.p.inverse, walk, place);
#if CENTRED
    mean = next.mean.get(next.p.mean, walk, place);
#endif
  }

  // sums: of g and of g * xhat.
  __device__ __forceinline__ void finish(Value share, const Value (&sums)[2]) {
    offset = CENTRED ? inverse * (sums[0] * share) : Value(0);
    slope = inverse * (inverse * (sums[1] * share));
  }
};

// The scales of a group, of all rows.
struct Scales {
  Value scale[VECTOR];

  __device__ __forceinline__ Scales(const Params& p, const RowWalk<Tile>& walk, i64 column) {
#if SCALED
    Scale::apply<VECTOR>(p.scale, Scale::cursor(p.scale, walk.coordinate), column, VECTOR, scale);
#endif
  }

  // From dy to g.
  __device__ __forceinline__ Value of(Value dy, int v) const { return SCALED ? dy * scale[v] : dy; }
};

// `use(row, item, column, scales)` for each group of each row at hand. The scales are read once for all rows.
template <class Use> __device__ __forceinline__ void each_group(const Params& p, Rows& rows, Use use) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    i64 column;
    if (!rows[0].locate(rows[0].group(0, item), column)) continue;
    const Scales scales(p, rows[0], column);
#pragma unroll
    for (int row = 0; row < AT_HAND; ++row) {
      if (row == 0 || rows[row].locate(rows[row].group(0, item), column)) use(row, item, column, scales);
    }
  }
}

__device__ __forceinline__ void add_rows(const Next& next, Rows& rows, const Statistics (&statistics)[AT_HAND],
                                         Value (&gradients)[GRADIENTS][ITEMS][VECTOR], Value (&sums)[AT_HAND][2]) {
  const Params& p = next.p;
  each_group(p, rows, [&](int row, int item, i64 column, const Scales& scales) {
    Value x[VECTOR], dy[VECTOR];
    next.x.get<Data>(p.x, rows[row].coordinate, column, rows.place(row), item, x);
    next.dy.get<Prologue>(p.dy, rows[row].coordinate, column, rows.place(row), item, dy);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value xhat = (x[v] - statistics[row].mean) * statistics[row].inverse, g = scales.of(dy[v], v);
      gradients[0][item][v] += dy[v] * xhat;
      if (GRADIENTS > 1) gradients[GRADIENTS - 1][item][v] += dy[v];
      sums[row][0] += g;
      sums[row][1] += g * xhat;
    }
  });
}

// Stores dx, and fills each place with what the row ahead has there.
__device__ __forceinline__ void store_rows(const Next& next, Rows& rows, Rows& ahead,
                                           const Statistics (&statistics)[AT_HAND]) {
  const Params& p = next.p;
#if AGAIN
  const Again::Args& again = p.again;
#else
  const Again::Args& again = p.dy;
#endif
  each_group(p, rows, [&](int row, int item, i64 column, const Scales& scales) {
    Value x[VECTOR], dx[VECTOR];
    next.x.get<Data>(p.x, rows[row].coordinate, column, rows.place(row), item, x);
    next.dy.get<Again>(again, rows[row].coordinate, column, rows.place(row), item, dx);
    next.copy_group(ahead[row], ahead.place(row), item);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const Value centred = statistics[row].inverse * scales.of(dx[v], v) - statistics[row].offset;
      dx[v] = centred - statistics[row].slope * (x[v] - statistics[row].mean);
    }
    Epilogue::apply<VECTOR>(p.dx, Epilogue::cursor(p.dx, rows[row].coordinate), column, VECTOR, dx);
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
  const Next next(p, memory);
  Team team(shared);
  RowWalk<Tile> walk(p.sizes);
  Value gradients[GRADIENTS][ITEMS][VECTOR] = {};

  walk.begin();
#pragma unroll 1
  for (int place = 0; place < PLACES; place += AT_HAND) {
    if (place > 0) cp_async_commit();
    Rows rows(walk, place, place);
#pragma unroll
    for (int row = 0; row < AT_HAND; ++row) {
      next.copy_numbers(rows[row], rows.place(row));
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) next.copy_group(rows[row], rows.place(row), item);
    }
  }

  int place = 0;
#pragma unroll 1
  for (; walk.is_within(); walk.next(AT_HAND)) {
    cp_async_commit();
    cp_async_wait<PLACES / AT_HAND - 1>();
    Rows rows(walk, 0, place);
    Statistics statistics[AT_HAND];
    Value sums[AT_HAND][2] = {};
#pragma unroll
    for (int row = 0; row < AT_HAND; ++row) statistics[row].load(next, rows[row], rows.place(row));
    add_rows(next, rows, statistics, gradients, sums);
    team.all<Plus>(reinterpret_cast<Value(&)[2 * AT_HAND]>(sums));
#pragma unroll
    for (int row = 0; row < AT_HAND; ++row) statistics[row].finish(p.share, sums[row]);
    Rows ahead(walk, PLACES, place);
    store_rows(next, rows, ahead, statistics);
#pragma unroll
    for (int row = 0; row < AT_HAND; ++row) next.copy_numbers(ahead[row], ahead.place(row));
    place = place + AT_HAND == PLACES ? 0 : place + AT_HAND;
  }
#pragma unroll
  for (int k = 0; k < GRADIENTS; ++k) store_gradients(p, walk, gradients[k], p.gradients[k]);
  team.leave();
}
