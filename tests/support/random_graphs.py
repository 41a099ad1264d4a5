"""Random operation graphs over small integers: every order of evaluation gives the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.builder import GraphBuilder, Layout
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor

_UNARY = (PointwiseMode.ABS, PointwiseMode.NEG, PointwiseMode.RELU_FWD, PointwiseMode.IDENTITY)
_BINARY = (
    PointwiseMode.ADD,
    PointwiseMode.SUB,
    PointwiseMode.MIN,
    PointwiseMode.MAX,
    PointwiseMode.CMP_GT,
    PointwiseMode.LOGICAL_OR,
)
_REDUCTIONS = (ReduceTensorOp.ADD, ReduceTensorOp.MIN, ReduceTensorOp.MAX, ReduceTensorOp.AMAX)
_STORED_ONE_IN = 3


def random_graph(rng: np.random.Generator, operations: int) -> OperationGraph:
    """A graph of ``operations`` pointwise operations, reductions and at most one matrix product, in fp32.

    Some intermediates are stored, and operands repeat along random axes. Values stay integers under 2**24.
    """
    return _Growth(rng).grown(operations)


class _Growth:
    """A graph that grows by one operation at a time from the tensors that it has."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._builder = GraphBuilder()
        self._dims = tuple(int(extent) for extent in rng.integers(1, 10, rng.integers(2, 4)))
        self._values = [self._input(self._dims)]
        self._has_product = False

    def grown(self, operations: int) -> OperationGraph:
        steps: list[Callable[[DataType | None], Tensor]] = [self._unary, self._binary, self._scale, self._reduction]
        for number in range(operations):
            is_stored = number == operations - 1 or self._rng.integers(_STORED_ONE_IN) == 0
            may_multiply = not self._has_product and self._rng.integers(4) == 0
            step = self._product if may_multiply else steps[self._rng.integers(len(steps))]
            self._values.append(step(DataType.FLOAT if is_stored else None))
        return self._builder.graph()

    def _pick(self) -> Tensor:
        """A tensor of the graph, recent ones more often."""
        return self._values[max(self._rng.integers(len(self._values), size=2))]

    def _input(self, dims: tuple[int, ...]) -> Tensor:
        layout = (Layout.ROW_MAJOR, Layout.TRANSPOSED, Layout.PADDED)[self._rng.integers(3)]
        return self._builder.tensor(dims, DataType.FLOAT, layout=layout)

    def _repeating_input(self, dims: tuple[int, ...]) -> Tensor:
        return self._input(tuple(extent if self._rng.integers(2) else 1 for extent in dims))

    def _unary(self, store: DataType | None) -> Tensor:
        return self._builder.pointwise(_UNARY[self._rng.integers(len(_UNARY))], self._pick(), store=store)

    def _binary(self, store: DataType | None) -> Tensor:
        left, right = self._pick(), self._pick()
        if not all(a == b or 1 in (a, b) for a, b in zip(left.dims, right.dims, strict=True)):
            right = self._repeating_input(left.dims)
        return self._builder.pointwise(_BINARY[self._rng.integers(len(_BINARY))], left, right, store=store)

    def _scale(self, store: DataType | None) -> Tensor:
        value = self._pick()
        return self._builder.pointwise(PointwiseMode.MUL, value, self._repeating_input(value.dims), store=store)

    def _reduction(self, store: DataType | None) -> Tensor:
        value = self._pick()
        axes = tuple(axis for axis in range(value.rank) if self._rng.integers(2))
        return self._builder.reduction(_REDUCTIONS[self._rng.integers(len(_REDUCTIONS))], value, axes, store=store)

    def _product(self, store: DataType | None) -> Tensor:
        self._has_product = True
        value = self._pick()
        weights = self._input((*value.dims[:-2], value.dims[-1], int(self._rng.integers(1, 12))))
        return self._builder.matmul(value, weights, store=store)
