"""How many threads own a row, and how much of it they hold: the tile of ``include/rows.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.pattern import PointwiseDag

_TEAMS = tuple(1 << power for power in range(10))
_ITEMS = (1, 2, 4, 8, 16)
_CLUSTERS = (1, 2, 4, 8)

#: Registers of a thread that hold elements: twice as many where a row needs them.
_REGISTERS, _MAX_REGISTERS = 32, 64
#: The same where sums over rows are among them: the fewer threads share a row, the more of its registers are these.
_SUM_REGISTERS = 96
#: Groups of a thread whose rows have several axes, or which sums over rows: each has a place of its own in registers.
_MAX_PLACED = 8
#: Threads of a block: at least, where rows are short.
_MIN_THREADS = 128
#: Registers of a thread besides the elements that it holds as values, or as they are read: in all, for each group of a
#: row with one axis, and with several.
_VALUE_REGISTERS, _READ_REGISTERS = (28, 3, 12), (36, 0, 4)
#: For each row side by side, and for a skew.
_SIDE_REGISTERS, _SKEW_REGISTERS = 9, 12
_MIN_REGISTERS, _MAX_RESIDENT = 48, 16
#: Quarters of a multiprocessor have registers of their own, for whole warps.
_QUARTERS, _REGISTERS_PER_QUARTER = 4, 16384
#: Blocks of a multiprocessor, so that some read rows while others join statistics and store.
_WANTED_RESIDENT = 3
#: Threads of a team that read neighbouring vectors: a memory line of 128 bytes.
_MIN_TEAM = 8
#: Bytes of a row that are worth a block of their own, where there are too few rows for the device.
_MIN_BLOCK_BYTES = 8192
#: Threads of a block whose rows lie side by side, and how many of these are neighbours: what makes a memory line.
_COLUMN_THREADS, _MIN_SIDE, _MAX_SIDE = 256, 8, 32


@dataclass(frozen=True)
class Held:
    """Bytes of registers that a thread needs for an element: for its ``values``, or for what it holds ``as_read`` and
    converts whenever it is used (0 where it cannot); with both for ``sums`` over rows.

    beside: registers for what else the thread has.
    """

    values: int
    as_read: int
    sums: int
    beside: int

    @staticmethod
    def of(compute_type: DataType, *sources: PointwiseDag, sums: int = 0, beside: int = 0) -> Held:
        """sources: where the values come from.  sums: further values of ``compute_type``."""
        size_bytes = dtypes.info(compute_type).size_bytes
        are_plain = all(not dag.operations and len(dag.loads) == 1 for dag in sources)
        as_read = sum(dag.loads[0].element_bytes for dag in sources) if are_plain else 0
        return Held(len(sources) * size_bytes, as_read, sums * size_bytes, beside)

    def words(self, vector: int, is_as_read: bool) -> int:
        """Registers for a group of ``vector`` elements."""
        return ceil_div(((self.as_read if is_as_read else self.values) + self.sums) * vector, 4)


@dataclass(frozen=True)
class RowTile:
    """See ``include/rows.cuh``; the field names are the kernels' macros."""

    THREADS: int
    TEAM: int
    SIDE: int
    ITEMS: int
    CLUSTER: int
    AS_READ: int
    RESIDENT: int

    @property
    def slots(self) -> int:
        """Groups of rows of a block."""
        return self.THREADS // self.TEAM

    @property
    def text(self) -> str:
        """For kernel names."""
        return f"t{self.THREADS}m{self.TEAM}s{self.SIDE}i{self.ITEMS}c{self.CLUSTER}{'n' if self.AS_READ else ''}"

    def first_count(self, layout: RowLayout) -> int:
        """Elements of a row in its first chunk."""
        groups = self.TEAM * self.ITEMS * self.CLUSTER
        return min(groups * (layout.vector if layout.space.is_row else 1), layout.space.count)

    def chunks(self, layout: RowLayout) -> int:
        return max(1, ceil_div(layout.groups, self.TEAM * self.ITEMS * self.CLUSTER))

    def blocks(self, layout: RowLayout) -> int:
        """Of a grid in which every group of rows has a team of its own; the greatest grid where that is too many."""
        return min(ceil_div(layout.row_groups, self.slots), MAX_GRID_X // self.CLUSTER) * self.CLUSTER


def knobs(layout: RowLayout, arch: ArchSpec, held: Held) -> tuple[Knob, ...]:
    """TILE_ROWS (threads of a row), MULTIPLY (groups that one holds), TILE_CGA_M (blocks that share rows)."""
    team, items, cluster = _defaults(layout, arch, held)
    clusters = _CLUSTERS if arch.name == "sm_90a" else (1,)
    most = _most_team(layout)
    return (
        Knob("team", KnobType.TILE_ROWS, tuple(t for t in _TEAMS if t <= most), team, "threads that share a row"),
        Knob("items", KnobType.MULTIPLY, _ITEMS, items, "groups in registers"),
        Knob("cluster", KnobType.TILE_CGA_M, clusters, cluster, "blocks that share rows"),
    )


def tile_of(layout: RowLayout, chosen: Choices, held: Held) -> RowTile:
    """The tile of resolved knobs."""
    team, cluster, side = chosen[KnobType.TILE_ROWS], chosen[KnobType.TILE_CGA_M], _side(layout)
    threads = team * side
    if cluster == 1:
        wanted = _MIN_THREADS if layout.space.is_row else 32
        threads = max(threads, min(wanted, max(32, threads * ceil_power(ceil_div(layout.row_groups, side)))))
    if threads < 32:
        team, threads = 32 // side, 32
    items = chosen[KnobType.MULTIPLY]
    is_as_read, resident = _holding(layout, threads, items, held)
    return RowTile(threads, team, side, items, cluster, int(is_as_read), max(1, resident))


def _resident(layout: RowLayout, threads: int, items: int, held: Held, is_as_read: bool) -> int:
    """Blocks for which a multiprocessor has registers."""
    space, vector = layout.space, layout.vector
    base, item, walked_item = _READ_REGISTERS if is_as_read else _VALUE_REGISTERS
    each = held.words(vector, is_as_read) + (item if space.space.rank - space.kept == 1 else walked_item)
    beside = (0 if space.is_row else _SIDE_REGISTERS * vector) + (_SKEW_REGISTERS if space.skew else 0) + held.beside
    registers = max(_MIN_REGISTERS, ceil_div(base + each * items + beside, 8) * 8)
    warps = _QUARTERS * (_REGISTERS_PER_QUARTER // (32 * registers))
    return min(32 * warps // threads, _MAX_RESIDENT)


def _holding(layout: RowLayout, threads: int, items: int, held: Held) -> tuple[bool, int]:
    """(whether chunks are held as they are read, blocks of a multiprocessor): so where too few would fit otherwise, and
    with sums, whose registers are better spent on these."""
    resident = _resident(layout, threads, items, held, is_as_read=False)
    if not held.as_read or (resident >= _WANTED_RESIDENT and not held.sums):
        return False, resident
    return True, _resident(layout, threads, items, held, is_as_read=True)


def _side(layout: RowLayout) -> int:
    """Rows side by side: neighbours in memory."""
    if layout.space.is_row:
        return 1
    return min(max(_MIN_SIDE, _MAX_SIDE // layout.vector), ceil_power(layout.radices[layout.space.kept - 1]))


def _most_team(layout: RowLayout) -> int:
    return _TEAMS[-1] if layout.space.is_row else _COLUMN_THREADS // _side(layout)


def _defaults(layout: RowLayout, arch: ArchSpec, held: Held) -> tuple[int, int, int]:
    """(team, items, cluster): each thread a few vectors; more, or more blocks, where fewer than wanted would fit a
    multiprocessor; rows of several chunks where nothing holds them."""
    fewest, most = _item_bounds(layout, held)
    most_team, side = _most_team(layout), _side(layout)
    most_cluster = _CLUSTERS[-1] if arch.name == "sm_90a" else 1
    clusters = [c for c in _CLUSTERS if _least_cluster(layout, arch, most_cluster) <= c <= most_cluster]
    for resident, cluster in product(range(_WANTED_RESIDENT, 0, -1), clusters):
        own = ceil_div(max(layout.groups, 1), cluster)
        for wanted in (i for i in _ITEMS if fewest <= i <= most):
            team = max(ceil_power(ceil_div(own, wanted)), min(_MIN_TEAM, ceil_power(own)))
            items = ceil_power(ceil_div(own, team))
            if team <= most_team and _holding(layout, team * side, items, held)[1] >= resident:
                return team, items, cluster
    in_chunks = (i for i in _ITEMS if i <= most and _holding(layout, most_team * side, i, held)[1] > 1)
    return most_team, max(in_chunks, default=1), most_cluster


def _item_bounds(layout: RowLayout, held: Held) -> tuple[int, int]:
    """Groups that a thread holds, at least where the row has them, and at most."""
    is_line = layout.space.space.rank - layout.space.kept == 1
    limit = _ITEMS[-1] if is_line and not held.sums else _MAX_PLACED
    usual = _REGISTERS // held.words(layout.vector, is_as_read=False)
    registers = _SUM_REGISTERS if held.sums else _MAX_REGISTERS
    most = min(floor_power(registers // held.words(layout.vector, held.as_read > 0)), limit)
    return most if held.sums else min(floor_power(usual), most), most


def _least_cluster(layout: RowLayout, arch: ArchSpec, most: int) -> int:
    """Blocks that share rows where there are too few rows for the device."""
    blocks, cluster = max(1, layout.row_groups // _side(layout)), 1
    least_groups = _MIN_BLOCK_BYTES // (layout.vector * 4)
    while cluster < most and 2 * blocks * cluster <= arch.sm_count and layout.groups // (2 * cluster) >= least_groups:
        cluster *= 2
    return cluster
