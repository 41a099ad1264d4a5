"""The time of work on a device: the one time formula of every search, ranking and cut.

    launch  = overhead - savings of a dependent launch + grid barrier of a cooperative launch + busy
    busy    = start + overlap(walk, memory)
    walk    = stages of the busiest multiprocessor, whose blocks come in waves or are persistent
    stage   = the slowest of concurrent work: products, shared memory, the L2 cache, instructions, and a latency that
              the stages in flight share
    overlap = longer + exposed * shorter, for two concurrent times

An engine family counts the work of a stage, and knows its kernel's constants (clocks for a product, the exposed
share); latencies and rates of the device are facts of ``arch``. Times are seconds or clocks, at the caller's choice,
and each may be an array with one element for each of many candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.specs import ArchSpec
from lowdnn.plan import Work

Times = NDArray[np.float64]
TimeT = TypeVar("TimeT", float, Times)

#: The share of the shorter of two times that the longer one does not hide, in estimates that are upper bounds.
ALL_EXPOSED = 1.0
#: That share in estimates that are lower bounds.
NOTHING_EXPOSED = 0.0


@overload
def overlap(one: float, other: float, exposed: float, exposed_one: float | None = None) -> float: ...
@overload
def overlap(one: Times, other: Times | float, exposed: float, exposed_one: float | None = None) -> Times: ...
@overload
def overlap(one: float, other: Times, exposed: float, exposed_one: float | None = None) -> Times: ...


def overlap(
    one: float | Times, other: float | Times, exposed: float, exposed_one: float | None = None
) -> float | Times:
    """The time of two concurrent things: the longer time, plus the share ``exposed`` of the shorter one.

    exposed_one: the share for ``one`` if it is the shorter; by default ``exposed``.
    """
    ones, others = one + exposed * other, other + (exposed if exposed_one is None else exposed_one) * one
    if type(ones) is float and type(others) is float:  # the cheapest test
        return max(ones, others)
    longer: Times = np.maximum(ones, others)
    return longer


def slowest(first: Times, *others: Times | float) -> Times:
    """The time of several concurrent things, for many candidates; for a single candidate ``max`` does."""
    for other in others:
        first = np.maximum(first, other)
    return first


def waves(blocks: int, resident: int, wave: Callable[[int], float]) -> float:
    """The time of ``blocks`` blocks, ``resident`` at once; ``wave(n)``: the time of n blocks that begin together."""
    full, rest = divmod(blocks, resident)
    return (full * wave(resident) if full else 0.0) + (wave(rest) if rest else 0.0)


def utilisation(blocks: int, resident: int) -> float:
    """The share of time in which all ``resident`` slots are occupied, for blocks of equal length, in (0, 1]."""
    return blocks / (resident * -(-blocks // resident)) if blocks > 0 else 1.0


def work_s(work: Work, arch: ArchSpec, exposed: float, utilisation: float = 1.0, reach: float = 1.0) -> float:
    """Seconds of a launch's operations and bytes at the rates that the device attains.

    utilisation, reach: the shares of the arithmetic's rate and of the memory's that the launch can use.
    """
    arithmetic_s = work.flops / (arch.attained_rate(work.unit) * utilisation)
    return overlap(arithmetic_s, work.bytes / (arch.copy_bytes_per_s * reach), exposed)


def stage_latency_s(arch: ArchSpec, on_their_way: int, copy_s: float = 0.0) -> float:
    """Seconds from one stage to the next with ``on_their_way`` stages in flight, each for the latency and its
    ``copy_s``.
    """
    return (arch.timings.copy_latency_s + copy_s) / on_their_way


def moving_s(arch: ArchSpec, moved_bytes: TimeT) -> TimeT:
    """Seconds of a launch that reads and writes ``moved_bytes`` in all, and does nothing else."""
    return launch_s(arch, moved_bytes / arch.copy_bytes_per_s)


def launch_s(arch: ArchSpec, busy_s: TimeT, *, is_dependent: bool = False, is_cooperative: bool = False) -> TimeT:
    """Seconds from the end of the previous kernel to the end of this one."""
    timings = arch.timings
    saved_s = timings.dependent_launch_saves_s if is_dependent else 0.0
    return timings.launch_s - saved_s + (timings.grid_meeting_s if is_cooperative else 0.0) + busy_s
