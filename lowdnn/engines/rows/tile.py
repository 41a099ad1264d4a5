"""The tile of ``include/rows/rows.cuh``: how many threads and blocks own a row, and how many of its groups each has."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from lowdnn.arch.specs import CLUSTER_REACH, ArchSpec
from lowdnn.engines.base import Choices
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.limits import LIMITS
from lowdnn.engines.rows.packed_row import ALLOTTED_TO_FEW, PackedRow
from lowdnn.engines.rows.register_cache import RegisterCache, residency, resident_blocks
from lowdnn.engines.rows.teams import has_room_for_lines, have_own_teams, pipelined_side, side_of
from lowdnn.enums import KnobType
from lowdnn.status import BadParamError

#: READ_AHEAD: the next row, copied by its threads.
NEXT_ROW = 1
#: READ_AHEAD: chunks of the next rows, as many as have room in a ring.
RING = 2
#: READ_AHEAD: the next row, by a bulk copy.
BULK_ROW = 3


@dataclass(frozen=True)
class RowTile:
    """The tile of a row kernel; the fields are its macros, which ``include/rows/rows.cuh`` explains."""

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
        """Groups of rows in a block."""
        return self.THREADS // self.TEAM

    @property
    def text(self) -> str:
        """The tile for kernel names."""
        grid = f"g{self.SHARING}" if self.is_cooperative else ""
        form = "n" if self.AS_READ else ""
        return f"t{self.THREADS}m{self.TEAM}s{self.SIDE}i{self.ITEMS}c{self.CLUSTER}b{self.RESIDENT}{grid}{form}"

    def packed(self, layout: RowLayout, cache: RegisterCache) -> PackedRow | None:
        """The packed form of a thread's row, if the kernel packs it; otherwise None."""
        is_alone = self.SHARING == self.CLUSTER == 1 and self.chunks(layout) == 1
        return _packed_row(layout, self.TEAM, self.ITEMS, cache) if is_alone else None

    @property
    def is_cooperative(self) -> bool:
        """Whether blocks of a cooperative grid, not of one cluster, share a row."""
        return self.SHARING > self.CLUSTER

    @property
    def is_group_spread(self) -> bool:
        """Whether the rows of a normalisation group are spread over the blocks of a cluster."""
        return self.CLUSTER > self.SHARING

    def first_groups(self, layout: RowLayout, sampled: int) -> int:
        """Groups of a row that the first estimate of its mean is taken over.

        They are the first chunk or, if blocks share rows or normalisation groups, one for each of ``sampled`` threads.
        """
        return min(self.TEAM * self.ITEMS if self.SHARING * self.CLUSTER == 1 else sampled, layout.groups)

    def chunks(self, layout: RowLayout) -> int:
        return max(1, ceil_div(layout.groups, self.TEAM * self.ITEMS * self.SHARING))

    def has_room_for_lines(self, layout: RowLayout) -> bool:
        """Whether the warps of a block can begin at memory lines, inside which rows begin."""
        return has_room_for_lines(layout, self.TEAM * self.ITEMS, self.CLUSTER * self.SHARING)

    def is_whole(self, layout: RowLayout) -> bool:
        """Whether each thread has exactly ITEMS groups of a row."""
        return layout.groups == self.TEAM * self.ITEMS * self.SHARING

    def blocks(self, layout: RowLayout) -> int:
        """Blocks of a grid with a team for every group of rows, or of the largest grid if that is too large."""
        return min(ceil_div(layout.row_groups, self.slots), MAX_GRID_X // self.SHARING) * self.SHARING

    def persistent_blocks(self, layout: RowLayout, arch: ArchSpec) -> int:
        """Blocks of a persistent grid: all are resident, and as few as have the same number of rows each.

        A cluster lies within one group of multiprocessors, some of which may be left over. A cluster too many would
        begin when the others end, and take as long.
        """
        together = max(self.CLUSTER, self.SHARING)
        used = CLUSTER_REACH * self.RESIDENT // self.CLUSTER * self.CLUSTER
        resident = max(1, arch.sm_count * used // CLUSTER_REACH // together)
        wanted = self.blocks(layout) // together
        return ceil_div(wanted, ceil_div(wanted, resident)) * together


def tile_of(layout: RowLayout, chosen: Choices, cache: RegisterCache) -> RowTile:
    """The tile of resolved knobs.

    Raises BadParamError if both a cluster and a whole grid are to share rows.
    """
    cluster, items = chosen[KnobType.TILE_CGA_M], chosen[KnobType.MULTIPLY]
    sharing = max(cluster, chosen.get(KnobType.CTA_COUNT, 1))
    if 1 < cluster < sharing:
        raise BadParamError.at("rows.TILE_CGA_M", expected=f"1 with CTA_COUNT {sharing}", got=cluster)
    cache = cache.looking_ahead if chosen.get(KnobType.READ_AHEAD) in (NEXT_ROW, BULK_ROW) else cache
    pipelined = sharing > cluster and chosen.get(KnobType.READ_AHEAD) == RING
    side = pipelined_side(layout, cache) if pipelined else side_of(layout)
    return tile_for(layout, chosen[KnobType.THREADS_PER_ROW], items, cluster, sharing, cache, side)


def tile_for(
    layout: RowLayout, team: int, items: int, cluster: int, sharing: int, cache: RegisterCache, side: int | None = None
) -> RowTile:
    """The tile of ``team`` threads with ``items`` groups each, in ``cluster`` blocks of a cluster, or in ``sharing``
    blocks.

    side: threads side by side, by default those of a memory line.
    """
    if have_own_teams(layout):
        return own_teams_tile(layout, team, items, cluster, cache)
    side = side_of(layout) if side is None else side
    if sharing > 1 or 32 % side:  # a block has one team
        team = max(team, ceil_power(ceil_div(32, side)))
    threads = team * side
    if sharing == 1:
        wanted = LIMITS.least_threads if layout.space.is_row and side == 1 else 32
        threads = max(threads, min(wanted, max(32, threads * ceil_power(ceil_div(layout.row_groups, side)))))
    is_as_read, resident = False, 1
    if sharing == cluster:
        in_chunks = layout.groups > team * items * cluster
        is_as_read, resident = residency(layout, threads, items, sharing, cache, in_chunks)
        packed = None if in_chunks or cluster > 1 else _packed_row(layout, team, items, cache)
        if packed is not None:
            is_as_read, resident = True, resident_blocks(packed.registers, threads, ALLOTTED_TO_FEW)
    return RowTile(threads, team, side, items, sharing, cluster, int(is_as_read), max(1, resident))


def own_teams_tile(layout: RowLayout, team: int, items: int, cluster: int, cache: RegisterCache) -> RowTile:
    """The tile of group rows with a team each."""
    cluster = gcd(cluster, layout.space.group_rows)
    slots = layout.space.group_rows // cluster
    team = max(min(team, floor_power(LIMITS.most_threads // slots)), 32)
    threads = team * slots
    is_as_read, resident = residency(layout, threads, items, 1, cache, layout.groups > team * items)
    return RowTile(threads, team, 1, items, 1, cluster, int(is_as_read), max(1, resident))


def _packed_row(layout: RowLayout, team: int, items: int, cache: RegisterCache) -> PackedRow | None:
    """The packed form of a row of one chunk in one block, if the kernel packs it; otherwise None."""
    space, packing = layout.space, cache.packing
    if packing is None or not cache.read_bytes or not space.is_line or space.skew or space.group_rows > 1:
        return None
    if team < LIMITS.least_packed_team or cache.element_bytes > 4:
        return None
    operand_words = packing.operands * layout.vector * cache.element_bytes // 4
    return PackedRow(
        team, items, layout.vector, cache.words(layout.vector, is_as_read=True), operand_words, packing.has_mean
    )
