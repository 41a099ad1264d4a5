// conv_depthwise:
//     target[n, c, o] = epilogue(sum over m, t of source[n, c / FAN_IN.., position(o, t)] * w[c.., tap(t)])
// the forward pass (source x, target y) and the data gradient (source dy, target dx) of convolutions with one channel
// in each group. Positions and taps are those of depthwise.cuh's residue classes; positions outside the source count
// as 0. Forwards a channel has one source, c / fan; backwards it has SOURCES of them, c * SOURCES + m.
//
// Layouts: any strides. Neighbouring threads own neighbouring channels, or, with COLUMNS_FIRST, neighbouring strips.
// Thread: CHANNELS neighbouring channels of STRIP neighbouring targets of a class along the columns. It walks down the
// rows of one segment. It keeps in registers its weights, the windows of PREFETCH source rows in flight, and the sums
// of the rows of targets that are not finished. A source row is read once and widened once, and is added to every sum
// that needs it; then the oldest row of sums goes to the epilogue and the others move up.
// Block: THREADS such threads; blockIdx.x = block of threads * classes + class. Threads are numbered over
// (image, plane, segment, strip, channels), or (image, channels, plane, segment, strip) with COLUMNS_FIRST.
// Weights: with a WEIGHT_ORDER each thread loads its own weights, which are contiguous in memory; otherwise the block
// copies the weights of its groups of channels.
// Shared memory (dynamic): copied weights in the order of memory, each group's to an odd pitch, so that neighbouring
// threads read different banks: [weight_groups][filters, planes, rows, columns] of f32.
// Launch: THREADS threads; it may be a dependent launch (dependent_launch.cuh).
// Macros: X_TYPE; W_TYPE; CHANNELS; STRIP; PLANE_TAPS, ROW_TAPS, COLUMN_TAPS, the most of any class; ROW_STEP,
// COLUMN_STEP; SOURCES; CLASSES, the most of any axis; IS_UNEVEN: classes differ in their taps, by one; CLIP_FRONT,
// CLIP_BACK: positions of a window that lie outside the source for all threads; COLUMNS_FIRST; RUN: columns that the
// epilogue gets at a time if CHANNELS is 1; PREFETCH; UNROLL: steps of the loop's body; THREADS; WEIGHT_ORDER: 1 if a
// thread's weights are in the order of its taps, -1 if each filter's are reversed, 0 if they are copied; WEIGHT_VECTOR:
// weights of one access; COLUMN_OPERATOR, WHOLE_OPERATOR: reductions of each channel and of everything
// (thread_reductions.cuh), NoOperator for none.

#include "include/ptx/dependent_launch.cuh"
#include "depthwise.cuh"
#include "thread_reductions.cuh"
#include "generated.cuh"

constexpr int RANK = Functor::RANK;  // n, c, planes if the tensors have them, rows, columns
constexpr int SUBROWS = ROW_STEP * PLANE_TAPS * SOURCES;  // source rows of a step
// After the loop's body each window in flight must be in the same registers again: a move would wait for its load.
static_assert(UNROLL * SUBROWS % PREFETCH == 0, "a whole number of rounds over the windows");
static_assert(RUN == 1 || (CHANNELS == 1 && STRIP % RUN == 0), "a run of columns has one channel");

typedef ThreadReductions<CHANNELS, COLUMN_OPERATOR, WHOLE_OPERATOR> Reductions;

struct Params : Reductions::Output {
  const X_TYPE* source;
  const W_TYPE* w;
  i64 source_strides[5];  // strides of n, c, planes, rows, columns
  i64 w_strides[4];  // strides of column, row and plane taps, filters
  Digits<4> w_digits;  // the numbering of weights in the same order
  Divider group_weights;  // weights of a group
  i32 weights;  // weights of all groups
  i32 is_dense;  // whether they are contiguous in the numbering's order
  Axis planes, rows, columns;
  Divider classes;  // classes of all axes together
  Divider class_radices[2];  // classes of columns and of rows
  Digits<5> threads;       // the numbering of threads, the fastest first
  i32 thread_count;
  i32 segment;  // rows of targets that a thread finishes
  i32 weight_groups;  // groups of CHANNELS in a block
  i32 fan;            // targets of one source channel
  Functor::Args epilogue;
};

// The digits of a thread's number.
struct Place {
  u32 image, plane, segment, strip, group;

