// Rows of heads as the kernels of attention's gradients have them that take packed sequences.
//
// Macro: HAS_RAGGED: whether any rows are packed; those that are not have no offsets then.

#pragma once

#include "attention_packed.cuh"
#include "include/optional.cuh"

template <class T> using Rows = typename Either<HAS_RAGGED, PackedHeads<T>, Heads<T>>::Type;
