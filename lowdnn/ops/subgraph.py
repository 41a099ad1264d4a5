"""Operations inside of another one, element by element, between tensors that never lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DescriptorType, PointwiseMode
from lowdnn.ops.base import inputs_of, outputs_of, with_tensors
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import MAX_TENSORS, attribute
from lowdnn.status import BadParamError

#: Modes that a common factor passes through.
_LINEAR = (PointwiseMode.MUL, PointwiseMode.IDENTITY)

InnerOperation = PointwiseOperation | RngOperation


@dataclass(frozen=True)
class Subgraph:
    """given: tensors that the outer operation computes.  made: the tensors that it goes on with, one for each of them,
    which may be the same.  operations: in topological order; they write virtual tensors alone.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATIONGRAPH

    given: tuple[Tensor, ...] = attribute(
        AttributeName.OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID,
        AttributeType.BACKEND_DESCRIPTOR,
        max_count=MAX_TENSORS,
        descriptor=DescriptorType.TENSOR,
    )
    made: tuple[Tensor, ...] = attribute(
        AttributeName.OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID,
        AttributeType.BACKEND_DESCRIPTOR,
        max_count=MAX_TENSORS,
        descriptor=DescriptorType.TENSOR,
    )
    operations: tuple[InnerOperation, ...] = attribute(
        AttributeName.OPERATIONGRAPH_OPS,
        AttributeType.BACKEND_DESCRIPTOR,
        max_count=MAX_TENSORS,
        descriptor=DescriptorType.OPERATION_POINTWISE,
        default=(),
    )

    def __post_init__(self) -> None:
        for op in self.operations:
            if not isinstance(op, InnerOperation):
                expected = "pointwise operations and random numbers"
                raise BadParamError.at("subgraph.operations", expected=expected, got=type(op).__name__)
            if not op.output.is_virtual:
                expected = "a virtual tensor inside of another operation"
                raise BadParamError.at(f"subgraph.{op.output.label}", expected=expected, got="one that is stored")

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that are read from outside, in order of first use."""
        inside = {tensor.uid for tensor in (*self.given, *(op.output for op in self.operations))}
        read = {tensor.uid: tensor for op in self.operations for tensor in inputs_of(op).values()}
        return tuple(tensor for uid, tensor in read.items() if uid not in inside)

    def with_tensors(self, tensors: Mapping[int, Tensor]) -> Subgraph:
        return replace(self, operations=tuple(with_tensors(op, tensors) for op in self.operations))

    def operations_to(self, made: Tensor) -> tuple[InnerOperation, ...]:
        """The operations that ``made`` depends on."""
        wanted, needed = {made.uid}, []
        for op in reversed(self.operations):
            if op.output.uid in wanted:
                needed.append(op)
                wanted |= {tensor.uid for tensor in inputs_of(op).values()}
        return tuple(reversed(needed))

    def evaluated(self, made: Tensor, known: Mapping[int, NDArray[Any]], *, rounds: bool) -> NDArray[Any]:
        """The value of ``made``.  known: values, by uid, of the tensors from outside that it depends on.

        rounds: whether each result is rounded to its tensor's data type.
        """
        values = dict(known)
        for op in self.operations_to(made):
            operands = {port: values[tensor.uid] for port, tensor in inputs_of(op).items()}
            ((port, result),) = op.reference(operands).items()
            tensor = outputs_of(op)[port]
            values[tensor.uid] = dtypes.rounded(result, tensor.data_type) if rounds else result
        return values[made.uid]


def are_products(x: Tensor, operations: Iterable[InnerOperation]) -> bool:
    """Whether every value that depends on ``x`` is ``x`` times values that do not."""
    dependent = {x.uid}
    for op in operations:
        reads = [tensor for tensor in inputs_of(op).values() if tensor.uid in dependent]
        if not reads:
            continue
        if not isinstance(op, PointwiseOperation) or op.mode not in _LINEAR or len(reads) > 1:
            return False
        dependent.add(op.output.uid)
    return True
