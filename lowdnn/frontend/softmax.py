"""Softmax of pygraph and its gradient; cudnn-frontend's Python has neither."""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.enums import PointwiseMode, ReduceTensorOp
from lowdnn.frontend.arguments import boolean, integer, integers
from lowdnn.frontend.builder import GraphBuilder
from lowdnn.frontend.calls import operation
from lowdnn.frontend.data_types import DataTypeLike, data_type
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.nodes import PointwiseNode, PointwiseParameters
from lowdnn.frontend.norm_nodes import RowSumNode, SoftmaxNode

NOT_SET = data_type.NOT_SET


class SoftmaxMethods(GraphBuilder):
    """See the module's docstring."""

    @operation
    def softmax(
        self,
        input: Tensor,
        axis: int | Sequence[int] = -1,
        is_log: bool = False,
        generate_stats: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> tuple[Tensor, Tensor | None]:
        """(exp(input) / sum of exp(input), stats) over ``axis``, one or several, without overflow.

        is_log: its logarithm.  generate_stats: stats is the logarithm of the sum, otherwise None.
        """
        made = ("y", "stats") if boolean(generate_stats, "softmax.generate_stats") else ("y",)
        node = SoftmaxNode({"x": input}, made, _axes(axis, "softmax.axis"), boolean(is_log, "softmax.is_log"))
        y, *stats = self._add_all(node, compute_data_type, name)
        return y, stats[0] if stats else None

    @operation
    def softmax_backward(
        self,
        grad: Tensor,
        output: Tensor,
        axis: int | Sequence[int] = -1,
        is_log: bool = False,
        compute_data_type: DataTypeLike = NOT_SET,
        name: str = "",
    ) -> Tensor:
        """The gradient of ``softmax`` from its output: output * (grad - sum of grad * output); with is_log
        grad - exp(output) * sum of grad. Four operations: pointwise ones and a sum."""
        axes = _axes(axis, "softmax_backward.axis")
        numbers, label = iter(range(4)), self._label(name)

        def pointwise(mode: PointwiseMode, *operands: Tensor) -> Tensor:
            node = PointwiseNode(mode, operands, PointwiseParameters())
            return self._add(node, compute_data_type, f"{label}::{next(numbers)}")

        def row_sum(value: Tensor) -> Tensor:
            node = RowSumNode((value,), ReduceTensorOp.ADD, axes=axes)
            return self._add(node, compute_data_type, f"{label}::{next(numbers)}")

        if boolean(is_log, "softmax_backward.is_log"):
            shares = pointwise(PointwiseMode.EXP, output)
            return pointwise(PointwiseMode.SUB, grad, pointwise(PointwiseMode.MUL, shares, row_sum(grad)))
        total = row_sum(pointwise(PointwiseMode.MUL, grad, output))
        return pointwise(PointwiseMode.MUL, pointwise(PointwiseMode.SUB, grad, total), output)


def _axes(axis: int | Sequence[int], where: str) -> tuple[int, ...]:
    return integers(axis, where) if isinstance(axis, Sequence) else (integer(axis, where),)
