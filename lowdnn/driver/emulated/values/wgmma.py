"""Warpgroup matrix products (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").

D [64, N] = A [64, K] @ B [K, N] + D, for each of W warpgroups; K is 32 bytes of elements. Warp w of the warpgroup holds
rows 16w to 16w + 15 of D and of A. With g = lane / 4 and t = lane % 4:

    D element i:           row 16w + g + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * t + i % 2
    A register r, element j: row 16w + g + 8 * (r % 2), column 4 * e * (r / 2) + e * t + j  (e elements a register)

A and B in shared memory are found by a descriptor, as tiles of 16-byte units.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lowdnn.driver.emulated.values.formats import decode, encode
from lowdnn.driver.emulated.values.packed import Array, high_half, low_half, pair
from lowdnn.driver.emulated.values.tensor_core import numbers_of
from lowdnn.status import NotSupportedError

ROWS, WARPS = 64, 4
#: Words of K in one product: 32 bytes.
_WORDS = 8
#: The NumPy type that moves these words as one item.
_ROW = "V32"
_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_FP8, _INT8 = ("e4m3", "e5m2"), ("s8", "u8")
_RESULTS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
    "s8": ("s32",), "u8": ("s32",),
}  # fmt: skip
#: Swizzle mode of a descriptor -> 16-byte units of a row of its pattern.
_SPANS = {0: 1, 1: 8, 2: 4, 3: 2}
#: Bits of a descriptor that must be 0.
RESERVED_BITS = np.uint64(0x3FF1_C000_C000_C000)
#: Start addresses that differ in higher bits only give the same pattern of units.
_PATTERN_BYTES = 1024
_PATTERN_KEY = np.uint64(~np.uint64(0x3FC0))


@dataclass(frozen=True)
class WarpgroupProduct:
    """One form of ``wgmma.mma_async``. ``transposed_b``: B is stored with N contiguous; ``negate``: the product of
    imm-scale-a and imm-scale-b is -1."""

    columns: int
    depth: int
    a: str
    b: str
    d: str
    transposed_a: bool = False
    transposed_b: bool = False
    negate: bool = False
    satfinite: bool = False

    @property
    def registers(self) -> int:
        """Accumulator registers of a lane."""
        return self.columns // (4 if self.d == "f16" else 2)

    @property
    def code(self) -> str:
        """Value code of an accumulator register."""
        return {"f32": "f4", "s32": "i4", "f16": "u4"}[self.d]

    def left(self, registers: Array) -> Array:
        """A, packed as [W, 64, 8] words, from its registers [W * 4, 32, 4]."""
        rows = registers.reshape(-1, 8, 4, 2, 2).transpose(0, 4, 1, 3, 2)
        return np.ascontiguousarray(rows).reshape(-1, ROWS, _WORDS)

    def left_units(self, units: Array) -> Array:
        """A, packed, from the 16-byte units that ``tile_pattern`` finds."""
        return _packed(units, self.transposed_a)

    def right_units(self, units: Array) -> Array:
        """B transposed, packed as [W, N, 8] words, from the 16-byte units that ``tile_pattern`` finds."""
        return _packed(units, self.transposed_b)

    def chains_with(self, other: WarpgroupProduct) -> bool:
        """Whether products of the two forms may be summed together."""
        return (self.columns, self.a, self.b, self.d, self.negate) == (
            other.columns,
            other.a,
            other.b,
            other.d,
            other.negate,
        )

    def accumulated(self, base: Array | None, lefts: Sequence[Array], rights: Sequence[Array]) -> Array:
        """base + the sum of left @ right, [W, 64, N] float32, or int32 for integers; base None is 0.

        Float products are exact and summed in float32 in any order; hardware's own alignment and truncation of the
        sum is not reproduced. An f16 accumulator is rounded once an instruction.
        """
        left, right = self._numbers(lefts, self.a), self._numbers(rights, self.b)
        product = np.matmul(-left if self.negate else left, right.transpose(0, 2, 1))
        if self.d == "s32":
            return self._integer_sum(base, product)
        total = product if base is None else np.add(base, product, out=product)
        return decode(encode(total, "f16"), "f16") if self.d == "f16" else total

    def _integer_sum(self, base: Array | None, product: Array) -> Array:
        if base is None:
            return product.astype(np.int32)
        if not self.satfinite:
            return product.astype(np.int32) + base
        limits = np.iinfo(np.int32)
        return np.clip(product.astype(np.int64) + base, limits.min, limits.max).astype(np.int32)

    def _numbers(self, factors: Sequence[Array], element: str) -> Array:
        """[W, rows, K of all factors]. A row of a factor is copied as one item."""
        warpgroups, rows, words = factors[0].shape
        packed = np.empty((warpgroups, rows, words * len(factors)), dtype=np.uint32)
        items = packed.view(_ROW)
        for place, factor in enumerate(factors):
            items[:, :, place] = factor.view(_ROW)[..., 0]
        return np.asarray(numbers_of(packed, element).reshape(warpgroups, rows, -1))

    def columns_of(self, matrix: Array, order: Array) -> Array:
        """[registers, lanes] of D [W, 64, N]; ``order`` [W, 4] is each warp's place among the lanes' warps."""
        parts = matrix.reshape(-1, 2, 8, self.columns // 8, 4, 2).transpose(3, 1, 5, 0, 2, 4)
        spread = np.empty(parts.shape, dtype=matrix.dtype)
        spread[:, :, :, order.reshape(-1)] = parts
        flat = spread.reshape(self.columns // 2, -1)
        if self.d != "f16":
            return flat
        halves = encode(flat, "f16")
        return np.asarray(pair(halves[::2], halves[1::2]))

    def matrix_of(self, columns: Array, order: Array) -> Array:
        """The inverse of ``columns_of``."""
        if self.d == "f16":
            halves = np.stack([low_half(columns), high_half(columns)], axis=1)
            columns = decode(halves.reshape(self.columns // 2, -1), "f16")
        parts = columns.reshape(self.columns // 8, 2, 2, -1, 8, 4)[:, :, :, order.reshape(-1)]
        return np.ascontiguousarray(parts.transpose(3, 1, 4, 0, 5, 2)).reshape(-1, ROWS, self.columns)


def warpgroup_product(
    shape: str, d: str, a: str, b: str, satfinite: bool, transposed: tuple[bool, bool], negate: bool
) -> WarpgroupProduct:
    """The form with these modifiers. Raises NotSupportedError for one that the ISA does not have."""
    depth = _DEPTHS.get(a, 0)
    match = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    columns = int(match[1]) if match else 0
    if match is None or int(match[2]) != depth or not _allowed_columns(columns, a):
        raise NotSupportedError.at("wgmma.shape", expected=f"a shape of the PTX ISA for {a}", got=shape)
    same_family = a == b or (a in _FP8 and b in _FP8) or (a in _INT8 and b in _INT8)
    if not same_family or d not in _RESULTS[a] or (satfinite and d != "s32"):
        raise NotSupportedError.at("wgmma.types", expected="types of the PTX ISA", got=f"{d}.{a}.{b}")
    return WarpgroupProduct(columns, depth, a, b, d, *transposed, negate, satfinite)


@dataclass(frozen=True)
class Pattern:
    """16-byte units of a tile, counted from the start address rounded down to ``_PATTERN_BYTES``: K-major [rows, 2],
    MN-major [rows / 8, 16]; ``low`` and ``high`` bound them."""

    units: Array
    low: int
    high: int


def pattern_keys(descriptors: Array) -> Array:
    """The bits of uint64 descriptors that decide their pattern."""
    return descriptors & _PATTERN_KEY


def first_byte(descriptors: Array) -> Array:
    """The address from which a descriptor's pattern counts, as int64 bytes."""
    start = (descriptors & np.uint64(0x3FFF)) << np.uint64(4)
    return (start & np.uint64(~(_PATTERN_BYTES - 1) & 0xFFFFFFFF)).astype(np.int64)


