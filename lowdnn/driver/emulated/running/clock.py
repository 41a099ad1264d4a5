"""The emulated device's time: a count of what has been done, the same for the same work on any host.

One cycle passes for every warp instruction that each of the device's schedulers (4 a multiprocessor) can issue, as if
work were spread evenly; a launch, a copy, the record of an event and a look at the clock take a fixed time each, a copy
also the time of its bytes. It tells more work from less; it does not tell how fast a GPU is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group

_WARP = 32
_SCHEDULERS_PER_SM = 4
_LAUNCH_NS = 2_000
_COPY_NS = 1_000
_EVENT_NS = 500
#: Cycles that reading a clock takes, so that code which waits for time to pass ends.
_LOOK_CYCLES = 32


def nanosleep(group: Group, ns: Any) -> None:
    """``nanosleep``: time goes on by the longest of the group's sleeps."""
    group.batch.clock.sleep(int(np.max(ns)))


class DeviceClock:
    """Cycles of a device with ``clock_khz`` and ``sm_count`` that moves ``copy_bytes_per_ns``, from 0 on."""

    def __init__(self, clock_khz: int = 1_980_000, sm_count: int = 132, copy_bytes_per_ns: int = 4_000) -> None:
        self._clock_khz = clock_khz
        self._copy_bytes_per_ns = copy_bytes_per_ns
        self._issued_per_cycle = _WARP * _SCHEDULERS_PER_SM * sm_count
        self._thread_instructions = 0
        self._other_cycles = 0

    @property
    def cycles(self) -> int:
        return self._other_cycles + self._thread_instructions // self._issued_per_cycle

    @property
    def ns(self) -> int:
        return self.cycles * 1_000_000 // self._clock_khz

    def look(self) -> DeviceClock:
        """A kernel reads a clock register, which advances the time a little."""
        self._other_cycles += _LOOK_CYCLES
        return self

    def issue(self, thread_instructions: int) -> None:
        """Instructions of a kernel times the threads that run them."""
        self._thread_instructions += thread_instructions

    def sleep(self, ns: int) -> None:
        self._other_cycles += -(-ns * self._clock_khz // 1_000_000)

    def launch(self) -> None:
        self.sleep(_LAUNCH_NS)

    def copy(self, size_bytes: int) -> None:
        self.sleep(_COPY_NS + size_bytes // self._copy_bytes_per_ns)

    def record_event(self) -> int:
        """The time in ns of an event that is recorded now; two events never have the same."""
        self.sleep(_EVENT_NS)
        return self.ns
