// Tensor maps as kernel parameters, and the copies that read them.
#pragma once
#include "sites.cuh"

struct alignas(64) TensorMap {
  char bytes[128];
};

__device__ inline void tma_load(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// To the same place of every CTA of the cluster that has its bit in ``ctas``; each one's own barrier counts the bytes.
__device__ inline void tma_load_multicast(u32 to, const TensorMap& map, int x, int y, u32 barrier, u16 ctas) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(ctas) : "memory");
}

__device__ inline void tma_store(const TensorMap& map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
}
