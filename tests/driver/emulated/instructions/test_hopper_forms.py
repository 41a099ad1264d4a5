"""Forms at the edge of what sm_90a has: 128-bit values, vector atomics, and what neither assembler nor device takes."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.conftest import Bench
from tests.driver.emulated.instructions.lane_program import assemble

_PTX = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{{
.reg .pred %p<9>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %rd<40>; .reg .f32 %f<40>; .reg .b128 %q<9>;
.shared .align 16 .b8 s[1024];
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; mov.u32 %r1, %tid.x;
{}
ret;
}}
"""

REFUSED = (
    "redux.sync.min.f32 %f1, %f2, 0xffffffff;",
    "ld.global.v4.b64 {%rd4, %rd5, %rd6, %rd7}, [%rd1];",
    "ld.global.v8.b32 {%r4, %r5, %r6, %r7, %r8, %r9, %r10, %r11}, [%rd1];",
    "st.bulk.weak.shared::cta [s], 8, 0;",
    "red.shared.add.v2.f32 [s], {%f1, %f2};",
    "red.global.add.v2.u32 [%rd1], {%r1, %r2};",
    "red.global.v4.f32.min [%rd1], {%f1, %f2, %f3, %f4};",
    "red.global.v8.f32.add [%rd1], {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};",
    "red.global.add.f16 [%rd1], %h1;",
    "red.global.min.noftz.f16x2 [%rd1], %r1;",
    "red.global.exch.b32 [%rd1], %r1;",
    "atom.global.inc.u64 %rd3, [%rd1], %rd4;",
    "atom.global.min.f32 %f1, [%rd1], %f2;",
    "atom.global.exch.b16 %h1, [%rd1], %h2;",
    "barrier.cluster.arrive.acquire;",
    "barrier.cluster.wait.release;",
    "setmaxnreg.inc.sync.aligned.u32 20;",
    "mov.u32 %r1, %is_explicit_cluster;",
)


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_assembler_refuses_is_refused_when_loaded(bench: Bench, text: str) -> None:
    ptx = _PTX.format(text)
    with pytest.raises(EmulationFault) as caught:
        bench.machine.load(ptx)
    assert caught.value.kind is FaultKind.UNSUPPORTED
    assert caught.value.report.ptx_line == 9
    if _can_assemble():
        with pytest.raises(AssertionError, match="line 9"):
            assemble(ptx)


@pytest.mark.parametrize("text", ["multimem.red.global.add.u32 [%rd1], %r1;", "mapa.u32 %r1, %r2, %r3;"])
def test_what_is_not_modelled_is_refused_when_loaded(bench: Bench, text: str) -> None:
    with pytest.raises(EmulationFault) as caught:
        bench.machine.load(_PTX.format(text))
    assert caught.value.kind is FaultKind.UNSUPPORTED


def test_128_bits_move_whole(bench: Bench, rng: np.random.Generator) -> None:
    """Global to shared to a register to halves, swapped, and back; one lane's value is the same for all of them."""
    ptx = _PTX.format(
        """mul.wide.u32 %rd3, %r1, 16; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
        mov.u32 %r2, s; mad.lo.u32 %r2, %r1, 16, %r2;
        ld.global.nc.b128 %q1, [%rd1]; st.shared.b128 [%r2], %q1; ld.shared.b128 %q2, [%r2]; mov.b128 %q3, %q2;
        setp.gt.u32 %p1, %r1, 40; @%p1 ld.shared.b128 %q3, [s];
        mov.b128 {%rd4, %rd5}, %q3; mov.b128 %q4, {%rd5, %rd4}; st.global.b128 [%rd2], %q4;"""
    )
    assemble(ptx)
    x = rng.integers(0, 1 << 64, (64, 2), dtype=np.uint64)
    out = bench.empty(x.nbytes)
    for policy in ("lockstep", "warp-serial(1)"):
        bench.run(bench.machine.load(ptx), "k", 1, 64, bench.put(x), out, policy=policy)
        expected = np.where(np.arange(64)[:, None] > 40, x[0], x)[:, ::-1]
        assert np.array_equal(bench.get(out, (64, 2), np.uint64), expected)


