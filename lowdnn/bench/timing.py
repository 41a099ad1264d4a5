"""Device times of several functions, taken in turns in one process.

Each function is captured into a CUDA graph of several launches, so that host cost and launch gaps do not count. The
graphs are replayed in turn (A B C, A B C, ...), because a GPU's clock depends on what ran the second before. A launch
works on one of several copies of the data, the next launch on the next, so that no launch finds its operands in the L2
cache. Times are medians of the rounds; the spread is (90th - 10th percentile) / median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

#: Launches the work on copy ``slot`` of the data into torch's current stream; returns what must stay alive, or None.
Timed = Callable[[int], object]

_MOST_ROUNDS, _FEWEST_ROUNDS = 20, 7
_ROUNDS_US = 20_000.0
_MIN_REPLAY_US = 400.0
_MAX_LAUNCHES = 200

#: Copies of the data together are at least this large: three times the L2 cache of an H200.
_COLD_BYTES = 3 * 60 * 2**20


@dataclass(frozen=True)
class Timing:
    """Microseconds of one launch, and the relative spread of the rounds."""

    us: float
    spread: float


def slots_for(size_bytes: int) -> int:
    """How many copies of data of this size the launches go through."""
    return max(1, min(_MAX_LAUNCHES, -(-_COLD_BYTES // max(size_bytes, 1))))


def interleaved(functions: Mapping[str, Timed], slots: int) -> dict[str, Timing]:
    """Times each function over ``slots`` copies of the data; a function is safe to capture."""
    graphs = {name: _captured(function, slots) for name, function in functions.items()}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(_rounds(max(graph.replay_us for graph in graphs.values()))):
        for name, graph in graphs.items():
            samples[name].append(_events_us(graph.graph.replay) / graph.launches)
    return {name: _timing(values) for name, values in samples.items()}


@dataclass(frozen=True)
class _Captured:
    """``kept``: results of the launches, so that each slot writes its own memory in every replay."""

    graph: torch.cuda.CUDAGraph
    launches: int
    replay_us: float
    kept: list[object]


def _captured(function: Timed, slots: int) -> _Captured:
    """The function's graph, with enough launches in it that a replay lasts well over the clock's resolution."""
    for _ in range(2):
        function(0)
    torch.cuda.synchronize()
    once_us = _events_us(lambda: function(0))
    launches = max(1, slots, min(_MAX_LAUNCHES, round(_MIN_REPLAY_US / max(once_us, 1.0))))
    kept: list[object] = [None] * slots
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(launches):
            kept[launch % slots] = function(launch % slots)
    graph.replay()
    torch.cuda.synchronize()
    return _Captured(graph, launches, _events_us(graph.replay), kept)


def _rounds(replay_us: float) -> int:
    return max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, round(_ROUNDS_US / replay_us)))


def _events_us(function: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _timing(values: list[float]) -> Timing:
    median = float(np.median(values))
    low, high = np.percentile(values, [10, 90])
    return Timing(median, float(high - low) / median)
