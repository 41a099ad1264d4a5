// attention_forward_decode: o = output(weights(softmax(scores(q k^T))) v) for few queries and many keys, on mma.sync,
// as fast as k and v are read.
//
// Block: TILE_Q rows, the queries of PACK heads that share keys, and one of gridDim.y parts of the keys that they see.
// Each of its WARPS warps takes a part of those for itself, with all of the rows, and brings them, TILE_KV at a time,
// through a ring of its own: no warp waits for another before the end. Then the first warp joins what all have found;
// where the keys are in parts (IS_SPLIT), it leaves that in the workspace for attention_forward_combine.
// Memory: q, k, v as their places say, with elements of a head contiguous, rows at multiples of 16 bytes. Sizes of
// heads are multiples of 8, at most HEAD_QK and HEAD_V, multiples of 16.
// Shared memory (dynamic): TILE_Q rows of q; for each warp STAGES times TILE_KV rows of k and of v, at the end the
// accumulators of all warps but the first.
// Launch: 32 threads for each warp; grid (tiles of rows, parts of the keys).
// Macros: HEAD_QK, those of attention_places.cuh, of attention_forward.cuh with WARP_Q = TILE_Q, WARPS, STAGES,
// BLOCKS_PER_SM, IS_SPLIT; OVERLAPS_PREVIOUS: as a dependent launch (dependent_launch.cuh).
// Source: Dao et al., "Flash-Decoding for long-context inference".

#include "generated.cuh"
#include "include/attention_forward.cuh"
#include "include/attention_mma.cuh"
#include "include/attention_partials.cuh"
#include "include/attention_places.cuh"
#if OVERLAPS_PREVIOUS
#include "include/dependent_launch.cuh"
#endif

typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;

constexpr int THREADS = WARPS * WARP_SIZE;
constexpr u32 STAGE_BYTES = Keys::BYTES + Values::BYTES;

struct Params {
  QueryHeads q;
  KeyHeads k;
  ValueHeads v;
#if IS_SPLIT
  Partials partials;
#endif
  Forward forward;
};

// The tiles of keys of the `share`-th of `shares` warps that have the rows of `place`.
struct Share {
  i32 begin, end;

  __device__ __forceinline__ Share(const Place& place, i32 share, i32 shares) {
    const i32 tiles = max(place.end - place.begin, 0), each = tiles / shares, more = tiles % shares;
    begin = place.begin + share * each + min(share, more);
    end = begin + each + (share < more);
  }
};

// A warp's tiles of keys and values on their way from memory.
struct Ring {
  u32 address;
  int stage = 0;

  __device__ __forceinline__ Keys keys(int stage) const { return {address + stage * STAGE_BYTES}; }
  __device__ __forceinline__ Values values(int stage) const { return {keys(stage).address + Keys::BYTES}; }
  __device__ __forceinline__ int behind(int count) const {
    return stage + count < STAGES ? stage + count : stage + count - STAGES;
  }
};

// Of a thread, what it has accumulated, on its way to the first warp through shared memory; slot: of the warp's.
struct Found {
  static constexpr int VALUES = PARTS * (OUTPUT_BLOCKS * 4 + 4);

  f32* first;  // of this lane

  __device__ __forceinline__ Found(u8* memory, int slot)
      : first(reinterpret_cast<f32*>(memory) + slot * VALUES * WARP_SIZE + threadIdx.x % WARP_SIZE) {}

  __device__ __forceinline__ f32& at(int index) const { return first[index * WARP_SIZE]; }
  __device__ __forceinline__ f32& largest(int part, int half) const { return at((part * 2 + half) * 2); }
  __device__ __forceinline__ f32& sum(int part, int half) const { return at((part * 2 + half) * 2 + 1); }
  __device__ __forceinline__ f32& output(int part, int block, int i) const {
    return at(PARTS * 4 + (part * OUTPUT_BLOCKS + block) * 4 + i);
  }

  __device__ __forceinline__ void store(const RunningSoftmax& softmax, const OutputTile& o) const {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest(part, half) = softmax.largest[part][half];
        sum(part, half) = softmax.sum[part][half];
      }
#pragma unroll
      for (int block = 0; block < OUTPUT_BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) output(part, block, i) = o[part][block][i];
    }
  }

  __device__ __forceinline__ void join_to(RunningSoftmax& softmax, OutputTile& o) const {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      f32 kept[2], added[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        join(softmax.unit, softmax.largest[part][half], softmax.sum[part][half], largest(part, half), sum(part, half),
             kept[half], added[half]);
      }
#pragma unroll
      for (int block = 0; block < OUTPUT_BLOCKS; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          o[part][block][i] = o[part][block][i] * kept[i / 2] + output(part, block, i) * added[i / 2];
        }
    }
  }
};

