"""Streams, events and graphs of the emulated device: work runs at once, or is recorded.

The device runs everything in the order of the calls, so a stream needs no queue. A capturing stream appends its work to
a graph; a stream that waits for an event recorded in a capture joins it, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowdnn.driver.base import CaptureMode, DriverError, LaunchConfig
from lowdnn.driver.emulated.launching import LoadedFunction
from lowdnn.driver.emulated.machine import Function, Machine, Module
from lowdnn.driver.emulated.memory.arena import Arena


@dataclass(frozen=True)
class KernelWork:
    """One kernel launch with its parameter values copied."""

    function: Function
    config: LaunchConfig
    parameters: tuple[bytes, ...]


@dataclass(frozen=True)
class OtherWork:
    """A copy or a fill of ``size_bytes``: anything that is not a kernel."""

    run: Callable[[], None]
    size_bytes: int


Work = KernelWork | OtherWork


@dataclass
class Graph:
    """Work by node handle, in an order that respects every dependency (a node depends only on earlier ones).

    ``dependencies`` holds those of nodes that were added one by one; captured ones depend on all before them.
    """

    nodes: dict[int, Work] = field(default_factory=dict)
    dependencies: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def copied(self) -> Graph:
        return Graph(dict(self.nodes), dict(self.dependencies))

    def difference(self, other: Graph) -> str:
        """Why an executable made of this graph cannot be updated from ``other``; empty where it can."""
        if len(self.nodes) != len(other.nodes):
            return f"expected {len(self.nodes)} nodes, got {len(other.nodes)}"
        for place, (mine, its) in enumerate(zip(self.nodes.values(), other.nodes.values(), strict=True)):
            if type(mine) is not type(its):
                return f"node {place}: another kind of work"
        if self._edges() != other._edges():
            return "the nodes depend on others than before"
        return ""

    def _edges(self) -> dict[int, set[int]]:
        """Dependencies by the nodes' places."""
        place = {node: number for number, node in enumerate(self.nodes)}
        return {place[node]: {place[one] for one in needed} for node, needed in self.dependencies.items()}


@dataclass(eq=False)
class Capture:
    """A capture under way. ``invalid`` once a call was made that cannot be captured."""

    graph: Graph
    origin: int
    mode: CaptureMode
    invalid: bool = False


@dataclass
class StreamState:
    """``capture``: the capture that the stream's work goes to."""

    capture: Capture | None = None


@dataclass
class EventState:
    """``time_ns``: when it was last recorded, on the device's clock. ``capture``: the capture it was recorded in."""

    timed: bool
    time_ns: int | None = None
    capture: Capture | None = None


@dataclass
class DeviceState:
    """What lives as long as the primary context. Streams 0, 1 and 2 are the driver's own (legacy, per-thread)."""

    memory: Arena
    machine: Machine
    streams: dict[int, StreamState] = field(default_factory=lambda: {stream: StreamState() for stream in range(3)})
    events: dict[int, EventState] = field(default_factory=dict)
    modules: dict[int, Module] = field(default_factory=dict)
    functions: dict[int, LoadedFunction] = field(default_factory=dict)
    graphs: dict[int, Graph] = field(default_factory=dict)
    executables: dict[int, Graph] = field(default_factory=dict)
    captures: list[Capture] = field(default_factory=list)
    fault: DriverError | None = None

    def strict_captures(self) -> list[Capture]:
        """Captures under way that forbid calls with an effect outside their stream."""
        return [capture for capture in self.captures if capture.mode is not CaptureMode.RELAXED]
