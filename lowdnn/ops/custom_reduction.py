"""Custom reduction: over ``axes``, a sub-graph of pointwise operations joins the elements of one or more tensors:

    y = initial o x[0] o x[1] o ... o x[n - 1]

Elements come in row-major order of ``axes``. The operator o joins states of one number for each pair of x and y, in the
pair's compute type. The tensors that the sub-graph is given first stand for the state on the left, the others for the
one on the right; its results are the joined state. Their data types are the compute types. x and the initial values are
converted to these. Initial values count once, as the state on the very left; over nothing they are the result. y is
rounded to its own type last.

The operator must be associative: states may be joined in any brackets, always the same for one plan, and never change
places. So argmax that takes the left one of equal elements gives the first of them. For another operator the result
depends on the plan (``engines.reduction.custom_reduction`` says which plans join from the left to the right).
Source: cudnn_graph.h, CUDNN_ATTR_OPERATION_REDUCTION_SUBGRAPH and its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode
from lowdnn.ops.base import Values
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import MAX_TENSORS, attribute, inner_operations, tensor_inputs, tensor_outputs
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError

_WHERE = "custom_reduction"
Array = NDArray[Any]


@dataclass(frozen=True)
class CustomReduction:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_REDUCTION
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.REDUCTION

    x: tuple[Tensor, ...] = tensor_inputs(AttributeName.OPERATION_REDUCTION_XDESC)
    y: tuple[Tensor, ...] = tensor_outputs(AttributeName.OPERATION_REDUCTION_YDESC)
    axes: tuple[int, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_DIMS, AttributeType.INT64, max_count=MAX_TENSORS
    )
    initial: tuple[int | float, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_INIT_VALUES, AttributeType.DOUBLE, max_count=MAX_TENSORS
    )
    operator: Subgraph = inner_operations(AttributeName.OPERATION_REDUCTION_SUBGRAPH)

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_shapes()
        self._check_ends()
        self._check_inside()

    @property
    def compute_types(self) -> tuple[DataType, ...]:
        """The compute type of each pair of x and y."""
        return tuple(tensor.data_type for tensor in self.left)

    @property
    def compute_type(self) -> DataType:
        """The least precise of the compute types."""
        return max(self.compute_types, key=lambda data_type: dtypes.info(data_type).epsilon)

    @property
    def operations(self) -> tuple[PointwiseOperation, ...]:
        """The pointwise operations of the operator."""
        return tuple(op for op in self.operator.operations if isinstance(op, PointwiseOperation))

    @property
    def left(self) -> tuple[Tensor, ...]:
        """The tensors that stand for the state on the left."""
        return self.operator.given[: len(self.y)]

    @property
    def right(self) -> tuple[Tensor, ...]:
        return self.operator.given[len(self.y) :]

    @property
    def flops(self) -> int:
        return self.x[0].element_count * max(1, len(self.operator.operations))

    def reference(self, inputs: Values) -> dict[str, Array]:
        kept = [axis for axis in range(self.x[0].rank) if axis not in self.axes]
        count = prod(self.x[0].dims[axis] for axis in self.axes)
        states = [
            dtypes.rounded(inputs[f"x[{i}]"], kind).transpose(*kept, *self.axes).reshape(-1, count)
            if count
            else np.zeros((self.y[0].element_count, 0))
            for i, kind in enumerate(self.compute_types)
        ]
        first = [
            np.broadcast_to(dtypes.rounded(np.asarray(value), kind), (self.y[0].element_count, 1))
            for value, kind in zip(self.initial, self.compute_types, strict=True)
        ]
        while states[0].shape[1] > 1:
            states = self._halved(inputs, states)
        joined = self._joined(inputs, first, states) if states[0].shape[1] else first
        return {f"y[{i}]": state.reshape(self.y[0].dims) for i, state in enumerate(joined)}

    def _halved(self, inputs: Values, states: list[Array]) -> list[Array]:
        """Neighbours joined; the last of an odd number stays as it is."""
        even = states[0].shape[1] // 2 * 2
        joined = self._joined(inputs, [s[:, :even:2] for s in states], [s[:, 1:even:2] for s in states])
        return [np.concatenate([pairs, s[:, even:]], 1) for pairs, s in zip(joined, states, strict=True)]

    def _joined(self, inputs: Values, left: list[Array], right: list[Array]) -> list[Array]:
        operator, shape = self.operator, left[0].shape
        inside = (*operator.given, *(op.output for op in operator.operations))
        sized = {t.uid: replace(t, dims=shape, strides=packed_strides(shape)) for t in inside}
        known = {tensor.uid: inputs[f"operator[{i}]"] for i, tensor in enumerate(operator.operands)}
        known |= {tensor.uid: state for tensor, state in zip(operator.given, (*left, *right), strict=True)}
        wide = operator.with_tensors(sized)
        return [wide.evaluated(made, known, rounds=True) for made in wide.made]

    def _check_counts(self) -> None:
        count = len(self.x)
        if not count:
            raise BadParamError.at(f"{_WHERE}.x", expected="at least one tensor", got="none")
        found = {"y": self.y, "initial": self.initial, "operator.made": self.operator.made}
        for name, values, wanted in (
            *((name, values, count) for name, values in found.items()),
            ("operator.given", self.operator.given, 2 * count),
        ):
            if len(values) != wanted:
                expected = f"{wanted}, since x has {count}"
                raise BadParamError.at(f"{_WHERE}.{name}", expected=expected, got=len(values))

    def _check_shapes(self) -> None:
        dims = self.x[0].dims
        if sorted(set(self.axes)) != [*self.axes] or not all(0 <= axis < len(dims) for axis in self.axes):
            expected = f"ascending axes from 0 to {len(dims) - 1}"
            raise BadParamError.at(f"{_WHERE}.axes", expected=expected, got=list(self.axes))
        reduced = tuple(1 if axis in self.axes else extent for axis, extent in enumerate(dims))
        for port, tensors, wanted in (("x", self.x, dims), ("y", self.y, reduced)):
            for i, tensor in enumerate(tensors):
                if tensor.dims != wanted:
                    where = f"{_WHERE}.{port}[{i}].dims"
                    raise ShapeMismatchError.at(where, expected=list(wanted), got=list(tensor.dims))

    def _check_inside(self) -> None:
        where, operator = f"{_WHERE}.operator", self.operator
        for op in operator.operations:
            if not isinstance(op, PointwiseOperation) or op.mode is PointwiseMode.GEN_INDEX:
                got = op.mode.name if isinstance(op, PointwiseOperation) else type(op).__name__
                raise NotSupportedError.at(where, expected="pointwise operations other than GEN_INDEX", got=got)
        for tensor in (*operator.given, *(op.output for op in operator.operations)):
            if tensor.element_count != 1:
                got_dims = list(tensor.dims)
                raise ShapeMismatchError.at(f"{where}.{tensor.label}.dims", expected="one element", got=got_dims)
        for tensor in operator.operands:
            if not tensor.is_scalar_value:
                expected = "constants and tensors by value beside what it is given"
                raise NotSupportedError.at(f"{where}.{tensor.label}", expected=expected, got="another tensor")

    def _check_ends(self) -> None:
        where, operator = f"{_WHERE}.operator", self.operator
        if len({tensor.uid for tensor in operator.given}) < len(operator.given):
            got = [tensor.uid for tensor in operator.given]
            raise BadParamError.at(f"{where}.given", expected="each tensor once", got=got)
        known = {tensor.uid for tensor in (*operator.given, *(op.output for op in operator.operations))}
        for made, right, kind in zip(operator.made, self.right, self.compute_types, strict=True):
            if made.uid not in known:
                expected = "a tensor that it is given or makes"
                raise BadParamError.at(f"{where}.made", expected=expected, got=made.label)
            for tensor in (right, made):
                if tensor.data_type is not kind:
                    got_type = tensor.data_type.name
                    raise BadParamError.at(f"{where}.{tensor.label}.data_type", expected=kind.name, got=got_type)
