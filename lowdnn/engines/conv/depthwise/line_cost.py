"""The estimated time of the kernels of lines, by which their tiles are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.depthwise.cost import StageCosts, Stages, estimated_blocks
from lowdnn.engines.conv.depthwise.line_axes import CHUNK
from lowdnn.engines.launch import ceil_div

#: Most threads of a block, as in the kernels' launch bounds.
MAX_THREADS = 320
MAX_SHARED_BYTES = 72 << 10

#: Fewest taps for which lines that are copied element by element are faster than other kernels (measured).
_LEAST_TAPS_OF_ELEMENTS = 9

COSTS: Final = StageCosts(
    start_instructions=120, stage_instructions=60, start_clocks=1500, stage_clocks=1800, lone_clocks=1.6, exposed=0.1
)


@dataclass(frozen=True)
class LineWork:
    """The work of a block: each thread has ``instructions`` in ``stages`` stages, each after copies.

    registers: registers of a thread.
    """

    blocks: int
    threads: int
    instructions: int
    stages: int
    registers: int
    shared_bytes: int

    def seconds(self, moved_bytes: int, arch: ArchSpec) -> float:
        """Estimated seconds: waves of a multiprocessor's blocks, and the bytes moved."""
        resident = estimated_blocks(arch, self.threads, self.registers, self.shared_bytes)
        work = Stages(self.blocks, self.threads, self.instructions, self.stages, resident)
        return work.seconds(COSTS, moved_bytes / arch.copy_bytes_per_s, arch)


def refuse_elements(taps: int, vector: int) -> str:
    """Why lines are too slow to copy for ``taps`` taps, or an empty string.  vector: elements of an access."""
    if vector > 1 or taps >= _LEAST_TAPS_OF_ELEMENTS:
        return ""
    return f"expected lines of whole vectors, or at least {_LEAST_TAPS_OF_ELEMENTS} taps, got {taps}"


def add_instructions(strip: int, factors: int, lanes: int) -> int:
    """Instructions of a thread that slides over ``factors`` factors, with the partial chunks at both ends."""
    accesses = 2 if lanes == 1 else 2 * CHUNK
    parts = CHUNK * strip // 2 if factors % CHUNK else 0
    return ceil_div(factors, CHUNK) * (CHUNK * strip + accesses + 6) + parts + strip


def copy_instructions(vector: int) -> int:
    """Instructions of one access that copies."""
    return 20 + 2 * vector


def parts_of(count: int, longest: int, choices: int) -> tuple[int, ...]:
    """Lengths up to ``longest`` of the even parts into which ``count`` may be cut, the longest first."""
    least = ceil_div(count, max(longest, 1))
    lengths = {ceil_div(count, parts) for parts in range(least, least + choices) if parts <= count}
    return tuple(sorted(lengths, reverse=True))


def whole_warps(threads: int) -> int:
    return ceil_div(threads, WARP_SIZE) * WARP_SIZE
