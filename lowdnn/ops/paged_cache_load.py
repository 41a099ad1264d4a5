"""Load of a paged cache: sequences of rows that lie in pages, anywhere in a container, as one tensor.

    y[b, h, s, d] = container[page_table[b, 0, s / P, 0], h, s mod P, d]    where s < sequence[b]; beyond it 0

container is (pages, H, P, D) with a power of two P, y (B, H, S, D) in the same type, page_table (B, 1, E, 1) in INT32
with E >= S / P, sequence (B, 1, 1, 1) in INT32 or INT64. Entries for rows beyond the sequence are not read.
Sources: cudnn_graph.h, CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR; Kwon et al., "Efficient Memory Management
for Large Language Model Serving with PagedAttention".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedShapeError

_WHERE = "paged_cache_load"
_LENGTH_TYPES = (DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class PagedCacheLoad:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_PAGED_CACHE_LOAD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    container: Tensor = tensor_input(AttributeName.OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_PAGED_CACHE_LOAD_YDESC)
    sequence: Tensor = tensor_input(AttributeName.OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC)
    page_table: Tensor = tensor_input(AttributeName.OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC)

    def __post_init__(self) -> None:
        if self.container.rank != 4:
            expected = "[pages, heads, rows of a page, size]"
            raise UnsupportedShapeError.at(f"{_WHERE}.container.dims", expected=expected, got=list(self.container.dims))
        _, heads, rows, size = self.container.dims
        if rows < 1 or rows & (rows - 1):
            raise BadParamError.at(f"{_WHERE}.container.dims[2]", expected="a power of two", got=rows)
        y = self.y.dims
        if len(y) != 4 or (y[1], y[3]) != (heads, size):
            raise ShapeMismatchError.at(f"{_WHERE}.y.dims", expected=f"[B, {heads}, S, {size}]", got=list(y))
        batch, least = y[0], -(-y[2] // rows)
        table = self.page_table.dims
        if len(table) != 4 or (table[0], table[1], table[3]) != (batch, 1, 1) or table[2] < least:
            expected = f"[{batch}, 1, at least {least}, 1]"
            raise ShapeMismatchError.at(f"{_WHERE}.page_table.dims", expected=expected, got=list(table))
        if self.sequence.dims != (batch, 1, 1, 1):
            got = list(self.sequence.dims)
            raise ShapeMismatchError.at(f"{_WHERE}.sequence.dims", expected=[batch, 1, 1, 1], got=got)
        self._check_types()

    def _check_types(self) -> None:
        taken = {
            "y": (self.container.data_type,),
            "page_table": (DataType.INT32,),
            "sequence": _LENGTH_TYPES,
        }
        for port, kinds in taken.items():
            kind = getattr(self, port).data_type
            if kind not in kinds:
                expected = " or ".join(one.name for one in kinds)
                raise UnsupportedDataTypeError.at(f"{_WHERE}.{port}.data_type", expected=expected, got=kind.name)

    @property
    def page_rows(self) -> int:
        return self.container.dims[2]

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """Raises BadParamError for an entry of the table that is read and names no page."""
        container, table = inputs["container"], inputs["page_table"]
        row = np.arange(self.y.dims[2])
        exists = row < inputs["sequence"].reshape(-1, 1)
        page = np.where(exists, table[:, 0, :, 0].repeat(self.page_rows, axis=1)[:, : row.size], 0)
        wrong = page[(page < 0) | (page >= len(container))]
        if wrong.size:
            expected = f"pages from 0 to {len(container) - 1}"
            raise BadParamError.at(f"{_WHERE}.page_table", expected=expected, got=int(wrong[0]))
        if not container.size:
            return {"y": np.zeros(self.y.dims, container.dtype)}
        found = np.moveaxis(container[page, :, row % self.page_rows], 1, 2)
        return {"y": np.where(exists[:, np.newaxis, :, np.newaxis], found, 0)}
