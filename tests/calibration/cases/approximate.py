"""The approximate functions, within the errors that the PTX ISA manual gives for each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.calibration.case import Array, Bound, Case
from tests.calibration.inputs import all_bits, doubled, edges, grid, near, random_bits
from tests.calibration.lanewise import Step, lanewise

_MANUAL = "the PTX ISA manual's maximum error of the GPU, and one rounding of the emulated device"
_F32, _F16, _BF16 = 2.0**-24, 2.0**-11, 2.0**-8
#: Subnormal results may be flushed.
_SMALLEST = 2.0**-126


def _documented(relative: float, rounding: float, absolute: float = _SMALLEST) -> Bound:
    return Bound(relative=relative + rounding, absolute=absolute, source=_MANUAL)


# A unit in the last place is taken as 2**-23, the most that it is relative to a value.
_RCP = _documented(2.0**-23, _F32)
_SQRT = _documented(2.0**-23, _F32)
_RSQRT = _documented(2.0**-22.9, _F32)
_EX2 = _documented(2.0**-22, _F32)
_LG2 = _documented(2.0**-22, _F32, 2.0**-22)
_TRIGONOMETRIC = _documented(0, _F32, 2.0**-20.5)
_TANH = _documented(2.0**-11, _F32)
_DIV = _documented(2 * 2.0**-23, _F32)
_RCP_F64 = Bound(relative=2.0**-19, absolute=2.0**-1022, source="PTX ISA manual: an approximation of the upper word")
_F16_EX2 = _documented(2.0**-9.9, _F16, 2.0**-24)
_F16_TANH = _documented(0, _F16, 2.0**-10.987)
_BF16_EX2 = _documented(2.0**-7, _BF16)
_BF16_TANH = _documented(0, _BF16, 2.0**-8)


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
