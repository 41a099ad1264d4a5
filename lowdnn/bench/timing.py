"""Device times of several pieces of work, taken in turns in one process.

Each piece is captured into a CUDA graph of several launches, so that host cost and launch gaps do not count. The graphs
are replayed in turn (A B C, A B C, ...), because a GPU's clock depends on what ran the second before. A launch works on
one of several copies of the data, the next launch on the next, so that no launch finds its operands in the L2 cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lowdnn.bench.statistics import Timing
from lowdnn.runtime.context import Context
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.timing import Clock, event_clock

_MOST_ROUNDS, _FEWEST_ROUNDS = 20, 7
_ROUNDS_US = 20_000.0


@dataclass(frozen=True)
class Captured:
    """A CUDA graph of ``launches`` launches. kept: what must stay alive as long as the graph does.

    prepare: a call that must run before each replay and is not timed.
    """

    replay: Callable[[], object]
    launches: int
    kept: object = field(default=None, repr=False)
    prepare: Callable[[], object] | None = field(default=None, repr=False)

    def time_us(self, clock: Clock) -> float:
        """Device microseconds of one replay."""
        if self.prepare is not None:
            self.prepare()
        return clock(self.replay)


def interleaved(graphs: Mapping[str, Captured], clock: Clock) -> dict[str, Timing]:
    """The time of one launch of each graph, over rounds in which all of them are replayed once."""
    longest_us = max(graph.time_us(clock) for graph in graphs.values())
    rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, round(_ROUNDS_US / longest_us)))
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            samples[name].append(graph.time_us(clock) / graph.launches)
    return {name: Timing.of(values) for name, values in samples.items()}


def execute_times(
    context: Context, stream: Stream, execute: Callable[[], object], repeats: int
) -> tuple[Timing, Timing]:
    """Device and host time of one execute, each with the gaps between launches, over ``repeats`` of them."""
    host_us: list[float] = []

    def watched() -> None:
        before = time.perf_counter()
        execute()
        host_us.append((time.perf_counter() - before) * 1e6)

    with event_clock(context, stream) as clock:
        device_us = [clock(watched) for _ in range(repeats)]
    return Timing.of(device_us), Timing.of(host_us)