@lru_cache(maxsize=1024)
def tile_pattern(key: int, rows: int, mn_major: bool) -> Pattern:
    """Where a descriptor with the pattern key ``key`` puts ``rows`` rows (of A, or columns of B) of 32 bytes of K.

    Strides count bytes. K-major: rows come in blocks of 8, "stride" apart; without swizzle the second unit of a row
    is "leading" away. MN-major: K comes in blocks of 8, MN in blocks of a pattern row; "leading" is from one MN block
    to the next and "stride" from one K block to the next, the other way round without swizzle. Swizzling XORs the
    unit's number in its row with the number of the 128-byte line, counted from the base offset.
    """
    start = (key & 0x3F) << 4
    leading, stride = (key >> 16 & 0x3FFF) << 4, (key >> 32 & 0x3FFF) << 4
    base, span = key >> 49 & 7, _SPANS[key >> 62]
    if mn_major:
        block, depth = np.arange(rows // 8)[:, None], np.arange(16)[None, :]
        if span == 1:
            offsets = block * stride + depth // 8 * leading + depth % 8 * 16
        else:
            offsets = block // span * leading + block % span * 16 + depth // 8 * stride + depth % 8 * (16 * span)
    else:
        row, unit = np.arange(rows)[:, None], np.arange(2)[None, :]
        offsets = row // 8 * stride + row % 8 * (16 * span) + unit * (leading if span == 1 else 16)
    places = (start + offsets) >> 4
    places ^= ((places >> 3) - base) & (span - 1)
    return Pattern(places, int(places.min()), int(places.max()))


def _allowed_columns(columns: int, element: str) -> bool:
    if not 8 <= columns <= 256 or columns % 8:
        return False
    return element not in _INT8 or columns % 16 == 0 or columns in (8, 24)


def _packed(units: Array, mn_major: bool) -> Array:
    """Rows of 8 words from 16-byte units, K-major [W, rows, 2] or MN-major [W, rows / 8, 16]."""
    if not mn_major:
        return units.view(np.uint32)
    halves = units.view(np.uint16).reshape(len(units), -1, 16, 8).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(halves).view(np.uint32).reshape(len(units), -1, _WORDS)
