"""``norm_rows``: norms over any axes, forward and backward: each row is owned by a team of threads, which reads it once
and holds it in registers and shared memory. Few and long rows, as those of batch normalisation, are shared by the
blocks of a cluster or of a whole cooperative grid; what does not fit on chip then is read twice. Where there are many
rows that no cluster holds, as images of normalised channels, all blocks share one after the other, and read each once.
"""

from __future__ import annotations

from lowdnn.engines.base import Anchors
from lowdnn.engines.limits import fused
from lowdnn.engines.norm.backward import BackwardRows
from lowdnn.engines.norm.forward import ForwardRows
from lowdnn.engines.rows.engine import RowEngine, RowProblem
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward


class NormRows(RowEngine):
    """See the module's docstring."""

    name = "norm_rows"
    index = 20
    anchors: Anchors = (NormForward, NormBackward)
    limits = fused(*anchors)

    def rows_of(self, graph: OperationGraph) -> RowProblem | str:
        """One norm, forward or backward, with pointwise operations around it."""
        is_backward = any(isinstance(op, NormBackward) for op in graph.operations)
        return BackwardRows.of(graph) if is_backward else ForwardRows.of(graph)
