"""atom and red through the machine, in global and shared memory, on colliding addresses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 96
SLOTS = 8
INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
FORMS = [
    *((name, "u32", np.uint32) for name in ("add", "min", "max", "inc", "dec")),
    *((name, "b32", np.uint32) for name in ("and", "or", "xor", "exch")),
    *((name, "s32", np.int32) for name in ("add", "min", "max")),
    *((name, "u64", np.uint64) for name in ("add", "min", "max")),
    *((name, "s64", np.int64) for name in ("min", "max")),
    *((name, "b64", np.uint64) for name in ("and", "or", "xor", "exch")),
]

SHARED = """
.shared .align 8 .b8 slots[{bytes}];
.reg .b32 %place, %index;
.reg .pred %first;
mov.u32 %place, slots;
mad.lo.u32 %place, %lane, {size}, %place;
setp.lt.u32 %first, %lane, {slots};
@%first st.shared.{kind} [%place], %initial;
bar.sync 0;
mov.u32 %place, slots;
mad.lo.u32 %place, %slot, {size}, %place;
{body}
bar.sync 0;
mov.u32 %place, slots;
rem.u32 %index, %lane, {slots};
mad.lo.u32 %place, %index, {size}, %place;
ld.shared.{kind} %final, [%place];
"""


def in_shared(
    lanes: Lanes, body: str, initial: np.ndarray, inputs: dict[str, np.ndarray], outputs: dict[str, type]
) -> list[np.ndarray]:
    """Runs ``body`` with %place at shared slot %slot; the last result is the slots' end value."""
    size = initial.itemsize
    program = SHARED.format(bytes=size * SLOTS, size=size, slots=SLOTS, kind=f"b{8 * size}", body=body)
    whole = {"%initial": np.resize(initial, LANES), **inputs}
    *results, final = lanes.run(program, whole, outputs | {"%final": initial.dtype.type}, mixed=False)
    return [*results, final[:SLOTS]]


@pytest.mark.parametrize(("name", "kind", "dtype"), FORMS, ids=[f"{form[0]}-{form[1]}" for form in FORMS])
def test_integers_in_lane_order(
    emulated_lanes: Lanes, rng: np.random.Generator, name: str, kind: str, dtype: type
) -> None:
    initial, operand = rng.integers(0, 50, SLOTS).astype(dtype), rng.integers(0, 100, LANES).astype(dtype)
    slot = rng.integers(0, SLOTS, LANES).astype(np.uint32)
    body = f"atom.shared.{name}.{kind} %old, [%place], %b;"
    old, final = in_shared(emulated_lanes, body, initial, {"%slot": slot, "%b": operand}, {"%old": dtype})
    memory, seen = initial.tolist(), []
    for place, value in zip(slot.tolist(), operand.tolist(), strict=True):
        seen.append(memory[place])
        memory[place] = INTEGER[name](memory[place], value)
    np.testing.assert_array_equal(final, np.array(memory, dtype))
    np.testing.assert_array_equal(old, np.array(seen, dtype))


def test_compare_and_swap_in_lane_order(emulated_lanes: Lanes, rng: np.random.Generator) -> None:
    slot = rng.integers(0, SLOTS, LANES).astype(np.uint32)
    value = np.arange(1, LANES + 1, dtype=np.uint32)
    body = "atom.shared.cas.b32 %old, [%place], 0, %b;"
    old, final = in_shared(
        emulated_lanes, body, np.zeros(SLOTS, np.uint32), {"%slot": slot, "%b": value}, {"%old": np.uint32}
    )
    winners = np.array([value[slot == place][0] if (slot == place).any() else 0 for place in range(SLOTS)])
    np.testing.assert_array_equal(final, winners)
    np.testing.assert_array_equal(old, np.where(value == winners[slot], 0, winners[slot]))


def test_floats_and_reductions(lanes: Lanes, rng: np.random.Generator) -> None:
    slot = rng.integers(0, SLOTS, LANES).astype(np.uint32)
    for kind, dtype in (("f32", np.float32), ("f64", np.float64)):
        operand = rng.integers(-9, 9, LANES).astype(dtype)
        inputs = {"%slot": slot, "%b": operand}
        (final,) = in_shared(lanes, f"red.shared.add.{kind} [%place], %b;", np.zeros(SLOTS, dtype), inputs, {})
        np.testing.assert_array_equal(final, np.bincount(slot, operand, SLOTS))


def test_packed_halves(lanes: Lanes, rng: np.random.Generator) -> None:
    slot = rng.integers(0, SLOTS, LANES).astype(np.uint32)
    operand = rng.integers(-9, 9, (LANES, 2)).astype(np.float16)
    inputs = {"%slot": slot, "%b": operand.view(np.uint32)[:, 0].copy()}
    body = "atom.shared.add.noftz.f16x2 %old, [%place], %b;"
    _, final = in_shared(lanes, body, np.zeros(SLOTS, np.uint32), inputs, {"%old": np.uint32})
    totals = final.view(np.float16).reshape(SLOTS, 2)
    for half in range(2):
        np.testing.assert_array_equal(totals[:, half], np.bincount(slot, operand[:, half].astype(float), SLOTS))


def test_global_memory(lanes: Lanes, rng: np.random.Generator) -> None:
    """Every lane adds to the first element of the last output, which lane 0 has cleared."""
    operand = rng.integers(1, 1000, LANES).astype(np.uint32)
    body = """
    .reg .pred %first; .reg .b64 %sum;
    ld.param.b64 %sum, [p2];
    setp.eq.u32 %first, %lane, 0;
    @%first st.global.u32 [%sum], 0;
    bar.sync 0;
    atom.global.add.u32 %old, [%sum], %b;
    red.relaxed.gpu.global.max.u32 [%sum], 5;
    bar.sync 0;
    ld.global.u32 %total, [%sum];
    bar.sync 0;
    """
    old, total = lanes.run(body, {"%b": operand}, {"%old": np.uint32, "%total": np.uint32}, mixed=False)
    np.testing.assert_array_equal(total, operand.sum())
    turns = np.argsort(old)
    np.testing.assert_array_equal(old[turns], np.cumsum(operand[turns]) - operand[turns])


def test_a_guard_keeps_other_lanes_out(lanes: Lanes, rng: np.random.Generator) -> None:
    slot = rng.integers(0, SLOTS, LANES).astype(np.uint32)
    body = ".reg .pred %odd; .reg .b32 %bit; and.b32 %bit, %lane, 1; setp.ne.u32 %odd, %bit, 0;"
    body += "@%odd red.shared.add.u32 [%place], 1;"
    (final,) = in_shared(lanes, body, np.zeros(SLOTS, np.uint32), {"%slot": slot}, {})
    np.testing.assert_array_equal(final, np.bincount(slot[1::2], minlength=SLOTS))
