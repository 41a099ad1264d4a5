"""A model of a data-parallel training step: compute, gradient buckets, and the link between the GPUs.

**All-reduce** of b bytes by a ring of n GPUs, whose links carry B bytes a microsecond each way:

    T(n, b) = start + 2 (n - 1) hop + 2 (n - 1) / n * b / B

Beyond one node of g GPUs it is a reduce-scatter and an all-gather within the nodes around a ring of the m nodes, in
which each GPU sends its part, b / g bytes, over the network:

    T(n, b) = T(g, b) + 2 (m - 1) hop_net + 2 (m - 1) / m * (b / g) / B_net

**A step** is the forward pass, the backward pass and the update. A bucket is exchanged once the backward pass has made
its gradients and the bucket before it is done; without overlap, once the backward pass is done. While an exchange is
under way the backward pass runs at 1 - contention of its speed, since both use the GPU's memory and multiprocessors.

**Calibration**: `start` is an all-reduce on one GPU; `hop` and B follow from those on two, by least squares of relative
errors; `contention` is what makes the model's step on two GPUs the measured one. All times are microseconds.
Source of the ring's cost: R. Thakur et al., 2005, "Optimization of Collective Communication Operations in MPICH".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowdnn.distributed.buckets import plan_buckets

#: The most that an exchange can slow the backward pass down in the model.
_MOST_CONTENTION = 0.9
#: Halvings of the interval in which the contention is sought.
_HALVINGS = 40
#: More than any number of a file: microseconds or bytes.
_MOST = 1e15
#: By table of a file, the positive numbers in each row.
_COLUMNS: Mapping[str, Sequence[str]] = {
    "layers": ("backward_us", "gradient_bytes"),
    "all_reduce": ("ranks", "bytes", "us"),
    "steps": ("ranks", "bucket_bytes", "step_us"),
}


@dataclass(frozen=True)
class Layer:
    """``backward_us``: its share of the backward pass.  ``gradient_bytes``: the bytes that it adds to the gradients."""

    backward_us: float
    gradient_bytes: int


@dataclass(frozen=True)
class Workload:
    """One GPU's part of a step. ``layers``: in the order of the forward pass."""

    forward_us: float
    layers: tuple[Layer, ...]
    update_us: float

    @property
    def backward_us(self) -> float:
        return sum(layer.backward_us for layer in self.layers)

    @property
    def alone_us(self) -> float:
        """The step of one GPU."""
        return self.forward_us + self.backward_us + self.update_us


