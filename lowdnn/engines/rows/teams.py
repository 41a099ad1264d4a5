"""How rows lie in blocks: teams of threads, rows side by side, group rows, and blocks that share rows."""

from __future__ import annotations

from math import gcd

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.layout import LINE_GROUPS, RowLayout
from lowdnn.engines.rows.limits import LIMITS
from lowdnn.engines.rows.register_cache import RegisterCache


def side_of(layout: RowLayout) -> int:
    """Threads side by side, each with rows of its own: neighbours in memory, and whole normalisation groups."""
    if layout.space.is_row:
        return 1 if have_own_teams(layout) else layout.space.group_rows
    least = layout.space.group_rows // gcd(layout.space.group_rows, layout.vector)
    neighbours = ceil_power(layout.radices[layout.space.kept - 1])
    wanted = min(max(LIMITS.least_side, LIMITS.most_side // layout.vector), neighbours)
    return least * ceil_power(ceil_div(wanted, least))


def pipelined_side(layout: RowLayout, cache: RegisterCache) -> int:
    """Threads side by side in a pipelined kernel: ``side_of``, or half of it in a kernel of several values (x and dy).

    A block polls the sums of all blocks that share its rows, and fewer blocks share fewer rows side by side. Half of a
    memory line must divide a warp, and whole normalisation groups must remain.
    """
    side = side_of(layout)
    may_be_halved = cache.values > 1 and 32 % side == 0 and side > 1
    is_halved = may_be_halved and (side // 2 * layout.vector) % layout.space.group_rows == 0
    return side // 2 if is_halved else side


def most_team(layout: RowLayout) -> int:
    """The most threads of a team."""
    return floor_power(LIMITS.most_threads // side_of(layout))


def usual_team(layout: RowLayout) -> int:
    """The most threads of a team, if its block shares a multiprocessor with others."""
    threads = LIMITS.most_threads if layout.space.is_row else LIMITS.column_threads
    return floor_power(threads // side_of(layout))


def row_blocks(layout: RowLayout) -> int:
    """Blocks of a grid without shared rows, with one team each."""
    return max(1, ceil_div(layout.row_groups, side_of(layout)))


def most_sharing(layout: RowLayout, arch: ArchSpec) -> int:
    """The most blocks of a cooperative grid that can share a row: one for each multiprocessor, so that all are
    resident."""
    return max(1, arch.sm_count // row_blocks(layout))


def bytes_of_rows(layout: RowLayout, cache: RegisterCache) -> int:
    """Bytes that a team reads of its rows."""
    return layout.groups * side_of(layout) * cache.values * LIMITS.group_bytes


def have_own_teams(layout: RowLayout) -> bool:
    """Whether each row of a normalisation group has a team of its own, if a block or a cluster has room for the group.

    Otherwise the rows of a group lie side by side.
    """
    group_rows = layout.space.group_rows
    own_bytes = group_rows // gcd(group_rows, LIMITS.clusters[-1]) * layout.groups * 2 * LIMITS.group_bytes
    return layout.space.is_row and 1 < group_rows <= LIMITS.most_own_teams and own_bytes <= LIMITS.most_resident_bytes


def may_be_pipelined(layout: RowLayout, arch: ArchSpec, cache: RegisterCache) -> bool:
    """Whether the kernel and the device can pipeline rows that blocks share."""
    is_possible = cache.keeps_chunks and cache.looks_ahead and arch.has_tma
    return is_possible and not layout.space.skew and not have_own_teams(layout)


def has_room_for_lines(layout: RowLayout, groups: int, blocks: int) -> bool:
    """Whether rows begin inside memory lines, and a block has room for a row and for what precedes it in its line."""
    return bool(layout.lines) and blocks == 1 and layout.groups + LINE_GROUPS - 1 <= groups


def clusters(arch: ArchSpec) -> tuple[int, ...]:
    """The numbers of blocks that a cluster of the device can have."""
    return LIMITS.clusters if arch.has_clusters else (1,)


def most_cluster(arch: ArchSpec) -> int:
    """Blocks of the device's largest cluster."""
    return clusters(arch)[-1]
