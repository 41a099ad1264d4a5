"""How many threads own a row, and how much of it they hold: the tile of ``include/rows/rows.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from lowdnn.arch.specs import CLUSTER_REACH, ArchSpec
from lowdnn.engines.base import Choices
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.held import Held, holding, resident_blocks
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.limits import LIMITS
from lowdnn.engines.rows.packed_row import ALLOTTED_TO_FEW, PackedRow
from lowdnn.engines.rows.teams import are_independent, has_room_for_lines, side_of, turn_side
from lowdnn.enums import KnobType
from lowdnn.status import BadParamError

#: READ_AHEAD: the next row, as many chunks as have room, or the next row by the copy engine.
NEXT_ROW, RING, ENGINE_ROW = 1, 2, 3


@dataclass(frozen=True)
class RowTile:
    """See ``include/rows/rows.cuh``; the field names are the kernels' macros."""

    THREADS: int
    TEAM: int
    SIDE: int
    ITEMS: int
    SHARING: int
    CLUSTER: int
    AS_READ: int
    RESIDENT: int

    @property
    def slots(self) -> int:
        """Groups of rows of a block."""
        return self.THREADS // self.TEAM

    @property
    def text(self) -> str:
        """The tile for kernel names."""
        meeting = f"g{self.SHARING}" if self.is_cooperative else ""
        holding = "n" if self.AS_READ else ""
        return f"t{self.THREADS}m{self.TEAM}s{self.SIDE}i{self.ITEMS}c{self.CLUSTER}b{self.RESIDENT}{meeting}{holding}"

    def packed(self, layout: RowLayout, held: Held) -> PackedRow | None:
        """How a thread has its row where that is packed; otherwise None."""
        is_alone = self.SHARING == self.CLUSTER == 1 and self.chunks(layout) == 1
        return _packed_row(layout, self.TEAM, self.ITEMS, held) if is_alone else None

    @property
    def is_cooperative(self) -> bool:
        """Whether blocks share rows that are not of one cluster."""
        return self.SHARING > self.CLUSTER

    @property
    def is_apart(self) -> bool:
        """Whether the blocks of a cluster have joined rows."""
        return self.CLUSTER > self.SHARING

    def first_groups(self, layout: RowLayout, sampled: int) -> int:
        """Groups of a row that the first estimate of its mean is taken over: the first chunk; where blocks share rows,
        or have joined ones, one for each of ``sampled`` threads of a team."""
        return min(self.TEAM * self.ITEMS if self.SHARING * self.CLUSTER == 1 else sampled, layout.groups)

    def chunks(self, layout: RowLayout) -> int:
        return max(1, ceil_div(layout.groups, self.TEAM * self.ITEMS * self.SHARING))

    def has_room_for_lines(self, layout: RowLayout) -> bool:
        """Whether the warps of a block can begin at memory lines, where rows do not."""
        return has_room_for_lines(layout, self.TEAM * self.ITEMS, self.CLUSTER * self.SHARING)

    def is_whole(self, layout: RowLayout) -> bool:
        """Whether each thread has ITEMS groups of a row, and all of them together the row."""
        return layout.groups == self.TEAM * self.ITEMS * self.SHARING

    def blocks(self, layout: RowLayout) -> int:
        """Blocks of a grid in which every group of rows has a team, or of the greatest grid where that is too many."""
        return min(ceil_div(layout.row_groups, self.slots), MAX_GRID_X // self.SHARING) * self.SHARING

    def staying_blocks(self, layout: RowLayout, arch: ArchSpec) -> int:
        """Blocks of a grid that are all there at a time, as few as have the same number of rows each.

        A cluster has its blocks within one group of multiprocessors, where some may be left over: one cluster too many
        would begin when the others end, and take as long.
        """
        together = max(self.CLUSTER, self.SHARING)
        used = CLUSTER_REACH * self.RESIDENT // self.CLUSTER * self.CLUSTER
        there = max(1, arch.sm_count * used // CLUSTER_REACH // together)
        wanted = self.blocks(layout) // together
        return ceil_div(wanted, ceil_div(wanted, there)) * together


def tile_of(layout: RowLayout, chosen: Choices, held: Held) -> RowTile:
    """The tile of resolved knobs.

    Raises BadParamError where rows are to be shared both by a cluster and by a whole grid.
    """
    cluster, items = chosen[KnobType.TILE_CGA_M], chosen[KnobType.MULTIPLY]
    sharing = max(cluster, chosen.get(KnobType.CTA_COUNT, 1))
    if 1 < cluster < sharing:
        raise BadParamError.at("rows.TILE_CGA_M", expected=f"1 with CTA_COUNT {sharing}", got=cluster)
    held = held.looking_ahead if chosen.get(KnobType.READ_AHEAD) in (NEXT_ROW, ENGINE_ROW) else held
    in_turns = sharing > cluster and chosen.get(KnobType.READ_AHEAD) == RING
    side = turn_side(layout, held) if in_turns else side_of(layout)
    return tile_for(layout, chosen[KnobType.THREADS_PER_ROW], items, cluster, sharing, held, side)


def tile_for(
    layout: RowLayout, team: int, items: int, cluster: int, sharing: int, held: Held, side: int | None = None
) -> RowTile:
    """The tile of a team's threads, groups of a thread, blocks of a cluster, and blocks that share rows.

    side: threads side by side, by default those of a memory line.
    """
    if are_independent(layout):
        return tile_apart(layout, team, items, cluster, held)
    side = side_of(layout) if side is None else side
    if sharing > 1 or 32 % side:  # one team is a block
        team = max(team, ceil_power(ceil_div(32, side)))
    threads = team * side
    if sharing == 1:
        wanted = LIMITS.least_threads if layout.space.is_row and side == 1 else 32
        threads = max(threads, min(wanted, max(32, threads * ceil_power(ceil_div(layout.row_groups, side)))))
    is_as_read, resident = False, 1
    if sharing == cluster:
        in_chunks = layout.groups > team * items * cluster
        is_as_read, resident = holding(layout, threads, items, sharing, held, in_chunks)
        packed = None if in_chunks or cluster > 1 else _packed_row(layout, team, items, held)
        if packed is not None:
            is_as_read, resident = True, resident_blocks(packed.registers, threads, ALLOTTED_TO_FEW)
    return RowTile(threads, team, side, items, sharing, cluster, int(is_as_read), max(1, resident))


def tile_apart(layout: RowLayout, team: int, items: int, cluster: int, held: Held) -> RowTile:
    """The tile of joined rows that have teams of their own."""
    cluster = gcd(cluster, layout.space.joined)
    slots = layout.space.joined // cluster
    team = max(min(team, floor_power(LIMITS.most_threads // slots)), 32)
    threads = team * slots
    is_as_read, resident = holding(layout, threads, items, 1, held, layout.groups > team * items)
    return RowTile(threads, team, 1, items, 1, cluster, int(is_as_read), max(1, resident))


def _packed_row(layout: RowLayout, team: int, items: int, held: Held) -> PackedRow | None:
    """How a thread has a row of one chunk of one block, where the kernel packs it; otherwise None."""
    space, packing = layout.space, held.packing
    if packing is None or not held.read_bytes or not space.is_line or space.skew or space.joined > 1:
        return None
    if team < LIMITS.least_packed_team or held.element_bytes > 4:
        return None
    operand_words = packing.operands * layout.vector * held.element_bytes // 4
    return PackedRow(
        team, items, layout.vector, held.words(layout.vector, is_as_read=True), operand_words, packing.has_mean
    )