  __device__ __forceinline__ Place(const Params& p, u32 thread) {
    u32 digits[5];
    p.threads.split(thread, digits);
    group = digits[COLUMNS_FIRST ? 3 : 0];
    strip = digits[COLUMNS_FIRST ? 0 : 1];
    segment = digits[COLUMNS_FIRST ? 1 : 2];
    plane = digits[COLUMNS_FIRST ? 2 : 3];
    image = digits[4];
  }

  // Index of the thread among the threads with the same channels.
  __device__ __forceinline__ u32 slice(const Params& p) const {
    const u32 strips = p.threads.radices[COLUMNS_FIRST ? 0 : 1].divisor;
    const u32 segments = p.threads.radices[COLUMNS_FIRST ? 1 : 2].divisor;
    const u32 planes = p.threads.radices[COLUMNS_FIRST ? 2 : 3].divisor;
    return ((image * planes + plane) * segments + segment) * strips + strip;
  }
};

// Copies the weights of the block's groups, widened; the first group is that of the block's first thread.
// BATCH: loads in flight at a time. offset_of(number): a weight's offset in memory.
template <int BATCH, class OffsetOf>
__device__ __forceinline__ void copy_weights(const Params& p, u32 first_group, f32* to, OffsetOf offset_of) {
  const u32 per_group = p.group_weights.divisor, gap = 1 - per_group % 2;  // pads to an odd pitch
  const u32 first = first_group * per_group, count = p.weight_groups * per_group;
#pragma unroll 1
  for (u32 begin = threadIdx.x; begin < count; begin += BATCH * THREADS) {
    W_TYPE batch[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      u32 number = first + begin + i * THREADS;
      if (number >= u32(p.weights)) number -= p.weights;
      if (begin + i * THREADS < count) batch[i] = p.w[offset_of(number)];
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const u32 at = begin + i * THREADS;
      if (at < count) to[at + p.group_weights.divide(at) * gap] = convert<f32>(batch[i]);
    }
  }
}

__device__ __forceinline__ void copy_weights(const Params& p, u32 first_group, f32* to) {
  if (p.is_dense) {
    // The batch is the number of a thread's own weights, whose registers are still free. With one channel it is at most
    // 24, since rows that are read ahead need some of these registers.
    constexpr int OWN = SOURCES * PLANE_TAPS * ROW_TAPS * COLUMN_TAPS * CHANNELS;
    constexpr int AT_A_TIME = CHANNELS > 1 || OWN < 24 ? OWN : 24;
    copy_weights<AT_A_TIME>(p, first_group, to, [](u32 number) { return number; });
  } else {
    copy_weights<1>(p, first_group, to, [&](u32 number) { return offset_of(p.w_digits, p.w_strides, number); });
  }
}

// The weights of a thread's channels, in the order of memory.
struct OwnWeights {
  static constexpr int FILTER = PLANE_TAPS * ROW_TAPS * COLUMN_TAPS;
  W_TYPE values[CHANNELS * SOURCES * FILTER];

  __device__ __forceinline__ OwnWeights(const Params& p, u32 group) {
    load<Repeated, WEIGHT_VECTOR>(values, p.w + i64(group) * (CHANNELS * SOURCES * FILTER));
  }
};

// The thread's weights, from those of its group; 0 if its classes lack a tap.
template <int ROW_TAPS_, int COLUMN_TAPS_> struct Weights {
  f32 values[SOURCES * PLANE_TAPS][ROW_TAPS_][COLUMN_TAPS_][CHANNELS];

  __device__ __forceinline__ explicit Weights(const OwnWeights& own) {
#pragma unroll
    for (int i = 0; i < CHANNELS * SOURCES * OwnWeights::FILTER; ++i) {
      const int filter = i / OwnWeights::FILTER, place = i % OwnWeights::FILTER;
      const int tap = WEIGHT_ORDER < 0 ? OwnWeights::FILTER - 1 - place : place;
      const int column = tap % COLUMN_TAPS_, row = tap / COLUMN_TAPS_ % ROW_TAPS_;
      const int plane = tap / (COLUMN_TAPS_ * ROW_TAPS_);
      values[filter % SOURCES * PLANE_TAPS + plane][row][column][filter / SOURCES] = convert<f32>(own.values[i]);
    }
  }

  __device__ __forceinline__ Weights(const Params& p, const AxisClass& plane, const AxisClass& row,
                                     const AxisClass& column, const f32* group) {
    const i32 row_pitch = p.w_digits.radices[0].divisor, plane_pitch = row_pitch * p.w_digits.radices[1].divisor;
    const i32 filter_pitch = plane_pitch * p.w_digits.radices[2].divisor;
    const bool has_taps = row.taps > 0 && column.taps > 0;
#pragma unroll
    for (int m = 0; m < SOURCES; ++m) {
#pragma unroll
      for (int s = 0; s < PLANE_TAPS; ++s) {
#pragma unroll
        for (int r = 0; r < ROW_TAPS_; ++r) {
          const f32* tap = group + m * filter_pitch + (plane.tap + s * p.planes.tap_step) * plane_pitch +
                           (row.tap + r * p.rows.tap_step) * row_pitch + column.tap;
#pragma unroll
          for (int t = 0; t < COLUMN_TAPS_; ++t) {
#pragma unroll
            for (int v = 0; v < CHANNELS; ++v) {
              const bool exists = has_taps && s < plane.taps;
              values[m * PLANE_TAPS + s][r][t][v] = exists ? tap[v * SOURCES * filter_pitch] : 0.0f;
            }
            tap += p.columns.tap_step;
          }
        }
      }
    }
  }
};

