"""Chains of pointwise operations, and reductions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lowdnn.cases import steps, text
from lowdnn.cases.base import Case, check_axes
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    BROADCASTS,
    broadcast_dims,
    pointwise_type,
    same_dims_chain,
    stores,
    virtual_type,
)
from lowdnn.cases.data import unit_values
from lowdnn.cases.steps import Chain
from lowdnn.cases.text import key
from lowdnn.enums import (
    DataType,
    ReduceTensorOp,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout, layout_of
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class PointwiseCase(Case):
    """The chain ``ops`` over x; broadcast: along which axes the second operands have their extent."""

    family: ClassVar[str] = "pointwise"

    dims: tuple[int, ...] = key(text.extents(0))
    ops: tuple[str, ...] = key(text.names(steps.NAMES))
    broadcast: str = key(text.choice(*BROADCASTS), "none")
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    operand_layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType | None = key(text.data_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    axis: int = key(text.integer(0), 0)
    align: int = key(text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = CaseBuilder(alignment_bytes=self.align, virtual_type=self.virtual)
        x = builder.tensor(self.dims, self.dtype, layout=Layout(self.layout), name="x")
        chain = Chain(
            steps=self.ops,
            dims=self.dims,
            operand_dims=broadcast_dims(self.dims, self.broadcast),
            channel_dims=broadcast_dims(self.dims, "channel"),
            operand_type=self.dtype,
            compute_type=self.compute or pointwise_type(self.dtype),
            operand_layout=Layout(self.operand_layout),
            axis=self.axis,
        )
        chain.build(builder, x, self.out or self.dtype, Layout(self.out_layout))
        return builder.graph()

    @classmethod
    def guesses(cls, graph: OperationGraph) -> Iterator[Self]:
        first = graph.operations[0]
        if not isinstance(first, PointwiseOperation):
            return
        x, *others = (tensor for tensor in graph.inputs if not tensor.is_scalar_value)
        for broadcast in BROADCASTS:
            dims = broadcast_dims(x.dims, broadcast)
            chain = steps.names_of(graph.operations, x, dims, broadcast_dims(x.dims, "channel"))
            if chain is not None:
                yield cls(
                    dims=x.dims,
                    ops=chain[1:],
                    broadcast=broadcast,
                    layout=layout_of(x).value,
                    operand_layout=layout_of(others[0]).value if others else "row",
                    out_layout=layout_of(first.output).value,
                    dtype=x.data_type,
                    out=graph.outputs[-1].data_type,
                    compute=first.compute_type,
                    virtual=virtual_type(graph),
                    axis=max(first.pointwise.axis, 0),
                    align=x.alignment_bytes,
                )

    @property
    def is_exact(self) -> bool:
        return steps.is_exact(self.ops)


@dataclass(frozen=True)
class ReductionCase(Case):
    """y = op over ``axes`` of x, with pointwise steps before (on x) and after (on the reduced value)."""

    family: ClassVar[str] = "reduction"

    dims: tuple[int, ...] = key(text.extents(0))
    axes: tuple[int, ...] = key(text.axes())
    op: str = key(text.choice(*(operator.name.lower() for operator in ReduceTensorOp)))
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType | None = key(text.data_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    before: tuple[str, ...] = key(text.names(steps.NAMES), ())
    after: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        check_axes(self.axes, len(self.dims), "reduction.axes")
        builder = CaseBuilder(alignment_bytes=self.align, virtual_type=self.virtual)
        compute = self.compute or pointwise_type(self.dtype)
        x = builder.tensor(self.dims, self.dtype, layout=Layout(self.layout), name="x")
        value = same_dims_chain(self.before, x, self.dtype, compute).build(builder, x, None, Layout(self.layout))
        store, final, steps = stores(self.after, self.out or self.dtype)
        layout = Layout(self.out_layout)
        y = builder.reduction(
            ReduceTensorOp[self.op.upper()], value, self.axes, compute_type=compute, store=store, layout=layout
        )
        same_dims_chain(steps, y, self.dtype, compute).build(builder, y, final, layout)
        return builder.graph()

    @classmethod
    def guesses(cls, graph: OperationGraph) -> Iterator[Self]:
        """Without steps before the reduction."""
        op, *behind = graph.operations
        if not isinstance(op, ReductionOperation):
            return
        x, y = op.x, op.y
        chain = steps.names_of(behind, y, y.dims, broadcast_dims(y.dims, "channel"))
        reduced = tuple(axis for axis in range(x.rank) if x.dims[axis] != y.dims[axis])
        axes = reduced or tuple(axis for axis in range(x.rank) if y.dims[axis] == 1)
        if chain is not None and axes:
            yield cls(
                dims=x.dims,
                axes=axes,
                op=op.reduction.operator.name.lower(),
                layout=layout_of(x).value,
                out_layout=layout_of(y).value,
                dtype=x.data_type,
                out=graph.outputs[-1].data_type,
                compute=op.compute_type,
                virtual=virtual_type(graph),
                align=x.alignment_bytes,
                after=chain,
            )

    @property
    def length(self) -> int:
        return prod(self.dims[axis] for axis in self.axes)

    @property
    def is_exact(self) -> bool:
        return steps.is_exact(self.before) and steps.is_exact(self.after)

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if exact and self.op.startswith("mul"):
            return unit_values(rng, tensor.dims, tensor.data_type)
        return super()._values(rng, tensor, exact)
