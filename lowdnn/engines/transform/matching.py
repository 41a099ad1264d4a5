"""The copies of a graph of moves: the parts of every stored tensor, as views of other stored tensors.

Virtual tensors are views, even after several operations, and are never stored. The exception is a reshape that cuts
across axes which no strides describe: its elements then lie in the workspace in row-major order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from lowdnn import dtypes
from lowdnn.engines.launch import WORKSPACE_ALIGNMENT_BYTES, aligned_bytes
from lowdnn.engines.transform.views import View
from lowdnn.enums import PointwiseMode, ReshapeMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation
from lowdnn.ops.concat import Concat
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.slice import Slice
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose
from lowdnn.plan import WorkspacePointer

Mover: TypeAlias = Transpose | Reshape | Slice
MOVES = (Transpose, Reshape, Slice, Concat)


@dataclass(frozen=True)
class Copy:
    """y = x, element by element, converted if the types differ; both views have the same dims."""

    x: View
    y: View


@dataclass(frozen=True)
class Stage:
    """Copies that depend on no other copy of the stage and write parts of one tensor; they share a launch if they
    fit."""

    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Moves:
    """All of a graph's copies, in the order in which they must run."""

    stages: tuple[Stage, ...]
    workspace_bytes: int = 0


class _Refused(Exception):
    """The reason why a graph is not only moves."""


def match(graph: OperationGraph) -> Moves | str:
    """The copies of ``graph``, or the reason why it is not only moves, concatenations and conversions."""
    try:
        return _Matcher(graph).moves()
    except _Refused as refused:
        return str(refused)


class _Matcher:
    def __init__(self, graph: OperationGraph) -> None:
        self._graph = graph
        self._stages: list[Stage] = []
        self._workspace_bytes = 0

    def moves(self) -> Moves:
        for operation in self._graph.operations:
            if not isinstance(operation, Mover | Concat) and not _is_conversion(operation):
                raise _Refused(f"operations: expected moves and conversions only, got {type(operation).__name__}")
        for operation in self._graph.operations:
            for tensor in (t for t in self._graph.outputs if self._graph.producer(t) is operation):
                self._store(operation, tensor)
        return Moves(tuple(self._stages), self._workspace_bytes)

    def _store(self, operation: Operation, output: Tensor) -> None:
        """The copies that fill ``output``."""
        y = View.of(output)
        if not isinstance(operation, Concat):
            self._stages.append(Stage((self._copy(operation, output, y),)))
            return
        copies = []
        for number, (tensor, start) in enumerate(zip(operation.inputs, operation.starts, strict=True)):
            if number != operation.in_place_index:
                first = tuple(start if axis == operation.axis else 0 for axis in range(output.rank))
                part = y.sliced(first, (1,) * output.rank, tensor.dims)
                copies.append(Copy(self._view(tensor, output), part))
        self._stages.append(Stage(tuple(copies)))

    def _copy(self, operation: Operation, output: Tensor, y: View) -> Copy:
        """The copy of an operation with one input."""
        x = self._view(_source(operation), output)
        if not isinstance(operation, Reshape) or operation.mode is ReshapeMode.VIEW_ONLY:
            return Copy(self._moved(operation, x), y)
        refined = x.refined(y) if output.element_count else (x, replace(y, dims=x.dims, strides=x.strides))
        return Copy(*refined) if refined is not None else Copy(self._packed(x, output.dims), y)

    def _view(self, tensor: Tensor, target: Tensor) -> View:
        """``tensor``, which is moved to ``target``, as a view of a stored tensor."""
        if tensor.is_scalar_value:
            raise _Refused(f"{tensor.label}: expected a tensor in device memory, got a value")
        operation = self._graph.producer(tensor)
        if operation is None or not tensor.is_virtual:
            return View.of(tensor)
        if isinstance(operation, Concat):
            raise _Refused(f"{tensor.label}: expected a concatenation to be stored, got a virtual tensor")
        x = self._moved(operation, self._view(_source(operation), tensor))
        if tensor.data_type not in (x.data_type, target.data_type):
            raise _Refused(
                f"{tensor.label}.data_type: expected {x.data_type.name} or {target.data_type.name}, what it comes from "
                f"or goes to, got {tensor.data_type.name}"
            )
        return x

    def _moved(self, operation: Operation, x: View) -> View:
        match operation:
            case Transpose():
                return x.transposed(operation.permutation)
            case Slice():
                return x.sliced(operation.start, operation.steps, operation.y.dims)
            case Reshape() if operation.mode is ReshapeMode.LOGICAL:
                return x.reshaped(operation.y.dims) or self._packed(x, operation.y.dims)
            case Reshape():
                return self._viewed(operation, x)
            case _:
                return x

    def _viewed(self, operation: Reshape, x: View) -> View:
        """The view after a VIEW_ONLY reshape, whose strides refer to those that the operation's x declares."""
        given = operation.x
        if x.strides != given.strides:
            raise _Refused(f"{given.label}: expected a tensor stored with strides {list(given.strides)} under a view")
        return replace(x, dims=operation.y.dims, strides=operation.y.strides)

    def _packed(self, x: View, dims: tuple[int, ...]) -> View:
        """The view of x's elements in the workspace, under ``dims``; adds the copy that puts them there."""
        target = WorkspacePointer(self._workspace_bytes)
        there = View.packed(target, x.data_type, x.dims, WORKSPACE_ALIGNMENT_BYTES)
        self._stages.append(Stage((Copy(x, there),)))
        self._workspace_bytes += aligned_bytes(prod(x.dims) * dtypes.info(x.data_type).size_bytes)
        return View.packed(target, x.data_type, dims, WORKSPACE_ALIGNMENT_BYTES)


def _source(operation: Operation) -> Tensor:
    """The tensor that an operation with one input reads."""
    tensor: Tensor = operation.x  # type: ignore[attr-defined]
    return tensor


def _is_conversion(operation: Operation) -> bool:
    """Whether an operation is an IDENTITY that only copies, in a compute type that holds every value of x."""
    if not isinstance(operation, PointwiseOperation) or operation.mode is not PointwiseMode.IDENTITY:
        return False
    x = operation.operands["x"]
    is_exact = operation.alpha1 == 1.0 and dtypes.holds(operation.pointwise.compute_type, x.data_type)
    return is_exact and x.dims == operation.output.dims
