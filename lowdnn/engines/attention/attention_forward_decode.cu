// attention_forward_decode: o = output(weights(softmax(scores(q k^T))) v) for few queries and many keys, on mma.sync;
// its time is that of reading k and v once.
//
// Block: TILE_Q rows, the queries of PACK heads that share keys, and one of gridDim.y parts of the keys that they
// attend to. Each of its WARPS warps multiplies every WARPS-th tile of TILE_KV keys with all of the rows, so that the
// block reads a contiguous range of memory at a time. A warp copies its tiles through a ring of its own and waits for
// no other warp before the end, when the warps combine their results. Where the keys are in parts (IS_SPLIT), the
// blocks of one tile of rows combine theirs as a cluster (IN_CLUSTER), or leave them in the workspace for
// attention_forward_combine.
// Rings: the copy of a tile of k or v starts as soon as the tile in its stage has been multiplied, so that all other
// stages are in flight while a warp waits for one.
// Memory: q, k, v as their places say, with elements of a head contiguous, rows at multiples of 16 bytes. Sizes of
// heads are multiples of 8, at most HEAD_QK and HEAD_V, multiples of 16.
// Shared memory (dynamic): TILE_Q rows of q; for each warp STAGES times TILE_KV rows of k and of v and, with large
// pages, 128 bytes for entries of the page table; at the end the accumulators of all warps, and once more the extremes
// of a lane's rows.
// Launch: 32 threads for each warp; grid (tiles of rows, parts of the keys); IN_CLUSTER: clusters (1, parts of the
// keys).
// Macros: HEAD_QK, those of attention_places.cuh, of attention_forward.cuh with WARP_Q = TILE_Q, WARPS, STAGES,
// BLOCKS_PER_SM, IS_SPLIT, IN_CLUSTER; OVERLAPS_PREVIOUS: as a dependent launch (dependent_launch.cuh); FILLS_DEVICE:
// whether this launch occupies the device, so that blocks of the next launch start only as its blocks end.
// Source: Dao et al., "Flash-Decoding for long-context inference".

#include "attention_forward.cuh"
#include "attention_forward_scores.cuh"
#include "attention_forward_store.cuh"
#include "attention_forward_weights.cuh"
#include "attention_mma.cuh"
#include "attention_partials.cuh"
#include "attention_places.cuh"
#include "include/ptx/cluster.cuh"
#include "include/ptx/dependent_launch.cuh"

typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;
// The operand of queries: in registers where they fit, otherwise in shared memory.
typedef Either<TILE_Q * HEAD_QK <= 16 * 128, HeldRows<PARTS, HEAD_QK>, Queries>::Type QueryOperand;

constexpr int THREADS = WARPS * WARP_SIZE;

// A stage of a warp's ring: a tile of keys, a tile of values and notes, the page-table entries of the tiles that this
// stage gets next. They are fetched ahead because a load of the table at that time would wait behind all copies in
// flight.
struct Stage {
  static constexpr bool HAS_NOTES = K_PLACE == IN_LARGE_PAGES || V_PLACE == IN_LARGE_PAGES;
  static constexpr u32 NOTES = Keys::BYTES + Values::BYTES, BYTES = NOTES + (HAS_NOTES ? 128 : 0);

  u32 address;

  __device__ __forceinline__ Keys keys() const { return {address}; }
  __device__ __forceinline__ Values values() const { return {address + Keys::BYTES}; }
  __device__ __forceinline__ u32 note_of_keys() const { return address + NOTES; }
  __device__ __forceinline__ u32 note_of_values() const { return address + NOTES + 4; }
};

struct Operands {
  QueryHeads q;
  KeyHeads k;
  ValueHeads v;
};

struct Params : Operands, PartialsOf<IS_SPLIT && !IN_CLUSTER> {
  Forward forward;
};

// The block's range of the tiles of keys that the rows of `place` attend to.
struct Share {
  i32 begin, end;

  __device__ __forceinline__ explicit Share(const Place& place) {
    const i32 tiles = max(place.end - place.begin, 0);
    const i32 block = IS_SPLIT ? blockIdx.y : 0, blocks = IS_SPLIT ? gridDim.y : 1;
    const i32 each = tiles / blocks, more = tiles % blocks;
    begin = place.begin + block * each + min(block, more);
    end = begin + each + (block < more);
  }
};

// The rows of a block: row = query * PACK + head in the pack.
struct PackRows {
  const QueryHeads& q;
  const Place& place;
  i32 queries;

