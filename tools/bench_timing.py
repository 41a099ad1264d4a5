"""Device times of several functions, taken in turns in one process.

Each function is captured into a CUDA graph of several launches, so that host cost and launch gaps do not count. The
graphs are replayed in turn (A B C, A B C, ...), because a GPU's clock depends on what ran the second before. Times are
medians of the rounds; the spread is (90th - 10th percentile) / median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

ROUNDS = 20
MIN_REPLAY_US = 400.0
MAX_LAUNCHES = 200


@dataclass(frozen=True)
class Timing:
    """Microseconds of one launch, and the relative spread of the rounds."""

    us: float
    spread: float


def interleaved(functions: Mapping[str, Callable[[], None]]) -> dict[str, Timing]:
    """Times each function; a function launches work into torch's current stream and is safe to capture."""
    graphs = {name: _captured(function) for name, function in functions.items()}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, (graph, launches) in graphs.items():
            samples[name].append(_replay_us(graph) / launches)
    return {name: _timing(values) for name, values in samples.items()}


def _captured(function: Callable[[], None]) -> tuple[torch.cuda.CUDAGraph, int]:
    """The function's graph, with enough launches in it that a replay lasts well over the clock's resolution."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    once = _events_us(function)
    launches = max(3, min(MAX_LAUNCHES, round(MIN_REPLAY_US / max(once, 1.0))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            function()
    graph.replay()
    torch.cuda.synchronize()
    return graph, launches


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    return _events_us(graph.replay)


def _events_us(function: Callable[[], None]) -> float:
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
