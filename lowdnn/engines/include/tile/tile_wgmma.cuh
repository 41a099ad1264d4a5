// The main loop that every wgmma engine shares: D[ROWS, COLUMNS] = sum over k blocks of A block * B block^T.
//
// Blocks are persistent and their warps specialised: one thread of one warpgroup loads, the other warpgroups multiply
// and store. Operands go through a ring of RING shared-memory stages, each with a row of bytes along k. The producer
// waits until a stage is empty, makes its `full` barrier expect the stage's bytes and starts the copies; consumers wait
// for `full`, multiply, and arrive at `empty`. The ring runs on from tile to tile, so that the next tile's operands
// arrive during an epilogue.
//
// The consumers are TEAMS teams of TEAM_WARPGROUPS warpgroups. One team works on every tile, its warpgroups on
// different rows of it ("cooperative"); two teams take turns, so that one multiplies while the other stores
// ("ping-pong").
//
// Clusters: with CLUSTER_ROWS > 1 the blocks of a cluster compute different rows and share B; with CLUSTER_COLUMNS > 1
// they share A. Each loads its part of a shared operand and sends it to all. A stage is empty when the consumers of all
// blocks have released it.
//
// With CLUSTER_DEPTH > 1 that many blocks of a cluster may compute parts of k of the same tile, and each stores the sum
// for its share of the columns (cluster_sum.cuh). They share no operands.
//
// Where all tiles have the same rows and the same k blocks, A may stay resident in shared memory; with KEEPS_B it is B,
// where all tiles have the same columns. Its KEPT_BLOCKS k blocks are loaded once and lie before the ring. Clusters do
// not allow it.
//
// A loader brings one operand's stages:
//     void begin(const TileWork& work)                   the tile whose k blocks come next, as the schedule gives it
//     void load(u32 stage_address, u32 full_barrier)     the copies of the next k block
// multiply(d, a, b, accumulate) is the wgmma of the engine's types on two matrix descriptors. epilogue.begin(work,
// first_row) is called before a tile's multiplications; epilogue.end(d, work, first_row) takes a warpgroup's
// accumulators d[PARTS][COLUMNS / 2], the tile's rows from first_row on. Both see the columns of StoredTile.

#pragma once

#include "include/tile/cluster_sum.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/tile/tile_schedule.cuh"
#include "include/ptx/tma.cuh"
#include "include/ptx/warpgroup.cuh"
#include "include/ptx/wgmma.cuh"

constexpr int STAGE_ROW_BYTES = 128;

// Lines of a stage for `extent` rows or columns of a tile: an MN-major operand comes in whole blocks of 64 elements.
constexpr int stage_lines(int extent, bool is_mn_major) { return is_mn_major ? (extent + 63) / 64 * 64 : extent; }

// One operand's part of a stage: LINES rows or columns, ROW_BYTES along k (MN-major: blocks of 64 elements).
//
// With TAPS > 1 a stage serves that many taps of a filter, each with its own k: a tap's rows or columns lie DISTANCE
// lines after those of the tap before it, so that pixels that several taps read are stored once.
template <class T, int LINES, bool MN_MAJOR_, int TAPS = 1, int DISTANCE = 0,
                                                        int ROW_BYTES_ = STAGE_ROW_BYTES>
struct OperandStage {
  static constexpr bool MN_MAJOR = MN_MAJOR_;
  static constexpr int ROW_BYTES = ROW_BYTES_, TAP_LINES = LINES / TAPS;
  static constexpr int BLOCK_BYTES = 64 * ROW_BYTES;  // 64 elements of m or n at all k of a stage
  static constexpr int BYTES = LINES * ROW_BYTES, COPIED_BYTES = BYTES;
  static constexpr int TAP_STEPS = ROW_BYTES / 32, STEPS = TAPS * TAP_STEPS;
  static_assert(BYTES % 1024 == 0, "whole swizzle patterns");
  static_assert(!MN_MAJOR || (sizeof(T) == 2 && LINES % 64 == 0 && DISTANCE % 64 == 0),
                "MN-major: 16-bit types, whole blocks of 64");

  static __device__ __forceinline__ u64 descriptor(u32 address) {
    if constexpr (MN_MAJOR) return swizzled_operand(address, BLOCK_BYTES);
    else return swizzled_operand<ROW_BYTES>(address);
  }

  // Offset in a descriptor of the rows from `first` (a multiple of 64) and the steps of k from `step` on.
  static constexpr u64 offset(int first, int step) {
    const int line = first + step / TAP_STEPS * DISTANCE;
    return u64(line * ROW_BYTES + step % TAP_STEPS * (MN_MAJOR ? 2048 : 32)) >> 4;
  }
};

