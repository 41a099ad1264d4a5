"""Random numbers and dropout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.cases import steps, text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    pointwise_type,
    same_dims_chain,
    stores,
)
from lowdnn.cases.text import key
from lowdnn.enums import (
    DataType,
    RngDistribution,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.rng import Rng
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class RngCase(Case):
    """Random numbers, and the chain ``ops`` over them: ``ops=mul+scalar`` is dropout of a tensor.

    source: the kind of seed and offset: number (the offset a constant), host (by-value tensors) or device.
    """

    family: ClassVar[str] = "rng"

    dims: tuple[int, ...] = key(text.extents(0))
    dist: str = key(text.choice(*(distribution.name.lower() for distribution in RngDistribution)), "bernoulli")
    p: float = key(text.number(), 0.5)
    low: float = key(text.number(), 0.0)
    high: float = key(text.number(), 1.0)
    mean: float = key(text.number(), 0.0)
    deviation: float = key(text.number(), 1.0)
    seed: int = key(text.integer(0), 0)
    offset: int = key(text.integer(0), 0)
    source: str = key(text.choice("number", "host", "device"), "number")
    ops: tuple[str, ...] = key(text.names(steps.NAMES), ())
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        layout = Layout(self.layout)
        builder = CaseBuilder(layout, alignment_bytes=self.align, virtual_type=self.virtual)
        store, final, steps = stores(self.ops, self.out or self.dtype)
        seed = self.seed if self.source == "number" else self._scalar(builder, "seed")
        offset = self._scalar(builder, "offset")
        distribution = Rng(RngDistribution[self.dist.upper()], self.mean, self.deviation, self.high, self.low, self.p)
        y = builder.rng(distribution, self.dims, seed=seed, offset=offset, store=store)
        chain = replace(same_dims_chain(steps, y, self.dtype, pointwise_type(self.dtype)), operand_layout=layout)
        chain.build(builder, y, final, layout)
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return self.dist == "bernoulli" and steps.is_exact(self.ops)

    def _scalar(self, builder: CaseBuilder, name: str) -> Tensor:
        if self.source == "number":
            return builder.constant(1, DataType.INT64, getattr(self, name), name=name)
        if self.source == "host":
            return builder.by_value(1, DataType.INT64, name=name)
        return builder.tensor((1,), DataType.INT64, name=name)

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if tensor.name in ("seed", "offset"):
            return np.full(tensor.dims, getattr(self, tensor.name), np.int64)
        return super()._values(rng, tensor, exact)