// Positions of a thread's targets.
struct Targets {
  Functor::Cursor first, next_row, next_column;  // cursor of the first target; steps to the next
  i64 along;  // the first target's coordinate along the epilogue's vector axis
  i32 valid;  // columns from the strip's first one on that exist, possibly more than STRIP

  __device__ __forceinline__ Targets(const Params& p, const Place& place, const AxisClass& plane, const AxisClass& row,
                                     const AxisClass& column) {
    i64 coordinate[RANK] = {place.image, place.group * CHANNELS};
    if (RANK > 4) coordinate[RANK - 3] = plane.target + i32(place.plane) * p.planes.target_step;
    coordinate[RANK - 2] = row.target + i32(place.segment) * p.segment * p.rows.target_step;
    coordinate[RANK - 1] = column.target + i32(place.strip) * STRIP * p.columns.target_step;
    i64 row_step[RANK] = {}, column_step[RANK] = {};
    row_step[RANK - 2] = p.rows.target_step;
    column_step[RANK - 1] = p.columns.target_step;
    first = Functor::cursor(p.epilogue, coordinate);
    next_row = Functor::cursor(p.epilogue, row_step);
    next_column = Functor::cursor(p.epilogue, column_step);
    if (RUN == 1 && STRIP > 1) keep(next_column);
    along = RUN > 1 ? coordinate[RANK - 1] : coordinate[1];
    valid = column.count - i32(place.strip) * STRIP;
  }
};

// Sums of the unfinished rows of targets: values[i] belongs to row step - i.
template <int DEPTH> struct Sums {
  f32 values[DEPTH][STRIP][CHANNELS];

  // Hands the first `valid` columns of the oldest row to the epilogue.
  __device__ __forceinline__ void finish(const Params& p, const Targets& targets, Functor::Cursor cursor,
                                         Reductions& reductions) const {
    if (targets.valid >= STRIP) {
      finish_columns<true>(p, targets, cursor, reductions);
    } else {
      finish_columns<false>(p, targets, cursor, reductions);
    }
  }

  // Adds a source row times the filter rows of one plane that read it. phase: the source row's position in the step.
  template <int WINDOW, int ROW_TAPS_, int COLUMN_TAPS_>
  __device__ __forceinline__ void add(const f32 (&x)[WINDOW][CHANNELS],
                                      const f32 (&w)[ROW_TAPS_][COLUMN_TAPS_][CHANNELS], int phase) {
#pragma unroll
    for (int i = DEPTH - 1; i >= 0; --i) {
      const int r = i * ROW_STEP + phase;
      if (r >= ROW_TAPS_) continue;
#pragma unroll
      for (int t = 0; t < COLUMN_TAPS_; ++t) {
#pragma unroll
        for (int o = 0; o < STRIP; ++o) {
          const int j = o * COLUMN_STEP + t - CLIP_FRONT;
          if (j < 0 || j >= WINDOW) continue;
#pragma unroll
          for (int v = 0; v < CHANNELS; ++v) values[i][o][v] += x[j][v] * w[r][t][v];
        }
      }
    }
  }

  // Moves the sums of each row up by one, and begins a new row.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int i = DEPTH - 1; i >= 0; --i) {
#pragma unroll
      for (int o = 0; o < STRIP; ++o) {
#pragma unroll
        for (int v = 0; v < CHANNELS; ++v) values[i][o][v] = i ? values[i - 1][o][v] : 0.0f;
      }
    }
  }

 private:
  template <bool ALL>
  __device__ __forceinline__ void finish_columns(const Params& p, const Targets& targets, Functor::Cursor cursor,
                                                 Reductions& reductions) const {
#pragma unroll
    for (int o = 0; o < STRIP; o += RUN) {
      if constexpr (RUN > 1) {
        f32 run[RUN];
#pragma unroll
        for (int i = 0; i < RUN; ++i) run[i] = values[DEPTH - 1][o + i][0];
        const i32 valid = ALL ? RUN : min(targets.valid - o, RUN);
        if (valid > 0) reductions.apply<Functor, RUN, true>(p.epilogue, cursor, targets.along + o, valid, run);
      } else {
        if (ALL || o < targets.valid) {
          reductions.apply<Functor, CHANNELS, false>(p.epilogue, cursor, targets.along, CHANNELS, values[DEPTH - 1][o]);
        }
        move(cursor, targets.next_column);
      }
    }
  }
};