@dataclass(frozen=True)
class Links:
    """The links within a node and, for more GPUs than ``node``, between nodes; bandwidths in bytes a microsecond."""

    start_us: float
    hop_us: float
    bytes_per_us: float
    node: int = 8
    network_hop_us: float = 5.0
    network_bytes_per_us: float = 50e3

    def all_reduce_us(self, ranks: int, size_bytes: float) -> float:
        """The time of one all-reduce; 0 for one rank, which exchanges nothing."""
        if ranks == 1:
            return 0.0
        if ranks > self.node and ranks % self.node:
            raise ValueError(f"expected whole nodes of {self.node} GPUs, got {ranks} GPUs")
        inside, nodes = min(ranks, self.node), max(ranks // self.node, 1)
        time_us = self.start_us + _ring_us(inside, size_bytes, self.hop_us, self.bytes_per_us)
        return time_us + _ring_us(nodes, size_bytes / inside, self.network_hop_us, self.network_bytes_per_us)


@dataclass(frozen=True)
class Model:
    """A workload on its links. ``contention``: the share of its speed that the backward pass loses to an exchange."""

    workload: Workload
    links: Links
    contention: float = 0.0

    def step_us(self, ranks: int, bucket_bytes: int, *, overlaps: bool = True) -> float:
        """The time of a step on ``ranks`` GPUs."""
        buckets = plan_buckets([layer.gradient_bytes for layer in self.workload.layers], bucket_bytes)
        sizes = [sum(self.workload.layers[place].gradient_bytes for place in bucket) for bucket in buckets]
        exchanges = [self.links.all_reduce_us(ranks, size) for size in sizes]
        work = [sum(self.workload.layers[place].backward_us for place in bucket) for bucket in buckets]
        in_turn_us = sum(work) + sum(exchanges)
        both_us = _overlapped_us(work, exchanges, 1 - self.contention) if overlaps else in_turn_us
        return self.workload.forward_us + both_us + self.workload.update_us

    def efficiency(self, ranks: int, bucket_bytes: int, *, overlaps: bool = True) -> float:
        """The speed of ``ranks`` GPUs relative to ``ranks`` times the speed of one."""
        return self.workload.alone_us / self.step_us(ranks, bucket_bytes, overlaps=overlaps)


def read(path: Path) -> tuple[Model, dict[str, Any]]:
    """The calibrated model of a file that ``measure`` wrote, and the file's content.

    Raises ValueError for a file that cannot be read or is no such file, and for figures that do not suffice.
    """
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        _check(figures)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected what tools.scaling.measure writes, got {error}") from None
    layers = tuple(Layer(one["backward_us"], one["gradient_bytes"]) for one in figures["layers"])
    workload = Workload(figures["forward_us"], layers, figures["update_us"])
    links = links_of(figures["all_reduce"])
    measured = next((one for one in figures["steps"] if one["ranks"] == 2 and one["overlaps"]), None)
    if measured is None:
        raise ValueError(f"{path}: expected a step on 2 GPUs, got none")
    return calibrated(workload, links, measured["bucket_bytes"], measured["step_us"]), figures


def _check(figures: object) -> None:
    """Raises ValueError for a file's content without a field, and for values of the wrong kind."""
    if not isinstance(figures, dict):
        raise ValueError(f"a {type(figures).__name__} in place of an object")
    for name in ("card", "network", "batch"):
        if name not in figures:
            raise ValueError(f"no {name}")
    _check_numbers(figures, ("forward_us", "update_us"), "the file")
    for table, names in _COLUMNS.items():
        rows = figures.get(table)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"no list of objects {table}")
        for number, row in enumerate(rows):
            _check_numbers(row, names, f"{table}[{number}]")
    if any(not isinstance(step.get("overlaps"), bool) for step in figures["steps"]):
        raise ValueError("a step without overlaps")


def _check_numbers(row: Mapping[str, object], names: Sequence[str], where: str) -> None:
    for name in names:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
            raise ValueError(f"{where}.{name} {value!r}")


def links_of(all_reduces: Sequence[Mapping[str, float]]) -> Links:
    """The links behind timed all-reduces: rows with ranks (1 and 2), bytes and us."""
    alone = [row["us"] for row in all_reduces if row["ranks"] == 1]
    pairs = [(row["bytes"], row["us"]) for row in all_reduces if row["ranks"] == 2]
    if not alone or len({size for size, _ in pairs}) < 2:
        raise ValueError("expected all-reduces on 1 GPU, and of two sizes on 2, got too few")
    start_us = min(alone)
    sizes, times = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    # Each row is divided by its time, so that small messages count as much as large ones.
    rows = np.stack([1 / times, sizes / times], 1)
    (latency_us, us_per_byte), *_ = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)
    if us_per_byte <= 0:
        raise ValueError("expected all-reduces whose times grow with their bytes")
    return Links(start_us, max((float(latency_us) - start_us) / 2, 0.0), 1 / float(us_per_byte))


def calibrated(workload: Workload, links: Links, bucket_bytes: int, step_us: float) -> Model:
    """The model whose overlapped step on two GPUs takes ``step_us``, as nearly as contention can explain it."""
    low, high = 0.0, _MOST_CONTENTION
    model = Model(workload, links)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_faster = replace(model, contention=middle).step_us(2, bucket_bytes) < step_us
        low, high = (middle, high) if is_faster else (low, middle)
    return replace(model, contention=low)


def _ring_us(ranks: int, size_bytes: float, hop_us: float, bytes_per_us: float) -> float:
    return 2 * (ranks - 1) * (hop_us + size_bytes / ranks / bytes_per_us)


def _overlapped_us(work: Sequence[float], exchanges: Sequence[float], speed: float) -> float:
    """From the begin of the backward pass to the end of the last exchange. ``work[i]``: the full-speed time in which
    the gradients of bucket i are made, after those of the buckets before it."""
    now = free_at = 0.0
    for needed, exchange in zip(work, exchanges, strict=True):
        slow = max(free_at - now, 0.0)
        now += needed / speed if needed <= slow * speed else slow + needed - slow * speed
        free_at = max(now, free_at) + exchange
    return max(now, free_at)
