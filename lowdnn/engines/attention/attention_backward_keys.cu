// attention_backward_keys: gradients of k and v on mma.sync; no S_q x S_kv matrix lies in memory. With w = 2^(q k^T *
// scale * log2(e) - exponent) in the band, elsewhere 0,
//
//     dv = w^T d_o        dk = scale * ds^T q        ds = w * (d_o v^T - centre)
//
// and the functors of attention_backward_mma.cuh; summed over the heads of q that share one head of k and v. If k and v
// have different numbers of heads, one launch computes dk and another one dv.
//
// Block: TILE_KV keys of one head of k (dk) or v (dv); it walks over the queries that attend to some of them, TILE_Q at
// a time, head after head. Scores are computed transposed, with keys along the rows: rounded to 16 bits, their
// accumulators are operands of the next product. A warp has PARTS times 16 keys and, of their gradients, one of SPLIT
// shares of the columns; warps with the same keys compute the same weights. The next queries are copied while these are
// multiplied.
// Memory: as in attention_forward_mma.cu; terms by attention_backward_terms.cu. Queries that do not exist are zeros in
// shared memory and add nothing; keys that do not exist in their batch get zeros.
// Shared memory (dynamic): TILE_KV rows of k and of v; twice TILE_Q rows of q, of d_o, and their terms.
// Launch: TILE_KV / (16 * PARTS) * SPLIT warps; the first keys, which most queries see under a causal mask, first.
// Macros: TYPE (f16, bf16) OUT TILE_Q TILE_KV PARTS SPLIT HEAD_QK HEAD_V (multiples of 16 * SPLIT); HAS_DK, HAS_DV:
// what the launch gives, both only where each head of q shares the same ones; and those of
// attention_backward_mma.cuh.
// Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 2, with
// the gradient of q left to a kernel of its own: no sums between blocks.

#define ROW_AXIS 3
#include "attention_backward_mma.cuh"

typedef TYPE T;
typedef HeadRows<T, TILE_KV, HEAD_QK> Keys;
typedef HeadRows<T, TILE_KV, HEAD_V> Values;
typedef HeadRows<T, TILE_Q, HEAD_QK> Queries;
typedef HeadRows<T, TILE_Q, HEAD_V> OutputGradients;

constexpr int KEY_WARPS = TILE_KV / (16 * PARTS), THREADS = KEY_WARPS * SPLIT * WARP_SIZE, BLOCKS = TILE_Q / 8;
typedef ScoreSteps<PARTS, BLOCKS> Steps;
typedef f32 KeyGradients[PARTS][HEAD_QK / SPLIT / 8][4];
typedef f32 ValueGradients[PARTS][HEAD_V / SPLIT / 8][4];

struct ProblemParams {
  Problem problem;
};

template <bool IS_THERE> struct KeyResults {
  Rows<OUT> dk;
};
template <> struct KeyResults<false> {};

template <bool IS_THERE> struct ValueResults {
  Rows<OUT> dv;
};
template <> struct ValueResults<false> {};

struct KeyTiles {
  Divider tiles, heads;  // tiles of keys of a head; heads of k, or of v, in a batch
};

// No base class has tail padding, so the layout is that of one struct with all these members, as the host writes it.
struct Params : ProblemParams, KeyResults<HAS_DK>, ValueResults<HAS_DV>, KeyTiles {};

// Heads of q that share one of k, or of v.
template <class Params> __device__ __forceinline__ i32 heads_together(const Params& p) {
  if constexpr (HAS_DK) return sharing(p.dk);
  else return sharing(p.dv);
}

// Position of the block's keys and of this warp's keys, and the tiles of queries that attend to them.
struct Place {
  i32 batch, head;  // the first head of q
  i32 block_key, warp_key, split;
  Band band;
  i32 begin, end;  // tiles of queries

  __device__ __forceinline__ Place(const Params& p) {
    const u32 heads_before = p.tiles.divide(blockIdx.x), tile = blockIdx.x - heads_before * p.tiles.divisor;
    batch = i32(p.heads.divide(heads_before));
    head = i32(heads_before - batch * p.heads.divisor) * heads_together(p);
    block_key = i32(tile) * TILE_KV;
    const i32 warp = threadIdx.x / WARP_SIZE;
    warp_key = warp % KEY_WARPS * (PARTS * 16);
    split = warp / KEY_WARPS;
    band = p.problem.band(batch);
    begin = band.queries_begin(block_key) / TILE_Q;
    end = max(begin, (band.queries_end(block_key, TILE_KV) + TILE_Q - 1) / TILE_Q);
  }
};

// A tile of queries of one head in shared memory.
struct Stage {
  static constexpr u32 BYTES = Queries::BYTES + OutputGradients::BYTES + TILE_Q * sizeof(Term);

  Queries q;
  OutputGradients d_o;
  TermTile terms;

