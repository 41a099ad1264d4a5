// Rows of heads as the kernels of attention's gradients have them that take packed sequences.
//
// Macro: HAS_RAGGED: whether any rows are packed; those that are not have no offsets then.

#pragma once

#include "attention_packed.cuh"

#if HAS_RAGGED
template <class T> using Rows = PackedHeads<T>;
#else
template <class T> using Rows = Heads<T>;
#endif
