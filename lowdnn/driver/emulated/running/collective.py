"""What lanes of a warp do together, for a group: shuffles, votes, matches, reductions, matrix fragments.

Generated code calls these. Values go to [warps, 32] arrays, through the value functions, and back to the group's lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.access import unwritten_fault
from lowdnn.driver.emulated.memory.address import Address, check, resolve
from lowdnn.driver.emulated.memory.arena import WRITTEN, Array
from lowdnn.driver.emulated.running.batch import WARP, Group
from lowdnn.driver.emulated.values import tensor_core, warp
from lowdnn.driver.emulated.values.tensor_core import MatrixProduct

_FULL = 0xFFFFFFFF
_KEPT_FRAGMENTS = 32


def shuffle(group: Group, mode: str, value: Any, operand: Any, control: Any, mask: Any) -> tuple[Any, Any]:
    """``shfl.sync``: (value of the source lane, was the source in range)."""
    members = _members(group, mask)
    if operand.ndim == 0 and control.ndim == 0 and members is None and group.whole:
        source, in_range = warp.shuffle_source(mode, operand, control)
        moved = value if value.ndim == 0 else value.reshape(-1, WARP).take(source, axis=1).reshape(-1)
        return moved, np.tile(in_range, group.count // WARP)
    active = group.active if members is None else group.active & members
    source, in_range = warp.shuffle_source(mode, _grid(group, operand), _grid(group, control))
    moved = warp.shuffle(group.in_warps(value), source, active)
    return group.from_warps(moved), group.from_warps(np.broadcast_to(in_range, moved.shape))


def vote(group: Group, mode: str, predicate: Any, mask: Any) -> Any:
    """``vote.sync`` all, any, uni: bool; ballot: uint32."""
    members = _member_bits(group, mask)
    votes = group.in_warps(predicate)
    if mode == "ballot":
        return group.from_warps(warp.ballot(votes, members, group.active))
    return group.from_warps(warp.vote(mode, votes, members, group.active))


def match_any(group: Group, value: Any, mask: Any) -> Any:
    return group.from_warps(warp.match_any(group.in_warps(value), _member_bits(group, mask), group.active))


def match_all(group: Group, value: Any, mask: Any) -> tuple[Any, Any]:
    found, agreed = warp.match_all(group.in_warps(value), _member_bits(group, mask), group.active)
    return group.from_warps(found), group.from_warps(np.broadcast_to(agreed, found.shape))


def reduce(group: Group, operation: str, value: Any, mask: Any, absolute: bool, propagate_nan: bool) -> Any:
    """``redux.sync``."""
    members = _member_bits(group, mask)
    total = warp.reduce(operation, group.in_warps(value), members, group.active, absolute, propagate_nan)
    return group.from_warps(total)


def elect(group: Group, mask: Any) -> tuple[Any, Any]:
    """``elect.sync``: (leader, is this lane the leader)."""
    leader, is_leader = warp.elect(_member_bits(group, mask), group.active)
    return group.from_warps(leader), group.from_warps(is_leader)


def active_mask(group: Group) -> Any:
    return group.from_warps(warp.active_mask(group.active))


# -- matrices ---------------------------------------------------------------------------------------------------------
def load_matrix(group: Group, address: Address, offset: int, count: int, transposed: bool) -> tuple[Any, ...]:
    """``ldmatrix``: ``count`` 8x8 matrices of 16-bit elements, one register each."""
    place = _matrix_rows(group, address, offset, count)
    shared = group.batch.shared
    if group.batch.races is not None:
        group.batch.races.matrix_rows(group, place, write=False)
    if group.batch.checks:
        good = shared.shadows[16][place] == WRITTEN[16]
        if not good.all():
            position = _row_position(good)
            raise unwritten_fault(shared, address.lane(position, offset), 16, position)
    rows = shared.views["w16"][place]
    if not transposed:
        words = rows.view(np.uint32).reshape(-1, count, WARP)
        return tuple(np.ascontiguousarray(words.transpose(1, 0, 2)).reshape(count, -1))
    matrices = rows.view(np.uint16).reshape(-1, count, 8, 8)
    return _columns(tensor_core.matrices_to_lanes(matrices, transposed=True))


def store_matrix(group: Group, address: Address, offset: int, transposed: bool, registers: tuple[Any, ...]) -> None:
    """``stmatrix``: the inverse of ``load_matrix``."""
    place = _matrix_rows(group, address, offset, len(registers))
    matrices = np.ascontiguousarray(tensor_core.lanes_to_matrices(_stacked(group, registers), transposed))
    shared = group.batch.shared
    if group.batch.races is not None:
        group.batch.races.matrix_rows(group, place, write=True)
    shared.views["w16"][place] = matrices.view(np.complex128).reshape(place.shape)
    shared.shadows[16][place] = WRITTEN[16]
    group.batch.stores += 1


def transpose_matrix(group: Group, register: Any) -> Any:
    """``movmatrix``."""
    _need_whole_warps(group, "movmatrix")
    return _columns(tensor_core.transpose_fragment(_stacked(group, (register,))))[0]


def multiply(
    group: Group,
    product: MatrixProduct,
    a: tuple[Any, ...],
    b: tuple[Any, ...],
    c: tuple[Any, ...],
) -> tuple[Any, ...]:
    """``mma.sync``: fragments as one value for each register."""
    _need_whole_warps(group, "mma")
    left = _numbers_of(group, product.left, a, ("left", product.a, product.rows, product.depth))
    right = _numbers_of(group, product.right, b, ("right", product.b, product.depth))
    return product.combine(left, right, [group.spread(register) for register in c])


def _numbers_of(group: Group, take_apart: Callable[[Array], Array], registers: tuple[Any, ...], form: Any) -> Array:
    """A fragment as matrices. Those taken apart last are kept: tiles use each fragment for several products.

    Arrays are told apart by identity; a kept entry holds its arrays, so nobody changes them in place.
    """
    kept = group.kept_fragments
    key = (form, *map(id, registers))
    if key not in kept:
        if len(kept) >= _KEPT_FRAGMENTS:
            kept.clear()
        kept[key] = (registers, take_apart(_stacked(group, registers)))
    return kept[key][1]


def _matrix_rows(group: Group, address: Address, offset: int, count: int) -> Array:
    """[warps, count, 8]: number, in units of 16 bytes, of each matrix row in the batch's shared memory."""
    _need_whole_warps(group, "a matrix access")
    used = address
    if not address.scalar and count < 4:
        mask = group.lanes % WARP < 8 * count
        used, group = address.subset(mask), group.subset(mask)
    space, origin = resolve(group, "shared", used, offset)
    check(group, space, origin, used, offset, 16)
    place = np.broadcast_to(used.places(group, space, origin, offset, 4), group.count)
    if used.scalar and count < 4:
        place = place.reshape(-1, WARP)[:, : 8 * count]
    return place.reshape(-1, count, 8)


