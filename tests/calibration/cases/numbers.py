"""Matrix elements of the tensor-core cases: numbers of each element type as packed 32-bit registers."""

from __future__ import annotations

import numpy as np

from tests.calibration.case import Array
from tests.calibration.inputs import seeded

BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "f64": 64,
    "f32": 32,
    "s32": 32,
}

#: Sign bits of one element, for ``without_signs``.
_SIGNED_FLOATS = ("f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "f64")


def whole(kind: str, shape: tuple[int, ...], name: str, largest: int = 3) -> Array:
    """Random whole numbers of at most ``largest`` (at most 7) in size, as elements: unsigned numbers of one element."""
    low = 0 if kind in ("u8", "u4") else -largest
    return encoded(seeded(f"whole{name}{kind}").integers(low, largest + 1, shape), kind)


def one(kind: str) -> int:
    """The element that stands for 1."""
    return int(encoded(np.array([1]), kind)[0])


def patterns(kind: str, shape: tuple[int, ...], name: str) -> Array:
    """Random bits: every pattern of the type, NaN and infinities included."""
    bits = BITS[kind]
    values = seeded(f"patterns{name}{kind}").integers(0, 1 << min(bits, 63), shape, dtype=np.uint64)
    return (values & np.uint64(0xFFFFE000) if kind == "tf32" else values).astype(_holder(kind))


def near_one(kind: str, shape: tuple[int, ...], name: str, spread: int = 3) -> Array:
    """Random signs and fractions, exponents of 2**-spread to 1."""
    exponent_bias = {
        "f16": (10, 15),
        "bf16": (7, 127),
        "tf32": (23, 127),
        "f32": (23, 127),
        "e4m3": (3, 7),
        "e5m2": (2, 15),
        "f64": (52, 1023),
    }
    if kind not in exponent_bias:
        return patterns(kind, shape, name)
    fraction, bias = exponent_bias[kind]
    draw = seeded(f"near{name}{kind}")
    mantissa = draw.integers(0, 1 << fraction, shape, dtype=np.uint64)
    exponent = (bias - draw.integers(0, spread + 1, shape)).astype(np.uint64)
    sign = draw.integers(0, 2, shape).astype(np.uint64)
    values = sign << np.uint64(BITS[kind] - 1) | exponent << np.uint64(fraction) | mantissa
    return (values & np.uint64(0xFFFFE000) if kind == "tf32" else values).astype(_holder(kind))


def encoded(values: Array, kind: str) -> Array:
    """Small whole numbers as elements of ``kind``."""
    if kind in ("s8", "u8", "s4", "u4", "s32"):
        return (values & ((1 << BITS[kind]) - 1)).astype(_holder(kind))
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    single = values.astype(np.float32)
    if kind in ("f32", "tf32"):
        return single.view(np.uint32)
    if kind == "bf16":
        return (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    half = single.astype(np.float16).view(np.uint16)
    if kind == "f16":
        return half
    if kind == "e5m2":
        return (half >> np.uint16(8)).astype(np.uint8)
    scaled = np.abs(single * np.float32(2.0**-120)).view(np.uint32) >> np.uint32(20)
    return (scaled | np.signbit(single).astype(np.uint32) << np.uint32(7)).astype(np.uint8)


def without_signs(elements: Array, kind: str) -> Array:
    """The magnitudes of float elements."""
    if kind not in _SIGNED_FLOATS:
        return elements
    return elements & elements.dtype.type((1 << (BITS[kind] - 1)) - 1)


def packed(elements: Array, kind: str) -> Array:
    """[..., n] elements as [..., registers]: the first element in the low bits. f64 stays."""
    if kind == "f64":
        return elements
    if kind in ("s4", "u4"):
        elements = (elements[..., ::2] | elements[..., 1::2] << np.uint8(4)).astype(np.uint8)
    return np.ascontiguousarray(elements).view(np.uint32)


def _holder(kind: str) -> str:
    return f"u{max(1, BITS[kind] // 8)}"
