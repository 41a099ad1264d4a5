"""mma.sync of every shape and type: layouts by one-hot fragments, exact whole numbers, random numbers, all patterns.

PTX ISA manual, "Matrix multiply-accumulate operation using mma instruction".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lowdnn.driver.base import LaunchConfig
from tests.calibration.case import EXACT, Array, Bound, Case, Output
from tests.calibration.cases import numbers
from tests.calibration.cases.program import element, program

_WARPS = 32
_WARPS_A_BLOCK = 4


@dataclass(frozen=True)
class Form:
    """One instruction: shape, element types, and ``.satfinite``."""

    m: int
    k: int
    a: str
    b: str
    accumulator: str
    satfinite: str = ""

    @property
    def name(self) -> str:
        return f"m{self.m}n8k{self.k}{self.satfinite}.{self.accumulator}.{self.a}.{self.b}"

    @property
    def instruction(self) -> str:
        types = f"{self.accumulator}.{self.a}.{self.b}.{self.accumulator}"
        return f"mma.sync.aligned.m{self.m}n8k{self.k}.row.col{self.satfinite}.{types}"


def cases() -> Iterator[Case]:
    for form in _forms():
        yield from _layouts(form)
        yield _whole(form)
        if form.a not in ("s8", "u8", "s4", "u4"):
            yield _random(form, "random", 3)
            yield _random(form, "spread", 12)
            yield _patterns(form)


def _forms() -> Iterator[Form]:
    for k in (8, 16):
        yield from (Form(16, k, "f16", "f16", accumulator) for accumulator in ("f16", "f32"))
        yield Form(16, k, "bf16", "bf16", "f32")
    yield from (Form(16, k, "tf32", "tf32", "f32") for k in (4, 8))
    for k in (16, 32):
        yield from (
            Form(16, k, a, b, accumulator)
            for a in ("e4m3", "e5m2")
            for b in ("e4m3", "e5m2")
            for accumulator in ("f32", "f16")
        )
    for satfinite in ("", ".satfinite"):
        for a in "su":
            for b in "su":
                yield from (Form(m, k, f"{a}8", f"{b}8", "s32", satfinite) for m, k in ((8, 16), (16, 16), (16, 32)))
                yield from (Form(m, k, f"{a}4", f"{b}4", "s32", satfinite) for m, k in ((8, 32), (16, 32), (16, 64)))
    yield from (Form(m, k, "f64", "f64", "f64") for m, k in ((8, 4), (16, 4), (16, 8), (16, 16)))


def _bound(form: Form) -> Bound:
    """An H200 aligns all products and C with the largest by exponent, cuts 25 bits below its leading one, and cuts the
    sum to f32. The emulated device rounds each of its sums to f32. The parts of both errors add up.

    The device does as an H200 with 8-bit floats and f16 sums: those are short chains of roundings to f16.
    """
    if numbers.BITS[form.a] == 8 and form.accumulator == "f16":
        return EXACT
    if form.accumulator == "f64":
        return Bound(of_magnitude=(form.k + 1) * 2.0**-53, source="one rounding of each of k + 1 sums")
    cuts = (form.k + 1) * 2.0**-25 + 2.0**-23 + form.k * 2.0**-24
    source = "k + 1 cuts at 2**-25 of the largest term and one at 2**-23; k roundings to f32"
    if form.accumulator == "f16":
        return Bound(relative=2.0**-10, absolute=2.0**-24, of_magnitude=cuts, source=f"{source}; one to f16")
    return Bound(of_magnitude=cuts, source=source)


def _layouts(form: Form) -> Iterator[Case]:
    """Warp i has a 1 as element i of its A, or of its B, and nothing else there."""
    a_count, b_count = form.m * form.k, 8 * form.k
    for side, count in (("a", a_count), ("b", b_count)):
        kind = form.a if side == "a" else form.b
        hot = np.zeros((count, count), numbers.whole(kind, (1,), "x").dtype)
        np.fill_diagonal(hot, numbers.one(kind))
        other = numbers.whole(
            form.b if side == "a" else form.a, (count, b_count if side == "a" else a_count), f"{side}{form.name}"
        )
        a, b = (hot, other) if side == "a" else (other, hot)
        c = np.zeros((count, 8 * form.m), numbers.whole(form.accumulator, (1,), "x").dtype)
        yield _case(form, f"one-hot-{side}", a, b, c, EXACT)


def _whole(form: Form) -> Case:
    """Small whole numbers, which every alignment keeps; integers also near the ends of s32."""
    c = numbers.whole(form.accumulator, (_WARPS, 8 * form.m), f"c{form.name}", 7)
    if form.accumulator == "s32":
        ends = np.array([0x7FFFFFF0, 0x80000010], np.uint32)[np.arange(c.size).reshape(c.shape) % 2]
        c = np.where(np.arange(_WARPS)[:, None] % 2 == 1, ends, c)
        a, b = (
            numbers.patterns(kind, (_WARPS, n * form.k), f"{kind}{form.name}{n}")
            for kind, n in ((form.a, form.m), (form.b, 8))
        )
    else:
        a, b = (
            numbers.whole(kind, (_WARPS, n * form.k), f"{kind}{form.name}{n}")
            for kind, n in ((form.a, form.m), (form.b, 8))
        )
    return _case(form, "whole", a, b, c, EXACT)


def _random(form: Form, name: str, spread: int) -> Case:
    """Numbers of either sign, so that sums cancel; ``spread`` binades let small terms meet large ones."""
    spread = min(spread, 6) if form.a.startswith("e4") or form.b.startswith("e4") else spread
    a = numbers.near_one(form.a, (_WARPS, form.m * form.k), f"{name}a{form.name}", spread)
    b = numbers.near_one(form.b, (_WARPS, 8 * form.k), f"{name}b{form.name}", spread)
    c = numbers.near_one(form.accumulator, (_WARPS, 8 * form.m), f"{name}c{form.name}", spread)
    c[: _WARPS // 2] = 0
    return _case(form, name, a, b, c, _bound(form))


def _patterns(form: Form) -> Case:
    """All bit patterns, but in each warp only one column of A and that row of B differ from zero.

    So each element is one product and must be right; sums of infinities and of what overflows depend on their order.
    Products below the normal numbers of f32 may be cut or rounded.
    """
    chosen = np.arange(_WARPS)[:, None] % form.k
    a = numbers.patterns(form.a, (_WARPS, form.m * form.k), f"a{form.name}")
    b = numbers.patterns(form.b, (_WARPS, 8 * form.k), f"b{form.name}")
    a[_depths_of_a(form) != chosen] = 0
    b[_depths_of_b(form) != chosen] = 0
    c = np.zeros((_WARPS, 8 * form.m), numbers.whole(form.accumulator, (1,), "x").dtype)
    return _case(form, "patterns", a, b, c, Bound(absolute=2.0**-149, source="one unit of the subnormal numbers"))


def _depths_of_a(form: Form) -> Array:
    """The column of each element of A in the order of lanes, registers and elements."""
    width, rows = _elements_of_a_register(form), form.m // 8
    lane, register, place = np.meshgrid(
        np.arange(32), np.arange(form.m * form.k // 32 // width), np.arange(width), indexing="ij"
    )
    return (4 * width * (register // rows) + width * (lane % 4) + place).reshape(1, -1)


def _depths_of_b(form: Form) -> Array:
    """The row of each element of B in the order of lanes, registers and elements."""
    width = _elements_of_a_register(form)
    lane, register, place = np.meshgrid(
        np.arange(32), np.arange(8 * form.k // 32 // width), np.arange(width), indexing="ij"
    )
    return (4 * width * register + width * (lane % 4) + place).reshape(1, -1)


def _elements_of_a_register(form: Form) -> int:
    return max(1, 32 // numbers.BITS[form.a])


def _case(form: Form, name: str, a: Array, b: Array, c: Array, bound: Bound) -> Case:
    """``a``, ``b`` and ``c``: elements [warps, n], dealt to the lanes in the order of the fragments' registers."""
    kinds = (form.a, form.b, form.accumulator)
    inputs = [_registers(one, kind) for one, kind in zip((a, b, c), kinds, strict=True)]
    magnitudes = None
    if not bound.is_exact:
        magnitudes = [
            _registers(numbers.without_signs(one, kind), kind) for one, kind in zip((a, b, c), kinds, strict=True)
        ]
    counts = [one.shape[1] // 32 for one in inputs]
    widths = [one.itemsize for one in inputs]
    names = [[f"%{letter}r{i}" for i in range(count)] for letter, count in zip("abc", counts, strict=True)]
    loads = "".join(
        _load(f"%i{place}", registers, width)
        for place, (registers, width) in enumerate(zip(names, widths, strict=True))
    )
    declared = "".join(
        f".reg .b{8 * width} {', '.join(registers)};\n" for registers, width in zip(names, widths, strict=True)
    )
    target = [f"%dr{i}" for i in range(counts[2])]
    vectors = ["{" + ", ".join(registers) + "}" for registers in (target, *names)]
    stores = "".join(
        f"st.global.b{8 * widths[2]} [%a0+{widths[2] * i}], {register};\n" for i, register in enumerate(target)
    )
    body = f"""{declared}.reg .b{8 * widths[2]} {", ".join(target)};
.reg .b32 %block;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %t, %block, {32 * _WARPS_A_BLOCK}, %t;
{loads}{form.instruction} {", ".join(vectors)};
{element("%a0", "%o0", "%t", widths[2] * counts[2])}{stores}"""
    kind = {"f16": "f16x2", "s32": "u32"}.get(form.accumulator, form.accumulator)
    launch = LaunchConfig((len(a) // _WARPS_A_BLOCK, 1, 1), (32 * _WARPS_A_BLOCK, 1, 1))
    outputs = (Output("d", kind, inputs[2].size, bound),)
    return program(f"{form.name}-{name}", body, inputs, outputs, launch, magnitudes)


def _registers(elements: Array, kind: str) -> Array:
    """Elements [warps, n] as registers [warps, 32 * registers of a lane]."""
    return np.ascontiguousarray(numbers.packed(elements, kind).reshape(len(elements), -1))


def _load(base: str, registers: list[str], width: int) -> str:
    loads = "".join(f"ld.global.b{8 * width} {register}, [%a0+{width * i}];\n" for i, register in enumerate(registers))
    return element("%a0", base, "%t", width * len(registers)) + loads