  __device__ __forceinline__ const T* at(int row) const {
    const i32 of_pack = min(place.block_row + row, queries * PACK - 1);
    return q.at(place.batch, place.head + of_pack % PACK, of_pack / PACK);
  }
  __device__ __forceinline__ const T* below(const T* from, int row, int rows) const { return at(row + rows); }
};

// Outputs of a thread's rows in two blocks of columns; warps' results are combined two blocks at a time.
typedef f32 OutputPair[PARTS][2][4];

// One lane's partial results in shared memory: the largest score and the sum of each of its rows, and the outputs.
struct Found {
  static constexpr int EXTREMES = PARTS * 4, VALUES = EXTREMES + PARTS * OUTPUT_BLOCKS * 4;

  f32 *extremes, *outputs;  // this lane's

  __device__ __forceinline__ f32& largest(int part, int half) const { return at(extremes, (part * 2 + half) * 2); }
  __device__ __forceinline__ f32& sum(int part, int half) const { return at(extremes, (part * 2 + half) * 2 + 1); }
  __device__ __forceinline__ f32& output(int part, int block, int i) const {
    return at(outputs, (part * OUTPUT_BLOCKS + block) * 4 + i);
  }

  __device__ __forceinline__ void store_extremes(const RunningSoftmax& softmax) const {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest(part, half) = softmax.largest[part][half];
        sum(part, half) = softmax.sum[part][half];
      }
  }

  // Stores the blocks of columns from `first` on.
  template <int BLOCKS> __device__ __forceinline__ void store(const f32 (&o)[PARTS][BLOCKS][4], int first) const {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) output(part, first + block, i) = o[part][block][i];
  }

  // Combines these results into `softmax` and `o`. load(x): reads x in this block's shared memory or at the same
  // address of another block of the cluster.
  template <class Load>
  __device__ __forceinline__ void join_to(RunningSoftmax& softmax, OutputPair& o, int first, const Load& load) const {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      f32 kept[2], added[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        join(softmax.unit, softmax.largest[part][half], softmax.sum[part][half], load(largest(part, half)),
             load(sum(part, half)), kept[half], added[half]);
      }
#pragma unroll
      for (int block = 0; block < 2; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[part][block][i] = o[part][block][i] * kept[i / 2] + load(output(part, first + block, i)) * added[i / 2];
        }
    }
  }

 private:
  static __device__ __forceinline__ f32& at(f32* first, int index) { return first[index * WARP_SIZE]; }
};

// The area of shared memory through which results are combined: those of each warp and, in a cluster, those of the
// block. The block's outputs replace the first warp's. Its extremes lie after all others, since warps still read the
// first warp's.
struct Meeting {
  f32* first;  // this lane's

  __device__ __forceinline__ explicit Meeting(u8* memory)
      : first(reinterpret_cast<f32*>(memory) + threadIdx.x % WARP_SIZE) {}

  __device__ __forceinline__ Found of_warp(int warp) const {
    f32* const own = first + warp * Found::VALUES * WARP_SIZE;
    return {own, own + Found::EXTREMES * WARP_SIZE};
  }
  __device__ __forceinline__ Found of_block() const {
    return {first + WARPS * Found::VALUES * WARP_SIZE, of_warp(0).outputs};
  }
};

// Stores the block's partial outputs for two blocks of columns from `first` on; with the first ones also the extremes.
// Params: a template parameter, since only some kernels have partials.
template <class Params>
__device__ __forceinline__ void store_partial(const Params& p, const Place& place, const Rows& rows,
                                              const RunningSoftmax& softmax, const OutputPair& o, int first) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows.at(part, half) >= p.forward.queries * PACK) continue;
      i64 coordinate[4];
      rows.coordinate(p.forward, place, part, half, coordinate);
      const i64 row = p.partials.row(coordinate, p.forward.packs.divisor * PACK, p.forward.queries);
      if (first == 0 && threadIdx.x % 4 == 0) {
        *p.partials.extreme(blockIdx.y, row) = {softmax.largest[part][half], softmax.sum[part][half]};
      }
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const f32* const pair = o[part][block] + half * 2;
        *p.partials.pair(blockIdx.y, row, (first + block) * 8 + threadIdx.x % 4 * 2) = {pair[0], pair[1]};
      }
    }
  }
}

