"""A reduction as its descriptor has it: by an operator that has a name, or by one that a sub-graph describes.

With ``subgraph`` it stands for a ``CustomReduction`` of x and y over ``axes``; otherwise for a ``ReductionOperation``
of one x and one y. Where an extent of y is a part of x's, an element of y is made of neighbours along that axis of x:
``group_dims`` has two axes for it, of which y lacks the second.

Tensors of the sub-graph are named by their uids, one for each y: what holds the joined elements so far
(``accumulator_uids``), what holds the next ones (``current_uids``) and what is made of both (``output_uids``). They
have one element, and hold numbers of ``compute_types``, whatever type they are declared with; these are by default the
types of y.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar, Protocol

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.base import HasPorts, inputs_of, outputs_of, with_tensors
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import MAX_TENSORS, attribute, tensor_inputs, tensor_outputs
from lowdnn.status import BadParamError, NotSupportedError

_WHERE = "reduction"
#: Fields that only one of the two forms has.
_OF_SUBGRAPHS = ("axes", "initial", "accumulator_uids", "current_uids", "output_uids", "compute_types")


#: Alignment in bytes of numbers in registers: one that suits every data type.
_ALIGNMENT_BYTES = 16


class Operator(Protocol):
    """Operations between numbers."""

    @property
    def operations(self) -> tuple[HasPorts, ...]: ...


@dataclass(frozen=True)
class DescribedReduction:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_REDUCTION

    x: tuple[Tensor, ...] = tensor_inputs(AttributeName.OPERATION_REDUCTION_XDESC)
    y: tuple[Tensor, ...] = tensor_outputs(AttributeName.OPERATION_REDUCTION_YDESC)
    reduction: Reduction | None = attribute(
        AttributeName.OPERATION_REDUCTION_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.REDUCTION,
        default=None,
    )
    axes: tuple[int, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_DIMS, AttributeType.INT64, max_count=MAX_TENSORS, default=()
    )
    initial: tuple[int | float, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_INIT_VALUES,
        AttributeType.VOID_PTR,
        AttributeType.DOUBLE,
        AttributeType.FLOAT,
        AttributeType.INT64,
        max_count=MAX_TENSORS,
        pointee=AttributeName.OPERATION_REDUCTION_YDESC,
        default=(),
    )
    subgraph: Operator | None = attribute(
        AttributeName.OPERATION_REDUCTION_SUBGRAPH,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATIONGRAPH,
        default=None,
    )
    accumulator_uids: tuple[int, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_SUBGRAPH_ACCUMULATOR_UIDS,
        AttributeType.INT64,
        max_count=MAX_TENSORS,
        default=(),
    )
    current_uids: tuple[int, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_SUBGRAPH_CURRENT_UIDS, AttributeType.INT64, max_count=MAX_TENSORS, default=()
    )
    output_uids: tuple[int, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_SUBGRAPH_OUTPUT_UIDS, AttributeType.INT64, max_count=MAX_TENSORS, default=()
    )
    compute_types: tuple[DataType, ...] = attribute(
        AttributeName.OPERATION_REDUCTION_SUBGRAPH_COMPUTE_TYPES,
        AttributeType.DATA_TYPE,
        max_count=MAX_TENSORS,
        default=(),
    )

    def __post_init__(self) -> None:
        if (self.reduction is None) == (self.subgraph is None):
            got = "neither" if self.reduction is None else "both"
            raise BadParamError.at(_WHERE, expected="either a REDUCTION descriptor or a sub-graph", got=got)
        self.operation(count(-1, -1).__next__)

    def operation(self, new_uid: Callable[[], int]) -> ReductionOperation | CustomReduction:
        """The operation that the descriptor stands for; raises that operation's errors.

        new_uid: uids for the tensors of the sub-graph, which are its own, those by value apart.
        """
        if self.subgraph is not None:
            operator = self._operator(self.subgraph.operations, new_uid)
            return CustomReduction(self.x, self.y, self.axes, self.initial, operator)
        for name in _OF_SUBGRAPHS:
            if getattr(self, name):
                raise BadParamError.at(f"{_WHERE}.{name}", expected="none without a sub-graph", got=getattr(self, name))
        if self.reduction is None or (len(self.x), len(self.y)) != (1, 1):
            got = f"{len(self.x)} and {len(self.y)}"
            raise BadParamError.at(f"{_WHERE}.x, y", expected="one tensor each without a sub-graph", got=got)
        x, y = self.x[0], self.y[0]
        if self.has_groups:  # the checks are those of the same reduction to extents of 1
            y = replace(y, dims=tuple(1 if _is_grouped(*pair) else pair[1] for pair in self._extents))
        return ReductionOperation(self.reduction, x, y)

    @property
    def has_groups(self) -> bool:
        """Whether an element of y is made of some neighbours along an axis of x, which has more of them."""
        return any(_is_grouped(*pair) for pair in self._extents)

    @property
    def group_dims(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dims of x with an axis for the groups and one for their elements, and the axes that y does not have."""
        dims: list[int] = []
        axes: list[int] = []
        for source, target in self._extents:
            if _is_grouped(source, target):
                axes.append(len(dims) + 1)
                dims += (target, source // target)
            else:
                axes += [len(dims)] * (target != source)
                dims.append(source)
        return tuple(dims), tuple(axes)

    @property
    def _extents(self) -> list[tuple[int, int]]:
        """Pairs of extents of x and y, where they are one tensor each without a sub-graph; otherwise none."""
        is_plain = self.subgraph is None and (len(self.x), len(self.y)) == (1, 1)
        return list(zip(self.x[0].dims, self.y[0].dims, strict=False)) if is_plain else []

    def _operator(self, operations: tuple[HasPorts, ...], new_uid: Callable[[], int]) -> Subgraph:
        """The sub-graph on virtual tensors with new uids, its ends in the compute types."""
        kinds = self.compute_types or tuple(tensor.data_type for tensor in self.y)
        tensors = {t.uid: t for op in operations for t in (inputs_of(op) | outputs_of(op)).values()}
        ends: dict[int, DataType] = {}
        for name in ("accumulator_uids", "current_uids", "output_uids"):
            uids = getattr(self, name)
            if not len(uids) == len(kinds) == len(self.y):
                got = f"{len(uids)} uids and {len(kinds)} compute types"
                raise BadParamError.at(f"{_WHERE}.{name}", expected=f"{len(self.y)}, one for each y", got=got)
            ends |= dict(zip(uids, kinds, strict=True))
        missing = sorted(uid for uid in ends if uid not in tensors or tensors[uid].is_scalar_value)
        if missing:
            expected = "tensors without a value of their own of these uids"
            raise BadParamError.at(f"{_WHERE}.subgraph", expected=expected, got=f"none of {missing}")
        own = {uid: _own(t, new_uid(), ends.get(uid)) for uid, t in tensors.items() if not t.is_by_value}
        given = (own[uid] for uid in (*self.accumulator_uids, *self.current_uids))
        made = (own[uid] for uid in self.output_uids)
        return Subgraph(tuple(given), tuple(made), tuple(_pointwise(op, own) for op in operations))


def _is_grouped(source: int, target: int) -> bool:
    return 1 < target < source and source % target == 0


def _own(tensor: Tensor, uid: int, data_type: DataType | None) -> Tensor:
    """``tensor`` under another uid: a constant as it is, otherwise virtual, of ``data_type`` where it is an end."""
    if tensor.constant_value is not None:
        return replace(tensor, uid=uid)
    kind = data_type or tensor.data_type
    return replace(tensor, uid=uid, is_virtual=True, data_type=kind, alignment_bytes=_ALIGNMENT_BYTES)


def _pointwise(op: HasPorts, tensors: Mapping[int, Tensor]) -> PointwiseOperation:
    if not isinstance(op, PointwiseOperation):
        raise NotSupportedError.at(f"{_WHERE}.subgraph", expected="pointwise operations", got=type(op).__name__)
    return with_tensors(op, tensors)
