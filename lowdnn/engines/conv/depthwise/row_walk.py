"""Threads that walk down rows by themselves: choices of their work, limits, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lowdnn.arch.multiprocessor import SECTOR_BYTES, WARP_SCHEDULERS, WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.model.clock import overlap

#: Choices of neighbouring channels, of columns of a strip, and of rows that are read ahead.
CHANNELS = (1, 2, 4, 8)
STRIPS = (1, 2, 4, 7, 8, 14, 16)
PREFETCHES = (1, 2, 3, 4, 6, 8)
#: Threads of a block, as the search takes them.
THREADS = 128
#: Source positions of a row that a thread may hold.
MAX_WINDOW = 64
#: Residue classes of one axis, which travel as kernel arguments.
MAX_CLASSES = 32
#: Seconds that rows on their way should cover.
HIDDEN_S: Final = 1e-6


@dataclass(frozen=True)
class RowCosts:
    """Costs of kernels whose threads walk down rows by themselves.

    Fitted to some 1200 measured tiles of 54 convolutions on an H200. They rank the tiles of one problem; as times they
    are right within half of their value.
    """

    #: Warps more that a scheduler seems to have, since the instructions of a warp wait for each other.
    chain_warps: float
    #: Clocks of a multiprocessor for a sector that is read, and for one that is written.
    read_clocks: float
    write_clocks: float
    #: Load latencies until a block, or an item of one, has begun.
    start_latencies: int
    #: Clocks of a warp until its weights are there, and for each weight.
    weights_clocks: int
    weight_clocks: int
    #: Clocks of a warp to begin an item of a filter gradient, and to add up each of a block's sums.
    item_clocks: int
    sum_clocks: int
    #: Instructions of a step beside its rows and products.
    step_instructions: int
    #: Share of the shorter of two things that the longer one does not hide.
    exposed: float


ROWS: Final = RowCosts(
    chain_warps=1.4,
    read_clocks=0.5,
    write_clocks=1.0,
    start_latencies=3,
    weights_clocks=300,
    weight_clocks=20,
    item_clocks=100,
    sum_clocks=6,
    step_instructions=30,
    exposed=0.1,
)


@dataclass(frozen=True)
class Step:
    """A thread's work of one step, and its warp's sectors; steps_ahead: how early its rows are asked for."""

    instructions: float
    sectors_read: float
    sectors_written: float
    steps_ahead: float


def latency_clocks(arch: ArchSpec) -> float:
    """Clocks from a load to its data."""
    return arch.timings.load_latency_s * arch.clock_hz


def step_clocks(step: Step, warps: float, arch: ArchSpec) -> float:
    """A step of all the ``warps`` of a scheduler: instructions or sectors, against the rows on their way."""
    return overlap(busy_clocks(step, warps), latency_clocks(arch) / step.steps_ahead, ROWS.exposed)


def busy_clocks(step: Step, warps: float, rounds: int = 1) -> float:
    """Clocks of a step if all rows were there when they are needed; at least, where warps come in ``rounds`` waves."""
    sectors = step.sectors_read * ROWS.read_clocks + step.sectors_written * ROWS.write_clocks
    return max(step.instructions * (warps + ROWS.chain_warps * rounds), sectors * warps * WARP_SCHEDULERS)


def row_instructions(positions: int, channels: int) -> float:
    """A row's two additions and a load of each position, and the widening."""
    return positions * (3.0 + channels)


def sectors(pitch_bytes: int) -> int:
    """What an access of a warp touches, its threads ``pitch_bytes`` apart."""
    return min(WARP_SIZE, ceil_div(WARP_SIZE * pitch_bytes, SECTOR_BYTES))
