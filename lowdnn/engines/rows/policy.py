"""How a row is divided among threads and blocks when the caller does not say: one function for each regime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.launch import ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.held import Held, holding
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.limits import LIMITS
from lowdnn.engines.rows.teams import (
    are_independent,
    bytes_of_rows,
    clusters,
    has_room_for_lines,
    may_take_turns,
    most_cluster,
    most_sharing,
    most_team,
    row_blocks,
    side_of,
    turn_side,
    usual_team,
)
from lowdnn.engines.rows.tile import ENGINE_ROW, NEXT_ROW, RING, RowTile, tile_apart, tile_for
from lowdnn.enums import KnobType


@dataclass(frozen=True)
class RowDivision:
    """Who has a row: ``team`` threads of a block with ``items`` groups each, in ``cluster`` blocks of a cluster or in
    ``sharing`` blocks of a cooperative grid."""

    team: int
    items: int
    cluster: int
    sharing: int = 1


def knobs(layout: RowLayout, arch: ArchSpec, held: Held, defaults: RowDivision | None = None) -> tuple[Knob, ...]:
    """THREADS_PER_ROW, MULTIPLY (groups that one of them holds), TILE_CGA_M and, where the kernel can, CTA_COUNT,
    blocks that share rows, and READ_AHEAD, what is on its way beside the row at hand."""
    division, ahead = _first_choice(layout, arch, held, defaults)
    teams = tuple(team for team in LIMITS.teams if team <= most_team(layout))
    items = tuple(sorted({*LIMITS.items, division.items}))
    found: tuple[Knob, ...] = (
        Knob("team", KnobType.THREADS_PER_ROW, teams, division.team, "threads that share a row"),
        Knob("items", KnobType.MULTIPLY, items, division.items, "groups in registers"),
        Knob("cluster", KnobType.TILE_CGA_M, clusters(arch), division.cluster, "blocks of a cluster that share rows"),
    )
    if held.looks_ahead:
        text = "on its way beside the row at hand: 1 the next row, 2 chunks in a ring, 3 the next row in one copy"
        stages = (0, NEXT_ROW, RING if held.stays else ENGINE_ROW)
        found = (*found, Knob("ahead", KnobType.READ_AHEAD, stages, ahead, text))
    if not held.stays:
        return found
    most = arch.sm_count if may_take_turns(layout, arch, held) else most_sharing(layout, arch)
    values = tuple(sorted({share for share in LIMITS.shares_of_grid if share <= most} | {1, division.sharing}))
    text = "blocks of a cooperative grid that share rows; in turns where READ_AHEAD is 2"
    return (*found, Knob("sharing", KnobType.CTA_COUNT, values, division.sharing, text))


def filling_cluster(layout: RowLayout, arch: ArchSpec, least: int) -> int:
    """Blocks that share rows: ``least``, or more where there are too few rows for the device."""
    cluster, most = least, most_cluster(arch)
    worth = layout.groups // (LIMITS.least_block_bytes // (layout.vector * 4))
    while cluster < most and 2 * row_blocks(layout) * cluster <= arch.sm_count and 2 * cluster <= worth:
        cluster *= 2
    return cluster


def _first_choice(
    layout: RowLayout, arch: ArchSpec, held: Held, defaults: RowDivision | None
) -> tuple[RowDivision, int]:
    """The division, ``defaults`` where they are given, and the value of READ_AHEAD."""
    ring = None if defaults else _in_turns(layout, arch, held) or _in_ring(layout, arch, held)
    found = defaults or ring or _by_registers(layout, arch, held)
    is_ahead = found.sharing <= found.cluster and _is_worth_looking_ahead(layout, arch, held, found)
    # A cluster's rows of one value leave more blocks their registers in a ring; so do joined rows of several values.
    is_spared = is_ahead if held.values == 1 else _are_many_apart(layout, arch, held, found)
    if held.stays and is_spared and found.cluster > 1:
        return replace(found, items=min(found.items, LIMITS.chunk_items // held.values)), RING
    if ring:
        return found, RING
    if not is_ahead:
        return found, 0
    # A warp's accesses to rows that begin beside memory lines lie askew to these, the copy engine's do not; and the
    # warps can then begin at lines.
    is_misaligned = bool(layout.space.skew) or has_room_for_lines(layout, found.team * found.items, found.cluster)
    return found, ENGINE_ROW if is_misaligned and not held.stays and arch.has_tma else NEXT_ROW


def _in_turns(layout: RowLayout, arch: ArchSpec, held: Held) -> RowDivision | None:
    """Long rows that all blocks of the device go through in turns.

    None for other rows, and where a cluster's ring is enough.
    As many blocks share a row as have room for two shares of it and the chunks on their way.
    """
    side = turn_side(layout, held)
    if not may_take_turns(layout, arch, held) or not held.read_bytes or side > LIMITS.most_turn_side:
        return None
    if layout.space.is_row and _in_ring(layout, arch, held):
        return None
    chunk_items = LIMITS.turn_line_items if layout.space.is_line else LIMITS.chunk_items
    team, items = ceil_power(ceil_div(LIMITS.turn_threads, side)), max(1, chunk_items // held.values)
    if team * side % 32:
        return None
    chunk_groups = team * items
    chunk_bytes = chunk_groups * side * layout.vector * held.read_bytes
    if layout.groups <= LIMITS.clusters[-1] * chunk_groups * (LIMITS.turn_bytes // chunk_bytes):
        return None
    of_columns = LIMITS.turn_bytes if held.values == 1 else LIMITS.turn_values_bytes
    own_bytes = LIMITS.turn_row_bytes * held.values if layout.space.is_row else of_columns
    sharing = ceil_div(layout.groups, chunk_groups * max(1, own_bytes // chunk_bytes))
    at_once = arch.sm_count // sharing
    if at_once * sharing < LIMITS.turning_share * arch.sm_count:
        return None
    turns = ceil_div(layout.row_groups, side) // at_once
    return RowDivision(team, items, 1, sharing) if turns >= LIMITS.least_turns else None


def _in_ring(layout: RowLayout, arch: ArchSpec, held: Held) -> RowDivision | None:
    """Rows of several axes, or side by side, that take most of a multiprocessor's shared memory.

    None for other rows, and where a block would not have several.
    """
    if not held.stays or layout.space.is_line:
        return None
    for cluster in reversed(clusters(arch)):
        own_bytes = bytes_of_rows(layout, held) // cluster
        is_several = row_blocks(layout) * cluster >= LIMITS.few_resident * arch.sm_count
        if own_bytes >= LIMITS.least_ring_bytes:
            fits = own_bytes <= LIMITS.most_ring_bytes and is_several
            items = LIMITS.ring_items if layout.space.is_row else _item_bounds(layout, held)[0]
            return RowDivision(most_team(layout), items, cluster) if fits else None
    return None


def _by_registers(layout: RowLayout, arch: ArchSpec, held: Held) -> RowDivision:
    """By the share of a row that is on chip, where there are few rows or long ones of several axes, otherwise by the
    number of blocks that fit a multiprocessor."""
    if are_independent(layout):
        return _apart(layout, arch, held)
    if held.stays and (row_blocks(layout) <= arch.sm_count or not layout.space.is_line):
        return _on_chip(layout, arch, held)
    return _resident(layout, arch, held)


def _apart(layout: RowLayout, arch: ArchSpec, held: Held) -> RowDivision:
    """Joined rows with teams of their own: as many vectors for each thread as leave two blocks of a multiprocessor.

    One block, which meets soonest, has all joined rows where there is room, otherwise small ones of a large cluster.
    Threads have a few vectors where there are few rows.
    """
    fewest, most = _item_bounds(layout, held)
    largest = gcd(most_cluster(arch), layout.space.joined)
    # In a cluster more vectors than rows of several axes have leave ptxas no registers for the meeting.
    for cluster, wanted in ((1, most), (largest, min(most, LIMITS.most_placed))):
        shape = tile_apart(layout, ceil_power(ceil_div(layout.groups, wanted)), wanted, cluster, held)
        fills = shape.blocks(layout) >= arch.sm_count
        if fills and LIMITS.few_resident <= shape.RESIDENT and shape.chunks(layout) == 1:
            return RowDivision(shape.TEAM, ceil_div(layout.groups, shape.TEAM), cluster)
    shape = tile_apart(layout, ceil_power(ceil_div(layout.groups, fewest)), most, largest, held)
    return RowDivision(shape.TEAM, min(most, ceil_div(layout.groups, shape.TEAM)), largest)


def _resident(layout: RowLayout, arch: ArchSpec, held: Held) -> RowDivision:
    """Each thread a few vectors; more, or more blocks, where fewer than wanted would fit a multiprocessor.

    Rows that nothing holds have several chunks.
    """
    fewest, most = _item_bounds(layout, held)
    if _is_one_group_each(layout, held):
        return RowDivision(ceil_power(layout.groups), 1, 1)
    if items := _spread_items(layout, held):
        return RowDivision(ceil_power(ceil_div(layout.groups, items)), items, 1)
    widest, side = usual_team(layout), side_of(layout)
    filling = [c for c in clusters(arch) if c >= filling_cluster(layout, arch, 1)]
    # Blocks of a cluster meet for each row: few have it sooner, and few threads. But a block that is alone on its
    # multiprocessor leaves room for chunks that stay.
    several, alone = range(LIMITS.wanted_resident, 1, -1), (1,)
    groups = (several, alone) if held.stays else ((*several, *alone),)
    for resident, cluster in ((r, c) for residents in groups for c in filling for r in residents):
        own = ceil_div(max(layout.groups, 1), cluster)
        sparse: RowDivision | None = None
        wanted_items = [i for i in LIMITS.items if fewest <= i <= most]
        for wanted in reversed(wanted_items) if held.stays and resident == LIMITS.few_resident else wanted_items:
            team = max(ceil_power(ceil_div(own, wanted)), min(LIMITS.line_team, ceil_power(own)))
            items = ceil_div(own, team)
            if team > widest or holding(layout, team * side, items, cluster, held, in_chunks=False)[1] < resident:
                continue
            # A row's lanes without elements are better those of another row.
            if team >= 32 or own >= LIMITS.full_share * team * items:
                return RowDivision(team, items, cluster)
            sparse = sparse or RowDivision(team, items, cluster)
        if sparse:
            return sparse
    cluster = most_cluster(arch)
    fitting = (i for i in LIMITS.items if i <= most and holding(layout, widest * side, i, cluster, held, True)[1] > 1)
    return RowDivision(widest, max(fitting, default=1), cluster)


def _is_one_group_each(layout: RowLayout, held: Held) -> bool:
    """Whether threads of small blocks have one group each of short rows.

    The kernel then has several values, which are many bytes in flight, and leaves registers for as many threads as a
    multiprocessor has.
    """
    team = ceil_power(max(layout.groups, 1))
    is_filled = team <= LIMITS.least_threads and layout.groups >= LIMITS.full_share * team
    return is_filled and layout.space.is_line and held.values > 1 and not held.stays


def _spread_items(layout: RowLayout, held: Held) -> int:
    """Groups of each thread of a row that is spread, otherwise 0.

    Not spread are rows that a warp has, that would leave lanes without elements, or whose teams would be too large.
    Values made of several tensors take the largest teams: fewer threads would have too little on its way.
    """
    if not held.spreads or not layout.space.is_line:
        return 0
    words = held.words(layout.vector, is_as_read=False)
    usual, items = LIMITS.registers // words, LIMITS.spread_registers // words
    team = ceil_power(ceil_div(layout.groups, max(items, 1)))
    is_long = layout.groups > 32 * usual
    is_fitting = team <= (LIMITS.spread_team if held.read_bytes else LIMITS.most_threads)
    return items if is_long and is_fitting and layout.groups >= LIMITS.full_share * team * items else 0


def _item_bounds(layout: RowLayout, held: Held) -> tuple[int, int]:
    """Groups that a thread holds, at least where the row has them, and at most."""
    is_one_axis = layout.space.space.rank - layout.space.kept == 1
    limit = LIMITS.items[-1] if is_one_axis else LIMITS.most_placed
    usual = LIMITS.registers // held.words(layout.vector, is_as_read=False)
    most = min(floor_power(LIMITS.most_registers // held.words(layout.vector, held.read_bytes > 0)), limit)
    return min(floor_power(usual), most), most


def _on_chip(layout: RowLayout, arch: ArchSpec, held: Held) -> RowDivision:
    """Each thread a few vectors, more where a row would not fit the block or the cluster.

    The blocks of a whole grid share rows where those of a cluster would have much to read.
    """
    limit = LIMITS.items[-1] if layout.space.space.rank - layout.space.kept == 1 else LIMITS.most_placed
    words = held.words(layout.vector, is_as_read=False)
    usual, most = (min(max(1, registers // words), limit) for registers in (LIMITS.registers, LIMITS.most_registers))
    groups, widest = max(layout.groups, 1), usual_team(layout)
    least = ceil_power(ceil_div(groups, widest * most))
    cluster, sharing = filling_cluster(layout, arch, min(least, most_cluster(arch))), 1
    if row_blocks(layout) <= arch.sm_count:
        cluster, sharing = _one_wave(layout, arch, held, cluster)
        if sharing > 1:
            widest, most = most_team(layout), max(1, usual * 4 // held.element_bytes)
    elif not layout.space.is_row:
        # What stays in shared memory needs no registers, and no more blocks than have the memory.
        most, cluster = usual, _staying_cluster(layout, held, cluster, 1)
    elif groups > widest * most * cluster and _stay_in_pairs(layout, arch, held, cluster):
        most = 1
    own = ceil_div(groups, max(cluster, sharing))
    team = min(widest, max(ceil_power(ceil_div(own, usual)), min(LIMITS.line_team, ceil_power(own))))
    items = min(floor_power(most), ceil_div(own, team))
    if own > team * items:
        items = min(items, max(1, LIMITS.chunk_items // held.values))
    return RowDivision(team, items, cluster, sharing)


def _one_wave(layout: RowLayout, arch: ArchSpec, held: Held, cluster: int) -> tuple[int, int]:
    """(cluster, sharing) from the preferred cluster.

    Each block has a multiprocessor and its shared memory, and all blocks are resident at a time.
    """
    most = most_sharing(layout, arch)
    too_long = most >= 2 * cluster and bytes_of_rows(layout, held) > cluster * LIMITS.cluster_bytes
    if layout.space.is_row:
        return (1, most) if too_long else (cluster, 1)
    if most > 1 and (too_long or row_blocks(layout) * cluster > LIMITS.clustered_share * arch.sm_count):
        return 1, most
    return _staying_cluster(layout, held, cluster, most), 1


def _staying_cluster(layout: RowLayout, held: Held, cluster: int, least: int) -> int:
    """Blocks of a cluster whose rows stay in their shared memory: at most ``cluster``, and as few as have room, but no
    fewer than ``least``."""
    while cluster > least and 2 * bytes_of_rows(layout, held) <= cluster * LIMITS.most_staying_bytes:
        cluster //= 2
    return cluster


def _stay_in_pairs(layout: RowLayout, arch: ArchSpec, held: Held, cluster: int) -> bool:
    """Whether a multiprocessor's shared memory has room for the rows of two blocks, one of which reads while the other
    stores. Chunks have one group of each thread, which wastes least."""
    threads = usual_team(layout)
    own_bytes = ceil_div(layout.groups, cluster * threads) * threads * held.values * LIMITS.group_bytes
    return 2 * (own_bytes + LIMITS.other_bytes) <= arch.shared_bytes_per_sm


def _is_worth_looking_ahead(layout: RowLayout, arch: ArchSpec, held: Held, division: RowDivision) -> bool:
    """Whether so few blocks fit a multiprocessor that memory waits while they meet, and no fewer fit that look ahead.

    Nothing else may need the cache that the next rows take. Threads of rows that are spread are many enough.
    """
    usual, ahead = (_clustered(layout, division, own) for own in (held, held.looking_ahead))
    is_short = not _are_worth_staying(layout, arch, usual)
    is_several = usual.chunks(layout) > 1 or usual.is_apart
    if is_several or is_short or held.beside or LIMITS.few_resident < usual.RESIDENT or _spread_items(layout, held):
        return False
    return ahead.RESIDENT == usual.RESIDENT


def _are_worth_staying(layout: RowLayout, arch: ArchSpec, shape: RowTile) -> bool:
    """Whether blocks that are there at a time have several rows each."""
    there = shape.RESIDENT * arch.sm_count // shape.SHARING
    return ceil_div(layout.row_groups, shape.slots) >= LIMITS.rows_worth_staying * there


def _are_many_apart(layout: RowLayout, arch: ArchSpec, held: Held, division: RowDivision) -> bool:
    """Whether joined rows with teams of their own are worth staying for; a skew would not fit a ring."""
    if not are_independent(layout) or layout.space.skew:
        return False
    return _are_worth_staying(layout, arch, _clustered(layout, division, held))


def _clustered(layout: RowLayout, division: RowDivision, held: Held) -> RowTile:
    """The tile of a division whose rows are shared by the blocks of a cluster, if by any."""
    return tile_for(layout, division.team, division.items, division.cluster, division.cluster, held)
