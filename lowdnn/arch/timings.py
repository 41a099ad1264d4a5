"""How long the parts of a device take to answer, and how fast they deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Timings:
    """Seconds and rates that a device has whatever kernel it runs. A kernel may reach a share of a rate alone, or wait
    for a latency several times: such factors belong to the kernel's own costs.

    The defaults were measured on an H200.
    """

    #: Seconds from one kernel's end to the start of the next one in a stream.
    launch_s: float = 2e-6
    #: Seconds less than that, where a kernel starts while the one before it ends.
    dependent_launch_saves_s: float = 0.6e-6
    #: Seconds until all blocks of a cooperative launch have met: atomic operations on one word and the reads after them
    #: (an estimate).
    grid_meeting_s: float = 1.2e-6
    #: Seconds from a load to its data in registers, while others load too.
    load_latency_s: float = 0.7e-6
    #: Seconds from the start of an asynchronous copy to its bytes in shared memory, while others copy too.
    copy_latency_s: float = 0.89e-6
    #: Bytes per second from the L2 cache to one multiprocessor, by tensor copies.
    l2_bytes_per_s: float = 114e9
    #: Bytes per second from device memory to one multiprocessor.
    read_bytes_per_s: float = 40e9
    #: A multiprocessor whose neighbour has no block gets these multiples of the two rates: both share their way.
    lone_l2: float = 1.5
    lone_read: float = 2.0
    #: Clock in Hz of multiprocessors whose tensor cores are not the limit: these draw the power that lowers it.
    light_clock_hz: float = 1.7e9


#: Measured on an H200; other devices take these as estimates.
MEASURED_ON_H200: Final = Timings()