def _row_position(good: Array) -> int:
    """The lane (within the group) that gave the address of the first bad row."""
    flat = int(np.argmin(good))
    rows = int(good[0].size)
    return flat // rows * WARP + flat % rows


def _stacked(group: Group, registers: tuple[Any, ...]) -> Array:
    """Registers as [warps, 32, registers]."""
    grid = np.empty((group.count, len(registers)), dtype=registers[0].dtype)
    for place, register in enumerate(registers):
        grid[:, place] = register
    return grid.reshape(-1, WARP, len(registers))


def _columns(fragments: Array) -> tuple[Any, ...]:
    count = fragments.shape[-1]
    return tuple(np.ascontiguousarray(fragments.reshape(-1, count).T))


def _need_whole_warps(group: Group, what: str) -> None:
    if not group.whole:
        raise LaneFault(FaultKind.WARP_DIVERGED, f"{what} needs all 32 lanes of the warp", 0)


# -- member masks -----------------------------------------------------------------------------------------------------
def _grid(group: Group, value: Any) -> Any:
    return value if value.ndim == 0 else group.in_warps(value)


def _member_bits(group: Group, mask: Any) -> Any:
    """The member mask as uint32: a scalar, or [warps, 32]. A lane outside its own mask is a fault."""
    _members(group, mask)
    return _grid(group, mask)


def _members(group: Group, mask: Any) -> Array | None:
    """[warps, 32] bool of members, None for the full mask."""
    if mask.ndim == 0 and int(mask) == _FULL:
        return None
    lane = (group.lanes % WARP).astype(np.uint32)
    inside = (mask >> lane) & np.uint32(1) != 0
    if not inside.all():
        position = int(np.argmin(inside))
        raise LaneFault(FaultKind.WARP_DIVERGED, "the lane is not in its own member mask", position)
    return group.in_warps(inside)
