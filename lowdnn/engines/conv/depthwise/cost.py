"""The cost of blocks that copy their operands into shared memory, and the number of blocks on a multiprocessor."""

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
    """Costs of kernels whose blocks copy their operands into shared memory, stage by stage."""

    #: Instructions of a block's start.
    start_instructions: int
    #: Instructions of each stage in addition to its work.
    stage_instructions: int
    #: Clocks of a block's start.
    start_clocks: int
    #: Clocks of a stage from its loads, or from its barrier, to its products.
    stage_clocks: int
    #: Clocks for each instruction of a warp that is alone on its scheduler.
    lone_clocks: float
    #: Share of the shorter of arithmetic and memory time that the longer one does not hide.
    exposed: float


@dataclass(frozen=True)
class Stages:
    """The work of a kernel's blocks: each thread has ``instructions`` in ``stages`` stages.

    resident: blocks on a multiprocessor at a time.
    """

    blocks: int
    threads: int
    instructions: int
    stages: int
    resident: int

    def seconds(self, costs: StageCosts, memory_s: float, arch: ArchSpec) -> float:
        """Estimated seconds; ``memory_s``: the time to move the bytes. A wave of blocks takes about as long as the
        longer of two: issuing all its instructions, and running one warp alone with its latencies.
        """
        own = self.instructions + costs.start_instructions + self.stages * costs.stage_instructions
        alone, warps = own * costs.lone_clocks + self.stages * costs.stage_clocks, warps_of(self.threads)

        def wave_clocks(blocks: int) -> float:
            return hypot(blocks * warps * own, alone) + costs.start_clocks

        walk_clocks = waves(ceil_div(self.blocks, arch.sm_count), self.resident, wave_clocks)
        return overlap(walk_clocks / arch.clock_hz, memory_s, costs.exposed)


def warps_of(threads: int) -> float:
    """Warps on each scheduler, of ``threads`` threads."""
    return threads / (WARP_SIZE * WARP_SCHEDULERS)


def estimated_blocks(arch: ArchSpec, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Blocks that are resident on a multiprocessor if a thread has about ``registers`` registers: at least one.

    The costs were fitted with estimated registers, without the granules of their allocation: tiles chosen with
    ``resident_blocks`` of the estimate were up to 1.6 times as slow on an H200.
    """
    by_registers = REGISTERS_PER_SM // (min(MAX_THREAD_REGISTERS, registers) * threads)
    return max(1, min(by_registers, resident_blocks(arch, threads, shared_bytes=shared_bytes)))