// Stores two blocks of columns of the output from `first` on; with the first ones also the statistics.
__device__ __forceinline__ void store_pair(const Forward& p, const Place& place, const Rows& rows,
                                           const RunningSoftmax& softmax, OutputPair& o, int first) {
  const Destination to(p, place.batch);
  f32 shares[PARTS][2];
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    if (first == 0) store_statistics(p, to, place, rows, softmax, part);
#pragma unroll
    for (int half = 0; half < 2; ++half) shares[part][half] = share_of(p.value_scale(), softmax.sum[part][half]);
  }
  scale_rows(o, shares);
  store_output(p, to, place, rows, o, first * 8);
}

// Combines the results of the block's warps, in their order, and then those of the cluster's blocks, in theirs. Each
// warp does some of the columns.
__device__ __forceinline__ void join_found(const Params& params, const Place& place, const Rows& rows,
                                           const Meeting& meeting) {
  const Forward& p = params.forward;
  const int warp = threadIdx.x / WARP_SIZE;
  const auto load = [](const f32& here) { return here; };
#pragma unroll 1
  for (int first = warp * 2; first < OUTPUT_BLOCKS; first += WARPS * 2) {
    RunningSoftmax softmax(p.score_scale());
    OutputPair o = {};
#pragma unroll
    for (int other = 0; other < WARPS; ++other) meeting.of_warp(other).join_to(softmax, o, first, load);
    if constexpr (IN_CLUSTER) {
      if (first == 0) meeting.of_block().store_extremes(softmax);
      meeting.of_block().store(o, first);
    } else if constexpr (IS_SPLIT) {
      store_partial(params, place, rows, softmax, o, first);
    } else {
      store_pair(p, place, rows, softmax, o, first);
    }
  }
  if constexpr (IN_CLUSTER) {
    cluster_sync();
#pragma unroll 1
    for (int first = (warp * gridDim.y + blockIdx.y) * 2; first < OUTPUT_BLOCKS; first += WARPS * gridDim.y * 2) {
      RunningSoftmax softmax(p.score_scale());
      OutputPair o = {};
#pragma unroll 2
      for (u32 block = 0; block < gridDim.y; ++block) {
        const auto load_there = [&](const f32& here) { return load_of_block(&here, block); };
        meeting.of_block().join_to(softmax, o, first, load_there);
      }
      store_pair(p, place, rows, softmax, o, first);
    }
    cluster_sync();  // the other blocks have read this block's results
  }
}

// Prefetches into the L2 cache while the previous kernel ends: the batch's length and the page-table entries of the
// first keys. With FILLS_DEVICE also the first tile of each warp, as if all sequences had the greatest length. More
// tiles would take bandwidth from the previous kernel.
__device__ __forceinline__ void ask_ahead(const Params& params) {
  const Forward& p = params.forward;
  const u32 packs_before = p.tiles.divide(blockIdx.x);
  const i32 batch = i32(p.packs.divide(packs_before));
  if constexpr (HAS_LENGTHS) {
    if (threadIdx.x == 0) args_of<KeyLengths>(p.parts).prefetch(batch);
  }
  const i32 noted = blockIdx.y * (p.keys / gridDim.y) + threadIdx.x * TILE_KV;
  if (noted < p.keys) {
    prefetch_note(params.k, batch, noted);
    prefetch_note(params.v, batch, noted);
  }
  if (!FILLS_DEVICE || HAS_BLOCKS) return;
  const Place place(p, packs_before, blockIdx.x - packs_before * p.tiles.divisor, {p.queries, p.keys});
  const Share share(place);
  const i32 tile = share.begin + i32(threadIdx.x / WARP_SIZE), row = tile * TILE_KV;
  if (tile >= share.end) return;
  prefetch_rows<Keys>(params.k, batch, place.head, row, p.keys - row);
  prefetch_rows<Values>(params.v, batch, place.head, row, p.keys - row);
}

// Allows the next launch to start: before the first copy, or with FILLS_DEVICE when a warp has started its last copy.
__device__ __forceinline__ void allow_next(bool has_asked_for_all) {
  if (OVERLAPS_PREVIOUS && has_asked_for_all == FILLS_DEVICE) allow_next_kernel();
}

// Starts the copies of a warp's tiles and, before those, of the page-table entries that they need.
struct Copies {
  const Params& params;
  const Place& place;
  const Share& share;
  u32 ring;  // shared-memory address of the warp's stages
  i32 keys, values;  // rows of keys and of values that exist

  __device__ __forceinline__ Copies(const Params& params, const Place& place, const Share& share, u32 ring)
      : params(params), place(place), share(share), ring(ring),
        keys(existing_rows(params.k, place.batch, place.band.keys)),
        values(existing_rows(params.v, place.batch, place.band.keys)) {}

