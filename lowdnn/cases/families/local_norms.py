"""Normalisation over neighbours.

lrn dims=2x16x8x8 n=5 alpha=0.5 dtype=bf16 layout=nhwc
lrn dims=2x16x8x8 n=10 beta=1.5 k=1 dir=bwd
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.cases import text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.local_norm import MAX_N
from lowdnn.ops.lrn import LrnBackward, LrnForward


@dataclass(frozen=True)
class LrnCase(Case):
    """Cross-channel normalisation of x, or its gradient; alpha is large enough for windows to matter."""

    family: ClassVar[str] = "lrn"

    dims: tuple[int, ...] = key(text.extents(0))
    n: int = key(text.integer(1), 5)
    alpha: float = key(text.number(), 1.0)
    beta: float = key(text.number(), 0.75)
    k: float = key(text.number(), 2.0)
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(Layout(self.layout), alignment_bytes=self.align)
        parameters = (self.n, self.alpha, self.beta, self.k)
        x = builder.tensor(self.dims, self.dtype, name="x")
        if self.dir == "bwd":
            dy = builder.tensor(self.dims, self.dtype, name="dy")
            dx = builder.tensor(self.dims, self.out or self.dtype, name="dx")
            builder.add(LrnBackward(x, dy, dx, *parameters))
        else:
            y = builder.tensor(self.dims, self.out or self.dtype, name="y")
            builder.add(LrnForward(x, y, *parameters))
        return builder.graph()

    @property
    def length(self) -> int:
        """Elements of a window."""
        return min(self.n, MAX_N)

    @property
    def is_exact(self) -> bool:
        return False
