"""A builder of graphs in several passes, each a reduction or pointwise operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from lowdnn.engines.base import Engine
from lowdnn.engines.norm.running import carried_on
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, outputs_of
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, output_dims
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides

_REDUCTION, _POINTWISE = ReductionEngine(), PointwiseEngine()


@dataclass(frozen=True)
class Part:
    """The graph of one pass, and the engine that runs it."""

    engine: Engine
    graph: OperationGraph


@dataclass(frozen=True)
class Passes:
    """The passes in order, and the tensors in the workspace that connect them."""

    parts: tuple[Part, ...]
    in_workspace: tuple[Tensor, ...]


class PassBuilder:
    """Collects operations into passes, which ``close_reduction`` and ``close_pointwise`` end.

    Arithmetic is in ``compute_type``. New tensors have uids after ``last_uid``; those in memory lie in the workspace.
    """

    def __init__(self, compute_type: DataType, last_uid: int) -> None:
        self._compute_type = compute_type
        self._last_uid = last_uid
        self._operations: list[Operation] = []
        self._parts: list[Part] = []
        self._in_workspace: list[Tensor] = []

    def compute_in(self, compute_type: DataType) -> None:
        """Sets the compute type of the operations that follow, and the type of their new tensors."""
        self._compute_type = compute_type

    def passes(self) -> Passes:
        return Passes(tuple(self._parts), tuple(self._in_workspace))

    def close_reduction(self) -> None:
        """Ends a pass that is a reduction with pointwise operations around it."""
        self._close(_REDUCTION)

    def close_pointwise(self) -> None:
        self._close(_POINTWISE)

    def add(self, operations: Iterable[Operation]) -> None:
        """Adds operations of the graph unchanged."""
        self._operations += operations

    def reduce(self, operator: ReduceTensorOp, x: Tensor, y: Tensor) -> None:
        self._operations.append(ReductionOperation(Reduction(operator, self._compute_type), x=x, y=y))

    def gen_stats(self, x: Tensor, total: Tensor, squares: Tensor) -> None:
        self._operations.append(GenStats(x, total, squares, self._compute_type))

    def pointwise(
        self, mode: PointwiseMode, x: Tensor, b: Tensor | None = None, output: Tensor | None = None, factor: float = 1.0
    ) -> Tensor:
        """Adds a pointwise operation and returns its output.  factor: the scalar factor of the last operand."""
        like = x if b is None or x.dims == output_dims({"x": x.dims, "b": b.dims}) else b
        y = self.virtual(like) if output is None else output
        alpha1, alpha2 = (factor, 1.0) if b is None else (1.0, factor)
        arithmetic = Pointwise(mode, self._compute_type)
        self._operations.append(PointwiseOperation(arithmetic, x=x, b=b, y=y, alpha1=alpha1, alpha2=alpha2))
        return y

    def store(self, value: Tensor, wanted: Tensor | None) -> None:
        """Copies ``value`` to a tensor of the graph, unless it is that tensor."""
        if wanted is not None and wanted.uid != value.uid:
            self.pointwise(PointwiseMode.IDENTITY, value, output=wanted)

    def finite(self, value: Tensor, output: Tensor) -> None:
        """Writes ``value`` to ``output``, or 0 where it is not a finite number."""
        rest = self.pointwise(PointwiseMode.SUB, value, value)
        is_finite = self.pointwise(PointwiseMode.CMP_EQ, rest, rest)
        zero = replace(self.of_dims((1,) * value.rank), is_virtual=False, constant_value=0.0)
        select = Pointwise(PointwiseMode.BINARY_SELECT, self._compute_type)
        self._operations.append(PointwiseOperation(select, x=value, b=zero, t=is_finite, y=output))

    def carry_on(self, value: Tensor, factor: Tensor | None, before: Tensor | None, after: Tensor | None) -> None:
        """Updates a running statistic, if there is one."""
        if factor is not None and before is not None and after is not None:
            uids = count(self._last_uid + 1)
            self._operations += carried_on(value, factor, before, after, self._compute_type, uids)
            self._last_uid = next(uids)

    def exact(self, wanted: Tensor | None, dims: tuple[int, ...]) -> Tensor:
        """A tensor in memory of the arithmetic's type: ``wanted`` itself, or a new one in the workspace."""
        if wanted is not None and wanted.data_type is self._compute_type:
            return wanted
        tensor = replace(self.of_dims(dims), is_virtual=False)
        self._in_workspace.append(tensor)
        return tensor

    def virtual(self, like: Tensor) -> Tensor:
        """A new virtual tensor with the dims and the layout of ``like``."""
        return replace(self.of_dims(like.dims), strides=like.strides)

    def of_dims(self, dims: tuple[int, ...]) -> Tensor:
        """A new virtual tensor with packed strides."""
        self._last_uid += 1
        return Tensor(self._last_uid, self._compute_type, dims, packed_strides(dims), 16, is_virtual=True)

    def _close(self, engine: Engine) -> None:
        """Ends a pass, and drops it if it stores nothing because nothing reads its result."""
        stored = (tensor for op in self._operations for tensor in outputs_of(op).values() if not tensor.is_virtual)
        if next(stored, None) is not None:
            self._parts.append(Part(engine, OperationGraph(self._operations)))
        self._operations = []
