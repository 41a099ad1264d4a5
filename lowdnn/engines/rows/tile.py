"""How many threads own a row, and how much of it they hold: the tile of ``include/rows.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.enums import DataType, KnobType
from lowdnn.status import BadParamError

_TEAMS = tuple(1 << power for power in range(10))
_ITEMS = (1, 2, 4, 8, 16)
_CLUSTERS = (1, 2, 4, 8)
_SHARES_OF_GRID = tuple(1 << power for power in range(8))

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
#: Threads of a block whose rows lie side by side, where it has a multiprocessor to itself and otherwise; how many of
#: these are neighbours: what makes a memory line.
_MAX_COLUMN_THREADS, _COLUMN_THREADS, _MIN_SIDE, _MAX_SIDE = 512, 256, 8, 32
#: Bytes that a thread reads of a group, and bytes of rows for each block of a cluster that are worth more blocks and
#: the meeting of a whole grid.
_GROUP_BYTES, _CLUSTER_BYTES = 16, 65536
#: The share of the multiprocessors that clusters can have, and bytes of a row that a block without others can hold.
_IN_CLUSTERS, _MAX_STAYING_BYTES = 0.875, 131072


@dataclass(frozen=True)
class RowTile:
    """See ``include/rows.cuh``; the field names are the kernels' macros."""

    THREADS: int
    TEAM: int
    SIDE: int
    ITEMS: int
    SHARING: int
    CLUSTER: int
    RESIDENT: int

    @property
    def slots(self) -> int:
        """Groups of rows of a block."""
        return self.THREADS // self.TEAM

    @property
    def text(self) -> str:
        """For kernel names."""
        meeting = f"g{self.SHARING}" if self.is_cooperative else ""
        return f"t{self.THREADS}m{self.TEAM}s{self.SIDE}i{self.ITEMS}c{self.CLUSTER}{meeting}"

    @property
    def is_cooperative(self) -> bool:
        """Whether blocks share rows that are not of one cluster."""
        return self.SHARING > self.CLUSTER

    def first_groups(self, layout: RowLayout) -> int:
        """Groups of a row that the first estimate of its mean is taken over: the first chunk; where blocks share rows,
        one for each thread of a team."""
        return min(self.TEAM * (self.ITEMS if self.SHARING == 1 else 1), layout.groups)

    def chunks(self, layout: RowLayout) -> int:
        return max(1, ceil_div(layout.groups, self.TEAM * self.ITEMS * self.SHARING))

    def blocks(self, layout: RowLayout) -> int:
        """Of a grid in which every group of rows has a team of its own; the greatest grid where that is too many."""
        return min(ceil_div(layout.row_groups, self.slots), MAX_GRID_X // self.SHARING) * self.SHARING


def knobs(
    layout: RowLayout, arch: ArchSpec, compute_type: DataType, arrays: int, on_chip: bool = False
) -> tuple[Knob, ...]:
    """TILE_ROWS (threads of a row), MULTIPLY (groups that one holds), TILE_CGA_M, CTA_COUNT (blocks that share rows).

    arrays: values of ``compute_type`` that a thread holds for each element.
    on_chip: whether the kernel lets chunks stay in shared memory, and the blocks of a cooperative grid share rows
    (CTA_COUNT).
    """
    team, items, cluster, sharing = _defaults(layout, arch, dtypes.info(compute_type).size_bytes, arrays, on_chip)
    clusters = _CLUSTERS if arch.name == "sm_90a" else (1,)
    most = _most_team(layout)
    found = (
        Knob("team", KnobType.TILE_ROWS, tuple(t for t in _TEAMS if t <= most), team, "threads that share a row"),
        Knob("items", KnobType.MULTIPLY, _ITEMS, items, "groups in registers"),
        Knob("cluster", KnobType.TILE_CGA_M, clusters, cluster, "blocks of a cluster that share rows"),
    )
    if not on_chip:
        return found
    fitting = {share for share in _SHARES_OF_GRID if share <= _most_sharing(layout, arch)}
    values = tuple(sorted(fitting | {1, sharing}))
    return (
        *found,
        Knob("sharing", KnobType.CTA_COUNT, values, sharing, "blocks of a cooperative grid that share rows"),
    )


def tile_of(layout: RowLayout, chosen: Choices, compute_type: DataType, arrays: int) -> RowTile:
    """The tile of resolved knobs; ``arrays`` as for ``knobs``.

    Raises BadParamError where rows are to be shared both by a cluster and by a whole grid.
    """
    team, cluster, side = chosen[KnobType.TILE_ROWS], chosen[KnobType.TILE_CGA_M], _side(layout)
    sharing = max(cluster, chosen.get(KnobType.CTA_COUNT, 1))
    if 1 < cluster < sharing:
        raise BadParamError.at("rows.TILE_CGA_M", expected=f"1 with CTA_COUNT {sharing}", got=cluster)
    threads = team * side
    if sharing == 1:
        wanted = _MIN_THREADS if layout.space.is_row else 32
        threads = max(threads, min(wanted, max(32, threads * ceil_power(ceil_div(layout.row_groups, side)))))
    if threads < 32:
        team, threads = 32 // side, 32
    items = chosen[KnobType.MULTIPLY]
    held = arrays * items * layout.vector * dtypes.info(compute_type).size_bytes // 4
    resident = _resident(layout, threads, items, held) if sharing == cluster else 1
    return RowTile(threads, team, side, items, sharing, cluster, resident)


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
    return _TEAMS[-1] if layout.space.is_row else _MAX_COLUMN_THREADS // _side(layout)


def _row_blocks(layout: RowLayout) -> int:
    """Blocks of a grid in which none share rows, of one team each."""
    return max(1, ceil_div(layout.row_groups, _side(layout)))


def _most_sharing(layout: RowLayout, arch: ArchSpec) -> int:
    """Blocks of a cooperative grid that share rows, at most: one for each multiprocessor, so that all are there."""
    return max(1, arch.sm_count // _row_blocks(layout))


def _defaults(
    layout: RowLayout, arch: ArchSpec, element_bytes: int, arrays: int, on_chip: bool
) -> tuple[int, int, int, int]:
    """(team, items, cluster, sharing): each thread a few vectors, more where a row would not fit the block or the
    cluster; a whole grid's blocks where those of a cluster would have much to read."""
    words = arrays * element_bytes // 4 * layout.vector
    limit = _ITEMS[-1] if layout.space.space.rank - layout.space.kept == 1 else _MAX_WALKED
    usual, most = (min(max(1, registers // words), limit) for registers in (_REGISTERS, _MAX_REGISTERS))
    groups = max(layout.groups, 1)
    most_team = _TEAMS[-1] if layout.space.is_row else _COLUMN_THREADS // _side(layout)
    cluster, sharing = _default_cluster(layout, arch, element_bytes, most_team * most), 1
    if on_chip and _row_blocks(layout) <= arch.sm_count:
        cluster, sharing = _one_wave(layout, arch, arrays, cluster)
        if sharing > 1:
            most_team, most = _most_team(layout), max(1, usual * 4 // element_bytes)
    own = ceil_div(groups, max(cluster, sharing))
    team = min(most_team, max(ceil_power(ceil_div(own, usual)), min(_MIN_TEAM, ceil_power(own))))
    return team, min(floor_power(most), ceil_power(ceil_div(own, team))), cluster, sharing


def _one_wave(layout: RowLayout, arch: ArchSpec, arrays: int, cluster: int) -> tuple[int, int]:
    """(cluster, sharing) from the preferred cluster, for blocks that have a multiprocessor each, and its shared memory:
    so many that all are there at a time."""
    row_blocks, most_sharing = _row_blocks(layout), _most_sharing(layout, arch)
    bytes_of_rows = layout.groups * _side(layout) * arrays * _GROUP_BYTES
    too_long = most_sharing >= 2 * cluster and bytes_of_rows > cluster * _CLUSTER_BYTES
    if layout.space.is_row:
        return (1, most_sharing) if too_long else (cluster, 1)
    if most_sharing > 1 and (too_long or row_blocks * cluster > _IN_CLUSTERS * arch.sm_count):
        return 1, most_sharing
    while cluster > most_sharing and 2 * bytes_of_rows <= cluster * _MAX_STAYING_BYTES:
        cluster //= 2
    return cluster, 1


def _default_cluster(layout: RowLayout, arch: ArchSpec, element_bytes: int, held: int) -> int:
    """Enough blocks for a row of which a block holds ``held`` groups, and for the device."""
    if arch.name != "sm_90a":
        return 1
    groups, row_blocks, most = max(layout.groups, 1), _row_blocks(layout), _CLUSTERS[-1]
    cluster = min(most, ceil_power(ceil_div(groups, held)))
    least = _MIN_BLOCK_BYTES // (layout.vector * element_bytes)
    while cluster < most and 2 * row_blocks * cluster <= arch.sm_count and groups // (2 * cluster) >= least:
        cluster *= 2
    return cluster
