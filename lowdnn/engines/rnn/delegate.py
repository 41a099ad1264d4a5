"""Parts of a recurrent network that other engines compute: products, sums of columns, transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine, keeps_precision
from lowdnn.engines.delegation import fastest_plan
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rnn.array import Array
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Plan


class Delegate:
    """Adds launches of ``engines`` to ``parts``.

    keeps_precision: whether FLOAT is multiplied as it is. Equal graphs, of other addresses, are planned once.
    """

    def __init__(
        self,
        parts: PlanParts,
        engines: Sequence[Engine],
        arch: ArchSpec,
        compute_type: DataType,
        *,
        keeps_precision: bool,
    ) -> None:
        self._parts, self._engines, self._arch, self._compute_type = parts, tuple(engines), arch, compute_type
        self._keeps_precision = keeps_precision
        self._plans: dict[tuple[str, tuple[Tensor, ...]], Plan] = {}

    def multiply(self, a: Array, b: Array, c: Array, added: Array | None = None) -> None:
        """c = a * b, or c = a * b + added, of arrays (rows, k), (k, columns) and (rows, columns), or of as many of each
        along a further axis, or of rows with two axes, in a and in c, that both may have as one."""
        has_two_axes = len(a.dims) == 3 and len(b.dims) == 2
        if has_two_axes and a.is_mergeable and c.is_mergeable and (added is None or added.is_mergeable):
            self.multiply(a.merged(), b, c.merged(), added and added.merged())
            return
        matmul = Matmul(self._compute_type)
        self._add("multiply", partial(MatmulOperation, matmul), [_of_rank(array, 3) for array in (a, b, c)], added)

    def sum_rows(self, x: Array, y: Array, added: Array | None = None) -> None:
        """y = the sum of x over the axes along which y has one element, or that sum and ``added``."""
        reduction = Reduction(ReduceTensorOp.ADD, self._compute_type)
        self._add("sum", partial(ReductionOperation, reduction), [x, y], added)

    def copy(self, x: Array, y: Array) -> None:
        """y = x."""
        pointwise = Pointwise(PointwiseMode.IDENTITY, self._compute_type)
        self._add("copy", lambda x, y: PointwiseOperation(pointwise, x, y=y), [x, y])

    def _add(
        self, kind: str, operation: Callable[..., Operation], arrays: list[Array], added: Array | None = None
    ) -> None:
        """Adds ``operation`` on ``arrays``, the last of which is the result, or the sum of it and ``added``."""
        places = [*arrays, *([_of_rank(added, len(arrays[-1].dims))] if added else [])]
        tensors = tuple(array.tensor(uid) for uid, array in enumerate(places))
        key = (kind, tensors)
        if key not in self._plans:
            self._plans[key] = self._planned(operation, tensors[: len(arrays)], tensors[len(arrays) :])
        self._parts.add_plan(self._plans[key], {uid: array.pointer for uid, array in enumerate(places)})

    def _planned(
        self, operation: Callable[..., Operation], tensors: tuple[Tensor, ...], added: tuple[Tensor, ...]
    ) -> Plan:
        operations, result = [operation(*tensors)], tensors[-1]
        for addend in added:
            between = Tensor(
                addend.uid + 1,
                self._compute_type,
                result.dims,
                packed_strides(result.dims),
                dtypes.info(self._compute_type).size_bytes,
                is_virtual=True,
            )
            addition = Pointwise(PointwiseMode.ADD, self._compute_type)
            operations = [operation(*tensors[:-1], between), PointwiseOperation(addition, between, addend, y=result)]
        graph, engines = OperationGraph(operations), self._engines
        if self._keeps_precision:
            engines = tuple(engine for engine in engines if keeps_precision(engine, graph))
        return fastest_plan(engines, graph, self._arch)


def _of_rank(array: Array, rank: int) -> Array:
    """``array`` with axes of one element in front."""
    more = rank - len(array.dims)
    return replace(array, dims=(1,) * more + array.dims, strides=(0,) * more + array.strides)
