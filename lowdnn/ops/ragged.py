"""Ragged tensors: sequences of rows packed one after the other, and the tensor in which all are as long.

    RaggedLoad     y[b, h, s, d] = x[0, h, first(b) + s, d]    where s < rows(b), elsewhere 0
    RaggedStore    y[0, h, first(b) + s, d] = x[b, h, s, d]    where s < rows(b); other rows of y stay as they are

    first(b) = multiplier * offsets[b] / row stride of the packed tensor,    rows(b) = min(S, first(b + 1) - first(b))

The packed tensor is (1, H, T, D), the other one (B, H, S, D) in the same type; offsets (B + 1, 1, 1, 1), in INT32 or
INT64, count elements, a whole number of rows each, and do not descend.
No descriptor stands for them: tensors with CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC do (``graph.expansion``).
Source: cudnn_graph.h, CUDNN_BACKEND_TENSOR_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError

_OFFSET_TYPES = (DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class RaggedMove:
    """The base of both; see the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None]
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input()
    y: Tensor = tensor_output()
    offsets: Tensor = tensor_input()
    multiplier: int = 1

    def __post_init__(self) -> None:
        where, (batch, heads, _, size) = f"{self.padded.label}.ragged_offset", (*self.padded.dims, 0, 0, 0, 0)[:4]
        if self.padded.rank != 4:
            got = list(self.padded.dims)
            raise ShapeMismatchError.at(where, expected="a tensor [batch, heads, rows, size]", got=got)
        packed = self.packed.dims
        if (*packed[:2], *packed[3:]) != (1, heads, size):
            raise ShapeMismatchError.at(where, expected=f"rows packed as [1, {heads}, T, {size}]", got=list(packed))
        if not self.row_elements:
            raise BadParamError.at(where, expected="a stride of rows above 0", got=0)
        if self.offsets.dims != (batch + 1, 1, 1, 1):
            got = list(self.offsets.dims)
            raise ShapeMismatchError.at(f"{where}.dims", expected=[batch + 1, 1, 1, 1], got=got)
        if self.offsets.data_type not in _OFFSET_TYPES:
            expected = " or ".join(kind.name for kind in _OFFSET_TYPES)
            raise UnsupportedDataTypeError.at(f"{where}.data_type", expected=expected, got=self.offsets.data_type.name)
        if self.multiplier < 1:
            raise BadParamError.at(f"{where}_multiplier", expected="at least 1", got=self.multiplier)
        if self.x.data_type is not self.y.data_type:
            raise UnsupportedDataTypeError.at(where, expected=self.x.data_type.name, got=self.y.data_type.name)

    @property
    def packed(self) -> Tensor:
        raise NotImplementedError

    @property
    def padded(self) -> Tensor:
        raise NotImplementedError

    @property
    def placed(self) -> tuple[Tensor, ...]:
        """Offsets count the packed tensor's elements in memory."""
        return (self.packed,)

    @property
    def row_elements(self) -> int:
        """Elements from one row of the packed tensor to the next."""
        return self.packed.strides[2]

    @property
    def flops(self) -> int:
        return 0

    def sequences(self, inputs: Values) -> Iterator[tuple[int, slice]]:
        """(rows, where they are in the packed tensor) of each batch. Raises BadParamError for offsets between rows."""
        offsets = inputs["offsets"].reshape(-1) * self.multiplier
        if (offsets % self.row_elements).any() or (np.diff(offsets) < 0).any():
            expected = f"multiples of {self.row_elements} elements that do not descend"
            raise BadParamError.at(f"{self.padded.label}.ragged_offset", expected=expected, got=offsets.tolist())
        for begin, end in pairwise((offsets // self.row_elements).tolist()):
            rows = min(self.padded.dims[2], end - begin)
            yield rows, slice(begin, begin + rows)


@dataclass(frozen=True)
class RaggedLoad(RaggedMove):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType | None] = None

    @property
    def packed(self) -> Tensor:
        return self.x

    @property
    def padded(self) -> Tensor:
        return self.y

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        y = np.zeros(self.y.dims, inputs["x"].dtype)
        for batch, (rows, place) in enumerate(self.sequences(inputs)):
            y[batch, :, :rows] = inputs["x"][0, :, place]
        return {"y": y}


@dataclass(frozen=True)
class RaggedStore(RaggedMove):
    """See the module's docstring. The reference has zeros where y stays as it is."""

    descriptor_type: ClassVar[DescriptorType | None] = None

    @property
    def packed(self) -> Tensor:
        return self.y

    @property
    def padded(self) -> Tensor:
        return self.x

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        y = np.zeros(self.y.dims, inputs["x"].dtype)
        for batch, (rows, place) in enumerate(self.sequences(inputs)):
            y[0, :, place] = inputs["x"][batch, :, :rows]
        return {"y": y}


def packed_shape(dims: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims and strides of the packed form of a ragged tensor (batch, heads, rows, size), of as many rows as may be."""
    batch, heads, rows, size = dims
    _, head, row, element = strides
    return (1, heads, batch * rows, size), (batch * rows * row, head, row, element)