// The weights of the thread's group: its own loads if they are contiguous in memory, otherwise the block's copies.
template <int ROW_TAPS_, int COLUMN_TAPS_>
__device__ __forceinline__ auto weights_of(const Params& p, u32 thread, const Place& place, const AxisClass& plane,
                                           const AxisClass& row, const AxisClass& column, f32* shared_weights) {
  if constexpr (WEIGHT_ORDER != 0) {
    return OwnWeights(p, place.group);
  } else {
    const u32 groups = p.threads.radices[COLUMNS_FIRST ? 3 : 0].divisor;
    const u32 first_group = Place(p, thread - threadIdx.x).group;
    copy_weights(p, first_group, shared_weights);
    __syncthreads();
    const u32 slot = place.group >= first_group ? place.group - first_group : place.group + groups - first_group;
    return Weights<ROW_TAPS_, COLUMN_TAPS_>(p, plane, row, column,
                                            shared_weights + slot * (p.group_weights.divisor | 1));
  }
}

constexpr bool IS_PREDICATED = CHANNELS > 1;  // predicates on 16-bit elements cost more (measured)
constexpr bool IN_LINES = COLUMN_STEP > 1;  // slower without strides, as rows are reread (measured)

// The reader of the source, from a step's rows on; it reads nothing if the thread has no targets.
template <class Source>
__device__ __forceinline__ Source source_of(const Params& p, const Place& place, const AxisClass& plane,
                                            const AxisClass& row, const AxisClass& column, i32 step,
                                            bool has_targets) {
  const i64 channel = i64(place.group * CHANNELS / p.fan) * SOURCES;
  const i32 source_plane = plane.source + i32(place.plane) * p.planes.step * p.planes.spacing;
  const i32 position = i32(place.strip) * (STRIP * COLUMN_STEP) + CLIP_FRONT;
  Source source(p.source + place.image * p.source_strides[0] + channel * p.source_strides[1], p.source_strides);
  source.set_planes(source_plane, p.planes.spacing, p.planes.extent, plane.taps);
  source.set_rows(row.source + step * ROW_STEP * p.rows.spacing, p.rows.spacing, has_targets ? p.rows.extent : 0);
  source.set_columns(column.source + position * p.columns.spacing, p.columns.spacing, p.columns.extent);
  return source;
}

