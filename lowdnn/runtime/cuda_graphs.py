"""The CUDA graphs that plans were added to, with their nodes."""

from __future__ import annotations

from collections import OrderedDict

from lowdnn.status import CudaGraphMismatchError

#: Graphs whose nodes are kept.
_MAX_GRAPHS = 4096


class CudaGraphs:
    """Nodes by CUgraph; graphs that were populated longest ago are forgotten first.

    A graph at the address of an older one takes its place when it is populated.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def remember(self, graph: int, nodes: tuple[int, ...]) -> None:
        self._nodes[graph] = nodes
        self._nodes.move_to_end(graph)
        if len(self._nodes) > _MAX_GRAPHS:
            self._nodes.popitem(last=False)

    def nodes(self, graph: int, where: str) -> tuple[int, ...]:
        """Raises CudaGraphMismatchError, which names the argument ``where``, for a graph that no plan was added to."""
        found = self._nodes.get(graph)
        if found is None:
            rule = "a graph to which a plan was added"
            raise CudaGraphMismatchError.at(where, expected=rule, got=f"{graph:#x}", hint="populate it first")
        return found
