"""CUDA C++ kernels that copy tensors with inline PTX, as real kernels write it."""

from __future__ import annotations

_HEAD = """
struct alignas(64) Map { unsigned long long words[16]; };
__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void barrier_init(unsigned bar, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ void expect(unsigned bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ void wait(unsigned bar, unsigned parity) {
  asm volatile("{\\n.reg .pred done;\\n"
    "again:\\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n @!done bra again;\\n}"
    :: "r"(bar), "r"(parity) : "memory");
}
__device__ void store_done() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""


def load_kernel(rank: int, im2col: bool = False, hint: bool = False) -> str:
    """``load(map, copies, out, bytes, counted, front)``: CTA b copies the box at ``copies[b]`` (coordinates, then
    offsets) to ``front`` bytes past a 1024-byte boundary of shared memory, waits for ``counted`` bytes, and stores the
    ``bytes`` from there in ``out``."""
    form = f"{rank}d.shared::cluster.global.{'im2col' if im2col else 'tile'}.mbarrier::complete_tx::bytes"
    offsets = _braces(rank + 3, rank - 2) if im2col else ""
    moved = "".join(f', "h"((unsigned short)at[{rank + i}])' for i in range(rank - 2)) if im2col else ""
    policy = f", %{rank + 3 + (rank - 2) * im2col}" if hint else ""
    fixed = ', "l"(0x1000000000000000ull)' if hint else ""
    numbers = rank + (rank - 2 if im2col else 0)
    return f"""{_HEAD}
extern "C" __global__ void load(const __grid_constant__ Map map, const int* copies, unsigned char* out, int bytes,
                                int counted, int front) {{
  extern __shared__ __align__(1024) unsigned char tile[];
  __shared__ alignas(8) unsigned long long full;
  unsigned bar = shared_address(&full), to = shared_address(tile) + front;
  if (threadIdx.x == 0) barrier_init(bar, 1);
  __syncthreads();
  if (threadIdx.x == 0) {{
    const int* at = copies + blockIdx.x * {numbers};
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
    expect(bar, counted);
    asm volatile("cp.async.bulk.tensor.{form}{".L2::cache_hint" if hint else ""} "
      "[%0], [%1, {_braces(3, rank)}], [%2]{", " + offsets if im2col else ""}{policy};"
      :: "r"(to), "l"(&map), "r"(bar){_coordinates(rank)}{moved}{fixed} : "memory");
  }}
  wait(bar, 0);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[blockIdx.x * bytes + i] = tile[front + i];
}}
"""


def store_kernel(rank: int, im2col: bool = False, reduction: str = "") -> str:
    """``store(map, copies, from, bytes, front)``: CTA b puts the ``bytes`` at ``from + b * bytes`` into shared memory,
    ``front`` past a 1024-byte boundary, and copies (or reduces) them to the box at ``copies[b]``."""
    opcode = f"cp{'.reduce' if reduction else ''}.async.bulk.tensor.{rank}d.global.shared::cta"
    mode = "im2col_no_offs" if im2col else "tile"
    form = f"{opcode}{'.' + reduction if reduction else ''}.{mode}.bulk_group"
    return f"""{_HEAD}
extern "C" __global__ void store(const __grid_constant__ Map map, const int* copies, const unsigned char* from,
                                 int bytes, int front) {{
  extern __shared__ __align__(1024) unsigned char tile[];
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) tile[front + i] = from[blockIdx.x * bytes + i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {{
    const int* at = copies + blockIdx.x * {rank};
    asm volatile("{form} [%1, {_braces(2, rank)}], [%0];"
      :: "r"(shared_address(tile) + front), "l"(&map){_coordinates(rank)} : "memory");
    store_done();
  }}
}}
"""


def _braces(first: int, count: int) -> str:
    """``{%first, ...}`` of ``count`` operands."""
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def _coordinates(rank: int) -> str:
    return "".join(f', "r"(at[{i}])' for i in range(rank))


#: ``multicast(map, out)``: rank 0 of a cluster of two sends rows 0.. to both CTAs, rank 1 rows 8.. to itself only.
MULTICAST = f"""{_HEAD}
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast(const __grid_constant__ Map map, unsigned* out) {{
  __shared__ alignas(128) unsigned both[8 * 32];
  __shared__ alignas(128) unsigned own[8 * 32];
  __shared__ alignas(8) unsigned long long full;
  unsigned bar = shared_address(&full), rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {{ barrier_init(bar, 1); expect(bar, 2 * sizeof(both)); }}
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0) {{
    int row = blockIdx.x / 2 * 16;
    if (rank == 0)
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {{%3, %4}}], [%2], %5;"
        :: "r"(shared_address(both)), "l"(&map), "r"(bar), "r"(0), "r"(row), "h"((unsigned short)3) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {{%3, %4}}], [%2];"
      :: "r"(shared_address(own)), "l"(&map), "r"(bar), "r"(0), "r"(row + 8 * (int)rank) : "memory");
  }}
  wait(bar, 0);
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {{
    out[blockIdx.x * 512 + i] = both[i];
    out[blockIdx.x * 512 + 256 + i] = own[i];
  }}
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}}
"""
