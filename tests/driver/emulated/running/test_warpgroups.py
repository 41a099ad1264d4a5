"""Warpgroups of a pipelined matmul: accumulators stay in flight across blocks of code, and groups of CTAs that go
round the loop a different number of times part and meet again."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.conftest import POLICIES, Bench

CTAS, M, N, STEPS = 5, 128, 32, 5
_OPERANDS = ",".join(f"%{i}" for i in range(16))
_OUTPUTS = ",".join(f'"+f"(d[{i}])' for i in range(16))

#: Warpgroup 0 copies tiles of 64 columns of K into two stages; warpgroups 1 and 2 multiply 64 rows each.
SOURCE = f"""
typedef unsigned int u32; typedef unsigned long long u64;
extern __shared__ __align__(1024) unsigned char tiles[];
__device__ void product(float (&d)[16], u64 a, u64 b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {{{_OPERANDS}}}, %16, %17, 1, 1, 1, 0, 0;"
    : {_OUTPUTS} : "l"(a), "l"(b) : "memory");
}}
__device__ u64 descriptor(u32 address) {{ return (u64)(address >> 4) | (u64)64 << 32 | 1ull << 62; }}
__device__ void sync(int barrier) {{ asm volatile("bar.sync %0, 384;" :: "r"(barrier) : "memory"); }}
__device__ void arrive(int barrier) {{ asm volatile("bar.arrive %0, 384;" :: "r"(barrier) : "memory"); }}
extern "C" __global__ void __launch_bounds__(384) matmul(const uint4 *a, const uint4 *b, float *c, int least) {{
  int steps = least + blockIdx.x % 3, t = threadIdx.x % 128, role = threadIdx.x / 128;
  const int stage_bytes = {(M + N) * 128};
  a += (u64)blockIdx.x * {M * STEPS * 8}; b += (u64)blockIdx.x * {N * STEPS * 8};
  if (role == 0) {{
    for (int k = 0; k < steps; k++) {{
      unsigned char *stage = tiles + k % 2 * stage_bytes;
      sync(3 + k % 2);
      for (int i = t; i < {(M + N) * 8}; i += 128) {{
        int row = i / 8, unit = i % 8;
        uint4 value = row < {M} ? a[(row * {STEPS} + k) * 8 + unit] : b[((row - {M}) * {STEPS} + k) * 8 + unit];
        *(uint4 *)(stage + row * 128 + (unit ^ row % 8) * 16) = value;
      }}
      asm volatile("fence.proxy.async;" ::: "memory");
      arrive(1 + k % 2);
    }}
    if (steps > 1) sync(3 + steps % 2);
    return;
  }}
  float d[16];
  for (int i = 0; i < 16; i++) d[i] = 0;
  arrive(3); arrive(4);
  u32 base; asm("{{.reg .u64 g; cvta.to.shared.u64 g, %1; cvt.u32.u64 %0, g;}}" : "=r"(base) : "l"(tiles));
  for (int k = 0; k < steps; k++) {{
    u32 stage = base + k % 2 * stage_bytes;
    sync(1 + k % 2);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int j = 0; j < 4; j++)
      product(d, descriptor(stage + (role - 1) * 8192 + 32 * j), descriptor(stage + {M * 128} + 32 * j));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (k) arrive(3 + (k + 1) % 2);
  }}
  asm volatile("wgmma.wait_group.sync.aligned 0; // last" ::: "memory");
  for (int i = 0; i < 16; i++) {{
    int row = (role - 1) * 64 + t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
    c[(blockIdx.x * {M} + row) * {N} + column] = d[i];
  }}
}}
"""


@pytest.fixture
def matmul(bench: Bench, rng: np.random.Generator) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Runs PTX of the kernel; returns what it gives and what is right, [CTAs, M, N] each."""

    def run(ptx: str, policy: str) -> tuple[np.ndarray, np.ndarray]:
        a = rng.integers(-4, 5, (CTAS, M, STEPS * 64)).astype(ml_dtypes.bfloat16)
        b = rng.integers(-4, 5, (CTAS, N, STEPS * 64)).astype(ml_dtypes.bfloat16)
        c = bench.empty(CTAS * M * N * 4)
        arguments = (bench.put(a.view(np.uint16)), bench.put(b.view(np.uint16)), c, np.int32(STEPS - 2))
        shared = 2 * (M + N) * 128
        bench.run(bench.machine.load(ptx), "matmul", CTAS, 384, *arguments, shared=shared, policy=policy)
        depths = [(STEPS - 2 + cta % 3) * 64 for cta in range(CTAS)]
        factors = zip(a.astype(np.float32), b.astype(np.float32), depths, strict=True)
        return bench.get(c, (CTAS, M, N), np.float32), np.stack([x[:, :k] @ y[:, :k].T for x, y, k in factors])

    return run


@pytest.mark.parametrize("policy", [*POLICIES, "warp-serial(1)", "warp-serial(2)"])
def test_pipeline(
    compile_cuda: Callable[..., str], matmul: Callable[..., tuple[np.ndarray, np.ndarray]], policy: str
) -> None:
    actual, expected = matmul(compile_cuda(SOURCE, "compute_90a"), policy)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_missing_last_wait_is_found(
    compile_cuda: Callable[..., str], matmul: Callable[..., tuple[np.ndarray, np.ndarray]], policy: str
) -> None:
    ptx, count = re.subn(r"wgmma\.wait_group\.sync\.aligned 0; // last", "", compile_cuda(SOURCE, "compute_90a"))
    assert count == 1
    with pytest.raises(EmulationFault) as caught:
        matmul(ptx, policy)
    assert caught.value.kind is FaultKind.IN_FLIGHT_REGISTER