// Columns in blocks of 64, one block for each of several neighbouring taps of a filter: all read the same PIXELS rows
// of 128 bytes, each tap from DISTANCE rows after the tap before it.
template <int PIXELS, int DISTANCE> struct TapStage {
  static constexpr bool MN_MAJOR = true;
  static constexpr int BYTES = PIXELS * STAGE_ROW_BYTES, COPIED_BYTES = BYTES;
  static_assert(PIXELS % 8 == 0, "whole groups of 1024 bytes");

  static __device__ __forceinline__ u64 descriptor(u32 address) {
    return swizzled_operand(address, DISTANCE * STAGE_ROW_BYTES);
  }
  static constexpr u64 offset(int, int step) { return u64(step * 2048) >> 4; }
};

// Whether the warps of a team prepare each stage that has arrived, each a part of it, before any of them multiplies it:
// then a stage has a third barrier, `ready`.
template <class Stage> constexpr bool is_prepared = false;

// Position of a producer or consumer in the ring.
template <int RING> struct RingPosition {
  u32 stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == RING) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void advance(u32 count) {
    const u32 end = stage + count;
    stage = end % RING;
    parity ^= end / RING % 2;
  }
};

template <class T_, class Accumulator_, int ROWS_, int COLUMNS_, int RING_, int TEAMS_, int TEAM_WARPGROUPS_,
          int CLUSTER_ROWS_, int CLUSTER_COLUMNS_, bool A_IS_M_MAJOR, bool B_IS_N_MAJOR,
          class StageB_ = OperandStage<T_, stage_lines(COLUMNS_, B_IS_N_MAJOR), B_IS_N_MAJOR>,
          class StageA_ = OperandStage<T_, ROWS_, A_IS_M_MAJOR>,
          int KEPT_BLOCKS = 0, int CLUSTER_DEPTH = 1, bool KEEPS_B = false>
struct TileWgmma {
  typedef T_ T;
  typedef Accumulator_ Accumulator;
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, RING = RING_;
  static constexpr int TEAMS = TEAMS_, TEAM_WARPGROUPS = TEAM_WARPGROUPS_;
  static constexpr int CLUSTER_ROWS = CLUSTER_ROWS_, CLUSTER_COLUMNS = CLUSTER_COLUMNS_;
  static constexpr int SHARERS = CLUSTER_ROWS * CLUSTER_COLUMNS, CLUSTER = SHARERS * CLUSTER_DEPTH;
  static constexpr int CONSUMER_WARPS = TEAMS * TEAM_WARPGROUPS * 4;
  static constexpr int THREADS = (1 + TEAMS * TEAM_WARPGROUPS) * WARPGROUP_SIZE;
  static constexpr int PARTS = ROWS / (64 * TEAM_WARPGROUPS);  // parts of 64 rows of one warpgroup
  static constexpr int WARPGROUP_ROWS = PARTS * 64;
  static constexpr int K = StageA_::ROW_BYTES / int(sizeof(T)), STEPS = StageA_::STEPS;
  typedef StageA_ StageA;
  typedef StageB_ StageB;
  static constexpr bool ANY_IS_RESIDENT = KEPT_BLOCKS > 0;
  static constexpr bool A_IS_RESIDENT = ANY_IS_RESIDENT && !KEEPS_B, B_IS_RESIDENT = ANY_IS_RESIDENT && KEEPS_B;
  static constexpr int KEPT_BYTES = KEEPS_B ? StageB::BYTES : StageA::BYTES;  // bytes of one resident k block
  static constexpr int RESIDENT_BYTES = KEPT_BLOCKS * KEPT_BYTES;
  static constexpr int STAGE_A_BYTES = A_IS_RESIDENT ? 0 : StageA::BYTES;
  static constexpr int STAGE_BYTES = STAGE_A_BYTES + (B_IS_RESIDENT ? 0 : StageB::BYTES);
  static constexpr int RING_BYTES = RESIDENT_BYTES + RING * STAGE_BYTES;
  typedef ClusterSum<Accumulator, PARTS, COLUMNS, CONSUMER_WARPS, CLUSTER_DEPTH> PartSum;
  static constexpr int SHARED_BYTES = RING_BYTES + PartSum::AREA_BYTES;
  static constexpr bool IS_PREPARED = is_prepared<StageB>;
  static constexpr int READY_BARRIERS = 2 * RING + ANY_IS_RESIDENT;  // the number of barriers before `ready`
  static constexpr int RING_BARRIER_BYTES = (READY_BARRIERS + IS_PREPARED * RING) * MBARRIER_BYTES;
  static constexpr int BARRIER_BYTES = RING_BARRIER_BYTES + PartSum::BARRIER_BYTES;
  static_assert(!ANY_IS_RESIDENT || CLUSTER == 1, "a resident operand is not shared");
  typedef TileSchedule<ROWS, COLUMNS, CLUSTER_ROWS, CLUSTER_COLUMNS, CLUSTER_DEPTH> Schedule;
  typedef RingPosition<RING> Position;
  static constexpr u32 FREE_BARRIER = 8;  // the first named barrier that teams and epilogue_reductions.cuh do not use
  static_assert(ROWS % (64 * TEAM_WARPGROUPS) == 0, "whole parts of 64 rows for each warpgroup");