  __device__ __forceinline__ Stage(u32 address)
      : q{address}, d_o{address + Queries::BYTES}, terms{address + Queries::BYTES + OutputGradients::BYTES} {}

  __device__ __forceinline__ void copy(const Problem& p, const Place& place, i32 head, i32 tile) const {
    const i32 row = tile * TILE_Q, rows = place.band.queries - row;
    copy_rows<THREADS>(q, p.q, place.batch, head, row, place.band.queries, p.size_qk);
    copy_rows<THREADS>(d_o, p.d_o, place.batch, head, row, place.band.queries, p.size_v);
    const Term* const from = p.terms_of(place.batch, head) + row;
    for (i32 i = threadIdx.x; i < TILE_Q; i += THREADS) {
      cp_async<8>(terms.address + i * sizeof(Term), from + i, i < rows);
    }
    cp_async_commit();
  }
};

// Adds to dk and dv the contributions of the tile of queries in `stage`.
__device__ __forceinline__ void add_queries(const Problem& p, const Keys& k, const Values& v, const Stage& stage,
                                            const Place& place, i32 head, i32 tile, const Scaling& scaling,
                                            KeyGradients& dk, ValueGradients& dv) {
  const Corner corner = {place.batch, head, tile * TILE_Q, place.block_key + place.warp_key};
  Steps steps;
  multiply_rows(k, place.warp_key, stage.q, steps.weights);
  steps.make_weights(p, place.band, corner, stage.terms, scaling);
  if constexpr (HAS_DV) {
    const auto dropped = [&steps](int part, int block, int half) { return steps.operand(part, block, half); };
    multiply_columns(dropped, stage.d_o, place.split * (HEAD_V / SPLIT), dv);
  }
  if constexpr (HAS_DK) {
    Steps::Tile ds;
    multiply_rows(v, place.warp_key, stage.d_o, ds);
    steps.make_gradients(p, place.band, corner, stage.terms, scaling, ds);
    multiply_columns(operand_of(ds), stage.q, place.split * (HEAD_QK / SPLIT), dk);
  }
}

// Stores dk, dv or both for the warp's keys.
template <class Params>
__device__ __forceinline__ void store_keys(const Params& p, const Place& place, const KeyGradients& dk,
                                           const ValueGradients& dv) {
  const Problem& problem = p.problem;
  const i32 row = place.block_key + place.warp_key;
  if constexpr (HAS_DK) {
    store_results(problem, OF_K, p.dk, place.batch, place.head, row, problem.keys, place.split * (HEAD_QK / SPLIT),
                  problem.size_qk, dk);
  }
  if constexpr (HAS_DV) {
    store_results(problem, OF_V, p.dv, place.batch, place.head, row, problem.keys, place.split * (HEAD_V / SPLIT),
                  problem.size_v, dv);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) u8 memory[];
  const Problem& problem = p.problem;
  const Keys k = {shared_address(memory)};
  const Values v = {k.address + Keys::BYTES};
  const u32 stages = v.address + Values::BYTES;
  const Place place(p);
  const Scaling scaling(problem);

  KeyGradients dk = {};
  ValueGradients dv = {};
  const auto copy_keys = [&](i32 head) {
    const i32 row = place.block_key, end = place.band.keys;
    copy_rows<THREADS>(k, problem.k, place.batch, head, row, end, problem.size_qk);
    if (HAS_DK) copy_rows<THREADS>(v, problem.v, place.batch, head, row, end, problem.size_v);
  };
  i32 head = place.head, tile = place.begin;
  const i32 steps = (place.end - place.begin) * heads_together(p);
  if (steps > 0) {
    copy_keys(head);
    Stage(stages).copy(problem, place, head, tile);
  }
#pragma unroll 1
  for (i32 step = 0; step < steps; ++step) {
    const i32 own_head = head, own_tile = tile;
    if (++tile == place.end) {
      tile = place.begin;
      ++head;
    }
    cp_async_wait<0>();
    __syncthreads();  // this stage has arrived; all warps have read the other one
    if (!(HAS_DK && HAS_DV) && step > 0 && own_tile == place.begin) {  // k or v of the next head of q may be another
      copy_keys(own_head);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
    }
    if (step + 1 < steps) Stage(stages + (step + 1) % 2 * Stage::BYTES).copy(problem, place, head, tile);
    // Skips tiles outside the band. With PARTS = 2 no registers are left for the test.
    if (PARTS == 1 && !place.band.sees_any(own_tile * TILE_Q, TILE_Q, place.block_key + place.warp_key, 16)) continue;
    const Stage stage(stages + step % 2 * Stage::BYTES);
    add_queries(problem, k, v, stage, place, own_head, own_tile, scaling, dk, dv);
  }
  store_keys(p, place, dk, dv);
}
