"""Operations of a warp's lanes together, for a group: shuffles, votes, matches, reductions, matrix fragments.

Generated code calls these. Values go to [warps, 32] arrays, through the value functions, and back to the group's lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.access import unwritten_fault
from lowdnn.driver.emulated.memory.address import Address, check, resolve
from lowdnn.driver.emulated.memory.arena import WRITTEN, Array, all_written
from lowdnn.driver.emulated.running.accumulators import Element, Held, part_of, same_registers, settled
from lowdnn.driver.emulated.running.batch import Group
from lowdnn.driver.emulated.running.fragments import LoadedRows, Products, loaded_rows
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


def reduce(group: Group, operation: str, value: Any, mask: Any) -> Any:
    """``redux.sync``."""
    members = _member_bits(group, mask)
    return group.from_warps(warp.reduce(operation, group.in_warps(value), members, group.active))


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
        shadow = shared.shadows[16].take(place)
        if not all_written(shadow):
            position = _row_position(shadow == WRITTEN[16])
            raise unwritten_fault(shared, address.lane(position, offset), 16, position)
    return LoadedRows(group, shared.views["w16"].take(place), transposed).elements


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
    """``mma.sync``. Arguments and results are lists with the content of each register: an array or an ``Element``."""
    _need_whole_warps(group, "mma")
    a, b, c = (tuple(part_of(one, group) if one.__class__ is Held else one for one in part) for part in (a, b, c))
    left = _numbers_of(group, product, a, "left")
    right = _numbers_of(group, product, b, "right")
    if product.d == product.c == "f32":
        base, lefts, rights = _before(group, product, c)
        return Products(group, product, base, (*lefts, left), (*rights, right)).elements
    return product.combine(
        left, right, [group.spread(settled(group, one, product.c_dtype).view(product.c_dtype)) for one in c]
    )


def _before(
    group: Group, product: MatrixProduct, c: tuple[Any, ...]
) -> tuple[Array | None, tuple[Array, ...], tuple[Array, ...]]:
    """The value that a product is added to: (base, earlier factors)."""
    chain = c[0].source if c[0].__class__ is Element else None
    if isinstance(chain, Products) and chain.product == product and same_registers(c, chain.elements):
        return chain.chain()
    values = [settled(group, one, np.float32).view(np.float32) for one in c]
    if all(value.ndim == 0 and value == 0 for value in values):
        return None, (), ()
    return product.matrix_of([group.spread(value) for value in values]), (), ()


def _numbers_of(group: Group, product: MatrixProduct, registers: tuple[Any, ...], side: str) -> Array:
    """A fragment as matrices. The last ones are cached, since a tile uses each fragment for several products. Keys are
    the identities of the registers' arrays; an entry holds the arrays, so nothing changes them in place.
    """
    kept = group.kept_fragments
    key = (side, product.a, product.b, product.rows, product.depth, *map(id, registers))
    if key not in kept:
        if len(kept) >= _KEPT_FRAGMENTS:
            kept.clear()
        rows = loaded_rows(registers)
        if rows is None:
            take_apart = product.left if side == "left" else product.right
            number = take_apart(_stacked(group, tuple(_plain(group, one, product) for one in registers)))
        else:
            number = (product.left_rows if side == "left" else product.right_rows)(rows)
        kept[key] = (registers, number)
    return kept[key][1]


def _plain(group: Group, register: Any, product: MatrixProduct) -> Any:
    """The bits of a factor's register."""
    dtype = np.float64 if product.a == "f64" else np.uint32
    return settled(group, register, dtype).view(dtype)


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
