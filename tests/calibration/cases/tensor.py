"""Tiled tensor copies: loads, stores and reductions of 1 to 5 dimensions. PTX ISA manual, "cp.async.bulk.tensor".

Loads fall on a window that holds a known pattern, so that bytes which a copy leaves alone show too. Boxes begin at
whole 16 bytes of a row, those of stores at no negative coordinate: an H200 refuses the others as illegal instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lowdnn.driver.base import LaunchConfig
from lowdnn.tensor_map import TensorMapDataType as DataType
from lowdnn.tensor_map import TensorMapOobFill as Fill
from lowdnn.tensor_map import TensorMapSwizzle as Swizzle
from lowdnn.tensor_map import TiledMap
from tests.calibration.case import Array, Case, MapOf, Output
from tests.calibration.cases import numbers
from tests.calibration.cases.asynchronous import BARRIER_BYTES, FLUSH, REGISTERS, THREADS, barrier, fill, keep, wait
from tests.calibration.cases.program import program
from tests.calibration.inputs import edges, random_bits

_WINDOW = 8 << 10
_UNSIGNED = {1: DataType.UINT8, 2: DataType.UINT16, 4: DataType.UINT32, 8: DataType.UINT64}
_SMALL_KINDS = {DataType.FLOAT16: "f16", DataType.BFLOAT16: "bf16", DataType.FLOAT32: "f32", DataType.FLOAT64: "f64"}


@dataclass(frozen=True)
class Copy:
    """A box of a tensor and where it starts; dimensions from the innermost one. Without strides the tensor is dense,
    with them it lies in ``elements``."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    box: tuple[int, ...]
    at: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE
    fill: Fill = Fill.ZEROS
    strides_bytes: tuple[int, ...] = ()
    elements: int = 0

    @property
    def tensor_map(self) -> TiledMap:
        size = self.data_type.size_bytes
        dense = tuple(size * int(np.prod(self.dims[:place])) for place in range(1, len(self.dims)))
        strides = self.strides_bytes or dense
        steps = self.element_strides or (1,) * len(self.dims)
        return TiledMap(
            self.data_type, 0, self.dims, strides, self.box, steps, swizzle=self.swizzle, oob_fill=self.fill
        )

    @property
    def box_bytes(self) -> int:
        steps = self.element_strides or (1,) * len(self.box)
        return self.data_type.size_bytes * int(
            np.prod([-(-n // step) for n, step in zip(self.box, steps, strict=True)])
        )

    @property
    def tensor_bytes(self) -> int:
        return self.data_type.size_bytes * (self.elements or int(np.prod(self.dims)))

    @property
    def target(self) -> str:
        coordinates = ", ".join(map(str, self.at))
        return f"[%m0, {{{coordinates}}}]"


def cases() -> Iterator[Case]:
    for copy in _copies():
        yield _load(copy)
        if min(copy.at) >= 0:
            yield _store(copy)
    for copy in _wrapping_copies():
        yield _load(copy)
        yield _store(copy)
    for copy in _special_loads():
        yield _load(copy)
        if copy.fill is Fill.ZEROS:
            yield _store(copy)
    for operation, data_type in _REDUCTIONS:
        yield _reduce(operation, data_type)


def _copies() -> Iterator[Copy]:
    shapes = {
        1: ((100,), (32,)), 2: ((48, 11), (16, 6)), 3: ((32, 5, 7), (16, 3, 4)), 4: ((16, 5, 4, 6), (16, 2, 3, 2)),
        5: ((16, 4, 3, 5, 4), (16, 2, 2, 3, 2)),
    }  # fmt: skip
    for rank, (dims, box) in shapes.items():
        places = {
            "inside": (8, *(n // 4 for n in dims[1:])),
            "before": (-8, *(-(n // 2) for n in box[1:])),
            "behind": (dims[0] // 8 * 8 - 8, *(n - m // 2 for n, m in zip(dims[1:], box[1:], strict=True))),
            "outside": (dims[0] // 8 * 8 + 8, *(n + 3 for n in dims[1:])),
            "mixed": (dims[0] // 8 * 8 - 8, *(-1 if place % 2 else n - 2 for place, n in enumerate(dims[1:]))),
        }
        for name, at in places.items():
            yield Copy(f"{rank}d {name}", DataType.UINT16, dims, box, at)
        if rank > 1:
            steps = (1, *((2, 3, 2, 3)[: rank - 1]))
            yield Copy(f"{rank}d strides", DataType.UINT16, dims, box, places["inside"], steps)
            yield Copy(f"{rank}d strides mixed", DataType.UINT16, dims, box, places["mixed"], steps)
    for size, data_type in _UNSIGNED.items():
        for swizzle in Swizzle:
            row = (swizzle.span_bytes or 64) // size
            yield Copy(
                f"swizzle {swizzle.name} of {size}", data_type, (2 * row, 40), (row, 24), (row // 2, 3), (), swizzle
            )
    for swizzle in (Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128):
        yield Copy(f"swizzle {swizzle.name} short", DataType.UINT8, (256, 12), (16, 12), (32, -2), (), swizzle)
        yield Copy(f"swizzle {swizzle.name} 3d", DataType.UINT16, (64, 5, 9), (16, 3, 5), (8, -1, 6), (), swizzle)


def _wrapping_copies() -> Iterator[Copy]:
    """Copies of four rows, from ``row`` on, of a sequence of ``length`` rows behind ``first`` others.

    The tensor has 10 rows of two heads. The map's rows end with the sequence, since its last two coordinates move
    addresses beyond 2^64 bytes.
    """
    end, size, heads, rows = 1 << 30, 16, 2, 10
    head_bytes, row_bytes = 2 * size, 2 * size * heads
    dims, box = (size, end, heads, 1 << 31, end + 1), (size, 4, 1, 1, 1)
    strides = (row_bytes, head_bytes, row_bytes, (1 << 64) // end - row_bytes)
    for first, length, row in ((0, 10, 0), (3, 5, 0), (3, 5, 4), (6, 4, 0), (6, 4, 2), (10, 0, 0), (2, 3, 8)):
        at = (0, end - length + row, row % 3 % 2, first + length, end)
        name = f"wraps {first} {length} {row}"
        yield Copy(name, DataType.UINT16, dims, box, at, strides_bytes=strides, elements=rows * size * heads)


def _special_loads() -> Iterator[Copy]:
    for data_type in DataType:
        if not data_type.is_float:
            continue
        copy = Copy("", data_type, (32, 6), (16, 4), (24, 4), (), Swizzle.NONE, Fill.NAN_REQUEST_ZERO_FMA)
        yield replace(copy, name=f"nan {data_type.name}")
        yield replace(copy, name=f"values {data_type.name}", at=(8, 1), fill=Fill.ZEROS)


_REDUCTIONS = (
    *(("add", kind) for kind in (DataType.UINT32, DataType.INT32, DataType.UINT64, DataType.FLOAT16, DataType.BFLOAT16,
                                 DataType.FLOAT32)),
    *((op, kind) for op in ("min", "max") for kind in (DataType.UINT32, DataType.INT32, DataType.UINT64, DataType.INT64,
                                                       DataType.FLOAT16, DataType.BFLOAT16)),
    *((op, DataType.UINT32) for op in ("inc", "dec")),
    *((op, kind) for op in ("and", "or", "xor") for kind in (DataType.UINT32, DataType.UINT64)),
)  # fmt: skip


def _load(copy: Copy) -> Case:
    rank = len(copy.dims)
    body = f"""{REGISTERS}{fill("%i1", _WINDOW)}{barrier(_WINDOW)}
@!%first bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %token, [%bar], {copy.box_bytes};
cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%base], {copy.target}, [%bar];
ISSUED:
{wait()}{keep("%o0", _WINDOW)}"""
    inputs = (_content(copy), _pattern())
    outputs = (Output("shared", "u8", _WINDOW),)
    return program(f"load {copy.name}", body, inputs, outputs, _launch(), maps=(MapOf(0, copy.tensor_map),))


def _store(copy: Copy) -> Case:
    rank = len(copy.dims)
    body = f"""{REGISTERS}{fill("%i0", _WINDOW)}
@!%first bra DONE;
cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group {copy.target}, [%base];
{FLUSH}DONE:
"""
    initial = np.full(copy.tensor_bytes, 0xA5, np.uint8)
    outputs = (Output("tensor", "u8", copy.tensor_bytes, initial=initial),)
    return program(f"store {copy.name}", body, (_counter(),), outputs, _launch(), maps=(MapOf(1, copy.tensor_map),))


def _reduce(operation: str, data_type: DataType) -> Case:
    """Onto a tensor of which the box leaves out a part; whole numbers for floats, so that sums are exact."""
    name = f"{operation} {data_type.name}"
    copy = Copy(name, data_type, (32, 6), (16, 4), (24, 3))
    kind = _SMALL_KINDS.get(data_type)
    if kind:
        count = copy.tensor_bytes // data_type.size_bytes
        initial = numbers.whole(kind, (count,), name, 7).view(np.uint8)
        values = numbers.whole(kind, (_WINDOW // data_type.size_bytes,), f"{name}2", 7).view(np.uint8)
    else:
        initial = random_bits(name, copy.tensor_bytes, 1)
        values = random_bits(f"{name}2", _WINDOW, 1)
    if operation in ("inc", "dec"):
        initial = (initial.view(np.uint32) % np.uint32(100)).view(np.uint8)
        values = (values.view(np.uint32) % np.uint32(100)).view(np.uint8)
    body = f"""{REGISTERS}{fill("%i0", _WINDOW)}
@!%first bra DONE;
cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group {copy.target}, [%base];
{FLUSH}DONE:
"""
    outputs = (Output("tensor", "u8", copy.tensor_bytes, initial=initial),)
    return program(f"reduce {name}", body, (values,), outputs, _launch(), maps=(MapOf(1, copy.tensor_map),))


def _launch() -> LaunchConfig:
    return LaunchConfig((1, 1, 1), (THREADS, 1, 1), _WINDOW + BARRIER_BYTES)


def _content(copy: Copy) -> Array:
    """Counting elements; for the float types random bits, every third of 32-bit ones an edge value or a tie of tf32."""
    size = copy.data_type.size_bytes
    count = copy.tensor_bytes // size
    counter = np.arange(count, dtype=np.uint64)
    if not copy.data_type.is_float:
        return (counter + (counter >> np.uint64(8))).astype(f"u{size}")
    values = random_bits(f"tensor{size}", count, size)
    if size != 4:
        return values
    ties = values & np.uint32(0xFFFFE000) | np.uint32(0x1000)
    special = np.where(counter % 2 == 0, np.resize(edges("f32"), count), ties)
    return np.where(counter % 3 == 0, special, values)


def _pattern() -> Array:
    return np.full(_WINDOW, 0xA5, np.uint8)


def _counter() -> Array:
    return np.arange(_WINDOW // 2, dtype=np.uint16).view(np.uint8)
