"""atom and red on contended addresses, where the result does not depend on the order. PTX ISA manual, "atom", "red"."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import Array, Case, Output
from tests.calibration.cases.program import element, program
from tests.calibration.inputs import random_bits, seeded

_THREADS, _PLACES = 256, 8
_INTEGER_FORMS = (
    *((op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32", "u64")),
    *((op, "s64") for op in ("min", "max")),
    *((op, kind) for op in ("and", "or", "xor") for kind in ("b32", "b64")),
    ("inc", "u32"), ("dec", "u32"),
)  # fmt: skip
#: The limit at which inc and dec wrap: with one for all threads their order does not matter.
_LIMIT = 20
#: Sums of small whole numbers are exact in any order.
_FLOAT_SUMS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
_WIDTHS = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}
_VECTORS = (("v2", "f32"), ("v4", "f32"), ("v2", "f16"), ("v4", "f16"), ("v8", "f16"), ("v2", "bf16"), ("v4", "bf16"),
            ("v8", "bf16"), ("v2", "f16x2"), ("v4", "f16x2"), ("v2", "bf16x2"), ("v4", "bf16x2"))  # fmt: skip


def cases() -> Iterator[Case]:
    for space in ("global", "shared"):
        for operation, kind in _INTEGER_FORMS:
            width = int(kind[1:]) // 8
            initial = random_bits(f"initial{operation}{kind}", _PLACES, width)
            values = random_bits(f"{operation}{kind}", _THREADS, width)
            if operation in ("inc", "dec"):
                values, initial = np.full(_THREADS, _LIMIT, np.uint32), initial % np.uint32(2 * _LIMIT)
            yield _contended(f"{operation}.{kind}", f"{operation}.{kind}", values, f"u{8 * width}", initial, space)
        for kind in _FLOAT_SUMS:
            noftz = ".noftz" if _WIDTHS[kind] == 2 or kind.endswith("x2") else ""
            values = _small_numbers(kind, _THREADS)
            yield _contended(f"add.{kind}", f"add{noftz}.{kind}", values, kind, _small_numbers(kind, _PLACES), space)
        yield _flushed(space)
    for operation in ("min", "max"):
        for kind in ("f16", "bf16", "f16x2", "bf16x2"):
            yield from _vector_extrema(operation, kind)
    for vector, kind in _VECTORS:
        yield _vector(vector, "add", kind)
    yield _swaps()


def _contended(name: str, instruction: str, values: Array, kind: str, initial: Array, space: str) -> Case:
    """Eight places; every thread updates the one of its number, by red in the first block and by atom in the second.

    The old values that atom returns depend on the order and are not kept.
    """
    width = values.dtype.itemsize
    shared = space == "shared"
    move_in = f"""
.shared .align 16 .b8 places[{16 * _PLACES}];
.reg .b32 %window;
mov.u32 %window, places;
mad.lo.u32 %window, %place, {width}, %window;
{element("%a1", "%o0", "%place", width)}ld.global.b{8 * width} %value, [%a1];
st.shared.b{8 * width} [%window], %value;
bar.sync 0;
"""
    move_out = f"bar.sync 0;\nld.shared.b{8 * width} %value, [%window];\nst.global.b{8 * width} [%a1], %value;\n"
    target = "%window" if shared else "%a1"
    body = f"""