#if IS_SPLIT
// What the block has found of its part of the keys.
__device__ __forceinline__ void store_partial(const Params& p, const Place& place, const Rows& rows,
                                              const RunningSoftmax& softmax, const OutputTile& o) {
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows.at(part, half) >= p.forward.queries * PACK) continue;
      i64 coordinate[4];
      rows.coordinate(p.forward, place, part, half, coordinate);
      const i64 row = p.partials.row(coordinate, p.forward.packs.divisor * PACK, p.forward.queries);
      if (threadIdx.x % 4 == 0) {
        *p.partials.extreme(blockIdx.y, row) = {softmax.largest[part][half], softmax.sum[part][half]};
      }
#pragma unroll
      for (int block = 0; block < OUTPUT_BLOCKS; ++block) {
        const f32* const pair = o[part][block] + half * 2;
        *p.partials.pair(blockIdx.y, row, block * 8 + threadIdx.x % 4 * 2) = {pair[0], pair[1]};
      }
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    KERNEL_NAME(const __grid_constant__ Params params) {
#if OVERLAPS_PREVIOUS
  wait_for_previous_kernel();
  allow_next_kernel();
#endif
  const Forward& p = params.forward;
  extern __shared__ __align__(16) u8 memory[];
  const Queries q = {shared_address(memory)};
  const Place place(p);
  const Rows rows = {place.block_row};
  const int warp = threadIdx.x / WARP_SIZE;
  const Share share(place, blockIdx.y * WARPS + warp, gridDim.y * WARPS);
  Ring ring = {q.address + Queries::BYTES + warp * STAGES * STAGE_BYTES};

  const i32 existing_keys = existing_rows(params.k, place.batch, place.band.keys);
  const i32 existing_values = existing_rows(params.v, place.batch, place.band.keys);
  const auto copy = [&](i32 tile, int stage) {
    if (tile < share.end) {
      const i32 first = tile * TILE_KV, keys = existing_keys - first, values = existing_values - first;
      ring.keys(stage).copy_each<WARP_SIZE>(rows_from(params.k, place.batch, place.head, first, keys), keys, p.size_qk);
      ring.values(stage).copy_each<WARP_SIZE>(rows_from(params.v, place.batch, place.head, first, values), values,
                                              p.size_v);
    }
    cp_async_commit();
  };

  q.copy_each<THREADS>(
      [&](int row, int further) {
        const i32 of_pack = min(place.block_row + row + further, p.queries * PACK - 1);
        return params.q.at(place.batch, place.head + of_pack % PACK, of_pack / PACK);
      },
      existing_rows(params.q, place.batch, p.queries) * PACK - place.block_row, p.size_qk);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) copy(share.begin + stage, stage);
  cp_async_wait<STAGES - 2>();  // the queries came with the first tile
  __syncthreads();

  OutputTile o = {};
  RunningSoftmax softmax(p.scale);
  if (warp == 0 && blockIdx.y == 0) softmax.add_sink(p, place, rows);
#pragma unroll 1
  for (i32 tile = share.begin; tile < share.end; ++tile) {
    cp_async_wait<STAGES - 2>();
    __syncwarp();  // the tile is there; the one before is no longer read
    copy(tile + STAGES - 1, ring.behind(STAGES - 1));
    ScoreTile scores;
    multiply_rows(q, 0, ring.keys(ring.stage), scores);
    make_scores(p, place, rows, tile, scores);
    f32 shrinking[PARTS][2];
    if (softmax.add(scores, shrinking)) shrink(o, shrinking);
    const auto weight = [&](int part, int block, int half) {
      return weights_of(p, place, rows, tile, part, half, block, scores[part][block] + half * 2);
    };
    multiply_columns(weight, ring.values(ring.stage), 0, o);
    ring.stage = ring.behind(1);
  }
  softmax.end();

  u8* const found = memory + Queries::BYTES;
  __syncthreads();  // the rings are no longer read
  if (warp > 0) Found(found, warp - 1).store(softmax, o);
  __syncthreads();
  if (warp > 0) return;
#pragma unroll 1
  for (int other = 1; other < WARPS; ++other) Found(found, other - 1).join_to(softmax, o);
#if IS_SPLIT
  store_partial(params, place, rows, softmax, o);
#else
  store_output(p, place, rows, softmax, o);
#endif
}
