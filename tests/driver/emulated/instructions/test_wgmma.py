"""wgmma through the machine: every type, layout and swizzle against whole matrices of small integers."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from tests.driver.emulated.conftest import POLICIES, Bench
from tests.driver.emulated.instructions.wgmma_program import GROUP, PAIR, SHARED_BYTES, WARP, Chain, Layout

BF16 = Chain(32, "f32", "bf16", "bf16", 16, 2, 2)
TYPES = {
    "bf16": (BF16, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    "f16": (Chain(8, "f32", "f16", "f16", 16, 2, 2), np.float16, np.float16),
    "f16 into f16": (Chain(24, "f16", "f16", "f16", 16, 2, 2), np.float16, np.float16),
    "tf32": (Chain(40, "f32", "tf32", "tf32", 8, 4, 2), np.float32, np.float32),
    "e4m3": (Chain(16, "f32", "e4m3", "e4m3", 32, 1, 2), ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    "e5m2 by e4m3": (Chain(16, "f32", "e5m2", "e4m3", 32, 1, 2), ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
    "e4m3 into f16": (Chain(64, "f16", "e4m3", "e5m2", 32, 1, 2), ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    "s8 by u8": (Chain(24, "s32", "s8", "u8", 32, 1, 2), np.int8, np.uint8),
    "u8": (Chain(96, "s32", "u8", "u8", 32, 1, 2), np.uint8, np.uint8),
}
SPANS = (16, 32, 64, 128)
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


def factors(chain: Chain, rng: np.random.Generator, a: type, b: type) -> tuple[np.ndarray, np.ndarray]:
    depth = chain.depth * chain.steps
    low_a, low_b = (0 if np.dtype(kind) == np.uint8 else -4 for kind in (a, b))
    return rng.integers(low_a, 5, (64, depth)).astype(a), rng.integers(low_b, 5, (chain.n, depth)).astype(b)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.int64) @ b.astype(np.int64).T


@pytest.mark.parametrize("a_layout", [Layout(), Layout(128), None], ids=["plain", "swizzled", "registers"])
@pytest.mark.parametrize("name", TYPES)
def test_types(bench: Bench, rng: np.random.Generator, name: str, a_layout: Layout | None) -> None:
    chain, a_kind, b_kind = TYPES[name]
    chain = replace(chain, a_layout=a_layout, b_layout=a_layout or Layout())
    a, b = factors(chain, rng, a_kind, b_kind)
    for d in chain.run(bench, a, b):
        np.testing.assert_array_equal(d, product(a, b))


@pytest.mark.parametrize("b_major", [False, True], ids=["K", "N"])
@pytest.mark.parametrize("a_major", [False, True], ids=["K", "M"])
@pytest.mark.parametrize("span", SPANS)
def test_layouts(bench: Bench, rng: np.random.Generator, span: int, a_major: bool, b_major: bool) -> None:
    other = SPANS[(SPANS.index(span) + 1) % len(SPANS)]
    chain = replace(BF16, n=128, a_layout=Layout(span, a_major), b_layout=Layout(other, b_major))
    a, b = factors(chain, rng, ml_dtypes.bfloat16, ml_dtypes.bfloat16)
    for d in chain.run(bench, a, b):
        np.testing.assert_array_equal(d, product(a, b))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("n", [8, 200, 256])
def test_widths_under_every_policy(bench: Bench, rng: np.random.Generator, n: int, policy: str) -> None:
    chain = replace(BF16, n=n, steps=4, a_layout=Layout(128), b_layout=Layout(128))
    a, b = factors(chain, rng, ml_dtypes.bfloat16, ml_dtypes.bfloat16)
    for d in chain.run(bench, a, b, policy, ctas=3):
        np.testing.assert_array_equal(d, product(a, b))


@pytest.mark.parametrize(("scale_a", "scale_b"), [(-1, 1), (1, -1), (-1, -1)])
def test_scales_negate(bench: Bench, rng: np.random.Generator, scale_a: int, scale_b: int) -> None:
    chain = replace(BF16, scale_a=scale_a, scale_b=scale_b)
    a, b = factors(chain, rng, ml_dtypes.bfloat16, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(chain.run(bench, a, b)[1], scale_a * scale_b * product(a, b))


def test_chain_of_different_forms(bench: Bench, rng: np.random.Generator) -> None:
    """Signs, types, and what an instruction reads in between, change along a chain."""
    chain = replace(BF16, steps=4)
    a, b = factors(chain, rng, ml_dtypes.bfloat16, ml_dtypes.bfloat16)

    def edit(text: str) -> str:
        lines = text.split("\n")
        _, second, third, last = (place for place, line in enumerate(lines) if "mma_async" in line)
        lines[second] = lines[second].replace("%p, 1, 1", "%p, -1, 1")
        lines[third] = lines[third].replace("bf16.bf16", "f16.f16")
        lines[last] = f"{COMMIT} {WAIT} add.f32 %d5, %d5, %d5; {FENCE}\n{lines[last]}"
        return "\n".join(lines)

    parts = [(a[:, k : k + 16], b[:, k : k + 16]) for k in range(0, 64, 16)]
    odd = [part.view(np.float16).astype(np.float32) for part in parts[2]]
    expected = product(*parts[0]) - product(*parts[1]) + odd[0] @ odd[1].T
    rows, columns = 16 * WARP + GROUP, 8 * 1 + 2 * PAIR + 1
    expected[rows, columns] *= 2
    expected += product(*parts[3])
    np.testing.assert_array_equal(chain.run(bench, a, b, edit=edit)[1], expected)


def test_long_chain_sums_like_float32(bench: Bench, rng: np.random.Generator) -> None:
    """More products than are summed together; the bound is that of float32 sums of exact products."""
    chain = replace(BF16, n=64, steps=15)
    depth = 16 * chain.steps
    a = rng.standard_normal((64, depth)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((64, depth)).astype(ml_dtypes.bfloat16)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T * depth * 2.0**-24
    assert (np.abs(chain.run(bench, a, b)[0] - exact) <= bound).all()


def test_f16_accumulator_rounds_at_each_instruction(bench: Bench) -> None:
    chain = replace(TYPES["f16 into f16"][0], n=8)
    a, b = np.zeros((64, 32), dtype=np.float16), np.ones((8, 32), dtype=np.float16)
    a[:, 0], a[:, 16], a[:, 17] = 2048, 1, 1
    assert (chain.run(bench, a, b)[0] == 2050).all()
    a[:, 17] = 0
    assert (chain.run(bench, a, b)[0] == 2048).all()


@pytest.mark.parametrize(("satfinite", "expected"), [(False, 32 * 255**2 - 1000 - 2**31), (True, 2**31 - 1)])
def test_integer_sum_wraps_or_clamps(bench: Bench, satfinite: bool, expected: int) -> None:
    chain = replace(TYPES["u8"][0], n=8, steps=1, satfinite=satfinite, start=2**31 - 1000)
    a, b = np.full((64, 32), 255, dtype=np.uint8), np.full((8, 32), 255, dtype=np.uint8)
    assert (chain.run(bench, a, b) == expected).all()


def test_untyped_accumulators_are_bits(bench: Bench, rng: np.random.Generator) -> None:
    chain = replace(BF16, start=0x3F800000, kind="b32")
    a, b = factors(chain, rng, ml_dtypes.bfloat16, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(chain.run(bench, a, b)[0], 1 + product(a, b))


def launch(bench: Bench, text: str, first: int | None = None, written: int = SHARED_BYTES) -> None:
    """Runs the PTX of ``BF16``, changed, on zeros. ``first``: A's descriptor; ``written``: bytes copied to shared."""
    descriptor = BF16.b_layout.descriptor(32, 32, 2)
    image = bench.put(np.zeros(SHARED_BYTES, dtype=np.uint8))
    out = bench.empty(128 * 16 * 4)
    text = text.replace(f"%c, {SHARED_BYTES}", f"%c, {written}")
    arguments = (image, image, np.uint64(descriptor if first is None else first), np.uint64(descriptor), out)
    bench.run(bench.machine.load(text), "k", 1, 128, *arguments, shared=SHARED_BYTES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (WAIT, ""),
        (COMMIT, ""),
        (WAIT, "wgmma.wait_group.sync.aligned 1;"),
        (WAIT, f"{WAIT} wgmma.fence.sync.aligned; {{again}}"),
        (COMMIT, f"add.f32 %d0, %d0, %d0; {COMMIT}"),
        (COMMIT, f"mov.b32 %w0, %d3; {COMMIT} xor.b32 %w0, %w0, 1;"),
    ],
    ids=["no wait", "no commit", "wait for others", "second without wait", "read before commit", "read of a copy"],
)
def test_accumulator_in_flight_is_a_fault(bench: Bench, old: str, new: str) -> None:
    text = BF16.ptx()
    product = next(line for line in text.split("\n") if "mma_async" in line)
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text.replace(old, new.format(again=f"{product} {COMMIT}")))
    assert caught.value.kind is FaultKind.IN_FLIGHT_REGISTER


