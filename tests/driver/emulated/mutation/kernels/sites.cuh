// Instructions whose loss or weakening a mutation test tries, each under the name of its site.
//
// A site is a string literal; it follows its instruction in the PTX as a comment, "// @name". All copies that the
// compiler makes of one line of source carry the same name.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define AT(site) " // @" site "\n"

__device__ inline u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// ---- bounds: a < b ----------------------------------------------------------------------------------------------
#define LESS(site, a, b)                                                                                               \
  ([](int left, int right) -> bool {                                                                                   \
    int less;                                                                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %1, %2;" AT(site) "selp.b32 %0, 1, 0, p;\n}"                        \
                 : "=r"(less) : "r"(left), "r"(right));                                                                \
    return less;                                                                                                       \
  }(a, b))

// ---- barriers of a CTA --------------------------------------------------------------------------------------------
#define BAR_SYNC(site) asm volatile("bar.sync 0;" AT(site) ::: "memory")
#define BAR_SYNC_SOME(site, barrier, threads)                                                                          \
  asm volatile("bar.sync %0, %1;" AT(site) ::"r"(barrier), "n"(threads) : "memory")
#define BAR_ARRIVE_SOME(site, barrier, threads)                                                                        \
  asm volatile("bar.arrive %0, %1;" AT(site) ::"r"(barrier), "n"(threads) : "memory")

// ---- mbarriers ----------------------------------------------------------------------------------------------------
#define MBARRIER_INIT(site, barrier, count)                                                                            \
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" AT(site) ::"r"(barrier), "n"(count) : "memory")
#define FENCE_MBARRIER_INIT(site) asm volatile("fence.mbarrier_init.release.cluster;" AT(site) ::: "memory")
#define MBARRIER_ARRIVE(site, barrier)                                                                                 \
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" AT(site) ::"r"(barrier) : "memory")
#define MBARRIER_ARRIVE_EXPECT(site, barrier, bytes)                                                                   \
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" AT(site) ::"r"(barrier), "n"(bytes) : "memory")
#define MBARRIER_ARRIVE_REMOTE(site, barrier)                                                                          \
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" AT(site) ::"r"(barrier) : "memory")
#define MBARRIER_ARRIVE_PHASE(site, phase, barrier)                                                                    \
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" AT(site) : "=l"(phase) : "r"(barrier) : "memory")
#define MBARRIER_WAIT_PHASE(site, barrier, phase)                                                                      \
  asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.test_wait.shared::cta.b64 p, [%0], %1;" AT(site)                    \
               "@!p bra again;\n}" ::"r"(barrier), "l"(phase) : "memory")
#define MBARRIER_WAIT(site, barrier, parity)                                                                           \
  asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;" AT(site)              \
               "@!p bra again;\n}" ::"r"(barrier), "r"(parity) : "memory")
#define MBARRIER_WAIT_CLUSTER(site, barrier, parity)                                                                   \
  asm volatile("{\n.reg .pred p;\nagain:\n"                                                                            \
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;" AT(site)                        \
               "@!p bra again;\n}" ::"r"(barrier), "r"(parity) : "memory")

// ---- fences -------------------------------------------------------------------------------------------------------
#define FENCE(site, scope) asm volatile("fence.acq_rel." scope ";" AT(site) ::: "memory")
#define FENCE_PROXY_ASYNC(site) asm volatile("fence.proxy.async.shared::cta;" AT(site) ::: "memory")

// ---- flags in global memory -----------------------------------------------------------------------------------------
#define ATOMIC_ADD(site, old, address, value)                                                                          \
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" AT(site)                                                \
               : "=r"(old) : "l"(address), "r"(value) : "memory")
#define STORE_RELEASE(site, address, value)                                                                            \
  asm volatile("st.release.gpu.global.u32 [%0], %1;" AT(site) ::"l"(address), "r"(value) : "memory")
#define LOAD_ACQUIRE(site, value, address)                                                                             \
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" AT(site) : "=r"(value) : "l"(address) : "memory")

// ---- clusters -------------------------------------------------------------------------------------------------------
#define CLUSTER_ARRIVE(site) asm volatile("barrier.cluster.arrive.release.aligned;" AT(site) ::: "memory")
#define CLUSTER_WAIT(site) asm volatile("barrier.cluster.wait.acquire.aligned;" AT(site) ::: "memory")

__device__ inline u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The shared::cluster address of ``address`` (of this CTA's shared memory) in the CTA of ``rank``.
__device__ inline u32 mapped(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// ---- dependent launches ---------------------------------------------------------------------------------------------
#define GRID_WAIT(site) asm volatile("griddepcontrol.wait;" AT(site) ::: "memory")
#define GRID_LAUNCH(site) asm volatile("griddepcontrol.launch_dependents;" AT(site) ::: "memory")

// ---- asynchronous copies --------------------------------------------------------------------------------------------
#define CP_ASYNC_COMMIT(site) asm volatile("cp.async.commit_group;" AT(site) ::: "memory")
#define CP_ASYNC_WAIT(site, pending) asm volatile("cp.async.wait_group %0;" AT(site) ::"n"(pending) : "memory")
#define BULK_COMMIT(site) asm volatile("cp.async.bulk.commit_group;" AT(site) ::: "memory")
#define BULK_WAIT(site, pending) asm volatile("cp.async.bulk.wait_group %0;" AT(site) ::"n"(pending) : "memory")
#define BULK_WAIT_READ(site, pending)                                                                                  \
  asm volatile("cp.async.bulk.wait_group.read %0;" AT(site) ::"n"(pending) : "memory")

// ---- warpgroup matrix multiply --------------------------------------------------------------------------------------
#define WGMMA_FENCE(site) asm volatile("wgmma.fence.sync.aligned;" AT(site) ::: "memory")
#define WGMMA_COMMIT(site) asm volatile("wgmma.commit_group.sync.aligned;" AT(site) ::: "memory")
#define WGMMA_WAIT(site, pending) asm volatile("wgmma.wait_group.sync.aligned %0;" AT(site) ::"n"(pending) : "memory")
