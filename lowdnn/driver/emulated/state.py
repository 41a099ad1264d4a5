"""Objects of an emulated device while its primary context lives: memory, modules, streams, events and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import local
from typing import TypeVar

from lowdnn.driver.base import CaptureMode, DriverError
from lowdnn.driver.emulated.faults import EmulationFault, HostFailure, LaneFault
from lowdnn.driver.emulated.graphs import Graph
from lowdnn.driver.emulated.launching import LoadedFunction
from lowdnn.driver.emulated.machine import Machine, Module
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.memory.space import AddressSpace
from lowdnn.driver.emulated.queues import Kind, Queue, Queues, Task
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.results import CuResult

T = TypeVar("T")


@dataclass(eq=False)
class Capture:
    """A capture under way. ``invalid`` once a call was made that cannot be captured.

    ``handle``: the graph's, once it was asked for. ``device``: that of the stream ``origin``.
    """

    graph: Graph
    origin: int
    mode: CaptureMode
    device: int = 0
    invalid: bool = False
    ended: bool = False
    handle: int = 0


@dataclass
class StreamState:
    """The state of a stream, whose work stands in ``queue``.

    capture: the capture that its work goes to.  passed: the nodes there on which its next work depends.
    """

    queue: Queue
    capture: Capture | None = None
    passed: set[int] = field(default_factory=set)

    @property
    def device(self) -> int:
        return self.queue.device


@dataclass
class EventState:
    """An event of ``device``. ``time_ns``: when it was last recorded, on the device's clock. ``capture``: the capture
    it was recorded in, after the nodes ``passed``. ``shared``: handles for interprocess communication may be made of
    it. ``task``: the record, where that may not be done yet."""

    device: int
    timed: bool
    shared: bool = False
    time_ns: int | None = None
    capture: Capture | None = None
    passed: frozenset[int] = frozenset()
    task: Task | None = None


@dataclass
class System:
    """The common objects of a driver's devices: their addresses, their ``states`` by number, graphs by handle.

    ``handles`` gives new ones. ``capture_modes`` has the ``mode`` of each thread that has set one. A device has a state
    as long as its primary context is held.
    """

    space: AddressSpace
    handles: Iterator[int]
    queues: Queues
    states: dict[int, DeviceState] = field(default_factory=dict)
    graphs: dict[int, Graph] = field(default_factory=dict)
    executables: dict[int, Graph] = field(default_factory=dict)
    capture_modes: local = field(default_factory=local)


@dataclass
class DeviceState:
    """Objects of device ``number`` by handle. Streams 0, 1 and 2 are the driver's own (legacy, per-thread).

    ``context``: the handle of its primary context. ``functions_of``: the handles of functions by module and name.
    """

    number: int
    context: int
    system: System
    memory: Arena
    machine: Machine
    streams: dict[int, StreamState] = field(init=False)
    events: dict[int, EventState] = field(default_factory=dict)
    modules: dict[int, Module] = field(default_factory=dict)
    functions: dict[int, LoadedFunction] = field(default_factory=dict)
    functions_of: dict[int, dict[str, int]] = field(default_factory=dict)
    captures: list[Capture] = field(default_factory=list)
    fault: DriverError | None = None

    def __post_init__(self) -> None:
        legacy, own = self.new_stream(Kind.LEGACY), self.new_stream(Kind.BLOCKING)
        self.streams = {0: legacy, 1: legacy, 2: own}

    def new_stream(self, kind: Kind) -> StreamState:
        return StreamState(self.system.queues.begin(self.number, kind, self.machine.clock))

    def tell(self, call: str, arguments: str) -> None:
        """Raises the DriverError of a fault on the device that nobody has been told of, or the HostFailure."""
        fault = self.system.queues.faults.pop(self.number, None)
        if isinstance(fault, HostFailure):
            raise fault
        if fault is not None:
            raise self.failure(call, arguments, fault) from fault

    def failure(self, call: str, arguments: str, fault: Exception) -> Exception:
        """The DriverError of a call that ends with a fault, which stays where it breaks the context."""
        if isinstance(fault, EmulationFault):
            facts = (call, fault.result, arguments, str(fault.report), fault.report.facts())
            if fault.result >= CuResult.ILLEGAL_ADDRESS:
                # A copy, since the traceback of the error that is raised keeps the callers' objects alive.
                self.fault = driver_error(*facts)
            return driver_error(*facts)
        if isinstance(fault, MemoryError):
            return driver_error(call, CuResult.OUT_OF_MEMORY, arguments, str(fault))
        if isinstance(fault, LaneFault | ValueError):
            return driver_error(call, CuResult.INVALID_VALUE, arguments, str(fault))
        return fault

    @property
    def graphs(self) -> dict[int, Graph]:
        return self.system.graphs

    @property
    def executables(self) -> dict[int, Graph]:
        return self.system.executables

    def close(self) -> None:
        """Ends the device's work, frees its memory, and ends the access of peers to it."""
        self.system.queues.close(self.number)
        self.memory.close()
        for other in self.system.states.values():
            other.memory.peers.discard(self.number)

    def add(self, table: dict[int, T], value: T) -> int:
        """The new handle of ``value``, now in ``table``."""
        handle = next(self.system.handles)
        table[handle] = value
        return handle


def find(table: dict[int, T], call: str, handle: int) -> T:
    """The object of ``handle``. Raises the DriverError of ``call`` for an unknown handle."""
    if handle not in table:
        raise driver_error(call, CuResult.INVALID_HANDLE, f"{handle:#x}")
    return table[handle]


def stream_of(state: DeviceState, stream: int, call: str = "stream") -> StreamState:
    """A stream of any device; streams 0, 1 and 2 are those of ``state``."""
    owners = (state, *state.system.states.values())
    found = next((one.streams[stream] for one in owners if stream in one.streams), None)
    return find(state.streams, call, stream) if found is None else found


def event_of(state: DeviceState, call: str, event: int) -> EventState:
    """An event of any device."""
    found = next((one.events[event] for one in state.system.states.values() if event in one.events), None)
    return find(state.events, call, event) if found is None else found
