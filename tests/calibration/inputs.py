"""Inputs of the calibration cases: every pattern of a narrow type, edge values, and random bits from fixed seeds."""

from __future__ import annotations

import zlib

import numpy as np

from tests.calibration.case import Array

#: Zeros, subnormals, neighbours of one, of the largest and of the smallest normal, infinities, NaN of both kinds.
EDGES: dict[str, tuple[int, ...]] = {
    "f32": (
        0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x33800000, 0x34000000, 0x3EFFFFFF, 0x3F000000,
        0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x40490FDB, 0x4B7FFFFF, 0x4F000000, 0x5F800000, 0x7E800001,
        0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000,
    ),
    "f64": (
        0, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3CA0000000000000, 0x3FEFFFFFFFFFFFFF, 0x3FF0000000000000,
        0x3FF0000000000001, 0x4000000000000000, 0x400921FB54442D18, 0x433FFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF,
        0x7FF0000000000000, 0x7FF8000000000000,
    ),
    "f16": (
        0x0000, 0x0001, 0x03FF, 0x0400, 0x0401, 0x1000, 0x3BFF, 0x3C00, 0x3C01, 0x3E00, 0x4248, 0x5BFF, 0x7BFF, 0x7C00,
        0x7C01, 0x7E00,
    ),
    "bf16": (
        0x0000, 0x0001, 0x007F, 0x0080, 0x0081, 0x3380, 0x3F7F, 0x3F80, 0x3F81, 0x3FC0, 0x4049, 0x4B7F, 0x7F7F, 0x7F80,
        0x7F81, 0x7FC0,
    ),
}  # fmt: skip

_WIDTH = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}


def seeded(name: str) -> np.random.Generator:
    """The generator of a case: its seed follows from the name alone."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def random_bits(name: str, count: int, width: int) -> Array:
    """``count`` random unsigned numbers of ``width`` bytes."""
    return np.frombuffer(seeded(name).bytes(count * width), f"<u{width}")


def all_bits(width: int) -> Array:
    """Every number of ``width`` bytes, 1 or 2."""
    return np.arange(1 << (8 * width)).astype(f"u{width}")


def edges(kind: str) -> Array:
    """The edge values of ``kind`` with both signs."""
    width = _WIDTH[kind]
    positive = np.array(EDGES[kind], np.uint64)
    return np.concatenate([positive, positive | np.uint64(1 << (8 * width - 1))]).astype(f"u{width}")


def grid(kind: str, operands: int, random_count: int, name: str) -> list[Array]:
    """All combinations of edge values (for three operands, of every other one), then random bits."""
    values = edges(kind) if operands < 3 else edges(kind)[::3]
    mesh = np.meshgrid(*[values] * operands, indexing="ij")
    return [
        np.concatenate([one.reshape(-1), near(kind, random_count, f"{name}{place}")]) for place, one in enumerate(mesh)
    ]


def near(kind: str, count: int, name: str) -> Array:
    """Random bits, three quarters of them with exponents near that of one, so that sums and quotients round."""
    width = _WIDTH[kind]
    bits = random_bits(name, count, width).astype(np.uint64)
    fraction = {"f32": 23, "f64": 52, "f16": 10, "bf16": 7}[kind]
    bias = {"f32": 127, "f64": 1023, "f16": 15, "bf16": 127}[kind]
    sign = bits & np.uint64(1 << (8 * width - 1))
    exponent = np.uint64(bias - 4) + (bits >> np.uint64(fraction)) % np.uint64(8)
    close = sign | exponent << np.uint64(fraction) | bits & np.uint64((1 << fraction) - 1)
    return np.where(np.arange(count) % 4 != 0, close, bits).astype(f"u{width}")


def doubled(values: Array, name: str) -> Array:
    """uint16 values as pairs: each in the low half, a random one of them in the high half."""
    other = values[seeded(name).integers(0, len(values), len(values))]
    return values.astype(np.uint32) | other.astype(np.uint32) << np.uint32(16)