def test_copies_and_other_accumulators_are_no_faults(bench: Bench) -> None:
    """Registers move between products, and settled ones are used while others are in flight."""
    text = BF16.ptx()
    moves = "".join(f"mov.b32 %e{i}, %d{i};" for i in range(16))
    products = [line for line in text.split("\n") if "mma_async" in line]
    on_copies = products[1].replace("%d", "%e").replace("%eb", "%db")
    declared = text.replace(".reg .f32 %d<16>;", ".reg .f32 %d<16>; .reg .f32 %e<16>;")
    pipelined = f"{COMMIT} {moves} {on_copies} {COMMIT} wgmma.wait_group.sync.aligned 1; add.f32 %d0, %d0, %d1; {WAIT}"
    launch(bench, declared.replace(COMMIT, pipelined))


@pytest.mark.parametrize(
    ("old", "new"),
    [(FENCE, ""), (FENCE, f"{FENCE} ld.global.b32 %a2, [%x];"), (FENCE, f"{FENCE} @%p xor.b32 %a2, %a2, %a2;")],
    ids=["no fence", "load after it", "guarded write after it"],
)
def test_registers_of_a_need_a_fence(bench: Bench, old: str, new: str) -> None:
    text = replace(BF16, a_layout=None).ptx()
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text.replace(old, new))
    assert caught.value.kind is FaultKind.MISSING_WGMMA_FENCE
    assert "%a" in caught.value.report.message


