"""Whole kernels under every policy, and the same kernels with a barrier or a wait taken out."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault

POLICIES = ("lockstep", "warp-serial(3)", "cta-reverse")

SOFTMAX = """
extern "C" __global__ void softmax(const float* x, float* y, int n) {
  __shared__ float part[8];
  int t = threadIdx.x, warps = blockDim.x / 32;
  x += blockIdx.x * n; y += blockIdx.x * n;
  float m = -1e30f, s = 0;
  for (int i = t; i < n; i += blockDim.x) m = fmaxf(m, x[i]);
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  if (t % 32 == 0) part[t / 32] = m;
  __syncthreads();
  m = part[0];
  for (int i = 1; i < warps; i++) m = fmaxf(m, part[i]);
  __syncthreads();
  for (int i = t; i < n; i += blockDim.x) s += __expf(x[i] - m);
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (t % 32 == 0) part[t / 32] = s;
  __syncthreads();
  s = 0;
  for (int i = 0; i < warps; i++) s += part[i];
  for (int i = t; i < n; i += blockDim.x) y[i] = __expf(x[i] - m) / s;
}
"""

# C = A @ B^T: 32 x 32 of C a block of 4 warps, 16 of k a stage, two stages; bf16 in, f32 out.
GEMM = r"""
typedef unsigned short u16;
typedef unsigned int u32;
__device__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void copy(u16* to, const u16* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(there ? 8 : 0) : "memory");
}
__device__ void fragment(u32 (&r)[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
__device__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
extern "C" __global__ void gemm(const u16* a, const u16* b, float* c, int m, int n, int k) {
  __shared__ __align__(16) u16 as[2][32][24], bs[2][32][24];
  int t = threadIdx.x, lane = t % 32, row = t / 4, column = t % 4 * 4, m0 = blockIdx.y * 32, n0 = blockIdx.x * 32;
  int wm = t / 64 * 16, wn = t / 32 % 2 * 16;
  float acc[2][4] = {};
  auto load = [&](int s, int k0) {
    copy(&as[s][row][column], a + (m0 + row) * k + k0 + column, m0 + row < m);
    copy(&bs[s][row][column], b + (n0 + row) * k + k0 + column, n0 + row < n);
  };
  load(0, 0);
  asm volatile("cp.async.commit_group;");
#pragma unroll 1
  for (int k0 = 0; k0 < k; k0 += 16) {
    int s = k0 / 16 % 2;
    if (k0 + 16 < k) load(s ^ 1, k0 + 16);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    u32 af[4], bf[4];
    fragment(af, &as[s][wm + lane % 16][lane / 16 * 8]);
    fragment(bf, &bs[s][wn + lane % 16][lane / 16 * 8]);
    multiply(acc[0], af, bf[0], bf[2]);
    multiply(acc[1], af, bf[1], bf[3]);
    __syncthreads();
  }
  for (int i = 0; i < 8; i++) {
    int y = m0 + wm + lane / 4 + i / 2 % 2 * 8, x = n0 + wn + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (y < m && x < n) c[y * n + x] = acc[i / 4][i % 4];
  }
}
"""


def run_softmax(bench, ptx, x, policy, **options):
    module = bench.machine.load(ptx)
    y = bench.empty(x.nbytes, "y")
    rows, n = x.shape
    bench.run(module, "softmax", rows, 128, bench.put(x, "x"), y, np.int32(n), policy=policy, **options)
    return bench.get(y, x.shape, np.float32)


def softmax(x):
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def run_gemm(bench, ptx, a, b, policy, **options):
    module = bench.machine.load(ptx)
    (m, k), n = a.shape, len(b)
    c = bench.empty(4 * m * n, "c")
    arguments = (bench.put(bf16(a), "a"), bench.put(bf16(b), "b"), c, np.int32(m), np.int32(n), np.int32(k))
    bench.run(module, "gemm", (-(-n // 32), -(-m // 32)), 128, *arguments, policy=policy, **options)
    return bench.get(c, (m, n), np.float32)


def bf16(integers):
    """Small integers as bfloat16 bits."""
    return (integers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n", [1, 100, 333])
def test_softmax(bench, compile_cuda, rng, policy, n):
    x = rng.standard_normal((5, n)).astype(np.float32) * 4
    assert np.abs(run_softmax(bench, compile_cuda(SOFTMAX), x, policy) - softmax(x)).max() < 1e-6


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize(("m", "n", "k"), [(32, 32, 16), (70, 40, 64)])
def test_pipelined_matrix_product_is_exact_on_integers(bench, compile_cuda, rng, policy, landing, m, n, k):
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (n, k))
    assert (run_gemm(bench, compile_cuda(GEMM), a, b, policy, landing=landing) == a @ b.T).all()


def without(ptx: str, opcode: str) -> list[str]:
    """The text with each statement of ``opcode`` taken out, one at a time."""
    places = [match.span() for match in re.finditer(rf"\b{re.escape(opcode)}[^;]*;", ptx)]
    return [ptx[:start] + ptx[end:] for start, end in places]


def differs(expected, run, *arguments, **options) -> bool:
    """Does the run end in a fault, or with a result that is not the expected one."""
    try:
        return not np.allclose(run(*arguments, **options), expected, atol=1e-5)
    except EmulationFault:
        return True


def test_every_missing_barrier_of_the_softmax_shows(bench, compile_cuda, rng):
    x = rng.standard_normal((4, 300)).astype(np.float32)
    x[:, :40] += 20
    mutants = without(compile_cuda(SOFTMAX), "bar.sync")
    assert len(mutants) == 3
    for ptx in mutants:
        assert not differs(softmax(x), run_softmax, bench, ptx, x, "lockstep")
        assert any(differs(softmax(x), run_softmax, bench, ptx, x, f"warp-serial({seed})") for seed in range(4))


def test_a_missing_wait_of_the_matrix_product_shows(bench, compile_cuda, rng):
    a, b = rng.integers(-8, 9, (32, 64)), rng.integers(-8, 9, (32, 64))
    (ptx,) = without(compile_cuda(GEMM), "cp.async.wait_group")
    assert differs(a @ b.T, run_gemm, bench, ptx, a, b, "lockstep")


def test_every_missing_barrier_of_the_matrix_product_shows(bench, compile_cuda, rng):
    a, b = rng.integers(-8, 9, (32, 64)), rng.integers(-8, 9, (32, 64))
    mutants = without(compile_cuda(GEMM), "bar.sync")
    assert len(mutants) == 2
    runs = [(f"warp-serial({seed})", landing) for seed in range(4) for landing in ("late", "early")]
    for ptx in mutants:
        assert any(differs(a @ b.T, run_gemm, bench, ptx, a, b, policy, landing=how) for policy, how in runs)
