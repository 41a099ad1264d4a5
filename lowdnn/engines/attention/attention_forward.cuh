// The parameters of all kernels of attention forward, with mma.sync or wgmma, and the layout of scores and outputs in
// registers. Other headers have the stages: attention_forward_place.cuh (the keys that a block's queries attend to),
// attention_forward_scores.cuh, attention_forward_softmax.cuh (online, over tiles of keys),
// attention_forward_weights.cuh and attention_forward_store.cuh (statistics and outputs).
//
// A warp has WARP_Q rows, in parts of 16. Accumulators are [parts][blocks of 8 columns][4], as mma.sync and wgmma
// define them. A thread holds columns 2 * (lane % 4) and the next one of each block: elements 0 and 1 in row lane / 4,
// elements 2 and 3 in row lane / 4 + 8. A row is one query of one head. PACK neighbouring heads of q that share a head
// of k and v are packed into one tile (packed GQA): row = query * PACK + head in the pack. score = score_scale() *
// Scores(q k^T), for the keys that a query attends to.
// Macros: TYPE (f16, bf16, e4m3, e5m2) TILE_Q (rows of a block) TILE_KV (keys of a tile) WARP_Q (rows of a warp) PACK
// HEAD_V; LENGTH_TYPE, HAS_LENGTHS (of keys); QUERY_LENGTH_TYPE, HAS_QUERY_LENGTHS; HAS_SCORES, HAS_WEIGHTS: whether
// the functors Scores and Weights exist; HAS_BLOCKS (BlockMask) HAS_SINK, CUTS_SINK (queries past their length have no
// sink); STATS MAX
// SUM_EXP: the statistics that are stored; STORES_PACKED: whether some outputs are ragged tensors; IS_FP8: whether
// numbers scale scores and outputs, SCORE_FACTORS and VALUE_FACTORS of which lie in memory; AMAX_S, AMAX_O: whether
// the largest magnitudes of the softmax and of Output's input are stored.

#pragma once

#include "attention_forward_parts.cuh"
#include "include/math/division.cuh"
#include "include/optional.cuh"
#include "ragged.cuh"
#include "generated.cuh"

typedef TYPE T;
constexpr int PARTS = WARP_Q / 16, SCORE_BLOCKS = TILE_KV / 8, OUTPUT_BLOCKS = HEAD_V / 8;
typedef f32 ScoreTile[PARTS][SCORE_BLOCKS][4];
typedef f32 OutputTile[PARTS][OUTPUT_BLOCKS][4];

// Optional parts of a kernel, each with the type of its arguments.
struct Scores;
struct Weights;
struct KeyLengths { typedef Lengths<LENGTH_TYPE> Args; };
struct QueryLengths { typedef Lengths<QUERY_LENGTH_TYPE> Args; };
struct Blocks { typedef BlockMask Args; };
struct Sink { typedef RowValues<const f32> Args; };
struct StatsFactor { typedef f32 Args; };
struct Stats { typedef RowValues<f32> Args; };
struct Max { typedef RowValues<f32> Args; };
struct SumExp { typedef RowValues<f32> Args; };
struct OutputOffsets { typedef Offsets Args; };
struct StatisticsOffsets { typedef Offsets Args; };
struct ValueScale { typedef f32 Args; };
struct LargestWeight { typedef u32* Args; };  // bits of an f32; so is the next one
struct LargestOutput { typedef u32* Args; };
typedef Factors<Scores, SCORE_FACTORS> ScoreFactors;
typedef Factors<Output, VALUE_FACTORS> ValueFactors;

struct ScoreScale {
  f32 scale;  // positive
};

// The optional parameters. No base class has tail padding, so the layout is that of one struct with all these members,
// as the host writes it.
struct ForwardParts : ScoreScale,
                      ArgsOf<KeyLengths, HAS_LENGTHS>,
                      ArgsOf<QueryLengths, HAS_QUERY_LENGTHS>,
                      ArgsOf<Blocks, HAS_BLOCKS>,
                      ArgsOf<Sink, HAS_SINK>,
                      ArgsOf<StatsFactor, STATS>,
                      ArgsOf<Stats, STATS>,
                      ArgsOf<Max, MAX>,
                      ArgsOf<SumExp, SUM_EXP>,
                      ArgsOf<OutputOffsets, STORES_PACKED>,
                      ArgsOf<StatisticsOffsets, STORES_PACKED>,
                      ScoreFactors,
                      ArgsOf<ValueScale, IS_FP8>,
                      ValueFactors,
                      ArgsOf<LargestWeight, AMAX_S>,
                      ArgsOf<LargestOutput, AMAX_O>,
                      ArgsOf<Scores, HAS_SCORES>,
                      ArgsOf<Weights, HAS_WEIGHTS>,
                      ArgsOf<Output> {};

// The parameters except the operands. The scalars are members and not a base class of their own, which costs registers:
// 162 instead of 154 in a kernel with Scores and Weights.
struct Forward {
  Divider tiles, packs;  // tiles of rows of PACK heads; groups of PACK heads in a batch
  i32 queries, keys, size_qk, size_v;
  i32 left, right;  // query r attends to the keys from r - left to r + right
  ForwardParts parts;

  // The factor from Scores(q k^T) to scores.
  __device__ __forceinline__ f32 score_scale() const { return parts.ScoreFactors::times(parts.scale); }

  // The factor of the output.
  __device__ __forceinline__ f32 value_scale() const {
    f32 product = 1;
    if constexpr (IS_FP8) product = args_of<ValueScale>(parts);
    return parts.ValueFactors::times(product);
  }

  // Number of queries of a batch for which an output or a statistic is stored; it may exceed the number that exist.
  __device__ __forceinline__ i32 stored_queries(i32 batch) const {
    if constexpr (STORES_PACKED) {
      const i32 outputs = args_of<OutputOffsets>(parts).rows(batch, queries);
      if (!(STATS || MAX || SUM_EXP)) return outputs;
      return ::max(outputs, args_of<StatisticsOffsets>(parts).rows(batch, queries));
    }
    return queries;
  }

  // Whether the block mask, if the kernel has one, lets a query attend to a key.
  __device__ __forceinline__ bool sees(i64 batch, i64 head, i32 query, i32 key) const {
    if constexpr (HAS_BLOCKS) return args_of<Blocks>(parts).sees(batch, head, query, key);
    return true;
  }
};