  __device__ __forceinline__ Stage stage(int number) const { return Stage{ring + number * Stage::BYTES}; }

  __device__ __forceinline__ void note(i32 tile, const Stage& stage, bool exists) const {
    if (!Stage::HAS_NOTES || threadIdx.x % WARP_SIZE > 0) return;
    note_rows(params.k, place.batch, tile * TILE_KV, exists, stage.note_of_keys());
    note_rows(params.v, place.batch, tile * TILE_KV, exists, stage.note_of_values());
  }

  // Fetches the page-table entries of the first tiles. The table covers the greatest length, so this need not wait for
  // the batch's length.
  __device__ __forceinline__ void note_first(i32 first_tile) const {
    for (int number = 0; number < STAGES; ++number) {
      const i32 tile = first_tile + number * WARPS;
      note(tile, stage(number), tile * TILE_KV < params.forward.keys);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
  }

  __device__ __forceinline__ void copy(i32 tile, const Stage& stage) const {
    const i32 first = tile * TILE_KV, tile_keys = keys - first, tile_values = values - first;
    if (tile < share.end) {
      const auto from = noted_rows(params.k, place.batch, place.head, first, tile_keys, stage.note_of_keys());
      const auto from_v = noted_rows(params.v, place.batch, place.head, first, tile_values, stage.note_of_values());
      stage.keys().copy_each<WARP_SIZE>(from, tile_keys, params.forward.size_qk);
      stage.values().copy_each<WARP_SIZE>(from_v, tile_values, params.forward.size_v);
    } else {
      allow_next(true);
    }
    if (Stage::HAS_NOTES) __syncwarp();  // the notes have been read
    const i32 later = tile + STAGES * WARPS;
    note(later, stage, later < share.end);
    cp_async_commit();
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    KERNEL_NAME(const __grid_constant__ Params params) {
  if constexpr (OVERLAPS_PREVIOUS) {
    ask_ahead(params);
    wait_for_previous_kernel();
  }
  allow_next(false);
  const Forward& p = params.forward;
  extern __shared__ __align__(128) u8 memory[];
  const Queries q = {shared_address(memory)};
  const Place place(p);
  const Rows rows = {place.block_row};
  const int warp = threadIdx.x / WARP_SIZE;
  const Share share(place);
  const Copies copies(params, place, share, q.address + Queries::BYTES + warp * STAGES * Stage::BYTES);
  const i32 first_tile = share.begin + warp;
  if constexpr (Stage::HAS_NOTES) copies.note_first(first_tile);
  const i32 existing_queries = existing_rows(params.q, place.batch, p.queries);
  q.copy_each<THREADS>(PackRows{params.q, place, p.queries}, existing_queries * PACK - place.block_row, p.size_qk);
#pragma unroll
  for (int stage = 0; stage < STAGES; ++stage) copies.copy(first_tile + stage * WARPS, copies.stage(stage));
  constexpr int LATER = STAGES - 1;  // later copies in flight while a tile is awaited
  cp_async_wait<LATER>();            // the queries came with the first keys
  __syncthreads();
  const QueryOperand queries(q);

  OutputTile o = {};
  RunningSoftmax softmax(p.score_scale());
  if (warp == 0 && blockIdx.y == 0) softmax.add_sink(p, place, rows);
  int stage = 0;
#pragma unroll 1
  for (i32 tile = first_tile; tile < share.end; tile += WARPS) {
    cp_async_wait<LATER>();
    __syncwarp();
    ScoreTile scores;
    multiply_rows(queries, 0, copies.stage(stage).keys(), scores);
    make_scores(p, place, rows, tile, scores);
    f32 shrinking[PARTS][2];
    if (softmax.add(scores, shrinking)) scale_rows(o, shrinking);
    const auto weight = [&](int part, int block, int half) {
      return weights_of<Weights>(p, place, rows, tile, part, half, block, scores[part][block] + half * 2);
    };
    multiply_columns(weight, copies.stage(stage).values(), 0, o);
    __syncwarp();  // all lanes have read the tiles
    copies.copy(tile + STAGES * WARPS, copies.stage(stage));
    stage = stage + 1 < STAGES ? stage + 1 : 0;
  }
  softmax.end();

  const Meeting meeting(memory + Queries::BYTES);
  __syncthreads();  // all warps have read their rings
  const Found own = meeting.of_warp(warp);
  own.store_extremes(softmax);
  own.store(o, 0);
  __syncthreads();
  join_found(params, place, rows, meeting);
}
