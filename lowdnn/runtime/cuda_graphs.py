"""Plans as kernel nodes of CUDA graphs: adding the nodes, and giving them new device addresses later."""

from __future__ import annotations

from collections import OrderedDict

from lowdnn.runtime.loaded_plan import LoadedPlan, Pointers
from lowdnn.status import CudaGraphMismatchError

#: Graphs whose nodes are kept.
_MAX_GRAPHS = 4096


class CudaGraphs:
    """Nodes that plans were added as, by CUgraph; graphs that were populated longest ago are forgotten first."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[int, tuple[int, ...]] = OrderedDict()

    def populate(self, graph: int, loaded: LoadedPlan, pointers: Pointers, workspace: int) -> None:
        """Adds the plan's launches to ``graph``, one after the other. Raises what ``add_to_graph`` raises."""
        self._nodes[graph] = loaded.add_to_graph(graph, pointers, workspace)
        self._nodes.move_to_end(graph)
        if len(self._nodes) > _MAX_GRAPHS:
            self._nodes.popitem(last=False)

    def update(self, graph: int, loaded: LoadedPlan, pointers: Pointers, workspace: int, where: str) -> None:
        """Gives the nodes of the plan new addresses; graphs made of ``graph`` before keep the old ones.

        Where no plan was added to ``graph`` itself, as in a copy that a node of another graph holds, the plan's nodes
        are all that it has.

        Raises CudaGraphMismatchError for a graph without nodes, which names the argument ``where``, or with nodes of
        another plan.
        """
        with loaded.context.activated():
            present = loaded.context.driver.graph_nodes(graph)
        if not present:
            rule = "a graph to which a plan was added"
            raise CudaGraphMismatchError.at(where, expected=rule, got=f"{graph:#x}", hint="populate it first")
        remembered = self._nodes.get(graph, ())
        # A graph may lie where an older one lay that was populated, whose nodes it does not have.
        nodes = remembered if remembered and set(remembered) <= set(present) else present
        loaded.update_nodes(graph, nodes, pointers, workspace)
