"""What the tests of ``norm_rows`` share: choices of knobs, and the run of a case."""

from __future__ import annotations

from lowdnn.engines.norm.norm_rows import NormRows
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

ENGINE = NormRows()

#: A team of one warp that holds two groups: 256 elements of fp32 in a chunk.
SMALL = {KnobType.THREADS_PER_ROW: 32, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1}

CLUSTER = SMALL | {KnobType.TILE_CGA_M: 2}

#: Teams of a quarter of a warp.
NARROW = SMALL | {KnobType.THREADS_PER_ROW: 8}

#: Of values only one block would fit a multiprocessor.
WIDE = {KnobType.THREADS_PER_ROW: 512, KnobType.MULTIPLY: 4, KnobType.TILE_CGA_M: 1}

#: Two warps of threads with rows side by side, or one row; four blocks of a cooperative grid share them.
GRID = {KnobType.THREADS_PER_ROW: 8, KnobType.MULTIPLY: 1, KnobType.TILE_CGA_M: 1, KnobType.CTA_COUNT: 4}

COLUMNS = {KnobType.THREADS_PER_ROW: 16, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1}


def check(device: Runtime, line: str, choices: dict[KnobType, int] | None = None) -> Plan:
    return check_case(device, ENGINE, f"norm {line}", choices)


def shape_of(plan: Plan) -> dict[str, int | str]:
    return dict(plan.kernels[0].parameters)


def is_in_turns(plan: Plan) -> bool:
    """Whether the blocks of a cooperative grid share one row after the other."""
    return plan.kernels[0].source.endswith("_turns.cu")
