"""Graph calls of the emulated device beyond kernels: copies, fills, child graphs, and dependencies.

``Driver`` does not have these calls. The stand-in for the CUDA runtime needs them, since programs build graphs by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lowdnn.driver.emulated.context import Contexts
from lowdnn.driver.emulated.graphs import Child, Graph, HostWork, Node, OtherWork
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.moves import fill, on_device, to_device, to_host
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.emulated.state import DeviceState, find, stream_of
from lowdnn.driver.emulated.streams import graph_handle
from lowdnn.driver.results import CuResult


class GraphCalls:
    """Each method is a call of the driver and raises DriverError as that does."""

    def __init__(self, context: Contexts) -> None:
        self._context = context

    def add_copy(
        self, graph: int, dependencies: Sequence[int], destination: int, source: int, size_bytes: int, *, kind: str
    ) -> int:
        """A node that copies when it runs; ``kind``: htod, dtoh or dtod."""
        with self._context.entered("cuGraphAddMemcpyNode", graph, destination, source) as state:
            work = _copy(state, destination, source, size_bytes, kind)
            return added(state, "cuGraphAddMemcpyNode", graph, dependencies, work)

    def set_copy(self, node: int, destination: int, source: int, size_bytes: int, *, kind: str) -> None:
        """Another copy for a node of ``add_copy``."""
        with self._context.entered("cuGraphMemcpyNodeSetParams", node, destination, source) as state:
            work = _copy(state, destination, source, size_bytes, kind)
            _replace(state, "cuGraphMemcpyNodeSetParams", node, work)

    def add_fill(
        self, graph: int, dependencies: Sequence[int], destination: int, value: int, count: int, width_bytes: int
    ) -> int:
        """A node that writes ``count`` times ``value`` in ``width_bytes`` bytes."""
        with self._context.entered("cuGraphAddMemsetNode", graph, destination, value, count) as state:
            work = fill(state.memory, destination, value, count, width_bytes)
            return added(state, "cuGraphAddMemsetNode", graph, dependencies, work)

    def set_fill(self, node: int, destination: int, value: int, count: int, width_bytes: int) -> None:
        """Another fill for a node of ``add_fill``."""
        with self._context.entered("cuGraphMemsetNodeSetParams", node, destination, value, count) as state:
            _replace(
                state, "cuGraphMemsetNodeSetParams", node, fill(state.memory, destination, value, count, width_bytes)
            )

    def add_host(self, graph: int, dependencies: Sequence[int], function: Callable[[], None]) -> int:
        """A node that calls a function of the host, which must not call the driver."""
        with self._context.entered("cuGraphAddHostNode", graph) as state:
            return added(state, "cuGraphAddHostNode", graph, dependencies, HostWork(function))

    def set_host(self, node: int, function: Callable[[], None]) -> None:
        """Another function for a node of ``add_host``."""
        with self._context.entered("cuGraphHostNodeSetParams", node) as state:
            _replace(state, "cuGraphHostNodeSetParams", node, HostWork(function))

    def add_child(self, graph: int, dependencies: Sequence[int], child: int) -> int:
        """A node that runs a copy of the graph ``child``."""
        call = "cuGraphAddChildGraphNode"
        with self._context.entered(call, graph, child) as state:
            inside = find(state.graphs, call, child).embedded(state.system.handles)
            return added(state, call, graph, dependencies, Child(inside, state.add(state.graphs, inside)))

    def child(self, node: int) -> int:
        """The graph in a node of ``add_child``."""
        call = "cuGraphChildGraphNodeGetGraph"
        with self._context.entered(call, node) as state:
            work = _graph_of(state, call, node).nodes[node]
            if not isinstance(work, Child):
                raise driver_error(call, CuResult.INVALID_VALUE, f"{node:#x}", "not a node with a graph")
            return work.handle

    def retain(self, graph: int, value: object) -> None:
        """Keeps a reference to ``value`` as long as the graph, its copies and what is instantiated of them."""
        with self._context.entered("cuGraphRetainUserObject", graph) as state:
            find(state.graphs, "cuGraphRetainUserObject", graph).retained.append(value)

    def captured(self, stream: int) -> int:
        """The graph that a stream is being captured to, which ``stream_end_capture`` will return; 0 for none."""
        with self._context.entered("cuStreamGetCaptureInfo", stream) as state:
            capture = stream_of(state, stream).capture
            return 0 if capture is None else graph_handle(state, capture)

    def roots(self, graph: int) -> tuple[int, ...]:
        """The nodes without dependencies."""
        with self._context.entered("cuGraphGetRootNodes", graph) as state:
            found = find(state.graphs, "cuGraphGetRootNodes", graph)
            return tuple(node for node in found.nodes if not found.needed_by(node))

    def dependents(self, node: int) -> tuple[int, ...]:
        """The nodes that depend on ``node`` itself."""
        with self._context.entered("cuGraphNodeGetDependentNodes", node) as state:
            found = _graph_of(state, "cuGraphNodeGetDependentNodes", node)
            return tuple(other for other in found.nodes if node in found.needed_by(other))


def added(state: DeviceState, call: str, graph: int, dependencies: Sequence[int], work: Node) -> int:
    """The new node of ``work`` in a graph, after nodes of it."""
    found = find(state.graphs, call, graph)
    for dependency in dependencies:
        find(found.nodes, call, dependency)
    if len(set(dependencies)) < len(dependencies):
        raise driver_error(call, CuResult.INVALID_VALUE, f"{graph:#x}", "a dependency twice")
    node = state.add(found.nodes, work)
    found.dependencies[node] = tuple(dependencies)
    return node


def destroyed(state: DeviceState, graph: int) -> None:
    """Ends a graph and those in its nodes."""
    found = find(state.graphs, "cuGraphDestroy", graph)
    del state.graphs[graph]
    for child in _children(found.nodes.values()):
        destroyed(state, child.handle)


def _children(works: Iterable[Node]) -> list[Child]:
    return [work for work in works if isinstance(work, Child)]


def _copy(state: DeviceState, destination: int, source: int, size_bytes: int, kind: str) -> OtherWork:
    copies: dict[str, Callable[[Arena, int, int, int], OtherWork]] = {
        "htod": to_device,
        "dtoh": to_host,
        "dtod": on_device,
    }
    return copies[kind](state.memory, destination, source, size_bytes)


def _graph_of(state: DeviceState, call: str, node: int) -> Graph:
    found = next((graph for graph in state.graphs.values() if node in graph.nodes), None)
    if found is None:
        raise driver_error(call, CuResult.INVALID_HANDLE, f"{node:#x}")
    return found


def _replace(state: DeviceState, call: str, node: int, work: OtherWork | HostWork) -> None:
    nodes = _graph_of(state, call, node).nodes
    if type(nodes[node]) is not type(work):
        raise driver_error(call, CuResult.INVALID_VALUE, f"{node:#x}", "a node of another kind")
    nodes[node] = work