// The work of a thread in a block of the given classes; `thread` may be past the last one.
template <int ROW_TAPS_, int COLUMN_TAPS_>
__device__ __forceinline__ void correlate(const Params& p, u32 thread, const AxisClass& plane, const AxisClass& row,
                                          const AxisClass& column, f32* shared_weights, Reductions& reductions) {
  constexpr int DEPTH = (ROW_TAPS_ + ROW_STEP - 1) / ROW_STEP;  // rows of targets that a source row is added to
  constexpr int WINDOW = (STRIP - 1) * COLUMN_STEP + COLUMN_TAPS_ - CLIP_FRONT - CLIP_BACK;
  typedef RowReader<X_TYPE, WINDOW, CHANNELS, ROW_STEP, PLANE_TAPS, SOURCES, IS_PREDICATED, IN_LINES> Source;

  const Place place(p, thread);
  const bool has_targets = thread < u32(p.thread_count) && i32(place.plane) < plane.count &&
                           i32(place.segment) * p.segment < row.count && i32(place.strip) * STRIP < column.count;

  // The range of targets of the segment. Target k is complete after step k + DEPTH - 1. Steps outside the source add
  // nothing.
  const i32 begin = place.segment * p.segment, end = min(begin + p.segment, row.count) + DEPTH - 1;
  const bool has_taps = plane.taps > 0 && row.taps > 0 && column.taps > 0;
  i32 step = max(begin, min(row.first_step, begin + DEPTH - 1));
  const i32 end_of_source = has_taps ? min(row.end_step, end) : step;

  // The first rows are in flight while the weights arrive.
  Source source = source_of<Source>(p, place, plane, row, column, step, has_targets);
  wait_for_previous_kernel();
  allow_next_kernel();
  typename Source::Window coming[PREFETCH];
#pragma unroll
  for (int i = 0; i < PREFETCH; ++i) source.load(coming[i], i % SUBROWS);
  const auto weights = weights_of<ROW_TAPS_, COLUMN_TAPS_>(p, thread, place, plane, row, column, shared_weights);
  if (!has_targets) return;
  const Weights<ROW_TAPS_, COLUMN_TAPS_> w(weights);

  const Targets targets(p, place, plane, row, column);
  Functor::Cursor cursor = targets.first;
  Sums<DEPTH> sums = {};
  const auto finish_step = [&] {
    if (step >= begin + DEPTH - 1) {
      sums.finish(p, targets, cursor, reductions);
      move(cursor, targets.next_row);
    }
    sums.advance();
    ++step;
  };
#pragma unroll 1
  while (step < end_of_source) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (u > 0 && step >= end_of_source) break;
#pragma unroll
      for (int subrow = 0; subrow < SUBROWS; ++subrow) {
        typename Source::Window& arrived = coming[(u * SUBROWS + subrow) % PREFETCH];
        f32 x[WINDOW][CHANNELS];
        arrived.widen_to<COLUMN_STEP == 1>(x);  // by halves: measured slower with the wide windows of strides
        source.load(arrived, (subrow + PREFETCH) % SUBROWS);
        const int phase = subrow / (PLANE_TAPS * SOURCES);
        const int filter_plane = subrow % SOURCES * PLANE_TAPS + subrow / SOURCES % PLANE_TAPS;
        sums.add(x, w.values[filter_plane], phase);
      }
      finish_step();
    }
  }

  // Finishes the targets whose remaining source rows lie outside the tensor.
#pragma unroll 1
  while (step < end) finish_step();
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char shared[];
  f32* const weights = reinterpret_cast<f32*>(shared);

  // The block's classes.
  const u32 block = p.classes.divide(blockIdx.x);
  u32 number = blockIdx.x - block * p.classes.divisor;
  const u32 above = p.class_radices[0].divide(number), plane_class = p.class_radices[1].divide(above);
  const AxisClass& column = p.columns.classes[number - above * p.class_radices[0].divisor];
  const AxisClass& row = p.rows.classes[above - plane_class * p.class_radices[1].divisor];
  const AxisClass& plane = p.planes.classes[plane_class];

  const u32 thread = block * THREADS + threadIdx.x;
  Reductions reductions;
  if constexpr (IS_UNEVEN) {
    constexpr int FEWER_ROWS = ROW_TAPS > 1 ? ROW_TAPS - 1 : 1, FEWER_COLUMNS = COLUMN_TAPS > 1 ? COLUMN_TAPS - 1 : 1;
    const bool has_all_rows = row.taps == ROW_TAPS, has_all_columns = column.taps == COLUMN_TAPS;
    if (has_all_rows && has_all_columns) {
      correlate<ROW_TAPS, COLUMN_TAPS>(p, thread, plane, row, column, weights, reductions);
    } else if (has_all_rows) {
      correlate<ROW_TAPS, FEWER_COLUMNS>(p, thread, plane, row, column, weights, reductions);
    } else if (has_all_columns) {
      correlate<FEWER_ROWS, COLUMN_TAPS>(p, thread, plane, row, column, weights, reductions);
    } else {
      correlate<FEWER_ROWS, FEWER_COLUMNS>(p, thread, plane, row, column, weights, reductions);
    }
  } else {
    correlate<ROW_TAPS, COLUMN_TAPS>(p, thread, plane, row, column, weights, reductions);
  }

  // Stores this thread's totals of the reductions.
  if constexpr (Reductions::Channels::EXISTS) {
    const Place place(p, thread);
    const u32 slice = place.slice(p) * p.classes.divisor + blockIdx.x - block * p.classes.divisor;
    if (thread < u32(p.thread_count)) reductions.channels.store(p, slice, place.group * CHANNELS);
  }
  reductions.whole.store(p);
}
