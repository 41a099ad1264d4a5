"""Ragged tensors copied into padded ones and back: values, types, strides, offsets, and untouched bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.engines.ragged.ragged import Ragged
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.ragged import RaggedLoad, RaggedMove, RaggedStore
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed, poison
from tests.support.runtime import download, upload


@dataclass(frozen=True)
class Form:
    """A ragged tensor and its padded one.

    lengths: rows of each batch in the packed tensor.  most: rows of a batch in the padded one.
    order: axes of the padded one in memory, outermost first.  gap: unused elements behind each packed row.
    in_rows: whether offsets count rows, otherwise elements.  offset_stride: the offsets' type.
    """

    lengths: tuple[int, ...]
    most: int
    heads: int
    size: int
    data_type: DataType
    order: tuple[int, ...] = (0, 1, 2, 3)
    gap: int = 0
    offset_type: DataType = DataType.INT32
    in_rows: bool = True
    offset_stride: int = 1

    @property
    def row_elements(self) -> int:
        return self.heads * self.size + self.gap

    @property
    def offsets(self) -> NDArray[Any]:
        rows = np.concatenate([[0], np.cumsum(self.lengths)]) * (1 if self.in_rows else self.row_elements)
        return rows.astype(dtypes.info(self.offset_type).storage).reshape(-1, 1, 1, 1)

    def operation(self, cls: type[RaggedMove]) -> RaggedMove:
        """The move between tensors with the uids 1 (packed), 2 (padded) and 3 (offsets).

        The packed tensor has room for ``most`` rows in each batch.
        """
        batch = len(self.lengths)
        dims = (1, self.heads, batch * self.most, self.size)
        row = self.row_elements
        strides = (batch * self.most * row, self.size, row, 1)
        alignment = 16 if row % 8 == 0 else dtypes.info(self.data_type).size_bytes
        packed = Tensor(1, self.data_type, dims, strides, alignment, name="packed")
        dims = (batch, self.heads, self.most, self.size)
        padded = Tensor(2, self.data_type, dims, packed_strides(dims, self.order), 16, name="padded")
        offsets = (batch + 1, 1, 1, 1)
        where = Tensor(3, self.offset_type, offsets, (self.offset_stride, 1, 1, 1), 16, name="offsets")
        x, y = (packed, padded) if cls is RaggedLoad else (padded, packed)
        return cls(x, y, where, row if self.in_rows else 1)


FORMS = (
    Form((5, 0, 3), 7, 2, 16, DataType.HALF),
    Form((4, 9), 9, 3, 12, DataType.FLOAT, order=(0, 2, 1, 3), gap=5, offset_type=DataType.INT64),
    Form((1, 2), 4, 5, 1, DataType.FLOAT, in_rows=False, offset_stride=2),
    Form((3, 3), 3, 1, 5, DataType.DOUBLE, order=(0, 1, 3, 2)),
    Form((6, 1), 6, 2, 40, DataType.FP8_E4M3, gap=3, in_rows=False, offset_type=DataType.INT64),
    Form((2, 7), 5, 1, 24, DataType.BFLOAT16),
    Form((3, 2), 8, 1, 1, DataType.INT64),
    Form((0, 0), 3, 2, 8, DataType.BOOLEAN),
    Form((), 3, 2, 8, DataType.HALF),
)
KINDS = pytest.mark.parametrize("cls", [RaggedLoad, RaggedStore], ids=["load", "store"])


def moved(runtime: Runtime, form: Form, cls: type[RaggedMove]) -> None:
    """Runs the move and compares the result with the reference, bit for bit.

    The packed tensor's memory ends with the last sequence, so that the device finds accesses behind it; elements that
    belong to no sequence must stay as they were.
    """
    operation, rng = form.operation(cls), np.random.default_rng(fresh_seed())
    graph, storage = OperationGraph([operation]), dtypes.info(form.data_type).storage
    whole = {
        port: _random(rng, tensor) for port, tensor in (("packed", operation.packed), ("padded", operation.padded))
    }
    total = sum(form.lengths)
    held = max(1, total * form.row_elements - form.gap)
    memory = {
        "packed": to_memory(whole["packed"], operation.packed, poison(_elements(operation.packed), form.data_type))[
            :held
        ],
        "padded": to_memory(whole["padded"], operation.padded, poison(_elements(operation.padded), form.data_type)),
    }
    buffers = {name: upload(runtime, values, name) for name, values in memory.items()}
    offsets = upload(runtime, np.repeat(form.offsets, form.offset_stride), "offsets")
    plan = Ragged().plan(graph, SM_90A, {})
    pointers = {1: buffers["packed"].address, 2: buffers["padded"].address, 3: offsets.address}
    runtime.load(plan).execute(pointers, 0)
    values = {"x": whole["packed" if cls is RaggedLoad else "padded"], "offsets": form.offsets.astype(np.int64)}
    if cls is RaggedLoad:
        found = from_memory(download(buffers["padded"], storage), operation.padded)
        expected = operation.reference(values)["y"].astype(storage)
        np.testing.assert_array_equal(found, expected)
    else:
        found = download(buffers["packed"], storage)
        expected = memory["packed"].copy()
        for batch, (rows, place) in enumerate(operation.sequences(values)):
            for row in range(rows):
                for head in range(form.heads):
                    at = (place.start + row) * form.row_elements + head * form.size
                    expected[at : at + form.size] = whole["padded"][batch, head, row]
        np.testing.assert_array_equal(found, expected)
    for buffer in (*buffers.values(), offsets):
        buffer.close()


def _elements(tensor: Tensor) -> int:
    return tensor.span_bytes // tensor.element_bytes


def _random(rng: np.random.Generator, tensor: Tensor) -> NDArray[Any]:
    """Random bits; 0 and 1 for booleans."""
    storage = dtypes.info(tensor.data_type).storage
    if storage.kind == "f":
        return rng.standard_normal(tensor.dims).astype(storage)
    return rng.integers(0, 2 if storage.kind == "b" else 100, tensor.dims).astype(storage)


@KINDS
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_type_and_layout(device: Runtime, form: Form, cls: type[RaggedMove]) -> None:
    moved(device, form, cls)


@KINDS
def test_under_every_policy(scheduled: Runtime, cls: type[RaggedMove]) -> None:
    for form in FORMS[:3]:
        moved(scheduled, form, cls)


@KINDS
def test_under_the_race_detector(racing: Runtime, cls: type[RaggedMove]) -> None:
    for form in FORMS[:3]:
        moved(racing, form, cls)


@KINDS
def test_random_forms(device: Runtime, cls: type[RaggedMove]) -> None:
    """The kernels are few, so that most forms need no compilation."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(40):
        moved(device, _drawn(rng), cls)


