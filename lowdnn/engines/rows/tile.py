"""How many threads own a row, and how much of it they hold: the tile of ``include/rows.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.enums import DataType, KnobType

_TEAMS = tuple(1 << power for power in range(10))
_ITEMS = (1, 2, 4, 8, 16)
_CLUSTERS = (1, 2, 4, 8)

#: Registers of a thread that hold elements: twice as many where a row needs them.
_REGISTERS, _MAX_REGISTERS = 32, 64
#: Groups of a thread whose rows have several axes: each has a place of its own in registers.
_MAX_WALKED = 8
#: Threads of a block: at least, where rows are short.
_MIN_THREADS = 128
#: Registers of a thread besides the elements that it holds: in all, for each group of a row with one axis or several,
#: and for each row side by side.
_BASE_REGISTERS, _ITEM_REGISTERS, _WALK_REGISTERS, _SIDE_REGISTERS = 28, 3, 12, 8
_MIN_REGISTERS, _REGISTERS_PER_SM, _MAX_RESIDENT = 48, 65536, 16
#: Threads of a team that read neighbouring vectors: a memory line of 128 bytes.
_MIN_TEAM = 8
#: Bytes of a row that are worth a block of their own, where there are too few rows for the device.
_MIN_BLOCK_BYTES = 8192
#: Threads of a block whose rows lie side by side, and how many of these are neighbours: what makes a memory line.
_COLUMN_THREADS, _MIN_SIDE, _MAX_SIDE = 256, 8, 32


@dataclass(frozen=True)
class RowTile:
    """See ``include/rows.cuh``; the field names are the kernels' macros."""

    THREADS: int
    TEAM: int
    SIDE: int
    ITEMS: int
    CLUSTER: int
    RESIDENT: int

    @property
    def slots(self) -> int:
        """Groups of rows of a block."""
        return self.THREADS // self.TEAM

    @property
    def text(self) -> str:
        """For kernel names."""
        return f"t{self.THREADS}m{self.TEAM}s{self.SIDE}i{self.ITEMS}c{self.CLUSTER}"

    def first_count(self, layout: RowLayout) -> int:
        """Elements of a row in its first chunk."""
        groups = min(self.TEAM * self.ITEMS * self.CLUSTER, layout.groups)
        return groups * (layout.vector if layout.space.is_row else 1)

    def chunks(self, layout: RowLayout) -> int:
        return max(1, ceil_div(layout.groups, self.TEAM * self.ITEMS * self.CLUSTER))

    def blocks(self, layout: RowLayout) -> int:
        """Of a grid in which every group of rows has a team of its own; the greatest grid where that is too many."""
        return min(ceil_div(layout.row_groups, self.slots), MAX_GRID_X // self.CLUSTER) * self.CLUSTER


def knobs(layout: RowLayout, arch: ArchSpec, compute_type: DataType, arrays: int) -> tuple[Knob, ...]:
    """TILE_ROWS (threads of a row), MULTIPLY (groups that one holds), TILE_CGA_M (blocks that share rows).

    arrays: values of ``compute_type`` that a thread holds for each element.
    """
    team, items, cluster = _defaults(layout, arch, dtypes.info(compute_type).size_bytes, arrays)
    clusters = _CLUSTERS if arch.name == "sm_90a" else (1,)
    most = _most_team(layout)
    return (
        Knob("team", KnobType.TILE_ROWS, tuple(t for t in _TEAMS if t <= most), team, "threads that share a row"),
        Knob("items", KnobType.MULTIPLY, _ITEMS, items, "groups in registers"),
        Knob("cluster", KnobType.TILE_CGA_M, clusters, cluster, "blocks that share rows"),
    )


def tile_of(layout: RowLayout, chosen: Choices, compute_type: DataType, arrays: int) -> RowTile:
    """The tile of resolved knobs; ``arrays`` as for ``knobs``."""
    team, cluster, side = chosen[KnobType.TILE_ROWS], chosen[KnobType.TILE_CGA_M], _side(layout)
    threads = team * side
    if cluster == 1:
        wanted = _MIN_THREADS if layout.space.is_row else 32
        threads = max(threads, min(wanted, max(32, threads * ceil_power(ceil_div(layout.row_groups, side)))))
    if threads < 32:
        team, threads = 32 // side, 32
    items = chosen[KnobType.MULTIPLY]
    held = arrays * items * layout.vector * dtypes.info(compute_type).size_bytes // 4
    return RowTile(threads, team, side, items, cluster, _resident(layout, threads, items, held))


def _resident(layout: RowLayout, threads: int, items: int, held: int) -> int:
    """Blocks for which a multiprocessor has registers, of threads that hold ``held`` of them in elements."""
    space = layout.space
    each = _ITEM_REGISTERS if space.space.rank - space.kept == 1 else _WALK_REGISTERS
    beside = 0 if space.is_row else _SIDE_REGISTERS * layout.vector
    registers = max(_MIN_REGISTERS, ceil_div(_BASE_REGISTERS + held + each * items + beside, 8) * 8)
    return max(1, min(_REGISTERS_PER_SM // (threads * registers), _MAX_RESIDENT))


def _side(layout: RowLayout) -> int:
    """Rows side by side: neighbours in memory."""
    if layout.space.is_row:
        return 1
    return min(max(_MIN_SIDE, _MAX_SIDE // layout.vector), ceil_power(layout.radices[layout.space.kept - 1]))


def _most_team(layout: RowLayout) -> int:
    return _TEAMS[-1] if layout.space.is_row else _COLUMN_THREADS // _side(layout)


def _defaults(layout: RowLayout, arch: ArchSpec, element_bytes: int, arrays: int) -> tuple[int, int, int]:
    """(team, items, cluster): each thread a few vectors, more where a row would not fit the block or the cluster."""
    words = arrays * element_bytes // 4 * layout.vector
    limit = _ITEMS[-1] if layout.space.space.rank - layout.space.kept == 1 else _MAX_WALKED
    usual, most = (min(max(1, registers // words), limit) for registers in (_REGISTERS, _MAX_REGISTERS))
    groups, most_team = max(layout.groups, 1), _most_team(layout)
    most_cluster = _CLUSTERS[-1] if arch.name == "sm_90a" else 1
    cluster = min(most_cluster, ceil_power(ceil_div(groups, most_team * most)))
    blocks = max(1, layout.row_groups // (1 if layout.space.is_row else _side(layout)))
    least = _MIN_BLOCK_BYTES // (layout.vector * element_bytes)
    while cluster < most_cluster and 2 * blocks * cluster <= arch.sm_count and groups // (2 * cluster) >= least:
        cluster *= 2
    own = ceil_div(groups, cluster)
    team = min(most_team, max(ceil_power(ceil_div(own, usual)), min(_MIN_TEAM, ceil_power(own))))
    return team, min(floor_power(most), ceil_power(ceil_div(own, team))), cluster
