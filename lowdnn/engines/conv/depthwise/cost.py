"""What multiprocessors make of blocks that copy what they need into shared memory, and how many they hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from lowdnn.arch.multiprocessor import MAX_THREAD_REGISTERS, REGISTERS_PER_SM, WARP_SCHEDULERS, WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.model.clock import overlap, waves
from lowdnn.engines.model.occupancy import resident_blocks


@dataclass(frozen=True)
class StageCosts:
    """Costs of kernels whose blocks copy what they need into shared memory, stage by stage."""

    #: Instructions of a block's start, and of each stage beside those that its work is.
    start_instructions: int
    stage_instructions: int
    #: Clocks of a block's start, and of a stage from its loads, or from its barrier, to its products.
    start_clocks: int
    stage_clocks: int
    #: Clocks of a warp alone for one of its instructions.
    lone_clocks: float
    #: Share of the shorter of the walk and the bytes moved that the longer one does not hide.
    exposed: float


@dataclass(frozen=True)
class Stages:
    """What each block of a kernel does: ``instructions`` of each thread in so many ``stages``.

    resident: blocks of a multiprocessor at a time.
    """

    blocks: int
    threads: int
    instructions: int
    stages: int
    resident: int

    def seconds(self, costs: StageCosts, memory_s: float, arch: ArchSpec) -> float:
        """Estimated, with ``memory_s`` for the bytes moved: warps take turns at the schedulers, unless each by itself
        takes longer."""
        own = self.instructions + costs.start_instructions + self.stages * costs.stage_instructions
        alone, warps = own * costs.lone_clocks + self.stages * costs.stage_clocks, warps_of(self.threads)

        def wave_clocks(blocks: int) -> float:
            return hypot(blocks * warps * own, alone) + costs.start_clocks

        walk_clocks = waves(ceil_div(self.blocks, arch.sm_count), self.resident, wave_clocks)
        return overlap(walk_clocks / arch.clock_hz, memory_s, costs.exposed)


def warps_of(threads: int) -> float:
    """Warps of each scheduler."""
    return threads / (WARP_SIZE * WARP_SCHEDULERS)


def estimated_blocks(arch: ArchSpec, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Blocks of a multiprocessor at a time, with about so many registers of each thread: at least one.

    The costs were fitted with estimated registers, of which none are lost to the granules of their allocation: tiles
    that are chosen with ``resident_blocks`` of the estimate were up to 1.6 times as slow on an H200.
    """
    by_registers = REGISTERS_PER_SM // (min(MAX_THREAD_REGISTERS, registers) * threads)
    return max(1, min(by_registers, resident_blocks(arch, threads, shared_bytes=shared_bytes)))
