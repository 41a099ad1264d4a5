// What the kernels of attention's gradients on mma.sync share.

#pragma once

#include "include/attention_backward.cuh"
#include "include/attention_mma.cuh"

struct Problem : Backward { Heads<const TYPE> q, k, v, d_o; };
