"""Matrix fragments and products (PTX ISA, "Warp-level Matrix Instructions": mma, ldmatrix, stmatrix, movmatrix).

Fragments are [warps, 32, registers]. One rule covers every ``mma`` shape of 8 columns: with g = lane / 4, t = lane % 4
and e elements in a register (32 / element bits, 1 for f64),

    A register r, element j: row g + 8 * (r % (m / 8)), column 4 * e * (r / (m / 8)) + e * t + j
    B register r, element j: row 4 * e * r + e * t + j, column g
    C and D element i:       row g + 8 * (i / 2),       column 2 * t + i % 2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lowdnn.driver.emulated.values.formats import decode, encode
from lowdnn.driver.emulated.values.packed import Lanes, elements, high_half, joined, low_half, pair
from lowdnn.status import NotSupportedError

_GROUPS, _THREADS, _COLUMNS = 8, 4, 8
_TF32_BITS = np.uint32(0xFFFFE000)
_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "f64": 64}
_SHAPES: dict[str, frozenset[tuple[int, int]]] = {
    "f16": frozenset({(16, 8), (16, 16)}),
    "bf16": frozenset({(16, 8), (16, 16)}),
    "tf32": frozenset({(16, 4), (16, 8)}),
    "e4m3": frozenset({(16, 16), (16, 32)}),
    "e5m2": frozenset({(16, 16), (16, 32)}),
    "s8": frozenset({(8, 16), (16, 16), (16, 32)}),
    "u8": frozenset({(8, 16), (16, 16), (16, 32)}),
    "s4": frozenset({(8, 32), (16, 32), (16, 64)}),
    "u4": frozenset({(8, 32), (16, 32), (16, 64)}),
    "f64": frozenset({(8, 4), (16, 4), (16, 8), (16, 16)}),
}


@dataclass(frozen=True)
class MatrixProduct:
    """``mma``: D = A @ B + C on fragments, in steps, so that fragments that several products share are unpacked once.

    A and B are uint32 registers (float64 for f64) as [warps, 32, registers]; C and D are one array over lanes for each
    register: float32, int32, float64 or, for f16, uint32 pairs.
    """

    rows: int
    depth: int
    a: str
    b: str
    c: str
    d: str
    multiply: Callable[[Lanes, Lanes], Lanes]
    accumulate: Callable[[Lanes, Lanes], Lanes]

    def left(self, registers: Lanes) -> Lanes:
        """A, packed in registers: [warps, m, k / e]."""
        return _a_rows(registers, self.rows).reshape(len(registers), self.rows, -1)

    def right(self, registers: Lanes) -> Lanes:
        """B transposed, packed in registers: [warps, 8, k / e]."""
        return _b_columns(registers).reshape(len(registers), _COLUMNS, -1)

    def left_rows(self, rows: Lanes) -> Lanes:
        """A, packed as ``left`` has it, from the 8x8 matrices of its registers: [warps, registers, 8] rows of 16
        bytes."""
        halves = self.rows // _GROUPS
        split = rows.reshape(rows.shape[0], rows.shape[1] // halves, halves, _GROUPS)
        return np.ascontiguousarray(split.transpose(0, 2, 3, 1)).view(np.uint32).reshape(len(rows), self.rows, -1)

    def right_rows(self, rows: Lanes) -> Lanes:
        """B transposed, packed as ``right`` has it, from the 8x8 matrices of its registers."""
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint32)

    @property
    def c_dtype(self) -> np.dtype[np.generic]:
        """The NumPy type of one register of C."""
        return np.dtype({"f64": "f8", "f32": "f4", "s32": "i4"}.get(self.c, "u4"))

    def column_of(self, matrix: Lanes, register: int) -> Lanes:
        """One register of D, over lanes, from the matrix D [warps, m, 8]; not for f16."""
        split = matrix.reshape(len(matrix), self.rows // _GROUPS, _GROUPS, _THREADS, 2)
        return split[:, register // 2, :, :, register % 2].reshape(-1)

    def matrix_of(self, columns: Sequence[Lanes]) -> Lanes:
        """The inverse of ``column_of`` for all registers."""
        matrix = np.empty((columns[0].size // 32, self.rows, _COLUMNS), dtype=columns[0].dtype)
        split = matrix.reshape(len(matrix), self.rows // _GROUPS, _GROUPS, _THREADS, 2)
        for register, column in enumerate(columns):
            split[:, register // 2, :, :, register % 2] = column.reshape(-1, _GROUPS, _THREADS)
        return matrix

    def combine(self, left: Lanes, right: Lanes, c: Sequence[Lanes]) -> tuple[Lanes, ...]:
        """Returns the registers of D, from the results of ``left`` and ``right`` and the registers of C."""
        a = numbers_of(left, self.a).reshape(-1, self.rows, self.depth)
        b = numbers_of(right, self.b).reshape(-1, _COLUMNS, self.depth)
        product = self.multiply(a, b.transpose(0, 2, 1))
        split = product.reshape(len(product), self.rows // _GROUPS, _GROUPS, _THREADS, 2)
        parts = (split[:, i // 2, :, :, i % 2].reshape(-1) for i in range(self.rows // _THREADS))
        sums = [self.accumulate(part, one) for part, one in zip(parts, _elements(c, self.c), strict=True)]
        if self.d != "f16":
            return tuple(sums)
        halves = [encode(one, "f16") for one in sums]
        return tuple(pair(low, high) for low, high in zip(halves[::2], halves[1::2], strict=True))

    def __call__(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        """Returns D from A, B and C; all four are arrays [warps, 32, registers]."""
        registers = [c[..., i].reshape(-1) for i in range(c.shape[-1])]
        columns = self.combine(self.left(a), self.right(b), registers)
        return np.stack(columns, axis=-1).reshape(len(a), 32, -1)


def matrix_product(shape: str, a: str, b: str, c: str, d: str, satfinite: bool = False) -> MatrixProduct:
    """``mma.sync.aligned.shape.row.col{.satfinite}.d.a.b.c``.

    Float products are exact and summed in float32 (float64 for f64), so small integers give exact results; hardware's
    own alignment and truncation of the sum is not reproduced. Integer sums wrap, with ``satfinite`` they clamp to
    int32. Raises NotSupportedError for a shape that the type does not have.
    """
    rows, depth = _dimensions(shape, a)
    in_f16 = d == "f16" and _ELEMENT_BITS[a] == 8
    return MatrixProduct(rows, depth, a, b, c, d, _multiply_in_f16 if in_f16 else np.matmul, _accumulator(d, satfinite))


def matrices_to_lanes(matrices: Lanes, transposed: bool = False) -> Lanes:
    """``ldmatrix``: [warps, matrices, 8, 8] uint16 as registers [warps, 32, matrices] uint32.

    Lane 4g + t receives elements 2t and 2t + 1 of row g, of column g with ``.trans``.
    """
    warps, count = matrices.shape[:2]
    upright = matrices.transpose(0, 1, 3, 2) if transposed else matrices
    rows = joined(np.ascontiguousarray(upright).reshape(warps, count, 32, 2))
    return rows.transpose(0, 2, 1)


def lanes_to_matrices(registers: Lanes, transposed: bool = False) -> Lanes:
    """``stmatrix``: registers [warps, 32, matrices] uint32 as [warps, matrices, 8, 8] uint16, the inverse."""
    warps, _, count = registers.shape
    upright = elements(registers.transpose(0, 2, 1), np.uint16).reshape(warps, count, 8, 8)
    return upright.transpose(0, 1, 3, 2) if transposed else upright


def transpose_fragment(registers: Lanes) -> Lanes:
    """``movmatrix.trans``: [warps, 32, 1] registers of one 8x8 matrix as those of its transpose."""
    return matrices_to_lanes(lanes_to_matrices(registers), transposed=True)


def _dimensions(shape: str, element: str) -> tuple[int, int]:
    match = re.fullmatch(r"m(\d+)n8k(\d+)", shape)
    dimensions = (int(match[1]), int(match[2])) if match else (0, 0)
    if dimensions not in _SHAPES.get(element, frozenset()):
        raise NotSupportedError.at("mma.shape", expected=f"a shape of the PTX ISA for {element}", got=shape)
    return dimensions


def _a_rows(registers: Lanes, rows: int) -> Lanes:
    """A fragments [warps, 32, registers] as whole rows of A, still packed: [warps, rows / 8, 8, registers a row, 4]."""
    halves = rows // _GROUPS
    split = registers.reshape(registers.shape[0], _GROUPS, _THREADS, registers.shape[2] // halves, halves)
    return np.ascontiguousarray(split.transpose(0, 4, 1, 3, 2))


def _b_columns(registers: Lanes) -> Lanes:
    """B fragments [warps, 32, registers] as whole columns of B, still packed: [warps, 8, registers, 4]."""
    split = registers.reshape(registers.shape[0], _COLUMNS, _THREADS, registers.shape[2])
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2))


def numbers_of(registers: Lanes, element: str) -> Lanes:
    """Registers [...] as numbers [..., e]: float64 for f64, else float32, exact for every type."""
    if element == "f64":
        return registers[..., None]
    if element == "tf32":
        return (registers & _TF32_BITS).view(np.float32)[..., None]
    if element in ("s4", "u4"):
        return _nibbles(registers, signed=element == "s4")
    if element in ("s8", "u8"):
        return elements(registers, np.int8 if element == "s8" else np.uint8).astype(np.float32)
    return decode(elements(registers, np.uint16 if _ELEMENT_BITS[element] == 16 else np.uint8), element)


def _nibbles(registers: Lanes, signed: bool) -> Lanes:
    shifts = np.arange(28, -4, -4, dtype=np.uint32)
    top = registers[..., None] << shifts
    return ((top.view(np.int32) if signed else top) >> top.dtype.type(28)).astype(np.float32)


def _elements(registers: Sequence[Lanes], element: str) -> list[Lanes]:
    """One array over lanes for each element of the fragment of C."""
    if element != "f16":
        return list(registers)
    return [decode(half(register), "f16") for register in registers for half in (low_half, high_half)]


def _multiply_in_f16(left: Lanes, right: Lanes) -> Lanes:
    """8-bit floats with f16 sums. An H200 rounds to f16 the sum over the first two of every four elements of the depth,
    adds the others, rounds again, and only then adds C."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    first = np.arange(left.shape[2]) % 4 < 2
    partial = _as_f16(np.matmul(left[:, :, first], right[:, first]))
    return _as_f16(partial + np.matmul(left[:, :, ~first], right[:, ~first]))


def _as_f16(value: Lanes) -> Lanes:
    return decode(encode(value, "f16"), "f16")


def _accumulator(element: str, satfinite: bool) -> Callable[[Lanes, Lanes], Lanes]:
    if element != "s32":
        return np.add
    limits = np.iinfo(np.int32)
    if satfinite:
        return lambda product, c: np.clip(product.astype(np.int64) + c, limits.min, limits.max).astype(np.int32)
    return lambda product, c: product.astype(np.int32) + c
