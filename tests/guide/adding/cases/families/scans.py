"""Scans along an axis.

cumulative_sum dims=8x1000 axis=1 dtype=bf16 out=fp32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.cases import text
from lowdnn.cases.base import Case, check_axes
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.cumulative_sum import CumulativeSum


@dataclass(frozen=True)
class CumulativeSumCase(Case):
    """The cumulative sum of a tensor of ``dtype`` along ``axis``. out: y's type, by default ``dtype``."""

    family: ClassVar[str] = "cumulative_sum"

    dims: tuple[int, ...] = key(text.extents(0))
    axis: int = key(text.integer(0))
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)

    def graph(self) -> OperationGraph:
        check_axes((self.axis,), len(self.dims), "cumulative_sum.axis")
        builder = CaseBuilder()
        x = builder.tensor(self.dims, self.dtype, layout=Layout(self.layout), name="x")
        y = builder.tensor(self.dims, self.out or self.dtype, layout=Layout(self.out_layout), name="y")
        builder.add(CumulativeSum(self.axis, x=x, y=y))
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return True

    @property
    def length(self) -> int:
        return self.dims[self.axis]

    @property
    def sum_type(self) -> DataType:
        return DataType.DOUBLE if self.dtype is DataType.DOUBLE else DataType.FLOAT
