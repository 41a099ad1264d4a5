"""Choices of knobs for tests of ``norm_rows``, and the run of a case."""

from __future__ import annotations

from lowdnn.engines.norm.norm_rows import NormRows
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

ENGINE = NormRows()

#: A team of one warp with two groups in each thread: 256 elements of fp32 in a chunk.
SMALL = {KnobType.THREADS_PER_ROW: 32, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1}

CLUSTER = SMALL | {KnobType.TILE_CGA_M: 2}

#: Teams of a quarter of a warp.
NARROW = SMALL | {KnobType.THREADS_PER_ROW: 8}

#: Groups of so many values that only one block is resident.
WIDE = {KnobType.THREADS_PER_ROW: 512, KnobType.MULTIPLY: 4, KnobType.TILE_CGA_M: 1}

#: Two warps of threads, with rows side by side or one row, which four blocks of a cooperative grid share.
GRID = {KnobType.THREADS_PER_ROW: 8, KnobType.MULTIPLY: 1, KnobType.TILE_CGA_M: 1, KnobType.CTA_COUNT: 4}

COLUMNS = {KnobType.THREADS_PER_ROW: 16, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1}


def check(device: Runtime, line: str, choices: dict[KnobType, int] | None = None) -> Plan:
    return check_case(device, ENGINE, f"norm {line}", choices)


def shape_of(plan: Plan) -> dict[str, int | str]:
    return dict(plan.kernels[0].parameters)


def is_pipelined(plan: Plan) -> bool:
    """Whether the blocks of a cooperative grid share each row, with threads for each pass."""
    return plan.kernels[0].source.endswith("_pipelined.cu")
