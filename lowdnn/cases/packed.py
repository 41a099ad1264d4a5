"""Ragged tensors of cases: half of the rows that padded ones would have, distributed over the batches at random or
evenly; a row has all heads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import with_tensors
from lowdnn.ops.ragged import RaggedStore
from lowdnn.ops.tensor import Tensor, packed_strides

_ROWS_OF_HEADS = (0, 2, 1, 3)
#: The end of offsets' names.
_OFFSETS = "ragged_offset"


def load(builder: CaseBuilder, dims: tuple[int, ...], data_type: DataType, name: str) -> Tensor:
    """A tensor of ``dims`` (batch, heads, rows, size), whose sequences are packed in memory."""
    x = _tensor(builder, dims, data_type, name)
    return builder.ragged_load(x, _offsets(builder, dims, DataType.INT32, name), dims[2], x.strides[2])


def with_packed_outputs(builder: CaseBuilder, padded: Collection[str] = ()) -> OperationGraph:
    """The builder's graph with packed outputs, except those named in ``padded``. Outputs with equal numbers of rows and
    of elements in a row share their offsets."""
    graph = builder.graph()
    virtual = {tensor.uid: replace(tensor, is_virtual=True) for tensor in graph.outputs if tensor.name not in padded}
    operations = [with_tensors(op, virtual) for op in graph.operations]
    offsets: dict[tuple[int, ...], Tensor] = {}
    for x in virtual.values():
        y = _tensor(builder, x.dims, x.data_type, x.name)
        shared = offsets.setdefault(x.dims[2:], _offsets(builder, x.dims, DataType.INT64, x.name))
        operations.append(RaggedStore(x, y, shared, y.strides[2]))
    return OperationGraph(operations)


def is_offsets(tensor: Tensor) -> bool:
    return tensor.name.endswith(_OFFSETS)


def offset_values(rng: np.random.Generator, tensor: Tensor, longest: int, *, is_even: bool = False) -> NDArray[Any]:
    """Offsets in rows: the sums of the lengths of the batches before each, with lengths up to ``longest``.

    is_even: whether lengths are as nearly equal as they can be; otherwise they are random.
    """
    batch = tensor.dims[0] - 1
    left, sums = _total(batch, longest), [0]
    for others in reversed(range(batch)):
        fewest, most = max(0, left - others * longest), min(longest, left)
        rows = left // (others + 1) if is_even else int(rng.integers(fewest, most + 1))
        left -= rows
        sums.append(sums[-1] + rows)
    return np.array(sums, dtypes.info(tensor.data_type).storage).reshape(tensor.dims)


def _tensor(builder: CaseBuilder, dims: tuple[int, ...], data_type: DataType, name: str) -> Tensor:
    batch, heads, rows, size = dims
    packed = (1, heads, _total(batch, rows), size)
    return builder.tensor(packed, data_type, strides=packed_strides(packed, _ROWS_OF_HEADS), name=name)


def _offsets(builder: CaseBuilder, dims: tuple[int, ...], data_type: DataType, name: str) -> Tensor:
    return builder.tensor((dims[0] + 1, 1, 1, 1), data_type, name=f"{name}_{_OFFSETS}")


def _total(batch: int, rows: int) -> int:
    return -(-batch * rows // 2)
