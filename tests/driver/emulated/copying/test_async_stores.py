"""st.async and red.async: every type, vector length and operation."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.conftest import Bench

TYPES = {
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "b64": np.uint64, "u64": np.uint64,
    "s64": np.int64, "f64": np.float64,
}  # fmt: skip
VECTORS = [(kind, n) for kind in TYPES for n in (1, 2, 4) if n * np.dtype(TYPES[kind]).itemsize <= 16]
SHARED = ".shared .align 8 .b64 bar[1]; .shared .align 16 .b8 data[2048];"
START = """
ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; mov.u32 %r2, %tid.x; mov.u32 %r3, data; mov.u32 %r4, bar;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
bar.sync 0;
"""
WAIT = "L: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra L;"
COMPLETE = "shared::cluster.mbarrier::complete_tx::bytes"


def _run(bench: Bench, body: str, out: int, source: int, landing: str = "late") -> None:
    module = bench.ptx(f"{START}{body}\nret;", ".param .u64 out, .param .u64 in", SHARED)
    bench.run(module, "k", 1, 32, out, source, landing=landing)


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize(("kind", "count"), VECTORS)
def test_registers_arrive_in_shared_memory(
    bench: Bench, rng: np.random.Generator, kind: str, count: int, landing: str
) -> None:
    size = np.dtype(TYPES[kind]).itemsize
    values = rng.integers(-1000, 1000, (32, count)).astype(TYPES[kind])
    vector = f".v{count}" if count > 1 else ""
    letter = {"f32": "f", "f64": "fd"}.get(kind, "rd" if size == 8 else "r")
    names = [f"%{letter}{10 + i}" for i in range(count)]
    operand = f"{{{', '.join(names)}}}" if count > 1 else names[0]
    body = f"""
    mad.lo.u32 %r5, %r2, {size * count}, %r3; mul.wide.u32 %rd3, %r2, {size * count};
    add.u64 %rd4, %rd2, %rd3; add.u64 %rd5, %rd1, %rd3;
    ld.global{vector}.{kind} {operand}, [%rd4];
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {32 * size * count};
    st.async.{COMPLETE}{vector}.{kind} [%r5], {operand}, [%r4];
    {WAIT}
    ld.shared{vector}.{kind} {operand}, [%r5];
    st.global{vector}.{kind} [%rd5], {operand};"""
    out = bench.empty(values.nbytes)
    _run(bench, body, out, bench.put(values), landing)
    np.testing.assert_array_equal(bench.get(out, values.shape, values.dtype), values)


REDUCTIONS = {
    "inc.u32": lambda old, top: 0 if old >= top else old + 1,
    "dec.u32": lambda old, top: top if old == 0 or old > top else old - 1,
    "min.u32": min, "max.u32": max, "min.s32": min, "max.s32": max,
    "and.b32": lambda old, new: old & new, "or.b32": lambda old, new: old | new, "xor.b32": lambda old, new: old ^ new,
    "add.u32": lambda old, new: old + new, "add.s32": lambda old, new: old + new, "add.u64": lambda old, new: old + new,
}  # fmt: skip


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("form", REDUCTIONS)
def test_registers_are_combined_with_shared_memory(
    bench: Bench, rng: np.random.Generator, form: str, landing: str
) -> None:
    """All 32 lanes meet at one word and take their turns in lane order."""
    kind = form.split(".")[1]
    dtype = TYPES[kind]
    low = -50 if kind == "s32" else 0
    values = rng.integers(low, 50, 33).astype(dtype)
    size, letter = values.itemsize, "rd" if values.itemsize == 8 else "r"
    body = f"""
    ld.global.{kind} %{letter}10, [%rd2+{32 * size}];
    @%p1 st.shared.{kind} [%r3], %{letter}10;
    bar.sync 0;
    mul.wide.u32 %rd3, %r2, {size}; add.u64 %rd4, %rd2, %rd3; ld.global.{kind} %{letter}11, [%rd4];
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], {32 * size};
    red.async.relaxed.cluster.{COMPLETE}.{form} [%r3], %{letter}11, [%r4];
    {WAIT}
    ld.shared.{kind} %{letter}12, [%r3];
    st.global.{kind} [%rd1], %{letter}12;"""
    out = bench.empty(size)
    _run(bench, body, out, bench.put(values), landing)
    expected = int(values[32])
    for value in values[:32].tolist():
        expected = REDUCTIONS[form](expected, value)
    assert int(bench.get(out, 1, dtype)[0]) == expected


def test_a_load_before_the_bytes_have_come_is_reported(bench: Bench) -> None:
    body = f"""
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128;
    mad.lo.u32 %r5, %r2, 4, %r3;
    st.async.{COMPLETE}.b32 [%r5], %r2, [%r4];
    ld.shared.u32 %r6, [%r5];
    {WAIT}"""
    with pytest.raises(EmulationFault) as caught:
        _run(bench, body, bench.empty(4), bench.empty(4))
    assert caught.value.kind is FaultKind.UNINITIALISED_READ


def test_bytes_and_barrier_must_lie_in_one_cta(bench: Bench) -> None:
    body = f"""
    mov.u32 %r7, %cluster_ctarank; xor.b32 %r7, %r7, 1; mapa.shared::cluster.u32 %r8, %r3, %r7;
    barrier.cluster.arrive; barrier.cluster.wait;
    st.async.{COMPLETE}.b32 [%r8], %r2, [%r4];"""
    module = bench.ptx(f"{START}{body}\nret;", ".param .u64 out, .param .u64 in", SHARED)
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 2, 32, bench.empty(4), bench.empty(4), cluster=2)
    assert caught.value.kind is FaultKind.ASYNC_MISUSE
    assert "another CTA" in str(caught.value)
