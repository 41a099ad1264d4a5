"""``softmax``: softmax, its logarithm and their gradients over any axes.

A team of threads owns each row, reads it once and caches it in registers; a longer row is read twice.
"""

from __future__ import annotations

from lowdnn.engines.base import Anchors
from lowdnn.engines.limits import fused
from lowdnn.engines.rows.engine import RowEngine, RowProblem
from lowdnn.engines.softmax.backward import BackwardSoftmax
from lowdnn.engines.softmax.forward import ForwardSoftmax
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.softmax import Softmax


class SoftmaxEngine(RowEngine):
    """Softmax by rows, as the module's docstring says."""

    name = "softmax"
    index = 21
    anchors: Anchors = (Softmax, ReductionOperation)
    limits = fused(*anchors)

    def rows_of(self, graph: OperationGraph) -> RowProblem | str:
        """One softmax, or its gradient, with pointwise operations around it."""
        is_forward = any(isinstance(op, Softmax) for op in graph.operations)
        return ForwardSoftmax.of(graph) if is_forward else BackwardSoftmax.of(graph)
