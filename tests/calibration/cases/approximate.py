"""The approximate functions, within the errors that the PTX ISA manual gives for each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.calibration.case import Array, Bound, Case
from tests.calibration.inputs import all_bits, doubled, edges, grid, near, random_bits
from tests.calibration.lanewise import Step, lanewise

# Two values that each lie within the manual's error of the true one lie within twice that error of each other. A unit in
# the last place is taken as 2**-23, the most that it is relative to a value.
_SMALLEST = 2.0**-126
_MANUAL = "PTX ISA manual, twice the documented maximum error"
_RCP = Bound(relative=2 * 2.0**-23, absolute=_SMALLEST, source=_MANUAL)
_SQRT = Bound(relative=2 * 2.0**-22, absolute=_SMALLEST, source=_MANUAL)
_RSQRT = Bound(relative=2 * 2.0**-22.4, absolute=_SMALLEST, source=_MANUAL)
_EX2 = Bound(relative=2 * 2.0**-22.5, absolute=_SMALLEST, source=_MANUAL)
_LG2 = Bound(relative=2 * 2.0**-22, absolute=2 * 2.0**-22, source=_MANUAL)
_TRIGONOMETRIC = Bound(absolute=2 * 2.0**-20.5, source=_MANUAL)
_TANH = Bound(relative=2 * 2.0**-11, absolute=_SMALLEST, source=_MANUAL)
_DIV = Bound(relative=2 * 2 * 2.0**-23, absolute=_SMALLEST, source=_MANUAL)
_RCP_F64 = Bound(relative=2.0**-19, absolute=2.0**-1022, source="PTX ISA manual: an approximation of the upper word")
_F16_EX2 = Bound(relative=2 * 2.0**-9.9, absolute=2 * 2.0**-24, source=_MANUAL)
_F16_TANH = Bound(absolute=2 * 2.0**-10.987, source=_MANUAL)
_BF16_EX2 = Bound(relative=2 * 2.0**-7, absolute=_SMALLEST, source=_MANUAL)
_BF16_TANH = Bound(absolute=2 * 2.0**-8, source=_MANUAL)


def cases() -> Iterator[Case]:
    plain = {"rcp": _RCP, "sqrt": _SQRT, "rsqrt": _RSQRT}
    steps = [_step(f"{name}.approx{ftz}.f32", bound) for name, bound in plain.items() for ftz in ("", ".ftz")]
    yield lanewise("roots", {"a": _over_the_range()}, steps)
    steps = [_step(f"ex2.approx{ftz}.f32", _EX2) for ftz in ("", ".ftz")] + [_step("tanh.approx.f32", _TANH)]
    yield lanewise("exponential", {"a": _even(-130.0, 130.0)}, steps)
    yield lanewise("logarithm", {"a": _over_the_range()}, [_step(f"lg2.approx{f}.f32", _LG2) for f in ("", ".ftz")])
    steps = [_step(f"{name}.approx{ftz}.f32", _TRIGONOMETRIC) for name in ("sin", "cos") for ftz in ("", ".ftz")]
    yield lanewise("trigonometric", {"a": _even(-np.pi, np.pi)}, steps)
    steps = [_step(f"div.{form}{ftz}.f32", _DIV, "%a, %b") for form in ("approx", "full") for ftz in ("", ".ftz")]
    yield lanewise("division", dict(zip("ab", _quotients(), strict=True)), steps)
    steps = [_step(f"{name}.approx.ftz.f64", _RCP_F64) for name in ("rcp", "rsqrt")]
    yield lanewise("f64", {"a": np.concatenate([edges("f64"), near("f64", 1024, "approximate")])}, steps)
    yield from _halves()


def _halves() -> Iterator[Case]:
    """Every f16 and bf16 input."""
    f16 = [("ex2.approx", _F16_EX2), ("tanh.approx", _F16_TANH)]
    bf16 = [("ex2.approx.ftz", _BF16_EX2), ("tanh.approx", _BF16_TANH)]
    for kind, forms in (("f16", f16), ("bf16", bf16)):
        yield lanewise(kind, {"a": all_bits(2)}, [_step(f"{form}.{kind}", bound) for form, bound in forms])
        pairs = {"a": doubled(all_bits(2)[::16], kind)}
        yield lanewise(f"{kind}x2", pairs, [_step(f"{form}.{kind}x2", bound) for form, bound in forms])


def _step(instruction: str, bound: Bound, operands: str = "%a") -> Step:
    return Step(instruction, f"{instruction} %d, {operands};", instruction.rsplit(".", 1)[1], bound)


def _over_the_range() -> Array:
    """Every exponent with several fractions, edge values of both signs, and a fine grid from 1 to 4."""
    coarse = (np.arange(256 * 8, dtype=np.uint32) << np.uint32(20)) + (random_bits("range", 2048, 4) >> np.uint32(12))
    fine = np.linspace(1, 4, 1024, dtype=np.float32).view(np.uint32)
    return np.concatenate([edges("f32"), coarse, fine])


def _even(low: float, high: float) -> Array:
    """An even grid, the powers of two in it, and edge values that are no large numbers."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40]
    powers = [sign * 2.0**exponent for sign in (1, -1) for exponent in range(-30, int(np.log2(high)) + 1)]
    values = np.concatenate([np.linspace(low, high, 3000), powers, special])
    return values.astype(np.float32).view(np.uint32)


def _quotients() -> list[Array]:
    """Pairs of edge values and random ones, without those whose quotient or divisor leaves the documented range."""
    a, b = grid("f32", 2, 2048, "division")
    with np.errstate(all="ignore"):
        quotient = a.view(np.float32).astype(np.float64) / b.view(np.float32)
        size = np.abs(b.view(np.float32).astype(np.float64))
    documented = ~((size < 2.0**-126) & (size > 0)) & ~((size > 2.0**126) & np.isfinite(size))
    small = np.isfinite(quotient) & (quotient != 0) & (np.abs(quotient) < 2.0**-126)
    kept = documented & ~small & ~(np.abs(quotient) > 2.0**127)
    return [a[kept], b[kept]]
