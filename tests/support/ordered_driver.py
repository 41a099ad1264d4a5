"""A driver without a device that knows the order of streams, and finds memory that is used or freed out of order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from lowdnn.driver.base import DeviceAttribute, DriverError, DriverMemoryError, EventFlags
from lowdnn.driver.results import CuResult

#: For each stream, how much of its work is over.
Clock = dict[int, int]


@dataclass
class Allocation:
    size_bytes: int
    #: The work that used it last, by stream.
    uses: Clock = field(default_factory=dict)
    #: The stream whose capture holds it.
    captured_by: int | None = None


class OrderedDriver:
    """The calls of the Driver protocol that a pool makes. Work of a stream is a tick of its clock; an event carries a
    clock from one stream to another.

    captures: streams that are being captured.  free_bytes: the memory that the device has left.
    fails_at: the number of the call that fails, counted down; frees fail behind their effect, as those of a GPU do.
    """

    kind = "ordered"

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self.captures: set[int] = set()
        self.free_bytes = free_bytes
        self.fails_at = 0
        self.allocations: dict[int, Allocation] = {}
        self.events: dict[int, Clock] = {}
        self.streams: set[int] = set()
        self.calls: list[str] = []
        self._clocks: dict[int, Clock] = defaultdict(dict)
        self._numbers = itertools.count(1)
        self._current = 0

    # -- what the test does -------------------------------------------------------------------------------
    def use(self, address: int, size_bytes: int, stream: int) -> None:
        """Work of ``stream`` that writes memory; AssertionError where another stream may still be at it."""
        allocation = self.allocations[address]
        assert size_bytes <= allocation.size_bytes
        assert allocation.captured_by in (None, stream), "memory of a CUDA graph was given to another stream"
        self._check_over(allocation, stream)
        if stream in self.captures:
            allocation.captured_by = stream
        allocation.uses[stream] = self._tick(stream)

    def forget_captures(self, stream: int) -> None:
        """The CUDA graphs that ``stream`` captured are launched no more."""
        for allocation in self.allocations.values():
            if allocation.captured_by == stream:
                allocation.captured_by = None

    @property
    def live_bytes(self) -> int:
        return sum(allocation.size_bytes for allocation in self.allocations.values())

    # -- context --------------------------------------------------------------------------------------------
    def device_count(self) -> int:
        return 1

    def device_attribute(self, device: int, attribute: DeviceAttribute) -> int:
        return 1

    def primary_context_retain(self, device: int) -> int:
        return 0x1000

    def primary_context_release(self, device: int) -> None:
        pass

    def context_get_current(self) -> int:
        return self._current

    def context_set_current(self, context: int) -> None:
        self._current = context

    def context_synchronize(self) -> None:
        self._call("cuCtxSynchronize")
        everything = {stream: clock[stream] for stream, clock in self._clocks.items() if stream in clock}
        self._clocks[-1] = everything

    # -- memory ---------------------------------------------------------------------------------------------
    def mem_alloc_async(self, size_bytes: int, stream: int, label: str = "") -> int:
        self._call("cuMemAllocAsync")
        assert stream not in self.captures, "allocated in a capture"
        if self.live_bytes + size_bytes > self.free_bytes:
            raise DriverMemoryError("cuMemAllocAsync", CuResult.OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY")
        address = next(self._numbers) << 40
        self.allocations[address] = Allocation(size_bytes, {stream: self._tick(stream)})
        return address

    def mem_free_async(self, address: int, stream: int) -> None:
        assert stream not in self.captures, "freed in a capture"
        self._free(address, stream)
        self._tick(stream)
        self._call("cuMemFreeAsync")

    def mem_free(self, address: int) -> None:
        """Frees memory that the host has waited for."""
        self._free(address, -1)
        self._call("cuMemFree")

    # -- streams and events ---------------------------------------------------------------------------------
    def stream_create(self) -> int:
        self._call("cuStreamCreate")
        stream = next(self._numbers) << 20
        self.streams.add(stream)
        return stream

    def stream_destroy(self, stream: int) -> None:
        self.streams.remove(stream)
        self._call("cuStreamDestroy")

    def stream_is_capturing(self, stream: int) -> bool:
        self._call("cuStreamIsCapturing")
        return stream in self.captures

    def stream_wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent")
        assert stream not in self.captures, "a capture waits for work outside of it"
        for other, tick in self.events[event].items():
            self._clocks[stream][other] = max(self._clocks[stream].get(other, 0), tick)

    def event_create(self, flags: EventFlags = EventFlags.DEFAULT) -> int:
        self._call("cuEventCreate")
        event = next(self._numbers)
        self.events[event] = {}
        return event

    def event_record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord")
        assert stream not in self.captures, "an event of a capture"
        self._tick(stream)
        self.events[event] = dict(self._clocks[stream])

    def event_destroy(self, event: int) -> None:
        del self.events[event]
        self._call("cuEventDestroy")

    # -- helpers --------------------------------------------------------------------------------------------
    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.fails_at -= 1
        if self.fails_at == 0:
            raise DriverError(name, CuResult.LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED")

    def _tick(self, stream: int) -> int:
        clock = self._clocks[stream]
        clock[stream] = clock.get(stream, 0) + 1
        return clock[stream]

    def _free(self, address: int, stream: int) -> None:
        allocation = self.allocations[address]
        assert allocation.captured_by is None or stream == -1, "memory of a CUDA graph was freed"
        self._check_over(allocation, stream)
        del self.allocations[address]

    def _check_over(self, allocation: Allocation, stream: int) -> None:
        clock = self._clocks[stream]
        others = {other: tick for other, tick in allocation.uses.items() if other != stream}
        late = {other: tick for other, tick in others.items() if tick > clock.get(other, 0)}
        assert not late, f"stream {stream:#x} does not wait for work of {late}"