def test_atomics_of_128_bits(bench: Bench) -> None:
    """A list by compare-and-swap: each lane in turn puts itself in front, in lane order."""
    ptx = _PTX.format(
        """cvt.u64.u32 %rd3, %r1; mov.b128 %q1, {%rd3, %rd3}; mov.u64 %rd4, 7; mov.b128 %q2, {%rd4, %rd4};
        atom.global.exch.b128 %q3, [%rd1], %q1;
        setp.eq.u32 %p1, %r1, 31; @%p1 atom.relaxed.gpu.global.cas.b128 %q3, [%rd1], %q1, %q2;
        mul.wide.u32 %rd5, %r1, 16; add.u64 %rd2, %rd2, %rd5; st.global.b128 [%rd2], %q3;"""
    )
    assemble(ptx)
    word, out = bench.put(np.array([5, 6], np.uint64)), bench.empty(32 * 16)
    bench.run(bench.machine.load(ptx), "k", 1, 32, word, out)
    assert bench.get(word, 2, np.uint64).tolist() == [7, 7]
    expected = [[5, 6], *([lane, lane] for lane in range(30)), [31, 31]]
    assert bench.get(out, (32, 2), np.uint64).tolist() == expected


def test_vector_reductions_add_and_bound_each_element(bench: Bench, rng: np.random.Generator) -> None:
    ptx = _PTX.format(
        """and.b32 %r2, %r1, 3; mul.wide.u32 %rd3, %r2, 16; add.u64 %rd1, %rd1, %rd3;
        cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0fBF800000; add.f32 %f4, %f1, %f1;
        red.relaxed.gpu.global.add.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};
        mul.wide.u32 %rd4, %r2, 8; add.u64 %rd2, %rd2, %rd4; cvt.rn.f16.u32 %h1, %r1; neg.f16 %h2, %h1;
        red.global.max.noftz.v4.f16 [%rd2], {%h1, %h2, %h1, %h2};"""
    )
    assemble(ptx)
    sums, bounds = bench.put(np.zeros((4, 4), np.float32)), bench.put(np.full((4, 4), -100, np.float16))
    bench.run(bench.machine.load(ptx), "k", 1, 64, sums, bounds)
    lanes = np.arange(64).reshape(16, 4)
    total = lanes.sum(axis=0)
    expected = np.stack([total, np.full(4, 16), np.full(4, -16), 2 * total], axis=-1)
    assert np.array_equal(bench.get(sums, (4, 4), np.float32), expected)
    largest, smallest = lanes.max(axis=0), -lanes.min(axis=0)
    assert np.array_equal(bench.get(bounds, (4, 4), np.float16), np.stack([largest, smallest] * 2, axis=-1))


def test_vector_atomics_are_aligned_as_a_whole(bench: Bench) -> None:
    module = bench.machine.load(_PTX.format("mov.f32 %f1, 0f00000000; red.global.add.v2.f32 [%rd1+4], {%f1, %f1};"))
    x = bench.put(np.zeros(8, np.float32))
    with pytest.raises(EmulationFault, match="not 8-byte aligned") as caught:
        bench.run(module, "k", 1, 1, x, x)
    assert caught.value.kind is FaultKind.MISALIGNED


NEWER = (
    ("sm_80", "mapa.shared::cluster.u32 %r1, %r2, %r3;"),
    ("sm_80", "barrier.cluster.arrive;"),
    ("sm_80", "ld.relaxed.cluster.global.u32 %r1, [%rd1];"),
    ("sm_80", "ld.shared::cluster.u32 %r1, [%r2];"),
    ("sm_80", "mov.u32 %r1, %cluster_ctarank;"),
    ("sm_80", "griddepcontrol.wait;"),
    ("sm_80", "elect.sync %r1|%p1, 0xffffffff;"),
    ("sm_80", "atom.global.exch.b128 %q1, [%rd1], %q2;"),
    ("sm_80", "red.global.add.v2.f32 [%rd1], {%f1, %f2};"),
    ("sm_80", "mbarrier.try_wait.shared.b64 %p1, [s], %rd2;"),
    ("sm_80", "cp.async.bulk.commit_group;"),
    ("sm_80", "fence.proxy.async;"),
    ("sm_80", "add.bf16x2 %r1, %r2, %r3;"),
    ("sm_80", "min.s16x2 %r1, %r2, %r3;"),
    ("sm_80", "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;"),
    ("sm_90", "setmaxnreg.inc.sync.aligned.u32 24;"),
    ("sm_90", "wgmma.fence.sync.aligned;"),
)


@pytest.mark.parametrize(("target", "text"), NEWER)
def test_what_a_target_does_not_have_is_refused_when_loaded(bench: Bench, target: str, text: str) -> None:
    ptx = _PTX.format(text).replace("sm_90a", target)
    with pytest.raises(EmulationFault, match=f", not {target}") as caught:
        bench.machine.load(ptx)
    assert caught.value.report.ptx_line == 9
    if _can_assemble():
        with pytest.raises(AssertionError, match="line 9"):
            assemble(ptx, target)


def _can_assemble() -> bool:
    """Is there an assembler at all (``assemble`` passes everything without one)."""
    try:
        assemble(_PTX.format("not an instruction;"))
    except AssertionError:
        return True
    return False
