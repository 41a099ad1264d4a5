"""Normalisation over neighbours.

lrn dims=2x16x8x8 n=5 alpha=0.5 dtype=bf16 layout=nhwc
lrn dims=2x16x8x8 n=10 beta=1.5 k=1 dir=bwd
divisive dims=2x3x8x8 n=5 means=yes dmeans=yes dir=bwd
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from lowdnn.cases import text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.text import key
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
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


@dataclass(frozen=True)
class DivisiveCase(Case):
    """Divisive normalisation of x over spatial neighbours, or its gradients.

    means: whether there are means of x, which are then of its type.  dmeans: whether their gradient is stored.
    """

    family: ClassVar[str] = "divisive"

    dims: tuple[int, ...] = key(text.extents(0))
    n: int = key(text.integer(1), 5)
    alpha: float = key(text.number(), 1.0)
    beta: float = key(text.number(), 0.75)
    k: float = key(text.number(), 2.0)
    means: str = key(text.choice("no", "yes"), "no")
    dmeans: str = key(text.choice("no", "yes"), "no")
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder, out = CaseBuilder(Layout(self.layout), alignment_bytes=self.align), self.out or self.dtype
        parameters = (self.n, self.alpha, self.beta, self.k)
        x = builder.tensor(self.dims, self.dtype, name="x")
        means = builder.tensor(self.dims, self.dtype, name="means") if self.means == "yes" else None
        if self.dir == "bwd":
            dy = builder.tensor(self.dims, self.dtype, name="dy")
            dx = builder.tensor(self.dims, out, name="dx")
            dmeans = builder.tensor(self.dims, out, name="dmeans") if self.dmeans == "yes" else None
            builder.add(DivisiveNormalizationBackward(x, dy, dx, means, dmeans, *parameters))
        else:
            builder.add(DivisiveNormalizationForward(x, builder.tensor(self.dims, out, name="y"), means, *parameters))
        return builder.graph()

    @property
    def length(self) -> int:
        """Elements of a window."""
        return prod(self.n for _ in self.dims[2:])

    @property
    def is_exact(self) -> bool:
        return False
