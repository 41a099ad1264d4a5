"""Data races between warps and CTAs are found, and right kernels are clean, under every policy."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.checking.mutants import without_each

POLICIES = ("lockstep", "warp-serial(7)", "cta-reverse", "fuzz(3)")

REDUCTION = """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float sums[256];
  int t = threadIdx.x;
  sums[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  #pragma unroll
  for (int step = 128; step >= 64; step /= 2) {
    if (t < step) sums[t] += sums[t + step];
    __syncthreads();
  }
  if (t < 32) {
    float s = sums[t] + sums[t + 32];
    for (int step = 16; step; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
    if (t == 0) y[blockIdx.x] = s;
  }
}
"""

PIPELINE = """
__device__ void copy(float4* to, const float4* from) {
  unsigned target = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(from) : "memory");
}
extern "C" __global__ void k(const float4* x, float4* y, int n) {
  __shared__ float4 stage[2][128];
  int t = threadIdx.x;
  x += blockIdx.x * n * 128; y += blockIdx.x * n * 128;
  copy(&stage[0][t], x + t);
  asm volatile("cp.async.commit_group;");
  #pragma unroll 1
  for (int i = 0; i < n; i++) {
    if (i + 1 < n) copy(&stage[(i + 1) & 1][t], x + (i + 1) * 128 + t);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    y[i * 128 + t] = stage[i & 1][127 - t];
    __syncthreads();
  }
}
"""

NAMED = """
.shared .align 16 .b8 tile[256];
.visible .entry k(.param .u64 out) {
  .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, tile;
  and.b32 %r3, %r1, 31;
  shl.b32 %r3, %r3, 2;
  add.u32 %r4, %r2, %r3;
  setp.lt.u32 %p1, %r1, 32;
  @!%p1 bra CONSUME;
  st.shared.u32 [%r4], %r1;
  bar.arrive 3, 64;
  bra END;
CONSUME:
  bar.sync 3, 64;
  ld.shared.u32 %r5, [%r4];
  ld.param.u64 %rd1, [out];
  cvt.u64.u32 %rd2, %r3;
  add.u64 %rd1, %rd1, %rd2;
  st.global.u32 [%rd1], %r5;
END:
  ret;
}
"""


def _race(bench, module, grid, block, *arguments, **options):
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", grid, block, *arguments, races=True, **options)
    assert caught.value.kind is FaultKind.DATA_RACE, str(caught.value)
    return caught.value.report


@pytest.mark.parametrize("policy", POLICIES)
def test_every_barrier_of_a_reduction_is_needed(bench, compile_cuda, rng, policy):
    ptx = compile_cuda(REDUCTION)
    x = rng.standard_normal((6, 256), dtype=np.float32)
    y = bench.empty(24)
    bench.run(bench.machine.load(ptx), "k", 6, 256, bench.put(x), y, races=True, policy=policy)
    assert np.allclose(bench.get(y, 6, np.float32), x.sum(axis=1), atol=1e-3)
    found = [
        _race(bench, bench.machine.load(mutant), 6, 256, bench.put(x), y, policy=policy, checks=False)
        for _, mutant in without_each(ptx, r"bar\.sync")
    ]
    assert len(found) == 3
    assert all(report.buffer == "shared memory" for report in found)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("landing", ["late", "early"])
def test_every_wait_and_barrier_of_a_pipeline_is_needed(bench, compile_cuda, rng, policy, landing):
    ptx = compile_cuda(PIPELINE)
    x = rng.standard_normal((3, 5, 128, 4), dtype=np.float32)
    y = bench.empty(x.nbytes)

    def arguments():
        return bench.put(x), y, np.int32(5)

    bench.run(bench.machine.load(ptx), "k", 3, 128, *arguments(), races=True, policy=policy, landing=landing)
    assert (bench.get(y, x.shape, np.float32) == x[:, :, ::-1]).all()
    found = [
        _race(bench, bench.machine.load(mutant), 3, 128, *arguments(), policy=policy, landing=landing, checks=False)
        for _, mutant in without_each(ptx, r"bar\.sync|cp\.async\.wait_group")
    ]
    assert len(found) == 3


def test_a_report_names_both_accesses(bench, compile_cuda):
    ptx = "".join(compile_cuda(REDUCTION).split("bar.sync", 1)).replace(" \t0;", "", 1)
    report = _race(bench, bench.machine.load(ptx), 1, 256, bench.put(np.ones(256, np.float32)), bench.empty(4))
    assert "after the write by warp " in report.message
    assert "st.shared.f32" in report.message
    assert report.ptx_text.startswith("ld.shared.f32")
    assert report.buffer_offset is not None
    assert 0 <= report.buffer_offset < 1024


@pytest.mark.parametrize("policy", POLICIES)
def test_arrivals_at_a_named_barrier_order_and_only_those(bench, policy):
    module = bench.machine.load(".version 8.0\n.target sm_80\n.address_size 64\n" + NAMED)
    out = bench.empty(128)
    bench.run(module, "k", 4, 64, out, races=False, policy=policy)
    report = _race(bench, module, 4, 64, out, policy=policy)
    assert "block" in report.message
    bench.run(module, "k", 1, 64, out, races=True, policy=policy)
    assert (bench.get(out, 32, np.uint32) == np.arange(32)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_ctas_that_write_one_global_word_race_unless_by_atomics(bench, policy):
    head = "ld.param.u64 %rd1, [out]; mov.u32 %r1, %ctaid.x;"
    plain, atomic = (
        bench.ptx(f"{head} {end}") for end in ("st.global.u32 [%rd1], 7;", "red.global.add.u32 [%rd1], 1;")
    )
    scoped = bench.ptx(f"{head} red.relaxed.cta.global.add.u32 [%rd1], 1;")
    out = bench.put(np.zeros(1, np.uint32), "counter")
    report = _race(bench, plain, 3, 32, out, policy=policy)
    assert (report.buffer, report.buffer_offset) == ("counter", 0)
    out = bench.put(np.zeros(1, np.uint32))
    bench.run(atomic, "k", 3, 64, out, races=True, policy=policy)
    assert bench.get(out, 1, np.uint32)[0] == 3 * 64
    bench.run(scoped, "k", 1, 64, out, races=True, policy=policy)
    _race(bench, scoped, 3, 32, out, policy=policy)


def test_batches_of_one_launch_are_not_ordered_and_launches_are(bench):
    module = bench.ptx("ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 7;")
    out = bench.empty(4)
    bench.run(module, "k", 1, 32, out, races=True)
    bench.run(module, "k", 1, 32, out, races=True)
    _race(bench, module, 2, 32, out, lane_budget=32)


def test_bytes_next_to_each_other_are_told_apart(bench):
    bytes_ = "mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [out]; cvt.u64.u32 %rd2, %r1; add.u64 %rd1, %rd1, %rd2;"
    module = bench.ptx(f"{bytes_} st.global.u8 [%rd1], %r1;")
    bench.run(module, "k", 1, 128, bench.empty(128), races=True)


@pytest.mark.parametrize("kept", [0, 5, 8, 9, 16])
def test_a_copy_reads_only_the_bytes_that_it_keeps(bench, kept):
    """Warp 0 copies 16 bytes, of which it keeps some; warp 1 writes the last 8 of them."""
    module = bench.ptx(
        f"""ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, {kept};
        setp.eq.u32 %p1, %r1, 0;
        @%p1 cp.async.cg.shared.global [%r2], [%rd1], 16, %r3;
        cp.async.wait_all;
        setp.eq.u32 %p1, %r1, 32;
        @%p1 st.global.u32 [%rd1+8], 7;
        @%p1 st.global.u32 [%rd1+12], 7;""",
        declarations=".shared .align 16 .b8 tile[16];",
    )
    out = bench.put(np.zeros(4, np.uint32), "source")
    if kept <= 8:
        bench.run(module, "k", 1, 64, out, races=True)
    else:
        report = _race(bench, module, 1, 64, out)
        assert (report.buffer, report.buffer_offset) == ("source", 8)
