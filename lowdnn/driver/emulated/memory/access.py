"""Loads, stores and atomics of a group of lanes. Generated code calls these.

``address`` is an ``Address``, ``offset`` a number of bytes, ``kind`` says element type and vector length. A load from
a uniform address gives a scalar. Reading bytes that nothing has written is a fault where the batch checks it. Source:
PTX ISA manual, "ld", "st", "atom".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.address import Address, check, resolve, split
from lowdnn.driver.emulated.memory.arena import WRITTEN, Bytes
from lowdnn.driver.emulated.memory.batch import MemoryBatch


@dataclass(frozen=True)
class Kind:
    """``count`` elements of ``code``, ``total`` bytes together, moved as ``words`` of type ``word`` and ``1 << shift``
    bytes. ``scope`` of a strong access, as in ``checking.epochs``; 0 for a weak one."""

    code: str
    count: int
    total: int
    word: str
    words: int
    shift: int
    scope: int = 0


def kind_of(code: str, size: int, count: int, scope: int = 0) -> Kind:
    """The ``Kind`` of a vector of ``count`` elements of ``size`` bytes."""
    total = size * count
    word = code if count == 1 else {2: "u2", 4: "u4", 8: "u8"}.get(total, "w16")
    return Kind(code, count, total, word, max(1, total // 16), min(total, 16).bit_length() - 1, scope)


def load(group: Lanes[MemoryBatch], space: str, address: Address, offset: int, kind: Kind) -> Any:
    """The value of each lane; a tuple of values for a vector."""
    space, origin = resolve(group, space, address, offset)
    if not space:
        return _load_mixed(group, address, offset, kind)
    memory, unwritten = check(group, space, origin, address, offset, kind.total)
    place = address.places(group, space, origin, offset, kind.shift)
    if unwritten and group.batch.checks:
        _check_written(memory, place, kind, address, offset)
    if group.batch.races is not None:
        group.batch.races.load(group, space, place, kind.shift, kind.words, kind.scope)
    if kind.scope and space == "global":
        group.batch.note_polled(group, address.signed(offset))
    if kind.count == 1:
        return memory.views[kind.word][place]
    view, dtype = memory.views[kind.word], memory.views[kind.code].dtype
    words = view[place] if kind.words == 1 else np.stack([view[place + i] for i in range(kind.words)], axis=-1)
    grid = words.reshape(-1, kind.words).view(dtype)
    return tuple(np.ascontiguousarray(grid.T)) if place.ndim else tuple(grid[0])


def store(group: Lanes[MemoryBatch], space: str, address: Address, offset: int, kind: Kind, values: Any) -> None:
    """``values`` is one value, or a tuple for a vector. The last of lanes with one address wins."""
    space, origin = resolve(group, space, address, offset)
    if not space:
        _store_mixed(group, address, offset, kind, values)
        return
    memory, unwritten = check(group, space, origin, address, offset, kind.total, write=True)
    place = address.places(group, space, origin, offset, kind.shift)
    group.batch.stores += 1
    if group.batch.races is not None:
        group.batch.races.store(group, space, place, kind.shift, kind.words, kind.scope)
    words = values if kind.count == 1 else _packed(group, memory, kind, values)
    if kind.words > 1:
        for i in range(kind.words):
            column = words[:, i]
            memory.views["w16"][place + i] = column if place.ndim else column[-1]
    else:
        memory.views[kind.word][place] = words if place.ndim or words.ndim == 0 else words[-1]
    if unwritten:
        unit = min(kind.total, 16)
        for i in range(kind.words):
            memory.shadows[unit][place + i] = WRITTEN[unit]


def atomic(
    group: Lanes[MemoryBatch],
    space: str,
    address: Address,
    offset: int,
    kind: Kind,
    align: int,
    updates: tuple[Callable[..., Any], Callable[..., Any]],
    *operands: Any,
) -> Any:
    """``update(memory, element numbers, *operands)``: lanes that meet take turns in lane order; the old values.

    ``align``: the address's alignment in bytes. ``updates``: the update in shared memory, and that in global memory.
    """
    space, origin = resolve(group, space, address, offset)
    if not space:
        raise LaneFault(FaultKind.OUT_OF_BOUNDS, "lanes of one atomic point into different state spaces", 0)
    memory, unwritten = check(group, space, origin, address, offset, kind.total, True, align)
    place = address.places(group, space, origin, offset, kind.shift)
    place = place if place.ndim else np.full(group.count, place)
    if unwritten and group.batch.checks:
        _check_written(memory, place, kind, address, offset)
    elif unwritten:
        memory.shadows[kind.total][place] = WRITTEN[kind.total]
    if group.batch.races is not None:
        group.batch.races.update(group, space, place, kind.shift, kind.scope)
    if space == "global":
        group.batch.note_polled(group, address.signed(offset))
    view = memory.views[kind.code]
    before = view[place].tobytes()
    old = updates[space == "global"](view, place, *operands)
    # An update that changes nothing, such as a failed attempt to take a lock, does not count as progress.
    group.batch.stores += view[place].tobytes() != before
    return old


def _load_mixed(group: Lanes[MemoryBatch], address: Address, offset: int, kind: Kind) -> Any:
    """Loads from generic addresses in several spaces, with one access for each space."""
    full: list[Any] = []
    for mask in split(address, offset):
        part = load(group.subset(mask), "generic", address.subset(mask), offset, kind)
        pieces = part if kind.count > 1 else (part,)
        full = full or [np.empty(group.count, dtype=piece.dtype) for piece in pieces]
        for whole, piece in zip(full, pieces, strict=True):
            whole[mask] = piece
    return tuple(full) if kind.count > 1 else full[0]


def _store_mixed(group: Lanes[MemoryBatch], address: Address, offset: int, kind: Kind, values: Any) -> None:
    for mask in split(address, offset):
        parts = tuple(v[mask] if v.ndim else v for v in (values if kind.count > 1 else (values,)))
        part = parts if kind.count > 1 else parts[0]
        store(group.subset(mask), "generic", address.subset(mask), offset, kind, part)


def _packed(group: Lanes[MemoryBatch], memory: Bytes, kind: Kind, values: tuple[Any, ...]) -> Any:
    """Vector elements side by side, as words."""
    grid = np.empty((group.count, kind.count), dtype=memory.views[kind.code].dtype)
    for column, value in enumerate(values):
        grid[:, column] = value
    words = grid.view(memory.views[kind.word].dtype)
    return words[:, 0] if kind.words == 1 else words


def _check_written(memory: Bytes, place: Any, kind: Kind, address: Address, offset: int) -> None:
    unit = min(kind.total, 16)
    for i in range(kind.words):
        wrong = memory.shadows[unit][place + i if i else place] != WRITTEN[unit]
        if np.count_nonzero(wrong):
            position = int(np.argmax(np.atleast_1d(wrong)))
            raise unwritten_fault(memory, address.lane(position, offset), kind.total, position)


def unwritten_fault(memory: Bytes, where: int, size: int, position: int) -> LaneFault:
    """The fault of reading ``size`` bytes at ``where`` of which some were never written.

    Shared memory that another thread writes only later looks the same, which is what a missing barrier leads to.
    """
    label, offset = memory.name_of(where)
    message = f"{size} bytes at {where:#x} hold bytes that nothing has written"
    if label.startswith("shared memory"):
        message += " yet; if another thread does, a barrier is missing before this read"
    return LaneFault(FaultKind.UNINITIALISED_READ, message, position, where, label, offset)
