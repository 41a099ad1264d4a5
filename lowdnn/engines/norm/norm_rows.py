"""``norm_rows``: norms over any axes, forward and backward.

A team of threads owns each row, reads it once, and keeps it in registers and shared memory. The blocks of a cluster, or
of a whole cooperative grid, share few and long rows such as those of batch normalisation; what does not fit on chip
even then is read twice. If there are many rows that no cluster can hold, such as normalised channels of images, all
blocks share one row after the other and read each once.

Batch norms may have peers: ranks exchange their statistics within the launch, through buffers that ``ops.peer_stats``
lays out.
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
    """Norms by rows, as the module's docstring says."""

    name = "norm_rows"
    index = 20
    anchors: Anchors = (NormForward, NormBackward)
    limits = fused(*anchors)

    def rows_of(self, graph: OperationGraph) -> RowProblem | str:
        """One norm, forward or backward, with pointwise operations around it."""
        is_backward = any(isinstance(op, NormBackward) for op in graph.operations)
        return BackwardRows.of(graph) if is_backward else ForwardRows.of(graph)
