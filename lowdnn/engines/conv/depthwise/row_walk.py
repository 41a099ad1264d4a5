"""Threads that walk down rows independently: choices of their work, limits, and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lowdnn.arch.multiprocessor import SECTOR_BYTES, WARP_SCHEDULERS, WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.model.clock import overlap

#: Choices of neighbouring channels.
CHANNELS = (1, 2, 4, 8)
#: Choices of the columns of a strip.
STRIPS = (1, 2, 4, 7, 8, 14, 16)
#: Choices of rows that are read ahead.
PREFETCHES = (1, 2, 3, 4, 6, 8)
#: Threads of a block in the search.
THREADS = 128
#: Most source positions of a row that a thread keeps.
MAX_WINDOW = 64
#: Most residue classes of one axis, which are kernel arguments.
MAX_CLASSES = 32
#: Seconds that rows in flight should cover.
HIDDEN_S: Final = 1e-6


@dataclass(frozen=True)
class RowCosts:
    """Costs of kernels whose threads walk down rows independently.

    They were fitted to some 1200 measured tiles of 54 convolutions on an H200. They rank the tiles of one problem; as
    times they are right within a factor of about 1.5.
    """

    #: Additional warps that account for a warp's instructions that wait for each other.
    chain_warps: float
    #: Clocks of a multiprocessor for a sector that is read.
    read_clocks: float
    #: Clocks of a multiprocessor for a sector that is written.
    write_clocks: float
    #: Start of a block, or of one of its items, in load latencies.
    start_latencies: int
    #: Clocks of a warp until its weights begin to arrive.
    weights_clocks: int
    #: Clocks of a warp for each weight.
    weight_clocks: int
    #: Clocks of a warp to begin an item of a filter gradient.
    item_clocks: int
    #: Clocks of a warp to combine each of a block's sums.
    sum_clocks: int
    #: Instructions of a step in addition to its rows and products.
    step_instructions: int
    #: Share of the shorter of two times that the longer one does not hide.
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
    """A thread's work in one step, and its warp's sectors.  steps_ahead: steps by which its rows are read ahead."""

    instructions: float
    sectors_read: float
    sectors_written: float
    steps_ahead: float


def latency_clocks(arch: ArchSpec) -> float:
    """Clocks from a load to its data."""
    return arch.timings.load_latency_s * arch.clock_hz


def step_clocks(step: Step, warps: float, arch: ArchSpec) -> float:
    """Clocks of a step of a scheduler's ``warps`` warps: instructions or sectors, and the latency of the rows in
    flight.
    """
    return overlap(busy_clocks(step, warps), latency_clocks(arch) / step.steps_ahead, ROWS.exposed)


def busy_clocks(step: Step, warps: float, rounds: int = 1) -> float:
    """Clocks of a step that never waits for rows; a lower bound if warps come in ``rounds`` waves."""
    sectors = step.sectors_read * ROWS.read_clocks + step.sectors_written * ROWS.write_clocks
    return max(step.instructions * (warps + ROWS.chain_warps * rounds), sectors * warps * WARP_SCHEDULERS)


def row_instructions(positions: int, channels: int) -> float:
    """Instructions of a row: two additions and a load for each position, and the widening."""
    return positions * (3.0 + channels)


def sectors(pitch_bytes: int) -> int:
    """Sectors that an access of a warp touches, with ``pitch_bytes`` from one thread to the next."""
    return min(WARP_SIZE, ceil_div(WARP_SIZE * pitch_bytes, SECTOR_BYTES))
