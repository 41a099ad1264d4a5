"""Grouped matrix products of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowdnn import dtypes
from lowdnn.cases import routing, steps, text
from lowdnn.cases.base import Case, Inputs
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    contraction_output,
    contraction_type,
    epilogue_of,
    stores,
)
from lowdnn.cases.text import key
from lowdnn.enums import (
    DataType,
    MoeGroupedMatmulMode,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError


@dataclass(frozen=True)
class MoeCase(Case):
    """Routed rows times the weights of their experts, or the weights' gradient (dir=wgrad), in ``batches`` of groups.

    sizes: rows of each group, batch after batch; drawn where there are none.  ends: the last group's end is given, and
    may leave rows over.  tokens: to gather from.  layout: the weights' memory order; K is contiguous with nt.  offset:
    the offsets' type.
    """

    family: ClassVar[str] = "moe"

    experts: int = key(text.integer(1))
    rows: int = key(text.integer(0))
    n: int = key(text.integer(0))
    k: int = key(text.integer(0))
    batches: int = key(text.integer(1), 1)
    sizes: tuple[int, ...] = key(text.extents(0, 1024), ())
    ends: int = key(text.integer(0), 0)
    mode: str = key(text.choice("none", "gather", "scatter"), "none")
    tokens: int = key(text.integer(1), 1)
    top_k: int = key(text.integer(1), 1)
    dir: str = key(text.choice("fprop", "wgrad"), "fprop")
    layout: str = key(text.choice("nn", "nt"), "nn")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    offset: DataType = key(text.data_type(), DataType.INT32)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        self._check_sizes()
        builder = CaseBuilder(alignment_bytes=self.align)
        offsets = builder.tensor((self._groups + (self.ends > 0), 1, 1), self.offset, name="first_token_offset")
        compute = self.compute or contraction_type(self.dtype)
        weights = Layout.TRANSPOSED if self.layout == "nt" else Layout.ROW_MAJOR
        store, final, steps = stores(self.epilogue, self.out or contraction_output(self.dtype))
        if self.dir == "wgrad":
            token = builder.tensor((1, self.rows, self.k), self.dtype, name="token")
            doutput = builder.tensor((1, self.rows, self.n), self.dtype, name="doutput")
            output = builder.moe_weight_gradient(
                doutput, token, offsets, self.experts, compute_type=compute, store=store, layout=weights
            )
            last = weights
        else:
            output = self._product(builder, offsets, weights, compute, store)
            last = Layout.ROW_MAJOR
        epilogue_of(steps, output, (1, 1, self.n), self.dtype, compute).build(builder, output, final, last)
        return builder.graph()

    def inputs(self, seed: int, exact: bool) -> Inputs:
        return super().inputs(seed, exact) | self.routing(seed)

    def routing(self, seed: int) -> Inputs:
        """Input data with the routing: the expert of each row, and the tokens that rows are gathered from or scattered
        to."""
        rng = np.random.default_rng([seed, 1])
        sizes = self.sizes or routing.group_sizes(rng, self.rows, self._groups)
        values = {"first_token_offset": routing.offsets(sizes, self.ends > 0)}
        values |= routing.routing(rng, self._mode, self.tokens, self.rows, self.top_k)
        tensors = (tensor for tensor in self.graph().inputs if tensor.name in values)
        return {tensor.uid: dtypes.from_float64(values[tensor.name], tensor.data_type) for tensor in tensors}

    @property
    def length(self) -> int:
        return self.k if self.dir == "fprop" else max(self.sizes, default=self.rows) * self.batches

    @property
    def is_exact(self) -> bool:
        return steps.is_exact(self.epilogue)

    def _product(
        self, builder: CaseBuilder, offsets: Tensor, weights: Layout, compute: DataType, store: DataType | None
    ) -> Tensor:
        gathers, scatters = self.mode == "gather", self.mode == "scatter"
        token = builder.tensor((1, self.tokens if gathers else self.rows, self.k), self.dtype, name="token")
        weight = builder.tensor((self.experts, self.k, self.n), self.dtype, layout=weights, name="weight")
        rows = (1, self.rows, 1)
        index = builder.tensor(rows, DataType.INT32, name="token_index") if gathers or scatters else None
        ks = builder.tensor(rows, DataType.INT32, name="token_ks") if scatters else None
        return builder.moe_grouped_matmul(
            token, weight, offsets, index, ks, mode=self._mode, top_k=self.top_k, compute_type=compute, store=store
        )

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        """The output, if some of its rows keep their old values."""
        return list(graph.outputs) if self.dir == "fprop" and self._left_over else []

    @property
    def _mode(self) -> MoeGroupedMatmulMode:
        return MoeGroupedMatmulMode[self.mode.upper()]

    @property
    def _groups(self) -> int:
        return self.experts * self.batches

    @property
    def _left_over(self) -> int:
        return self.rows - sum(self.sizes) if self.sizes else 0

    def _check_sizes(self) -> None:
        if self.experts == 1 < self.batches and not self.ends:
            raise BadParamError.at("moe.ends", expected="1 for several groups of one expert", got=self.ends)
        if self.sizes and len(self.sizes) != self._groups:
            raise BadParamError.at("moe.sizes", expected=f"{self._groups} groups", got=len(self.sizes))
        has_rest = self.ends and (self.dir == "wgrad" or not self.epilogue)
        if self._left_over < 0 or (self._left_over and not has_rest):
            expected = f"{self.rows} rows, or fewer with ends=1 and without an epilogue of rows"
            raise BadParamError.at("moe.sizes", expected=expected, got=sum(self.sizes))