def test_the_first_product_needs_a_fence_whatever_its_registers_hold(bench: Bench) -> None:
    text = BF16.ptx()
    assert text.count(FENCE) == 1
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text.replace(FENCE, ""))
    assert caught.value.kind is FaultKind.MISSING_WGMMA_FENCE
    assert "before the first" in caught.value.report.message


def test_written_accumulator_needs_a_fence(bench: Bench) -> None:
    text = replace(BF16, start=3).ptx().replace("%d<16>;", "%d<16>; .reg .f32 %e;")
    doubled = "mov.f32 %e, 0f3f800000; add.f32 %e, %e, %e;"
    launch(bench, text.replace(FENCE, f"{doubled} {FENCE} mov.f32 %d7, %e; mov.f32 %d8, 0f00000000;"))
    for late in (f"{FENCE} {doubled} mov.f32 %d7, %e;", f"{FENCE} add.f32 %d7, %d7, %d7;"):
        with pytest.raises(EmulationFault) as caught:
            launch(bench, text.replace(FENCE, late))
        assert caught.value.kind is FaultKind.MISSING_WGMMA_FENCE


@pytest.mark.parametrize("place", [COMMIT, WAIT])
def test_registers_of_a_must_not_be_written_in_flight(bench: Bench, place: str) -> None:
    text = replace(BF16, a_layout=None).ptx()
    launch(bench, text.replace(WAIT, f"{WAIT} add.u32 %a1, %a1, 1;"))
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text.replace(place, f"add.u32 %a1, %a1, 1; {place}"))
    assert caught.value.kind is FaultKind.IN_FLIGHT_REGISTER


def test_ldmatrix_must_not_write_registers_of_a_in_flight(bench: Bench) -> None:
    text = replace(BF16, a_layout=None).ptx()
    rows = "mov.u32 %s, tile; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%a0, %a1}, [%s];"
    launch(bench, text.replace(WAIT, f"{WAIT} {rows}"))
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text.replace(WAIT, f"{rows} {WAIT}"))
    assert caught.value.kind is FaultKind.IN_FLIGHT_REGISTER


