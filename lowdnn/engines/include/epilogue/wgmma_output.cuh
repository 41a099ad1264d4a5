// How a wgmma kernel stores its accumulators, chosen by the macro STORE:
//
//     STORE_FUNCTOR   the functor stores (FunctorEpilogue). Macros: VECTOR; COLUMN_OPERATOR, ROW_OPERATOR and
//                     WHOLE_OPERATOR of the reductions (staged_reductions.cuh), NoOperator for none.
//     STORE_MAP       the functor hands its result back, which is stored by tensor map (MapEpilogue). Macros:
//                     OUTPUT_TYPE; OPERAND_TYPE of a full-size operand that comes by tensor map too, OPERAND_BUFFERS
//                     chunks ahead (0 for no operand); the same operators (epilogue_reductions.cuh).
//     STORE_PIXELS    as STORE_MAP, where the output's rows are the pixels of an im2col map
//     STORE_SLICE     accumulators go to slice `split` of the workspace; gemm/split_k_reduce.cu applies the epilogue
//
// TRANSPOSED: the tile's rows are the output's columns; not with STORE_MAP or STORE_PIXELS.
// A kernel includes this header after it has defined Tile and Map, the output's index space (output_map.cuh). It has an
// Epilogue::Output among its parameters, and makes an Epilogue in each consumer warp.

#pragma once

#include "include/epilogue/epilogue_transposed.cuh"
#include "include/epilogue/epilogue_wgmma.cuh"
#include "include/epilogue/map_epilogue.cuh"
#include "include/tile/tile_wgmma.cuh"

#define STORE_FUNCTOR 0
#define STORE_MAP 1
#define STORE_SLICE 2
#define STORE_PIXELS 3

#if STORE != STORE_SLICE
#include "generated.cuh"
#endif

typedef StoredTile<Tile> Stored;
#if STORE == STORE_FUNCTOR
typedef StagedReductions<Stored, COLUMN_OPERATOR, ROW_OPERATOR, WHOLE_OPERATOR, TRANSPOSED> Reductions;
#if TRANSPOSED
typedef TransposedFunctorEpilogue<Stored, Functor, VECTOR, Map, Reductions> Epilogue;
#else
typedef FunctorEpilogue<Stored, Functor, VECTOR, Map, PlainColumns, Reductions> Epilogue;
#endif
#elif STORE == STORE_MAP
typedef MapEpilogue<Stored, Functor, Map, RowTarget, OUTPUT_TYPE, OPERAND_BUFFERS, OPERAND_TYPE, COLUMN_OPERATOR,
                    ROW_OPERATOR, WHOLE_OPERATOR>
    Epilogue;
#elif STORE == STORE_PIXELS
typedef MapEpilogue<Stored, Functor, Map, PixelTarget<OUTPUT_RANK>, OUTPUT_TYPE, OPERAND_BUFFERS, OPERAND_TYPE,
                    COLUMN_OPERATOR, ROW_OPERATOR, WHOLE_OPERATOR>
    Epilogue;
#elif TRANSPOSED
typedef TransposedSliceEpilogue<Stored> Epilogue;
#else
typedef SliceEpilogue<Stored> Epilogue;
#endif
