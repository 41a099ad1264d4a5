"""How many threads own a row, and how much of it they hold: the tile of ``include/rows/rows.cuh``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import LINE_GROUPS, RowLayout
from lowdnn.engines.rows.packed_row import ALLOTTED_TO_FEW, PackedRow, Packing
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.status import BadParamError

_TEAMS = tuple(1 << power for power in range(10))
_ITEMS = (1, 2, 4, 8, 16)
_CLUSTERS = (1, 2, 4, 8)
_SHARES_OF_GRID = tuple(1 << power for power in range(8))

#: Registers of a thread that hold elements: twice as many where a row needs them.
_REGISTERS, _MAX_REGISTERS = 32, 64
#: The same where a row is spread, and threads of a team that has it then, at most.
_SPREAD_REGISTERS, _SPREAD_TEAM = 16, 256
#: Groups of a thread whose rows have several axes: each has a place of its own in registers.
_MAX_PLACED = 8
#: Threads of a block: at least, where rows are short.
_MIN_THREADS = 128
#: Registers of a thread besides the elements: where it holds values in all, for each group of a row with one axis, with
#: several, and for a skew; where it holds elements as they are read in all.
_VALUE_REGISTERS, _GROUP_REGISTERS, _WALKED_REGISTERS, _SKEW_REGISTERS = 28, 3, 12, 12
_READ_REGISTERS = 32
#: For each row side by side, for values of rows with one axis that are made of several tensors, and for the next row.
_SIDE_REGISTERS, _MAKING_REGISTERS, _AHEAD_REGISTERS = 9, 16, 8
_MIN_REGISTERS, _MAX_RESIDENT = 48, 16
#: Quarters of a multiprocessor have registers of their own, for whole warps.
_QUARTERS, _REGISTERS_PER_QUARTER = 4, 16384
#: Blocks of a multiprocessor, so that some read rows while others join statistics and store.
_WANTED_RESIDENT = 3
#: So few of these that memory waits when they meet. Rows for each of them that are worth staying for.
_FEW_RESIDENT, _WORTH_STAYING = 2, 4
#: Threads of a team that read neighbouring vectors: a memory line of 128 bytes. The share of the groups which a team
#: within a warp holds that its row should have.
_MIN_TEAM, _FULL = 8, 0.875
#: Bytes of a row that are worth a block of their own, where there are too few rows for the device.
_MIN_BLOCK_BYTES = 8192
#: Threads of a block, at most, and where its rows lie side by side and it shares a multiprocessor with others; how many
#: of these are neighbours: what makes a memory line.
_MAX_THREADS, _COLUMN_THREADS, _MIN_SIDE, _MAX_SIDE = 512, 256, 8, 32
#: Bytes that a thread reads of a group, bytes of rows for each block of a cluster that are worth more blocks and the
#: meeting of a whole grid, and bytes of shared memory of a block besides rows.
_GROUP_BYTES, _CLUSTER_BYTES, _BLOCK_BYTES = 16, 65536, 4096
#: The share of the multiprocessors that clusters can have, and bytes of a row that a block without others can hold.
_IN_CLUSTERS, _MAX_STAYING_BYTES = 0.875, 131072
#: Threads of a team whose rows may be packed, at least.
_MIN_PACKED_TEAM = 32
#: Joined rows that have teams of their own, at most.
_MAX_APART = 24
#: Bytes of a block's rows that are worth a ring of slots, and that one has room for; groups of a thread whose rows have
#: several axes there.
_MIN_RING_BYTES, _MAX_RING_BYTES, _RING_ITEMS = 98304, 204800, 2
#: Groups of a thread in all that a chunk has, where there are several: so several chunks are on their way. More of
#: lines that blocks share in turns, whose steps from chunk to chunk then take less of the time.
_CHUNK_ITEMS, _TURN_LINE_ITEMS = 4, 8
#: Rows that blocks share in turns: threads of each role at least, threads side by side at most, so that what they tell
#: leaves room for chunks, and bytes of a block's share: of rows side by side, of these in a kernel with several values,
#: and of each tensor's single ones.
_TURN_THREADS, _MAX_TURN_SIDE = 128, 12
_TURN_BYTES, _TURN_VALUES_BYTES, _TURN_ROW_BYTES = 65536, 98304, 32768
#: Turns that are worth the first one, in which nothing is stored; the share of the multiprocessors that has them.
_MIN_TURNS, _IN_TURNS = 16, 0.875
#: Multiprocessors of a group (GPC), which the blocks of a cluster cannot leave.
_CLUSTER_REACH = 18

#: STAGES: the next row, as many chunks as have room, or the next row by the copy engine.
NEXT_ROW, RING, ENGINE_ROW = 1, 2, 3

#: (team, items, cluster, sharing)
Defaults = tuple[int, int, int, int]


@dataclass(frozen=True)
class Held:
    """What a thread holds of each element, in registers.

    values: numbers of ``element_bytes``.
    read_bytes: of what the values are, where they can be held as they are read and converted whenever they are used;
    otherwise 0.
    passing: numbers of ``element_bytes`` of each element that are read when it is used.
    beside: registers for what else the thread has.
    shared: the same where elements are held as they are read, and blocks share rows.
    shifts: whether tensors are read that have one element for each of a row, which a skew shifts into place.
    stays: whether the kernel lets the values' chunks stay in shared memory, and the blocks of a cooperative grid share
    rows.
    looks_ahead: whether the kernel asks for the next row when it begins with one.
    spreads: whether threads have few elements each of rows that take several warps.
    packing: of kernels that hold rows of one axis as they are read wherever they can.
    """

    element_bytes: int
    values: int
    read_bytes: int
    passing: int
    beside: int
    shared: int
    shifts: bool
    stays: bool
    looks_ahead: bool
    spreads: bool
    packing: Packing | None = None

    @staticmethod
    def of(
        compute_type: DataType,
        *sources: PointwiseDag,
        passing: int = 0,
        beside: int = 0,
        shared: int = 0,
        shifts: bool = False,
        stays: bool = False,
        looks_ahead: bool = False,
        spreads: bool = False,
    ) -> Held:
        """sources: where the values come from."""
        are_plain = all(not dag.operations and len(dag.loads) == 1 for dag in sources)
        read_bytes = sum(dag.loads[0].element_bytes for dag in sources) if are_plain else 0
        element_bytes = dtypes.info(compute_type).size_bytes
        return Held(
            element_bytes, len(sources), read_bytes, passing, beside, shared, shifts, stays, looks_ahead, spreads
        )

    @property
    def looking_ahead(self) -> Held:
        """The same of a kernel that asks for the next row when it begins with one."""
        return replace(self, beside=self.beside + _AHEAD_REGISTERS, packing=None)

    def words(self, vector: int, is_as_read: bool) -> int:
        """Registers for a group of ``vector`` elements."""
        held_bytes = self.read_bytes if is_as_read else self.values * self.element_bytes
        return max(self.values, ceil_div(held_bytes * vector, 4))  # one of each value, however narrow


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
        """For kernel names."""
        meeting = f"g{self.SHARING}" if self.is_cooperative else ""
        holding = "n" if self.AS_READ else ""
        return f"t{self.THREADS}m{self.TEAM}s{self.SIDE}i{self.ITEMS}c{self.CLUSTER}b{self.RESIDENT}{meeting}{holding}"

    def packed(self, layout: RowLayout, held: Held) -> PackedRow | None:
        """How a thread has its row where that is packed; None of others."""
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
        return _has_room_for_lines(layout, self.TEAM * self.ITEMS, self.CLUSTER * self.SHARING)

    def is_whole(self, layout: RowLayout) -> bool:
        """Whether each thread has ITEMS groups of a row, and all of them together the row."""
        return layout.groups == self.TEAM * self.ITEMS * self.SHARING

    def blocks(self, layout: RowLayout) -> int:
        """Of a grid in which every group of rows has a team of its own; the greatest grid where that is too many."""
        return min(ceil_div(layout.row_groups, self.slots), MAX_GRID_X // self.SHARING) * self.SHARING

    def staying_blocks(self, layout: RowLayout, arch: ArchSpec) -> int:
        """Of a grid whose blocks are all there at a time, as few as have the same number of rows each.

        A cluster has its blocks within one group of multiprocessors, where some may be left over: one cluster too many
        would begin when the others end, and take as long.
        """
        together = max(self.CLUSTER, self.SHARING)
        used = _CLUSTER_REACH * self.RESIDENT // self.CLUSTER * self.CLUSTER
        there = max(1, arch.sm_count * used // _CLUSTER_REACH // together)
        wanted = self.blocks(layout) // together
        return ceil_div(wanted, ceil_div(wanted, there)) * together


def knobs(layout: RowLayout, arch: ArchSpec, held: Held, defaults: Defaults | None = None) -> tuple[Knob, ...]:
    """TILE_ROWS (threads of a row), MULTIPLY (groups that one holds), TILE_CGA_M and, where the kernel can, CTA_COUNT
    (blocks that share rows) and STAGES (what is on its way beside the row at hand)."""
    ring = None if defaults else _turn_defaults(layout, arch, held) or _ring_defaults(layout, arch, held)
    team, items, cluster, sharing = defaults or ring or _defaults(layout, arch, held)
    most = _most_team(layout)
    is_ahead = sharing <= cluster and _is_worth_looking_ahead(layout, arch, held, (team, items, cluster))
    # Of one tensor a cluster's rows leave more blocks their registers in a ring; so do joined rows of several.
    is_spared = is_ahead if held.values == 1 else _are_many_apart(layout, arch, held, (team, items, cluster))
    if held.stays and is_spared and cluster > 1:
        ring = team, items, cluster, sharing = team, min(items, _CHUNK_ITEMS // held.values), cluster, sharing
    found: tuple[Knob, ...] = (
        Knob("team", KnobType.TILE_ROWS, tuple(t for t in _TEAMS if t <= most), team, "threads that share a row"),
        Knob("items", KnobType.MULTIPLY, tuple(sorted({*_ITEMS, items})), items, "groups in registers"),
        Knob("cluster", KnobType.TILE_CGA_M, clusters(arch), cluster, "blocks of a cluster that share rows"),
    )
    if held.looks_ahead:
        text = "on its way beside the row at hand: 1 the next row, 2 chunks in a ring, 3 the next row in one copy"
        stages = (0, NEXT_ROW, RING if held.stays else ENGINE_ROW)
        # A warp's accesses to rows that begin beside memory lines lie askew to these, the copy engine's do not; and the
        # warps can then begin at lines.
        is_askew = bool(layout.space.skew) or _has_room_for_lines(layout, team * items, cluster)
        by_engine = is_askew and not held.stays and arch.has_tma
        default = RING if ring else 0 if not is_ahead else ENGINE_ROW if by_engine else NEXT_ROW
        found = (*found, Knob("ahead", KnobType.STAGES, stages, default, text))
    if not held.stays:
        return found
    most_sharing = arch.sm_count if _may_take_turns(layout, arch, held) else _most_sharing(layout, arch)
    values = tuple(sorted({share for share in _SHARES_OF_GRID if share <= most_sharing} | {1, sharing}))
    text = "blocks of a cooperative grid that share rows; in turns where STAGES is 2"
    return (*found, Knob("sharing", KnobType.CTA_COUNT, values, sharing, text))


def tile_of(layout: RowLayout, chosen: Choices, held: Held) -> RowTile:
    """The tile of resolved knobs.

    Raises BadParamError where rows are to be shared both by a cluster and by a whole grid.
    """
    cluster, items = chosen[KnobType.TILE_CGA_M], chosen[KnobType.MULTIPLY]
    sharing = max(cluster, chosen.get(KnobType.CTA_COUNT, 1))
    if 1 < cluster < sharing:
        raise BadParamError.at("rows.TILE_CGA_M", expected=f"1 with CTA_COUNT {sharing}", got=cluster)
    held = held.looking_ahead if chosen.get(KnobType.STAGES) in (NEXT_ROW, ENGINE_ROW) else held
    in_turns = sharing > cluster and chosen.get(KnobType.STAGES) == RING
    side = _turn_side(layout, held) if in_turns else _side(layout)
    return _tile(layout, chosen[KnobType.TILE_ROWS], items, cluster, sharing, held, side)


def _has_room_for_lines(layout: RowLayout, groups: int, blocks: int) -> bool:
    """Whether rows begin beside memory lines, and the groups that a block has of one are enough for what lies before it
    in its first line, too."""
    return bool(layout.lines) and blocks == 1 and layout.groups + LINE_GROUPS - 1 <= groups


def _tile(
    layout: RowLayout, team: int, items: int, cluster: int, sharing: int, held: Held, side: int | None = None
) -> RowTile:
    """side: threads side by side, by default those of a memory line."""
    if are_apart(layout):
        return _tile_apart(layout, team, items, cluster, held)
    side = _side(layout) if side is None else side
    if sharing > 1 or 32 % side:  # one team is a block
        team = max(team, ceil_power(ceil_div(32, side)))
    threads = team * side
    if sharing == 1:
        wanted = _MIN_THREADS if layout.space.is_row and side == 1 else 32
        threads = max(threads, min(wanted, max(32, threads * ceil_power(ceil_div(layout.row_groups, side)))))
    is_as_read, resident = False, 1
    if sharing == cluster:
        in_chunks = layout.groups > team * items * cluster
        is_as_read, resident = _holding(layout, threads, items, sharing, held, in_chunks)
        packed = None if in_chunks or cluster > 1 else _packed_row(layout, team, items, held)
        if packed is not None:
            is_as_read, resident = True, resident_blocks(packed.registers, threads, ALLOTTED_TO_FEW)
    return RowTile(threads, team, side, items, sharing, cluster, int(is_as_read), max(1, resident))


def _packed_row(layout: RowLayout, team: int, items: int, held: Held) -> PackedRow | None:
    """Of one chunk of one block."""
    space, packing = layout.space, held.packing
    if packing is None or not held.read_bytes or not space.is_line or space.skew or space.joined > 1:
        return None
    if team < _MIN_PACKED_TEAM or held.element_bytes > 4:
        return None
    operand_words = packing.operands * layout.vector * held.element_bytes // 4
    return PackedRow(
        team, items, layout.vector, held.words(layout.vector, is_as_read=True), operand_words, packing.has_mean
    )


def are_apart(layout: RowLayout) -> bool:
    """Whether joined rows have a team each, in one block or in those of a cluster, which have room for them; otherwise
    they are side by side."""
    joined = layout.space.joined
    own_bytes = joined // gcd(joined, _CLUSTERS[-1]) * layout.groups * 2 * _GROUP_BYTES
    return layout.space.is_row and 1 < joined <= _MAX_APART and own_bytes <= _MAX_STAYING_BYTES


def _tile_apart(layout: RowLayout, team: int, items: int, cluster: int, held: Held) -> RowTile:
    cluster = gcd(cluster, layout.space.joined)
    slots = layout.space.joined // cluster
    team = max(min(team, floor_power(_MAX_THREADS // slots)), 32)
    threads = team * slots
    is_as_read, resident = _holding(layout, threads, items, 1, held, layout.groups > team * items)
    return RowTile(threads, team, 1, items, 1, cluster, int(is_as_read), max(1, resident))


def _defaults_apart(layout: RowLayout, arch: ArchSpec, held: Held) -> Defaults:
    """As many vectors for each thread as leave two blocks of a multiprocessor: one block, which meets soonest, where it
    has room for all joined rows, otherwise small ones of a large cluster. A few vectors where there are few rows."""
    fewest, most = _item_bounds(layout, held)
    largest = gcd(_most_cluster(arch), layout.space.joined)
    # In a cluster more vectors than rows of several axes have leave ptxas no registers for the meeting.
    for cluster, wanted in ((1, most), (largest, min(most, _MAX_PLACED))):
        shape = _tile_apart(layout, ceil_power(ceil_div(layout.groups, wanted)), wanted, cluster, held)
        fills = shape.blocks(layout) >= arch.sm_count
        if fills and shape.RESIDENT >= _FEW_RESIDENT and shape.chunks(layout) == 1:
            return shape.TEAM, ceil_div(layout.groups, shape.TEAM), cluster, 1
    shape = _tile_apart(layout, ceil_power(ceil_div(layout.groups, fewest)), most, largest, held)
    return shape.TEAM, min(most, ceil_div(layout.groups, shape.TEAM)), largest, 1


def _ring_defaults(layout: RowLayout, arch: ArchSpec, held: Held) -> Defaults | None:
    """(team, items, cluster, sharing) of rows of several axes, or side by side, that take most of a multiprocessor's
    shared memory, and of which each block has several; None of others."""
    if not held.stays or layout.space.is_line:
        return None
    for cluster in reversed(clusters(arch)):
        own_bytes = _bytes_of_rows(layout, held) // cluster
        is_several = _row_blocks(layout) * cluster >= _FEW_RESIDENT * arch.sm_count
        if own_bytes >= _MIN_RING_BYTES:
            fits = own_bytes <= _MAX_RING_BYTES and is_several
            items = _RING_ITEMS if layout.space.is_row else _item_bounds(layout, held)[0]
            return (_most_team(layout), items, cluster, 1) if fits else None
    return None


def _turn_defaults(layout: RowLayout, arch: ArchSpec, held: Held) -> Defaults | None:
    """(team, items, cluster, sharing) of long rows that all blocks of the device go through in turns, as many sharing
    one as have room for two shares of it and what is on its way; None of others, and where a cluster's ring is enough.
    """
    side = _turn_side(layout, held)
    if not _may_take_turns(layout, arch, held) or not held.read_bytes or side > _MAX_TURN_SIDE:
        return None
    if layout.space.is_row and _ring_defaults(layout, arch, held):
        return None
    chunk_items = _TURN_LINE_ITEMS if layout.space.is_line else _CHUNK_ITEMS
    team, items = ceil_power(ceil_div(_TURN_THREADS, side)), max(1, chunk_items // held.values)
    if team * side % 32:
        return None
    chunk_groups = team * items
    chunk_bytes = chunk_groups * side * layout.vector * held.read_bytes
    if layout.groups <= _CLUSTERS[-1] * chunk_groups * (_TURN_BYTES // chunk_bytes):
        return None
    of_columns = _TURN_BYTES if held.values == 1 else _TURN_VALUES_BYTES
    own_bytes = _TURN_ROW_BYTES * held.values if layout.space.is_row else of_columns
    sharing = ceil_div(layout.groups, chunk_groups * max(1, own_bytes // chunk_bytes))
    at_once = arch.sm_count // sharing
    if at_once * sharing < _IN_TURNS * arch.sm_count:
        return None
    turns = ceil_div(layout.row_groups, side) // at_once
    return (team, items, 1, sharing) if turns >= _MIN_TURNS else None


def _is_worth_looking_ahead(layout: RowLayout, arch: ArchSpec, held: Held, tile: tuple[int, int, int]) -> bool:
    """Whether so few blocks fit a multiprocessor that memory waits while they meet, and no fewer fit that look ahead;
    where nothing else needs the cache that the next rows take. Threads of rows that are spread are many enough."""
    usual, ahead = (_tile(layout, *tile, sharing=tile[2], held=own) for own in (held, held.looking_ahead))
    is_short = not _are_worth_staying(layout, arch, usual)
    is_several = usual.chunks(layout) > 1 or usual.is_apart
    if is_several or is_short or held.beside or usual.RESIDENT > _FEW_RESIDENT or _spread_items(layout, held):
        return False
    return ahead.RESIDENT == usual.RESIDENT


def _are_worth_staying(layout: RowLayout, arch: ArchSpec, shape: RowTile) -> bool:
    """Whether blocks that are there at a time have several rows each."""
    there = shape.RESIDENT * arch.sm_count // shape.SHARING
    return ceil_div(layout.row_groups, shape.slots) >= _WORTH_STAYING * there


def _are_many_apart(layout: RowLayout, arch: ArchSpec, held: Held, tile: tuple[int, int, int]) -> bool:
    """Whether joined rows with teams of their own are worth staying for; a skew would not fit a ring."""
    if not are_apart(layout) or layout.space.skew:
        return False
    return _are_worth_staying(layout, arch, _tile(layout, *tile, sharing=tile[2], held=held))


def _resident(layout: RowLayout, threads: int, items: int, sharing: int, held: Held, is_as_read: bool) -> int:
    """Blocks for which a multiprocessor has registers."""
    space, vector = layout.space, layout.vector
    each = held.words(vector, is_as_read) + held.passing * vector * held.element_bytes // 4
    if is_as_read:
        base = _READ_REGISTERS + (held.shared if sharing > 1 else 0)
    else:
        base = _VALUE_REGISTERS
        each += _GROUP_REGISTERS if space.space.rank - space.kept == 1 else _WALKED_REGISTERS
    base += _SKEW_REGISTERS if space.skew and (held.shifts or not is_as_read) else 0
    beside = held.beside + (0 if space.is_row else _SIDE_REGISTERS * vector)
    beside += _MAKING_REGISTERS if space.is_line and not held.read_bytes else 0
    return resident_blocks(base + each * items + beside, threads)


def resident_blocks(registers: int, threads: int, least: int = _MIN_REGISTERS) -> int:
    """Blocks of so many threads for which a multiprocessor has registers.

    least: registers that a thread has at any rate.
    """
    allotted = max(least, ceil_div(registers, 8) * 8)
    warps = _QUARTERS * (_REGISTERS_PER_QUARTER // (32 * allotted))
    return min(warps // ceil_div(threads, 32), _MAX_RESIDENT)


def _holding(
    layout: RowLayout, threads: int, items: int, sharing: int, held: Held, in_chunks: bool
) -> tuple[bool, int]:
    """(whether chunks are held as they are read, blocks of a multiprocessor): so where too few would fit otherwise; not
    where chunks may stay in shared memory."""
    resident = _resident(layout, threads, items, sharing, held, is_as_read=False)
    may_stay = held.stays and in_chunks
    if not held.read_bytes or may_stay or resident >= _WANTED_RESIDENT:
        return False, resident
    return True, _resident(layout, threads, items, sharing, held, is_as_read=True)


def _side(layout: RowLayout) -> int:
    """Rows side by side: neighbours in memory, and whole groups of joined ones."""
    if layout.space.is_row:
        return 1 if are_apart(layout) else layout.space.joined
    least = layout.space.joined // gcd(layout.space.joined, layout.vector)
    wanted = min(max(_MIN_SIDE, _MAX_SIDE // layout.vector), ceil_power(layout.radices[layout.space.kept - 1]))
    return least * ceil_power(ceil_div(wanted, least))


def _may_take_turns(layout: RowLayout, arch: ArchSpec, held: Held) -> bool:
    """Whether blocks can share one row after the other."""
    is_possible = held.stays and held.looks_ahead and arch.has_tma
    return is_possible and not layout.space.skew and not are_apart(layout)


def _turn_side(layout: RowLayout, held: Held) -> int:
    """The same of rows that blocks share in turns: of several values half of a memory line, where that divides a warp.
    Each block reads what all that share a row have of each of its rows side by side, and fewer share narrower ones."""
    side = _side(layout)
    may_be_halved = held.values > 1 and 32 % side == 0 and side > 1
    is_halved = may_be_halved and (side // 2 * layout.vector) % layout.space.joined == 0
    return side // 2 if is_halved else side


def _most_team(layout: RowLayout) -> int:
    return floor_power(_MAX_THREADS // _side(layout))


def _usual_team(layout: RowLayout) -> int:
    """The same where a block shares a multiprocessor with others."""
    threads = _MAX_THREADS if layout.space.is_row else _COLUMN_THREADS
    return floor_power(threads // _side(layout))


def _row_blocks(layout: RowLayout) -> int:
    """Blocks of a grid in which none share rows, of one team each."""
    return max(1, ceil_div(layout.row_groups, _side(layout)))


def _most_sharing(layout: RowLayout, arch: ArchSpec) -> int:
    """Blocks of a cooperative grid that share rows, at most: one for each multiprocessor, so that all are there."""
    return max(1, arch.sm_count // _row_blocks(layout))


def _defaults(layout: RowLayout, arch: ArchSpec, held: Held) -> Defaults:
    """(team, items, cluster, sharing): by what is on chip of a row where there are few rows or long ones of several
    axes, otherwise by how many blocks fit a multiprocessor."""
    if are_apart(layout):
        return _defaults_apart(layout, arch, held)
    if held.stays and (_row_blocks(layout) <= arch.sm_count or not layout.space.is_line):
        return _shared_defaults(layout, arch, held)
    return (*_resident_defaults(layout, arch, held), 1)


def _resident_defaults(layout: RowLayout, arch: ArchSpec, held: Held) -> tuple[int, int, int]:
    """(team, items, cluster): each thread a few vectors; more, or more blocks, where fewer than wanted would fit a
    multiprocessor; rows of several chunks where nothing holds them."""
    fewest, most = _item_bounds(layout, held)
    if _is_one_group_each(layout, held):
        return ceil_power(layout.groups), 1, 1
    if items := _spread_items(layout, held):
        return ceil_power(ceil_div(layout.groups, items)), items, 1
    most_team, side = _usual_team(layout), _side(layout)
    most_cluster = _most_cluster(arch)
    filling = [c for c in clusters(arch) if c >= filling_cluster(layout, arch, 1)]
    # Blocks of a cluster meet for each row: few have it sooner, and few threads. But a block that is alone on its
    # multiprocessor leaves room for chunks that stay.
    several, alone = range(_WANTED_RESIDENT, 1, -1), (1,)
    groups = (several, alone) if held.stays else ((*several, *alone),)
    for resident, cluster in ((r, c) for residents in groups for c in filling for r in residents):
        own, sparse = ceil_div(max(layout.groups, 1), cluster), None
        wanted_items = [i for i in _ITEMS if fewest <= i <= most]
        for wanted in reversed(wanted_items) if held.stays and resident == _FEW_RESIDENT else wanted_items:
            team = max(ceil_power(ceil_div(own, wanted)), min(_MIN_TEAM, ceil_power(own)))
            items = ceil_div(own, team)
            if team > most_team or _holding(layout, team * side, items, cluster, held, in_chunks=False)[1] < resident:
                continue
            # A row's lanes without elements are better those of another row.
            if team >= 32 or own >= _FULL * team * items:
                return team, items, cluster
            sparse = sparse or (team, items, cluster)
        if sparse:
            return sparse
    fitting = (
        i for i in _ITEMS if i <= most and _holding(layout, most_team * side, i, most_cluster, held, True)[1] > 1
    )
    return most_team, max(fitting, default=1), most_cluster


def _is_one_group_each(layout: RowLayout, held: Held) -> bool:
    """Whether threads of small blocks have one group each of short rows: of several values, which are many bytes in
    flight, and leave registers for as many threads as a multiprocessor has."""
    team = ceil_power(max(layout.groups, 1))
    is_filled = team <= _MIN_THREADS and layout.groups >= _FULL * team
    return is_filled and layout.space.is_line and held.values > 1 and not held.stays


def _spread_items(layout: RowLayout, held: Held) -> int:
    """Groups of each thread of a row that is spread; 0 of others: those that a warp has, that would leave lanes without
    elements, or whose teams would be too large. Values made of several tensors take the largest teams: fewer threads
    would have too little on its way."""
    if not held.spreads or not layout.space.is_line:
        return 0
    usual, items = (registers // held.words(layout.vector, False) for registers in (_REGISTERS, _SPREAD_REGISTERS))
    team = ceil_power(ceil_div(layout.groups, max(items, 1)))
    is_long = layout.groups > 32 * usual
    is_fitting = team <= (_SPREAD_TEAM if held.read_bytes else _MAX_THREADS)
    return items if is_long and is_fitting and layout.groups >= _FULL * team * items else 0


def _item_bounds(layout: RowLayout, held: Held) -> tuple[int, int]:
    """Groups that a thread holds, at least where the row has them, and at most."""
    is_one_axis = layout.space.space.rank - layout.space.kept == 1
    limit = _ITEMS[-1] if is_one_axis else _MAX_PLACED
    usual = _REGISTERS // held.words(layout.vector, is_as_read=False)
    most = min(floor_power(_MAX_REGISTERS // held.words(layout.vector, held.read_bytes > 0)), limit)
    return min(floor_power(usual), most), most


def _shared_defaults(layout: RowLayout, arch: ArchSpec, held: Held) -> tuple[int, int, int, int]:
    """(team, items, cluster, sharing): each thread a few vectors, more where a row would not fit the block or the
    cluster; a whole grid's blocks where those of a cluster would have much to read."""
    limit = _ITEMS[-1] if layout.space.space.rank - layout.space.kept == 1 else _MAX_PLACED
    words = held.words(layout.vector, is_as_read=False)
    usual, most = (min(max(1, registers // words), limit) for registers in (_REGISTERS, _MAX_REGISTERS))
    groups, most_team = max(layout.groups, 1), _usual_team(layout)
    least = ceil_power(ceil_div(groups, most_team * most))
    cluster, sharing = filling_cluster(layout, arch, min(least, _most_cluster(arch))), 1
    if _row_blocks(layout) <= arch.sm_count:
        cluster, sharing = _one_wave(layout, arch, held, cluster)
        if sharing > 1:
            most_team, most = _most_team(layout), max(1, usual * 4 // held.element_bytes)
    elif not layout.space.is_row:
        # What stays in shared memory needs no registers, and no more blocks than have the memory.
        most, cluster = usual, _staying_cluster(layout, held, cluster, 1)
    elif groups > most_team * most * cluster and _stay_in_pairs(layout, arch, held, cluster):
        most = 1
    own = ceil_div(groups, max(cluster, sharing))
    team = min(most_team, max(ceil_power(ceil_div(own, usual)), min(_MIN_TEAM, ceil_power(own))))
    items = min(floor_power(most), ceil_div(own, team))
    if own > team * items:
        items = min(items, max(1, _CHUNK_ITEMS // held.values))
    return team, items, cluster, sharing


def _one_wave(layout: RowLayout, arch: ArchSpec, held: Held, cluster: int) -> tuple[int, int]:
    """(cluster, sharing) from the preferred cluster, for blocks that have a multiprocessor each, and its shared memory:
    so many that all are there at a time."""
    row_blocks, most_sharing = _row_blocks(layout), _most_sharing(layout, arch)
    too_long = most_sharing >= 2 * cluster and _bytes_of_rows(layout, held) > cluster * _CLUSTER_BYTES
    if layout.space.is_row:
        return (1, most_sharing) if too_long else (cluster, 1)
    if most_sharing > 1 and (too_long or row_blocks * cluster > _IN_CLUSTERS * arch.sm_count):
        return 1, most_sharing
    return _staying_cluster(layout, held, cluster, most_sharing), 1


def _staying_cluster(layout: RowLayout, held: Held, cluster: int, least: int) -> int:
    """Blocks that share rows which stay in their shared memory: at most ``cluster``, fewer where as few as ``least``
    have room."""
    while cluster > least and 2 * _bytes_of_rows(layout, held) <= cluster * _MAX_STAYING_BYTES:
        cluster //= 2
    return cluster


def _stay_in_pairs(layout: RowLayout, arch: ArchSpec, held: Held, cluster: int) -> bool:
    """Whether a multiprocessor's shared memory has room for the rows of two blocks, one of which reads while the other
    stores: in chunks of one group of each thread, which waste least."""
    threads = _usual_team(layout)
    own_bytes = ceil_div(layout.groups, cluster * threads) * threads * held.values * _GROUP_BYTES
    return 2 * (own_bytes + _BLOCK_BYTES) <= arch.shared_bytes_per_sm


def _bytes_of_rows(layout: RowLayout, held: Held) -> int:
    """What a team reads."""
    return layout.groups * _side(layout) * held.values * _GROUP_BYTES


def filling_cluster(layout: RowLayout, arch: ArchSpec, least: int) -> int:
    """Blocks that share rows: ``least``, or more where there are too few rows for the device."""
    row_blocks, cluster, most = _row_blocks(layout), least, _most_cluster(arch)
    worth = layout.groups // (_MIN_BLOCK_BYTES // (layout.vector * 4))
    while cluster < most and 2 * row_blocks * cluster <= arch.sm_count and 2 * cluster <= worth:
        cluster *= 2
    return cluster


def clusters(arch: ArchSpec) -> tuple[int, ...]:
    """Blocks of a cluster that the device can have."""
    return _CLUSTERS if arch.has_clusters else (1,)


def _most_cluster(arch: ArchSpec) -> int:
    return clusters(arch)[-1]
