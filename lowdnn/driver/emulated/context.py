"""The primary contexts of the emulated devices: who holds them, which threads have one current, and the fault that
breaks it."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lowdnn.driver.base import DeviceAttribute
from lowdnn.driver.emulated.device import EmulatedDevice
from lowdnn.driver.emulated.faults import EmulationFault, HostFailure, LaneFault
from lowdnn.driver.emulated.machine import Machine
from lowdnn.driver.emulated.memory.arena import Arena
from lowdnn.driver.emulated.memory.space import AddressSpace
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.queues import Queues
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.emulated.running.clock import DeviceClock
from lowdnn.driver.emulated.state import DeviceState, System
from lowdnn.driver.emulated.streams import refuse_in_any_capture
from lowdnn.driver.results import CuResult

#: The handle of device 0's context; those of the others follow.
_FIRST_CONTEXT = 0xE000
_FIRST_HANDLE = 0xE100
#: Bytes of addresses for each device; its memory must fit.
_RANGE_BYTES = 1 << 37


class Contexts:
    """Makes a device's state with the first reference to its context and drops it with the last; one call enters at a
    time."""

    def __init__(self, device: EmulatedDevice, options: Options) -> None:
        self._device = device
        self._options = options
        self._lock = threading.Condition()
        self._current = threading.local()
        self._references = [0] * options.devices
        self._handles = itertools.count(_FIRST_HANDLE, 16)
        self._system: System | None = None
        self._process: int | None = None

    def initialise(self) -> None:
        if self._process is None:
            self._process = os.getpid()

    def check_initialised(self, call: str) -> None:
        """A child of fork cannot use its parent's driver, as on a GPU, and a host function no driver at all."""
        if self._process != os.getpid():
            raise driver_error(call, CuResult.NOT_INITIALIZED)
        if self._system is not None and self._system.queues.calls_host():
            raise driver_error(call, CuResult.NOT_PERMITTED, explanation="a host function must not call the driver")

    def check_device(self, call: str, device: int) -> None:
        self.check_initialised(call)
        if not 0 <= device < self._options.devices:
            raise driver_error(call, CuResult.INVALID_DEVICE, device)

    def retain(self, device: int) -> int:
        with self._lock:
            if not self._references[device]:
                self._begin(device)
            self._references[device] += 1
        return _FIRST_CONTEXT + device

    def release(self, device: int) -> None:
        with self._lock:
            if self._references[device] == 0:
                raise driver_error("cuDevicePrimaryCtxRelease", CuResult.INVALID_CONTEXT)
            self._references[device] -= 1
            if self._references[device] == 0:
                self._end(device)

    def current(self) -> int:
        """The calling thread's current context, or 0."""
        current: int = getattr(self._current, "context", 0)
        return current

    def set_current(self, context: int) -> None:
        self.check_initialised("cuCtxSetCurrent")
        with self._lock:
            if context:
                self.state_of("cuCtxSetCurrent", context).system.queues.use(True)
            elif self._system is not None:
                self._system.queues.use(False)
        self._current.context = context

    def state(self, device: int) -> DeviceState | None:
        """The objects of a device; None where nobody holds its context."""
        return None if self._system is None else self._system.states.get(device)

    def state_of(self, call: str, context: int) -> DeviceState:
        """The state of the device that has this context. Raises DriverError where there is none."""
        state = self.state(context - _FIRST_CONTEXT)
        if state is None:
            raise driver_error(call, CuResult.INVALID_CONTEXT, f"{context:#x}")
        return state

    @contextmanager
    def entered(self, call: str, *arguments: object, captures: bool = True) -> Iterator[DeviceState]:
        """Every call that needs the current context: one at a time, faults as ``DriverError``, and what a host function
        has raised as it was.

        ``captures=False`` marks what a GPU does not allow while the thread captures a stream.
        """
        text = ", ".join(f"{value:#x}" if isinstance(value, int) else str(value) for value in arguments)
        self.check_initialised(call)
        try:
            with self._lock:
                state = self._usable_state(call, text)
                if not captures:
                    refuse_in_any_capture(state, call)
                try:
                    yield state
                except (EmulationFault, LaneFault, MemoryError, ValueError) as error:
                    raise state.failure(call, text, error) from error
                state.tell(call, text)
        except HostFailure as failure:
            raise failure.error from failure.error.__cause__

    def _usable_state(self, call: str, arguments: str) -> DeviceState:
        state = self.state(self.current() - _FIRST_CONTEXT)
        if state is None:
            raise driver_error(call, CuResult.INVALID_CONTEXT, arguments, "the context is not current in this thread")
        _check_whole(state, call, arguments)
        state.tell(call, arguments)
        return state

    def seen_state(self, call: str, context: int) -> DeviceState:
        """The state of a context for a thread that only looks at it, while another one may be inside.

        Raises the DriverError of a fault that the context keeps.
        """
        state = self.state_of(call, context)
        _check_whole(state, call, f"{context:#x}")
        return state

    def _end(self, number: int) -> None:
        if self._system is not None:
            self._system.states.pop(number).close()
            if not self._system.states:
                self._system = None

    def _begin(self, number: int) -> None:
        device = self._device
        if self._system is None:
            space = AddressSpace(_RANGE_BYTES * self._options.devices)
            self._system = System(space, self._handles, Queues(self._options, self._lock, space))
        memory = Arena(device.memory_bytes, space=self._system.space, device=number)
        sm_count = device.attributes[DeviceAttribute.MULTIPROCESSOR_COUNT]
        clock_khz = device.attributes[DeviceAttribute.CLOCK_RATE_KHZ]
        clock = DeviceClock(clock_khz, sm_count, device.copy_bytes_per_ns)
        machine = Machine(memory, device.compute_capability, self._options, sm_count, clock)
        self._system.states[number] = DeviceState(number, _FIRST_CONTEXT + number, self._system, memory, machine)


def _check_whole(state: DeviceState, call: str, arguments: str) -> None:
    """Raises DriverError for a context that a fault has broken."""
    if state.fault is not None:
        first_line = state.fault.explanation.partition("\n")[0]
        explanation = f"since {state.fault.call}: {first_line}; open a new handle"
        raise driver_error(call, state.fault.result, arguments, explanation)