  u32 resident, stages, full, empty, resident_full;  // shared-memory addresses

  // Called by all threads. SHARED_BYTES bytes lie at `shared` (1024-byte aligned), the barriers at `barriers`.
  __device__ __forceinline__ TileWgmma(u32 shared, u32 barriers)
      : resident(shared), stages(shared + RESIDENT_BYTES), full(barriers), empty(barriers + RING * MBARRIER_BYTES),
        resident_full(barriers + 2 * RING * MBARRIER_BYTES) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < RING; ++stage) {
        mbarrier_init(full + stage * MBARRIER_BYTES, 1);
        mbarrier_init(empty + stage * MBARRIER_BYTES, TEAM_WARPGROUPS * 4 * SHARERS);
        if (IS_PREPARED) mbarrier_init(ready(stage), TEAM_WARPGROUPS * 4);
      }
      if (ANY_IS_RESIDENT) mbarrier_init(resident_full, 1);
      if (CLUSTER_DEPTH > 1) PartSum::init_barriers(full + RING_BARRIER_BYTES);
      mbarrier_fence_init();
    }
    if constexpr (CLUSTER > 1) cluster_sync();
    else __syncthreads();
  }

  // This block's rank among those that share operands.
  static __device__ __forceinline__ u32 sharer() { return SHARERS > 1 ? cluster_rank() : 0; }

  // Called by one thread: loads the k blocks of all this block's tiles, the first once the previous kernel has ended.
  template <class AnySchedule, class LoaderA, class LoaderB>
  __device__ __forceinline__ void produce(const AnySchedule& schedule, LoaderA& load_a, LoaderB& load_b) const {
    Position at;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    if constexpr (ANY_IS_RESIDENT) wait_for_previous_kernel();
    if constexpr (A_IS_RESIDENT) load_resident(load_a, schedule.work(first_item(), rank));
    if constexpr (B_IS_RESIDENT) load_resident(load_b, schedule.work(first_item(), rank));
    for (u32 item = first_item(); item < schedule.items; item += item_step()) {
      const auto work = schedule.work(item, rank);
      if (!A_IS_RESIDENT) load_a.begin(work);
      if (!B_IS_RESIDENT) load_b.begin(work);
      if (item == first_item()) wait_for_previous_kernel();
      for (i32 block = 0; block < work.blocks; ++block, at.advance()) {
        const u32 stage = stages + at.stage * STAGE_BYTES, barrier = full + at.stage * MBARRIER_BYTES;
        wait_empty(at);
        mbarrier_expect(barrier, STAGE_A_BYTES + (B_IS_RESIDENT ? 0 : StageB::COPIED_BYTES));
        if (!A_IS_RESIDENT) load_a.load(stage, barrier);
        if (!B_IS_RESIDENT) load_b.load(stage + STAGE_A_BYTES, barrier);
      }
    }
    if constexpr (SHARERS > 1) {
      // No block may end while others can still arrive at its barriers.
      for (int stage = 0; stage < RING; ++stage, at.advance()) wait_empty(at);
    }
  }

  // Called by consumer warpgroup number `index`: multiplies and stores its part of this block's tiles.
  //
  // IS_PROMOTED: each stage is summed separately and then added to the tile's sum, for types whose sums have fewer bits
  // in the tensor cores than in the accumulators (fp8). It takes twice the registers.
  template <bool IS_PROMOTED = false, class AnySchedule, class Multiply, class Epilogue>
  __device__ __forceinline__ void consume(const AnySchedule& schedule, u32 index, const Multiply& multiply,
                                          Epilogue& epilogue) const {
    const auto sum = [&](auto& d, const auto& work, u32 first_row, Position& at, const auto& issued) {
      if constexpr (IS_PROMOTED) promoted_sum(d, work.blocks, first_row, at, multiply, issued);
      else plain_sum(d, work.blocks, first_row, at, multiply, [](u32) {}, issued);
    };
    consume_by(schedule, index, sum, epilogue);
  }

  // Consumes with accumulators from sum(d, work, first_row, at, issued). That function takes the tile's stages from
  // `at` on, releases them, and calls issued() when it has seen them all and issued the last multiplication.
  template <class AnySchedule, class Sum, class Epilogue>
  __device__ __forceinline__ void consume_by(const AnySchedule& schedule, u32 index, const Sum& sum,
                                             Epilogue& epilogue) const {
    const u32 team = index / TEAM_WARPGROUPS, first_row = index % TEAM_WARPGROUPS * WARPGROUP_ROWS;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    PartSum part_sum(rank, stages + RING * STAGE_BYTES, full + RING_BARRIER_BYTES);
    Position at;
    u32 turn = 0;
    if (ANY_IS_RESIDENT) mbarrier_wait(resident_full, 0);
    for (u32 item = first_item(); item < schedule.items; item += item_step(), ++turn) {
      const auto work = schedule.work(item, rank);
      if (TEAMS > 1 && turn % TEAMS != team) {
        at.advance(work.blocks);
        continue;
      }
      auto stored = work;
      if (work.is_shared) stored.column += rank * PartSum::SHARE;
      epilogue.begin(stored, first_row);
      // A stage's parity distinguishes only two rounds of the ring: a team waits until the other has seen all its
      // stages.
      if (TEAMS > 1 && turn > 0) named_barrier(TURN_BARRIER + team, TURN_THREADS);
      Accumulator d[PARTS][COLUMNS / 2];
      const bool is_last = item + item_step() >= schedule.items;
      const auto issued = [&] {
        if (TEAMS > 1 && !is_last) named_barrier_arrive(TURN_BARRIER + (team + 1) % TEAMS, TURN_THREADS);
      };
      sum(d, work, first_row, at, issued);
      if constexpr (CLUSTER_DEPTH > 1) store_shares(d, stored, first_row, part_sum, epilogue);
      else epilogue.end(d, stored, first_row);
    }
    if constexpr (CLUSTER_DEPTH > 1) part_sum.finish();
  }

  // Sums over at least one k block. One multiplication stays in flight: its stage is released when the next one has
  // been issued. prepare(stage) is called for each stage when its copies have arrived, before it is multiplied;
  // issued() is called after the last multiplication has been issued.
  template <class Multiply, class Prepare, class Issued>
  __device__ __forceinline__ void plain_sum(Accumulator (&d)[PARTS][COLUMNS / 2], i32 blocks, u32 first_row,
                                            Position& at, const Multiply& multiply, const Prepare& prepare,
                                            const Issued& issued) const {
    const auto issue_block = [&](i32 block) {
      issue<STEPS>(d, block, first_row, at, block > 0, multiply, prepare);
    };
    sum_blocks(blocks, at, issue_block, issued);
  }

  // Sums over lines of `period` k blocks, at least 2, of which the last one has LAST_STEPS steps.
  template <int LAST_STEPS, class Multiply, class Issued>
  __device__ __forceinline__ void uneven_sum(Accumulator (&d)[PARTS][COLUMNS / 2], i32 blocks, i32 period,
                                             u32 first_row, Position& at, const Multiply& multiply,
                                             const Issued& issued) const {
    i32 left = period;
    const auto issue_block = [&](i32 block) {
      if (--left > 0) {
        issue<STEPS>(d, block, first_row, at, block > 0, multiply, [](u32) {});
      } else {
        issue<LAST_STEPS>(d, block, first_row, at, true, multiply, [](u32) {});
        left = period;
      }
    };
    sum_blocks(blocks, at, issue_block, issued);
  }

  // Waits until a stage's operands have arrived, and returns its address.
  __device__ __forceinline__ u32 wait_full(const Position& at) const {
    mbarrier_wait(full + at.stage * MBARRIER_BYTES, at.parity);
    return stages + at.stage * STAGE_BYTES;
  }

  // The barrier at which the warps of a team arrive when they have prepared a stage.
  __device__ __forceinline__ u32 ready(u32 stage) const { return full + (READY_BARRIERS + stage) * MBARRIER_BYTES; }

  // Releases a stage for this warp, in every block that loads into it.
  __device__ __forceinline__ void release(u32 stage) const {
    const u32 lane = threadIdx.x % WARP_SIZE, barrier = empty + stage * MBARRIER_BYTES;
    if constexpr (SHARERS > 1) {
      if (lane < SHARERS) mbarrier_arrive_at(barrier, lane);
    } else {
      if (lane == 0) mbarrier_arrive(barrier);
    }
  }

 private:
  static constexpr u32 TURN_BARRIER = 1, TURN_THREADS = 2 * TEAM_WARPGROUPS * WARPGROUP_SIZE;
  static_assert(TEAMS <= 2, "turns go from one team to the other");

  static __device__ __forceinline__ u32 first_item() { return CLUSTER > 1 ? cluster_index() : blockIdx.x; }
  static __device__ __forceinline__ u32 item_step() { return CLUSTER > 1 ? cluster_count() : gridDim.x; }

  template <class Loader, class Work>
  __device__ __forceinline__ void load_resident(Loader& loader, const Work& work) const {
    mbarrier_expect(resident_full, RESIDENT_BYTES);
    loader.begin(work);
    for (int block = 0; block < KEPT_BLOCKS; ++block) loader.load(resident + block * KEPT_BYTES, resident_full);
  }

  template <class Multiply, class Issued>
  __device__ __forceinline__ void promoted_sum(Accumulator (&d)[PARTS][COLUMNS / 2], i32 blocks, u32 first_row,
                                               Position& at,
                                               const Multiply& multiply, const Issued& issued) const {
#pragma unroll
    for (int i = 0; i < PARTS * COLUMNS / 2; ++i) d[0][i] = 0;
    for (i32 block = 0; block < blocks; ++block) {
      Accumulator stage_sum[PARTS][COLUMNS / 2];
      const u32 stage = at.stage;
      issue<STEPS>(stage_sum, block, first_row, at, false, multiply, [](u32) {});
      if (block == blocks - 1) issued();
      wgmma_wait<0>();
      release(stage);
#pragma unroll
      for (int i = 0; i < PARTS * COLUMNS / 2; ++i) d[0][i] += stage_sum[0][i];
    }
  }

  // See plain_sum. issue_block(block) issues the multiplications of a k block.
  template <class IssueBlock, class Issued>
  __device__ __forceinline__ void sum_blocks(i32 blocks, Position& at, const IssueBlock& issue_block,
                                             const Issued& issued) const {
    u32 previous = at.stage;
    issue_block(0);
    for (i32 block = 1; block < blocks; ++block) {
      issue_block(block);
      wgmma_wait<1>();
      release(previous);
      previous = at.stage == 0 ? RING - 1 : at.stage - 1;
    }
    issued();
    wgmma_wait<0>();
    release(previous);
  }

  // Issues the first BLOCK_STEPS steps of a k block.
  template <int BLOCK_STEPS, class Multiply, class Prepare>
  __device__ __forceinline__ void issue(Accumulator (&d)[PARTS][COLUMNS / 2], u32 block, u32 first_row, Position& at,
                                        bool accumulate, const Multiply& multiply, const Prepare& prepare) const {
    const u32 stage = wait_full(at);
    prepare(stage);
    const u32 kept = resident + block * KEPT_BYTES;
    const u64 a = StageA::descriptor((A_IS_RESIDENT ? kept : stage) + first_row * StageA::ROW_BYTES);
    const u64 b = StageB::descriptor(B_IS_RESIDENT ? kept : stage + STAGE_A_BYTES);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BLOCK_STEPS; ++step) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        multiply(d[part], a + StageA::offset(part * 64, step), b + StageB::offset(0, step), accumulate || step);
      }
    }
    wgmma_commit();
    at.advance();
  }

  __device__ __forceinline__ void wait_empty(const Position& at) const {
    mbarrier_wait(empty + at.stage * MBARRIER_BYTES, at.parity ^ 1);
  }

  // Stores this block's share of a tile that the cluster shares, or all shares of its own tile.
  template <class Work, class Epilogue>
  static __device__ __forceinline__ void store_shares(Accumulator (&d)[PARTS][COLUMNS / 2], Work stored, u32 first_row,
                                                      PartSum& part_sum, Epilogue& epilogue) {
#pragma unroll
    for (int i = 0; i < PARTS * COLUMNS / 2; ++i) hold(d[0][i]);
    Accumulator share[PARTS][PartSum::SHARE / 2];
    if (stored.is_shared) {
      part_sum.add(d, share);
      epilogue.end(share, stored, first_row);
      return;
    }
#pragma unroll
    for (int block = 0; block < CLUSTER_DEPTH; ++block, stored.column += PartSum::SHARE) {
      if (block > 0) epilogue.begin(stored, first_row);
      PartSum::take(d, block, share);
      epilogue.end(share, stored, first_row);
    }
  }
};

// A tile as its epilogue sees it: COLUMNS are those that a block stores at a time.
template <class Tile> struct StoredTile : Tile { static constexpr int COLUMNS = Tile::PartSum::SHARE; };
