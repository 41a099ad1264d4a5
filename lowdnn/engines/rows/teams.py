"""How rows lie in blocks: teams of threads, rows side by side, joined rows, and blocks that share rows."""

from __future__ import annotations

from math import gcd

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div, ceil_power, floor_power
from lowdnn.engines.rows.held import Held
from lowdnn.engines.rows.layout import LINE_GROUPS, RowLayout
from lowdnn.engines.rows.limits import LIMITS


def side_of(layout: RowLayout) -> int:
    """Rows side by side: neighbours in memory, and whole groups of joined ones."""
    if layout.space.is_row:
        return 1 if are_independent(layout) else layout.space.joined
    least = layout.space.joined // gcd(layout.space.joined, layout.vector)
    neighbours = ceil_power(layout.radices[layout.space.kept - 1])
    wanted = min(max(LIMITS.least_side, LIMITS.most_side // layout.vector), neighbours)
    return least * ceil_power(ceil_div(wanted, least))


def turn_side(layout: RowLayout, held: Held) -> int:
    """Rows side by side where blocks share rows in turns.

    In a kernel of several values it is half of a memory line, where that divides a warp: each block reads what all
    that share a row have of each of its rows side by side, and fewer share narrower ones.
    """
    side = side_of(layout)
    may_be_halved = held.values > 1 and 32 % side == 0 and side > 1
    is_halved = may_be_halved and (side // 2 * layout.vector) % layout.space.joined == 0
    return side // 2 if is_halved else side


def most_team(layout: RowLayout) -> int:
    """Threads of a team, at most."""
    return floor_power(LIMITS.most_threads // side_of(layout))


def usual_team(layout: RowLayout) -> int:
    """Threads of a team, at most, where a block shares a multiprocessor with others."""
    threads = LIMITS.most_threads if layout.space.is_row else LIMITS.column_threads
    return floor_power(threads // side_of(layout))


def row_blocks(layout: RowLayout) -> int:
    """Blocks of a grid in which none share rows, and each has one team."""
    return max(1, ceil_div(layout.row_groups, side_of(layout)))


def most_sharing(layout: RowLayout, arch: ArchSpec) -> int:
    """Blocks of a cooperative grid that share rows, at most: one for each multiprocessor, so that all are there."""
    return max(1, arch.sm_count // row_blocks(layout))


def bytes_of_rows(layout: RowLayout, held: Held) -> int:
    """Bytes that a team reads."""
    return layout.groups * side_of(layout) * held.values * LIMITS.group_bytes


def are_independent(layout: RowLayout) -> bool:
    """Whether joined rows have a team each, in one block or in those of a cluster, which have room for them; otherwise
    they are side by side."""
    joined = layout.space.joined
    own_bytes = joined // gcd(joined, LIMITS.clusters[-1]) * layout.groups * 2 * LIMITS.group_bytes
    return layout.space.is_row and 1 < joined <= LIMITS.most_apart and own_bytes <= LIMITS.most_staying_bytes


def may_take_turns(layout: RowLayout, arch: ArchSpec, held: Held) -> bool:
    """Whether blocks can share one row after the other."""
    is_possible = held.stays and held.looks_ahead and arch.has_tma
    return is_possible and not layout.space.skew and not are_independent(layout)


def has_room_for_lines(layout: RowLayout, groups: int, blocks: int) -> bool:
    """Whether rows begin beside memory lines, and the groups that a block has of one are enough for what lies before it
    in its first line, too."""
    return bool(layout.lines) and blocks == 1 and layout.groups + LINE_GROUPS - 1 <= groups


def clusters(arch: ArchSpec) -> tuple[int, ...]:
    """Blocks of a cluster that the device can have."""
    return LIMITS.clusters if arch.has_clusters else (1,)


def most_cluster(arch: ArchSpec) -> int:
    """Blocks of the largest cluster that the device can have."""
    return clusters(arch)[-1]
