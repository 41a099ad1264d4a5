"""Reductions by an operator that is a sub-graph.

custom_reduction dims=8x100 axes=1 op=argmax dtype=bf16
custom_reduction dims=4x8x16 axes=0,2 op=affine layout=nhwc before=abs after=double
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import steps, text
from lowdnn.cases.base import Case, check_axes
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.building.operators import OPERATORS, operator_of
from lowdnn.cases.chains import pointwise_type, same_dims_chain, stores
from lowdnn.cases.data import unit_values
from lowdnn.cases.text import key
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.tensor import Tensor

#: Uids of the operator's tensors.
_FIRST_INNER_UID = 1000


@dataclass(frozen=True)
class CustomReductionCase(Case):
    """x, and what its operator has beside it, reduced over ``axes``; pointwise steps before (on x) and after (on each
    result). ``argmax`` takes the index along the first of the axes."""

    family: ClassVar[str] = "custom_reduction"

    dims: tuple[int, ...] = key(text.extents(0))
    axes: tuple[int, ...] = key(text.axes())
    op: str = key(text.choice(*OPERATORS))
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    before: tuple[str, ...] = key(text.names(steps.NAMES), ())
    after: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        check_axes(self.axes, len(self.dims), "custom_reduction.axes")
        builder = CaseBuilder(Layout(self.layout), alignment_bytes=self.align)
        compute, operator = self.compute or pointwise_type(self.dtype), OPERATORS[self.op]
        kinds = (compute,) * len(operator.initial)
        x = builder.tensor(self.dims, self.dtype, name="x")
        value = same_dims_chain(self.before, x, self.dtype, compute).build(builder, x, None, Layout(self.layout))
        others = [builder.tensor(self.dims, self.dtype, name="others") for _ in kinds[1:]]
        if self.op == "argmax":
            index = Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=self.axes[0])
            others, kinds = [builder.pointwise(index, x)], (compute, DataType.INT32)
        reduced = tuple(1 if axis in self.axes else extent for axis, extent in enumerate(self.dims))
        stored = [self.out or self.dtype, *([DataType.INT32] if self.op == "argmax" else [self.out or self.dtype])]
        results = []
        for kind, final in zip(kinds, stored, strict=False):
            store, final_type, after = stores(self.after, final)
            results.append((builder.output(reduced, kind, store, None, "y"), kind, final_type, after))
        outputs = tuple(y for y, _, _, _ in results)
        subgraph = operator_of(self.op, kinds, _FIRST_INNER_UID)
        axes = tuple(sorted(self.axes))
        builder.add(CustomReduction((value, *others), outputs, axes, operator.initial, subgraph))
        for y, kind, final_type, after in results:
            same_dims_chain(after, y, y.data_type, kind).build(builder, y, final_type, Layout(self.layout))
        return builder.graph()

    @property
    def length(self) -> int:
        return prod(self.dims[axis] for axis in self.axes)

    @property
    def is_exact(self) -> bool:
        return self.op != "logsumexp" and steps.is_exact(self.before) and steps.is_exact(self.after)

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if self.op == "affine" and tensor.name == "x":
            return unit_values(rng, tensor.dims, tensor.data_type)
        values = super()._values(rng, tensor, exact)
        if self.op == "logsumexp" and tensor.name == "others":
            return dtypes.from_float64(np.abs(dtypes.to_float64(values, tensor.data_type)), tensor.data_type)
        return values