def _drawn(rng: np.random.Generator) -> Form:
    most = int(rng.integers(1, 20))
    return Form(
        tuple(int(rows) for rows in rng.integers(0, most + 1, rng.integers(0, 5))),
        most,
        int(rng.integers(1, 4)),
        int(rng.integers(1, 40)),
        DataType(rng.choice([DataType.HALF, DataType.FLOAT, DataType.FP8_E5M2])),
        order=tuple(int(axis) for axis in rng.permutation(4)),
        gap=int(rng.choice([0, 0, 3, 8])),
        offset_type=DataType(rng.choice([DataType.INT32, DataType.INT64])),
        in_rows=bool(rng.integers(2)),
    )


def test_what_is_refused() -> None:
    operation = FORMS[0].operation(RaggedLoad)
    loads = [operation, replace(operation, y=replace(operation.y, uid=4))]
    assert "expected one load or store of a ragged tensor, got RaggedLoad, RaggedLoad" in str(
        Ragged().refuse(OperationGraph(loads), SM_90A)
    )
    dims = (2**17, 2**9, 2**9, 2)
    wide = Tensor(2, DataType.HALF, dims, packed_strides(dims), 16, name="padded")
    packed = (1, 2**9, 2**26, 2)
    large = RaggedLoad(
        Tensor(1, DataType.HALF, packed, packed_strides(packed, (0, 2, 1, 3)), 16),
        wide,
        Tensor(3, DataType.INT32, (2**17 + 1, 1, 1, 1), (1, 1, 1, 1), 16),
    )
    assert Ragged().refuse(OperationGraph([large]), SM_90A) is None
    many = replace(
        large, y=replace(wide, dims=(2**30, *dims[1:])), offsets=replace(large.offsets, dims=(2**30 + 1, 1, 1, 1))
    )
    assert "padded.dims: expected at most 2147483647 along an axis" in str(
        Ragged().refuse(OperationGraph([many]), SM_90A)
    )
