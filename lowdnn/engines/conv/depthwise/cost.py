"""How long a multiprocessor walks for the depthwise kernels: the estimate behind the choice of their tiles.

The constants were fitted to some 1200 measured tiles of 54 convolutions on an H200. They rank the tiles of one problem;
as times they are right within half of their value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowdnn.arch.multiprocessor import MAX_THREAD_REGISTERS
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.model.occupancy import resident_blocks

#: Warp schedulers of a multiprocessor.
_SCHEDULERS = 4

#: From a load to its data under traffic.
LATENCY_S = 0.7e-6

#: Instructions follow each other in a warp as if so many more warps took turns with it.
_WARPS_OF_A_CHAIN = 1.4

#: Cycles of a multiprocessor for a sector of 32 bytes.
_READ_CYCLES, _WRITE_CYCLES = 0.5, 1.0
_WARP = 32

#: What the shorter of two things done at a time adds to the longer one.
_OVERLAP = 0.1


@dataclass(frozen=True)
class Step:
    """A thread's work of one step, and its warp's sectors; steps_ahead: how early its rows are asked for."""

    instructions: float
    sectors_read: float
    sectors_written: float
    steps_ahead: float


def step_cycles(step: Step, warps: float, arch: ArchSpec) -> float:
    """Of a step of all the ``warps`` of a scheduler: instructions or sectors, against the rows on their way."""
    return together(busy_cycles(step, warps), LATENCY_S * arch.clock_hz / step.steps_ahead)


def busy_cycles(step: Step, warps: float, waves: int = 1) -> float:
    """The same, were all rows there when they are needed; of warps that come in ``waves``, at least."""
    sectors = step.sectors_read * _READ_CYCLES + step.sectors_written * _WRITE_CYCLES
    return max(step.instructions * (warps + _WARPS_OF_A_CHAIN * waves), sectors * warps * _SCHEDULERS)


def row_instructions(positions: int, channels: int) -> float:
    """A row's two additions and a load of each position, and the widening."""
    return positions * (3.0 + channels)


def sectors(pitch_bytes: int) -> int:
    """What an access of a warp touches, its threads ``pitch_bytes`` apart."""
    return min(_WARP, ceil_div(_WARP * pitch_bytes, 32))


def warps_of(threads: int) -> float:
    """Of each scheduler."""
    return threads / (_WARP * _SCHEDULERS)


def estimated_blocks(arch: ArchSpec, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Blocks of a multiprocessor at a time, with about so many registers of each thread: at least one."""
    return max(1, resident_blocks(arch, threads, min(MAX_THREAD_REGISTERS, registers), shared_bytes))


def waves_s(blocks: int, resident: int, wave_cycles: Callable[[int], float], arch: ArchSpec) -> float:
    """Of all blocks of a multiprocessor; ``wave_cycles(n)``: of n of them at a time."""
    waves, rest = divmod(blocks, resident)
    cycles = (waves * wave_cycles(resident) if waves else 0.0) + (wave_cycles(rest) if rest else 0.0)
    return cycles / arch.clock_hz


def together(one: float, other: float) -> float:
    """Of two things done at a time."""
    return max(one, other) + _OVERLAP * min(one, other)