@pytest.mark.parametrize("place", [COMMIT, WAIT])
@pytest.mark.parametrize("write", ["ld.global.f32 %d3, [%x+-2048];", "add.f32 %d3, %e, %e;"])
def test_accumulators_must_not_be_written_in_flight(bench: Bench, place: str, write: str) -> None:
    """Constants and copies are left out: compilers place them anywhere."""
    text = BF16.ptx().replace("%d<16>;", "%d<16>; .reg .f32 %e;").replace(FENCE, f"mov.f32 %e, 0f00000000; {FENCE}")
    launch(bench, text.replace(WAIT, f"{WAIT} {write}"))
    launch(bench, text.replace(place, f"mov.f32 %d3, %e; mov.f32 %d4, 0f00000000; {place}"))
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text.replace(place, f"{write} {place}"))
    assert caught.value.kind is FaultKind.IN_FLIGHT_REGISTER
    assert "an accumulator of a wgmma" in caught.value.report.message


def test_uncommitted_product_at_exit_is_a_fault(bench: Bench) -> None:
    text = BF16.ptx()
    start, end = text.index(COMMIT), text.rindex("ret;")
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text[:start] + text[end:])
    assert caught.value.kind is FaultKind.IN_FLIGHT_REGISTER
    assert "exits" in caught.value.report.message


@pytest.mark.parametrize("guard", ["setp.lt.u32 %p, %t, 96; @!%p bra over;", "setp.ne.u32 %p, %t, 5; @!%p bra over;"])
def test_incomplete_warpgroup_does_not_go_on(bench: Bench, guard: str) -> None:
    text = BF16.ptx().replace(FENCE, f"{guard} {FENCE}").replace(WAIT, f"{WAIT}\nover:\nbar.sync 1;")
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text)
    assert caught.value.kind is FaultKind.DEADLOCK


def test_descriptor_must_be_the_same_in_the_warpgroup(bench: Bench) -> None:
    text = BF16.ptx().replace(FENCE, f"shr.u32 %w0, %t, 6; cvt.u64.u32 %v, %w0; add.u64 %da, %da, %v; {FENCE}")
    with pytest.raises(EmulationFault) as caught:
        launch(bench, text)
    assert caught.value.kind is FaultKind.WARP_DIVERGED
    assert caught.value.report.warp == 2


def test_unwritten_and_outside_tiles(bench: Bench) -> None:
    plain = BF16.a_layout.descriptor(64, 32, 2)
    with pytest.raises(EmulationFault) as caught:
        launch(bench, BF16.ptx(), written=2048)
    assert caught.value.kind is FaultKind.UNINITIALISED_READ
    with pytest.raises(EmulationFault) as caught:
        launch(bench, BF16.ptx(), first=plain | (SHARED_BYTES - 4096 + 16) >> 4)
    assert caught.value.kind is FaultKind.SHARED_OUT_OF_BOUNDS
    launch(bench, BF16.ptx(), first=plain | (SHARED_BYTES - 4096) >> 4)


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 48, 52, 61])
def test_reserved_bits_of_a_descriptor_are_a_fault(bench: Bench, bit: int) -> None:
    with pytest.raises(EmulationFault, match="reserved bits") as caught:
        launch(bench, BF16.ptx(), first=BF16.a_layout.descriptor(64, 32, 2) | 1 << bit)
    assert caught.value.kind is FaultKind.SHARED_OUT_OF_BOUNDS


@pytest.mark.parametrize(
    ("old", "new"),
    [("n32k16", "n36k16"), ("n32k16", "n32k8"), (".f32.bf16.bf16", ".f16.bf16.bf16"), ("mma_async", "mma_async.sp")],
)
def test_forms_that_are_not_modelled_are_refused(bench: Bench, old: str, new: str) -> None:
    with pytest.raises(EmulationFault) as caught:
        bench.machine.load(BF16.ptx().replace(old, new))
    assert caught.value.kind is FaultKind.UNSUPPORTED
    assert "mma_async" in caught.value.report.ptx_text
