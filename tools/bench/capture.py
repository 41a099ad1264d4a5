"""CUDA graphs of work that PyTorch launches, and a clock of PyTorch's current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lowdnn.bench.statistics import Timing
from lowdnn.bench.timing import Captured, interleaved
from lowdnn.runtime.timing import launches_for

#: Launches the work on copy ``slot`` of the data into torch's current stream; returns what must stay alive, or None.
Timed = Callable[[int], object]


@dataclass(frozen=True)
class Consuming:
    """Work that destroys what it reads, which ``restore`` writes anew for all copies of the data."""

    work: Timed
    restore: Callable[[], object]

    def __call__(self, slot: int) -> object:
        return self.work(slot)


def timed(functions: Mapping[str, Timed], slots: int) -> dict[str, Timing]:
    """Times each function over ``slots`` copies of the data; a function is safe to capture."""
    return interleaved({name: captured(function, slots) for name, function in functions.items()}, elapsed_us)


def captured(function: Timed, slots: int) -> Captured:
    """The function's graph, replayed once. Results are kept: each copy then has its own memory in every replay.

    The graph of ``Consuming`` work has one launch for each copy, all of which are restored before a replay.
    """
    for _ in range(2):
        function(0)
    torch.cuda.synchronize()
    restore = function.restore if isinstance(function, Consuming) else None
    launches = slots if restore else launches_for(elapsed_us(lambda: function(0)), slots)
    kept: list[object] = [None] * slots
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(launches):
            kept[launch % slots] = function(launch % slots)
    graph.replay()
    torch.cuda.synchronize()
    return Captured(graph.replay, launches, kept, restore)


def elapsed_us(work: Callable[[], object]) -> float:
    """Device microseconds of the work that a function puts into the current stream."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
