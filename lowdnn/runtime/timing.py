"""A clock of device time, and how many launches on how many copies of the data it measures at once.

There are so many that neither the clock's resolution nor what is left in the L2 cache counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lowdnn.runtime.context import Context
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream

#: Device microseconds of the work that a function puts into a stream.
Clock = Callable[[Callable[[], object]], float]

_MIN_REPLAY_US = 400.0
_MAX_LAUNCHES = 200
_LEAST_STEP_US = 1.0

#: Copies of the data together are at least this large: three times the largest L2 cache of a GPU of these benchmarks.
_COLD_BYTES = 3 * 60 * 2**20


def slots_for(size_bytes: int, steps: int = 0) -> int:
    """How many copies of data of this size the launches go through.

    steps: the steps of a recurrent network, which reads its weights in each of them. Copies of it need not leave the
    cache, but a launch for each step fills the shortest replay.
    """
    most = _MAX_LAUNCHES if not steps else -(-_MIN_REPLAY_US // (steps * _LEAST_STEP_US))
    return max(1, min(int(most), -(-_COLD_BYTES // max(size_bytes, 1))))


def launches_for(once_us: float, slots: int) -> int:
    """Launches of a graph: each copy once at the least, and a replay that lasts well over the clock's resolution."""
    return max(1, slots, min(_MAX_LAUNCHES, round(_MIN_REPLAY_US / max(once_us, 1.0))))


@contextmanager
def event_clock(context: Context, stream: Stream) -> Iterator[Clock]:
    """A clock by two events in the stream."""
    with Event.create(context) as start, Event.create(context) as end:

        def elapsed_us(work: Callable[[], object]) -> float:
            start.record(stream)
            work()
            end.record(stream)
            end.synchronize()
            return end.elapsed_ms(start) * 1e3

        yield elapsed_us
