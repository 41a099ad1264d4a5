"""The default division of a row among threads and blocks: one function for each regime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.launch import ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.limits import LIMITS
from lowdnn.engines.rows.register_cache import RegisterCache, residency
from lowdnn.engines.rows.teams import (
    bytes_of_rows,
    clusters,
    has_room_for_lines,
    have_own_teams,
    may_be_pipelined,
    most_cluster,
    most_sharing,
    most_team,
    pipelined_side,
    row_blocks,
    side_of,
    usual_team,
)
from lowdnn.engines.rows.tile import BULK_ROW, NEXT_ROW, RING, RowTile, own_teams_tile, tile_for
from lowdnn.enums import KnobType


@dataclass(frozen=True)
class RowDivision:
    """The threads and blocks that own a row: ``team`` threads of a block with ``items`` groups each, in ``cluster``
    blocks of a cluster or in ``sharing`` blocks of a cooperative grid."""

    team: int
    items: int
    cluster: int
    sharing: int = 1


def knobs(
    layout: RowLayout, arch: ArchSpec, cache: RegisterCache, defaults: RowDivision | None = None
) -> tuple[Knob, ...]:
    """The knobs THREADS_PER_ROW, MULTIPLY (groups in each thread), TILE_CGA_M and, where the kernel allows them,
    CTA_COUNT (blocks of a grid that share a row) and READ_AHEAD (the prefetch)."""
    division, ahead = _first_choice(layout, arch, cache, defaults)
    teams = tuple(team for team in LIMITS.teams if team <= most_team(layout))
    items = tuple(sorted({*LIMITS.items, division.items}))
    found: tuple[Knob, ...] = (
        Knob("team", KnobType.THREADS_PER_ROW, teams, division.team, "threads that share a row"),
        Knob("items", KnobType.MULTIPLY, items, division.items, "groups in registers"),
        Knob("cluster", KnobType.TILE_CGA_M, clusters(arch), division.cluster, "blocks of a cluster that share rows"),
    )
    if cache.looks_ahead:
        text = "prefetched: 1 the next row, 2 chunks in a ring, 3 the next row by a bulk copy"
        stages = (0, NEXT_ROW, RING if cache.keeps_chunks else BULK_ROW)
        found = (*found, Knob("ahead", KnobType.READ_AHEAD, stages, ahead, text))
    if not cache.keeps_chunks:
        return found
    most = arch.sm_count if may_be_pipelined(layout, arch, cache) else most_sharing(layout, arch)
    values = tuple(sorted({share for share in LIMITS.shares_of_grid if share <= most} | {1, division.sharing}))
    text = "blocks of a cooperative grid that share rows; pipelined where READ_AHEAD is 2"
    return (*found, Knob("sharing", KnobType.CTA_COUNT, values, division.sharing, text))


def filling_cluster(layout: RowLayout, arch: ArchSpec, least: int) -> int:
    """Blocks that share a row: ``least``, or more if there are too few rows for the device."""
    cluster, most = least, most_cluster(arch)
    worth = layout.groups // (LIMITS.least_block_bytes // (layout.vector * 4))
    while cluster < most and 2 * row_blocks(layout) * cluster <= arch.sm_count and 2 * cluster <= worth:
        cluster *= 2
    return cluster


def _first_choice(
    layout: RowLayout, arch: ArchSpec, cache: RegisterCache, defaults: RowDivision | None
) -> tuple[RowDivision, int]:
    """The division (``defaults`` if they are given) and the value of READ_AHEAD."""
    ring = None if defaults else _pipelined(layout, arch, cache) or _in_ring(layout, arch, cache)
    found = defaults or ring or _by_registers(layout, arch, cache)
    is_ahead = found.sharing <= found.cluster and _is_worth_looking_ahead(layout, arch, cache, found)
    # A ring spares registers: more blocks fit where a cluster shares rows of one value, or group rows of several
    # values.
    spares_registers = is_ahead if cache.values == 1 else _are_own_teams_persistent(layout, arch, cache, found)
    if cache.keeps_chunks and spares_registers and found.cluster > 1:
        return replace(found, items=min(found.items, LIMITS.chunk_items // cache.values)), RING
    if ring:
        return found, RING
    if not is_ahead:
        return found, 0
    # A warp's accesses to rows that begin inside memory lines are misaligned; bulk copies are not, and let the warps
    # begin at lines.
    is_misaligned = bool(layout.space.skew) or has_room_for_lines(layout, found.team * found.items, found.cluster)
    return found, BULK_ROW if is_misaligned and not cache.keeps_chunks and arch.has_tma else NEXT_ROW


def _pipelined(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> RowDivision | None:
    """The division of long rows that all blocks of the device share, pipelined row after row.

    None for other rows, and where a cluster's ring is enough. A row is shared by the fewest blocks that have room for
    two shares of it and for the chunks in flight.
    """
    side = pipelined_side(layout, cache)
    if not may_be_pipelined(layout, arch, cache) or not cache.read_bytes or side > LIMITS.most_pipelined_side:
        return None
    if layout.space.is_row and _in_ring(layout, arch, cache):
        return None
    chunk_items = LIMITS.pipelined_line_items if layout.space.is_line else LIMITS.chunk_items
    team, items = ceil_power(ceil_div(LIMITS.pipelined_threads, side)), max(1, chunk_items // cache.values)
    if team * side % 32:
        return None
    chunk_groups = team * items
    chunk_bytes = chunk_groups * side * layout.vector * cache.read_bytes
    if layout.groups <= LIMITS.clusters[-1] * chunk_groups * (LIMITS.pipelined_bytes // chunk_bytes):
        return None
    of_columns = LIMITS.pipelined_bytes if cache.values == 1 else LIMITS.pipelined_values_bytes
    own_bytes = LIMITS.pipelined_row_bytes * cache.values if layout.space.is_row else of_columns
    sharing = ceil_div(layout.groups, chunk_groups * max(1, own_bytes // chunk_bytes))
    at_once = arch.sm_count // sharing
    if at_once * sharing < LIMITS.pipelined_share * arch.sm_count:
        return None
    rows_each = ceil_div(layout.row_groups, side) // at_once
    return RowDivision(team, items, 1, sharing) if rows_each >= LIMITS.least_pipelined_rows else None


def _in_ring(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> RowDivision | None:
    """The division of rows of several axes, or side by side, that take most of a multiprocessor's shared memory.

    None for other rows, and where a block would not have several.
    """
    if not cache.keeps_chunks or layout.space.is_line:
        return None
    for cluster in reversed(clusters(arch)):
        own_bytes = bytes_of_rows(layout, cache) // cluster
        is_several = row_blocks(layout) * cluster >= LIMITS.few_resident * arch.sm_count
        if own_bytes >= LIMITS.least_ring_bytes:
            fits = own_bytes <= LIMITS.most_ring_bytes and is_several
            items = LIMITS.ring_items if layout.space.is_row else _item_bounds(layout, cache)[0]
            return RowDivision(most_team(layout), items, cluster) if fits else None
    return None


def _by_registers(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> RowDivision:
    """The division of rows without a ring.

    It follows from the share of a row that fits on chip, for few rows or long ones of several axes, otherwise from the
    number of resident blocks.
    """
    if have_own_teams(layout):
        return _own_teams(layout, arch, cache)
    if cache.keeps_chunks and (row_blocks(layout) <= arch.sm_count or not layout.space.is_line):
        return _on_chip(layout, arch, cache)
    return _resident(layout, arch, cache)


def _own_teams(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> RowDivision:
    """The division of group rows with a team each: as many vectors for each thread as leave two resident blocks.

    One block has all rows of a group if there is room, since its barriers are the shortest; otherwise small blocks of a
    large cluster do. Threads have few vectors if there are few rows.
    """
    fewest, most = _item_bounds(layout, cache)
    largest = gcd(most_cluster(arch), layout.space.group_rows)
    # In a cluster, more vectors than rows of several axes have would leave ptxas no registers for the reduction.
    for cluster, wanted in ((1, most), (largest, min(most, LIMITS.most_placed))):
        shape = own_teams_tile(layout, ceil_power(ceil_div(layout.groups, wanted)), wanted, cluster, cache)
        fills = shape.blocks(layout) >= arch.sm_count
        if fills and LIMITS.few_resident <= shape.RESIDENT and shape.chunks(layout) == 1:
            return RowDivision(shape.TEAM, ceil_div(layout.groups, shape.TEAM), cluster)
    shape = own_teams_tile(layout, ceil_power(ceil_div(layout.groups, fewest)), most, largest, cache)
    return RowDivision(shape.TEAM, min(most, ceil_div(layout.groups, shape.TEAM)), largest)


def _resident(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> RowDivision:
    """The division that gives each thread a few vectors, and more of them, or more blocks, until enough blocks are
    resident.

    Rows that even a cluster cannot hold have several chunks.
    """
    fewest, most = _item_bounds(layout, cache)
    if _is_one_group_each(layout, cache):
        return RowDivision(ceil_power(layout.groups), 1, 1)
    if items := _spread_items(layout, cache):
        return RowDivision(ceil_power(ceil_div(layout.groups, items)), items, 1)
    widest, side = usual_team(layout), side_of(layout)
    filling = [c for c in clusters(arch) if c >= filling_cluster(layout, arch, 1)]
    # Clusters wait at a barrier for each row, which takes less time with few blocks and few threads. But a block that
    # is alone on its multiprocessor leaves room for resident chunks.
    several, alone = range(LIMITS.wanted_resident, 1, -1), (1,)
    groups = (several, alone) if cache.keeps_chunks else ((*several, *alone),)
    for resident, cluster in ((r, c) for residents in groups for c in filling for r in residents):
        own = ceil_div(max(layout.groups, 1), cluster)
        sparse: RowDivision | None = None
        wanted_items = [i for i in LIMITS.items if fewest <= i <= most]
        for wanted in (
            reversed(wanted_items) if cache.keeps_chunks and resident == LIMITS.few_resident else wanted_items
        ):
            team = max(ceil_power(ceil_div(own, wanted)), min(LIMITS.line_team, ceil_power(own)))
            items = ceil_div(own, team)
            if team > widest or residency(layout, team * side, items, cluster, cache, in_chunks=False)[1] < resident:
                continue
            # Lanes that a row leaves without elements had better work on another row.
            if team >= 32 or own >= LIMITS.full_share * team * items:
                return RowDivision(team, items, cluster)
            sparse = sparse or RowDivision(team, items, cluster)
        if sparse:
            return sparse
    cluster = most_cluster(arch)
    fitting = (
        i for i in LIMITS.items if i <= most and residency(layout, widest * side, i, cluster, cache, True)[1] > 1
    )
    return RowDivision(widest, max(fitting, default=1), cluster)


def _is_one_group_each(layout: RowLayout, cache: RegisterCache) -> bool:
    """Whether small blocks have short rows, with one group in each thread.

    A kernel with several values has enough bytes in flight then, and leaves registers for all the threads that a
    multiprocessor can have.
    """
    team = ceil_power(max(layout.groups, 1))
    is_filled = team <= LIMITS.least_threads and layout.groups >= LIMITS.full_share * team
    return is_filled and layout.space.is_line and cache.values > 1 and not cache.keeps_chunks


def _spread_items(layout: RowLayout, cache: RegisterCache) -> int:
    """Groups of each thread of a row that is spread, otherwise 0.

    Rows are not spread if one warp holds them, if lanes would have no elements, or if the team would be too large.
    Values computed from several tensors allow the largest teams, as fewer threads would have too few loads in flight.
    """
    if not cache.spreads or not layout.space.is_line:
        return 0
    words = cache.words(layout.vector, is_as_read=False)
    usual, items = LIMITS.registers // words, LIMITS.spread_registers // words
    team = ceil_power(ceil_div(layout.groups, max(items, 1)))
    is_long = layout.groups > 32 * usual
    is_fitting = team <= (LIMITS.spread_team if cache.read_bytes else LIMITS.most_threads)
    return items if is_long and is_fitting and layout.groups >= LIMITS.full_share * team * items else 0


def _item_bounds(layout: RowLayout, cache: RegisterCache) -> tuple[int, int]:
    """(the fewest groups of a thread, if the row has so many, and the most)."""
    is_one_axis = layout.space.space.rank - layout.space.kept == 1
    limit = LIMITS.items[-1] if is_one_axis else LIMITS.most_placed
    usual = LIMITS.registers // cache.words(layout.vector, is_as_read=False)
    most = min(floor_power(LIMITS.most_registers // cache.words(layout.vector, cache.read_bytes > 0)), limit)
    return min(floor_power(usual), most), most


def _on_chip(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> RowDivision:
    """The division that gives each thread a few vectors, and more if a row would not fit the block or the cluster.

    The blocks of a whole grid share a row if those of a cluster would have much to read.
    """
    limit = LIMITS.items[-1] if layout.space.space.rank - layout.space.kept == 1 else LIMITS.most_placed
    words = cache.words(layout.vector, is_as_read=False)
    usual, most = (min(max(1, registers // words), limit) for registers in (LIMITS.registers, LIMITS.most_registers))
    groups, widest = max(layout.groups, 1), usual_team(layout)
    least = ceil_power(ceil_div(groups, widest * most))
    cluster, sharing = filling_cluster(layout, arch, min(least, most_cluster(arch))), 1
    if row_blocks(layout) <= arch.sm_count:
        cluster, sharing = _one_wave(layout, arch, cache, cluster)
        if sharing > 1:
            widest, most = most_team(layout), max(1, usual * 4 // cache.element_bytes)
    elif not layout.space.is_row:
        # Chunks resident in shared memory need no registers, and no more blocks than have room for them.
        most, cluster = usual, _resident_cluster(layout, cache, cluster, 1)
    elif groups > widest * most * cluster and _fit_in_pairs(layout, arch, cache, cluster):
        most = 1
    own = ceil_div(groups, max(cluster, sharing))
    team = min(widest, max(ceil_power(ceil_div(own, usual)), min(LIMITS.line_team, ceil_power(own))))
    items = min(floor_power(most), ceil_div(own, team))
    if own > team * items:
        items = min(items, max(1, LIMITS.chunk_items // cache.values))
    return RowDivision(team, items, cluster, sharing)


def _one_wave(layout: RowLayout, arch: ArchSpec, cache: RegisterCache, cluster: int) -> tuple[int, int]:
    """(cluster, sharing) for rows whose blocks are all resident at once, from the preferred ``cluster``.

    Each block has a multiprocessor and its shared memory.
    """
    most = most_sharing(layout, arch)
    too_long = most >= 2 * cluster and bytes_of_rows(layout, cache) > cluster * LIMITS.cluster_bytes
    if layout.space.is_row:
        return (1, most) if too_long else (cluster, 1)
    if most > 1 and (too_long or row_blocks(layout) * cluster > LIMITS.clustered_share * arch.sm_count):
        return 1, most
    return _resident_cluster(layout, cache, cluster, most), 1


def _resident_cluster(layout: RowLayout, cache: RegisterCache, cluster: int, least: int) -> int:
    """Blocks of a cluster that keep their rows in shared memory: as few as have room, at least ``least`` and at most
    ``cluster``."""
    while cluster > least and 2 * bytes_of_rows(layout, cache) <= cluster * LIMITS.most_resident_bytes:
        cluster //= 2
    return cluster


def _fit_in_pairs(layout: RowLayout, arch: ArchSpec, cache: RegisterCache, cluster: int) -> bool:
    """Whether a multiprocessor's shared memory holds the rows of two blocks, one of which reads while the other stores.

    Chunks of one group in each thread waste least.
    """
    threads = usual_team(layout)
    own_bytes = ceil_div(layout.groups, cluster * threads) * threads * cache.values * LIMITS.group_bytes
    return 2 * (own_bytes + LIMITS.other_bytes) <= arch.shared_bytes_per_sm


def _is_worth_looking_ahead(layout: RowLayout, arch: ArchSpec, cache: RegisterCache, division: RowDivision) -> bool:
    """Whether few blocks are resident, so that memory idles at their barriers, and prefetching leaves as many resident.

    Prefetching is not worth it if something else needs the cache that the next rows take, or if rows are spread, whose
    threads are many enough.
    """
    usual, ahead = (_clustered(layout, division, own) for own in (cache, cache.looking_ahead))
    is_short = not _is_worth_persisting(layout, arch, usual)
    is_several = usual.chunks(layout) > 1 or usual.is_group_spread
    if (
        is_several
        or is_short
        or cache.extra_registers
        or LIMITS.few_resident < usual.RESIDENT
        or _spread_items(layout, cache)
    ):
        return False
    return ahead.RESIDENT == usual.RESIDENT


def _is_worth_persisting(layout: RowLayout, arch: ArchSpec, shape: RowTile) -> bool:
    """Whether the resident blocks have several rows each."""
    resident = shape.RESIDENT * arch.sm_count // shape.SHARING
    return ceil_div(layout.row_groups, shape.slots) >= LIMITS.least_persistent_rows * resident


def _are_own_teams_persistent(layout: RowLayout, arch: ArchSpec, cache: RegisterCache, division: RowDivision) -> bool:
    """Whether a persistent grid pays for group rows with a team each; a ring has no room for a skew."""
    if not have_own_teams(layout) or layout.space.skew:
        return False
    return _is_worth_persisting(layout, arch, _clustered(layout, division, cache))


def _clustered(layout: RowLayout, division: RowDivision, cache: RegisterCache) -> RowTile:
    """The tile of a division without a cooperative grid."""
    return tile_for(layout, division.team, division.items, division.cluster, division.cluster, cache)