.reg .b32 %place;
.reg .b{8 * width} %value, %old;
.reg .pred %p;
and.b32 %place, %t, {_PLACES - 1};
{move_in if shared else element("%a1", "%o0", "%place", width)}
{element("%a0", "%i0", "%t", width)}ld.global.b{8 * width} %value, [%a0];
setp.lt.u32 %p, %t, {_THREADS // 2};
@%p bra RED;
atom.{space}.{instruction} %old, [{target}], %value;
bra DONE;
RED:
red.{space}.{instruction} [{target}], %value;
DONE:
{move_out if shared else ""}"""
    outputs = (Output("memory", kind, _PLACES, initial=initial),)
    return program(f"{space}-{name}", body, (values,), outputs, LaunchConfig((1, 1, 1), (_THREADS, 1, 1)))


def _flushed(space: str) -> Case:
    """add.f32 of subnormals: one thread for each place, so that the order cannot matter."""
    values = np.array(
        [1, 0x80000001, 0x007FFFFF, 0x00400000, 0x807FFFFF, 0x00800000, 0x80800001, 0x3F800000], np.uint32
    )
    initial = np.array([1, 1, 1, 0x00400000, 0x00800001, 0x807FFFFF, 0x00800000, 0x00000001], np.uint32)
    body = f"""
.reg .b32 %value, %old, %sum, %window;
.shared .align 16 .b8 places[128];
mov.u32 %window, places;
mad.lo.u32 %window, %t, 4, %window;
{element("%a0", "%i0", "%t", 4)}ld.global.b32 %value, [%a0];
{element("%a1", "%o0", "%t", 4)}ld.global.b32 %old, [%a1];
st.shared.b32 [%window], %old;
atom.{space}.add.f32 %old, [{"%window" if space == "shared" else "%a1"}], %value;
"""
    body += "" if space == "global" else "ld.shared.b32 %sum, [%window];\nst.global.b32 [%a1], %sum;\n"
    outputs = (Output("memory", "f32", 8, initial=initial),)
    return program(f"{space}-add.f32-subnormal", body, (values,), outputs, LaunchConfig((1, 1, 1), (8, 1, 1)))


def _vector_extrema(operation: str, kind: str) -> Iterator[Case]:
    for vector in ("v2", "v4"):
        yield _vector(vector, operation, kind)


def _vector(vector: str, operation: str, kind: str) -> Case:
    """Whole vectors of small numbers on two contended places in global memory, through red and atom."""
    count, width = int(vector[1:]), _WIDTHS[kind]
    noftz = "" if kind == "f32" else ".noftz"
    names = [f"%v{i}" for i in range(count)]
    olds = ", ".join(f"%w{i}" for i in range(count))
    loads = "".join(f"ld.global.b{8 * width} {name}, [%a0+{width * i}];\n" for i, name in enumerate(names))
    body = f"""
.reg .b{8 * width} %v<{count}>, %w<{count}>;
.reg .b32 %place;
.reg .pred %p;
and.b32 %place, %t, 1;
{element("%a1", "%o0", "%place", width * count)}{element("%a0", "%i0", "%t", width * count)}{loads}
setp.lt.u32 %p, %t, 32;
@%p bra RED;
atom.global.{operation}{noftz}.{vector}.{kind} {{{olds}}}, [%a1], {{{", ".join(names)}}};
bra DONE;
RED:
red.global.{operation}{noftz}.{vector}.{kind} [%a1], {{{", ".join(names)}}};
DONE:
"""
    values = _small_numbers(kind, 64 * count)
    outputs = (Output("memory", kind, 2 * count, initial=_small_numbers(kind, 2 * count)),)
    return program(f"{operation}-{vector}-{kind}", body, (values,), outputs, LaunchConfig((1, 1, 1), (64, 1, 1)))


def _swaps() -> Case:
    """cas and exch without contention, and the old values they return."""
    inputs = {width: random_bits(f"swap{width}", 64, width) for width in (2, 4, 8)}
    compare = {width: np.where(np.arange(64) % 3 == 0, one, ~one) for width, one in inputs.items()}
    body, outputs, arrays = ".reg .b16 %x2, %y2, %d2;\n.reg .b32 %x4, %y4, %d4;\n.reg .b64 %x8, %y8, %d8;\n", [], []
    for width, values in inputs.items():
        kind = f"u{8 * width}"
        first, place = len(arrays), len(outputs)
        arrays += [compare[width], values[::-1].copy()]
        outputs += [
            Output(f"memory cas.b{8 * width}", kind, 64, initial=values),
            Output(f"old cas.b{8 * width}", kind, 64),
        ]
        body += f"""
{element("%a0", f"%i{first}", "%t", width)}ld.global.b{8 * width} %x{width}, [%a0];
{element("%a0", f"%i{first + 1}", "%t", width)}ld.global.b{8 * width} %y{width}, [%a0];
{element("%a0", f"%o{place}", "%t", width)}atom.global.cas.b{8 * width} %d{width}, [%a0], %x{width}, %y{width};
{element("%a0", f"%o{place + 1}", "%t", width)}st.global.b{8 * width} [%a0], %d{width};
"""
        if width > 2:
            place = len(outputs)
            outputs += [
                Output(f"memory exch.b{8 * width}", kind, 64, initial=values),
                Output(f"old exch.b{8 * width}", kind, 64),
            ]
            body += f"""
{element("%a0", f"%o{place}", "%t", width)}atom.global.exch.b{8 * width} %d{width}, [%a0], %y{width};
{element("%a0", f"%o{place + 1}", "%t", width)}st.global.b{8 * width} [%a0], %d{width};
"""
    return program("swaps", body, arrays, outputs, LaunchConfig((1, 1, 1), (64, 1, 1)))


def _small_numbers(kind: str, count: int) -> Array:
    """Whole numbers from -3 to 3 as bits; a pair holds two."""
    if kind.endswith("x2"):
        halves = _small_numbers(kind[:-2], 2 * count).astype(np.uint32)
        return halves[::2] | halves[1::2] << np.uint32(16)
    values = seeded(f"small{kind}{count}").integers(-3, 4, count)
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    single = values.astype(np.float32)
    if kind == "f32":
        return single.view(np.uint32)
    if kind == "f16":
        return single.astype(np.float16).view(np.uint16)
    return (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
