"""Objects of an emulated device while its primary context lives: memory, modules, streams, events and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from lowdnn.driver.base import CaptureMode, DriverError
from lowdnn.driver.emulated.graphs import Graph
from lowdnn.driver.emulated.launching import LoadedFunction
from lowdnn.driver.emulated.machine import Machine, Module
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.results import CuResult

T = TypeVar("T")


@dataclass(eq=False)
class Capture:
    """A capture under way. ``invalid`` once a call was made that cannot be captured.

    ``handle``: the graph's, once it was asked for.
    """

    graph: Graph
    origin: int
    mode: CaptureMode
    invalid: bool = False
    handle: int = 0


@dataclass
class StreamState:
    """The state of a stream.

    capture: the capture that its work goes to.  passed: the nodes there on which its next work depends.
    """

    capture: Capture | None = None
    passed: set[int] = field(default_factory=set)


@dataclass
class EventState:
    """``time_ns``: when it was last recorded, on the device's clock. ``capture``: the capture it was recorded in, after
    the nodes ``passed``."""

    timed: bool
    time_ns: int | None = None
    capture: Capture | None = None
    passed: frozenset[int] = frozenset()


@dataclass
class DeviceState:
    """Objects by handle; ``handles`` gives new ones. Streams 0, 1 and 2 are the driver's own (legacy, per-thread).

    ``functions_of``: the handles of functions by module and name.
    """

    memory: Arena
    machine: Machine
    handles: Iterator[int]
    streams: dict[int, StreamState] = field(default_factory=lambda: {stream: StreamState() for stream in range(3)})
    events: dict[int, EventState] = field(default_factory=dict)
    modules: dict[int, Module] = field(default_factory=dict)
    functions: dict[int, LoadedFunction] = field(default_factory=dict)
    functions_of: dict[int, dict[str, int]] = field(default_factory=dict)
    graphs: dict[int, Graph] = field(default_factory=dict)
    executables: dict[int, Graph] = field(default_factory=dict)
    captures: list[Capture] = field(default_factory=list)
    fault: DriverError | None = None

    def add(self, table: dict[int, T], value: T) -> int:
        """The new handle of ``value``, now in ``table``."""
        handle = next(self.handles)
        table[handle] = value
        return handle


def find(table: dict[int, T], call: str, handle: int) -> T:
    """The object of ``handle``. Raises the DriverError of ``call`` for an unknown handle."""
    if handle not in table:
        raise driver_error(call, CuResult.INVALID_HANDLE, f"{handle:#x}")
    return table[handle]
