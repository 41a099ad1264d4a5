"""Loads and stores of a group of lanes, with every check. Generated code calls these.

``address`` is a value over the group's lanes (uint64 or uint32, or a scalar when uniform); ``offset`` a Python integer; ``kind``
says the element type and vector length. A uniform address of global memory gives a scalar result.
Source: PTX ISA manual, sections on state spaces, ld, st and generic addressing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import FaultKind, LaneFault
from .memory import ARENA_BASE, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, WRITTEN, Array, Bytes

if TYPE_CHECKING:
    from .batch import Group

_U8 = np.uint64
_I8 = np.int64


@dataclass(frozen=True)
class Kind:
    """``count`` elements of ``code`` side by side; ``word`` is the code that moves them in ``words`` pieces."""

    code: str
    size: int
    count: int
    word: str
    words: int
    shift: int

    @property
    def total(self) -> int:
        return self.size * self.count


def kind_of(code: str, size: int, count: int) -> Kind:
    total = size * count
    word = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(total, "w16")
    words = max(1, total // 16)
    if count == 1:
        word = code
    return Kind(code, size, count, word, words, min(total, 16).bit_length() - 1)


# -- the four spaces ----------------------------------------------------------------------------------------------
def load_global(group: Group, address: Any, offset: int, kind: Kind) -> Any:
    arena, index, checked = _global_index(group, address, offset, kind.total, False)
    return _read(arena, index, kind, checked, address, offset)


def store_global(group: Group, address: Any, offset: int, kind: Kind, values: Any) -> None:
    arena, index, mark = _global_index(group, address, offset, kind.total, True)
    _write(group, arena, index, kind, mark, values)


def load_shared(group: Group, address: Any, offset: int, kind: Kind) -> Any:
    index = shared_index(group, address, offset, kind.total)
    return _read(group.batch.shared, index, kind, group.batch.checks, address, offset)


def store_shared(group: Group, address: Any, offset: int, kind: Kind, values: Any) -> None:
    index = shared_index(group, address, offset, kind.total)
    _write(group, group.batch.shared, index, kind, True, values)


def load_local(group: Group, address: Any, offset: int, kind: Kind) -> Any:
    index = _local_index(group, address, offset, kind.total)
    return _read(group.batch.local, index, kind, group.batch.checks, address, offset)


def store_local(group: Group, address: Any, offset: int, kind: Kind, values: Any) -> None:
    index = _local_index(group, address, offset, kind.total)
    _write(group, group.batch.local, index, kind, True, values)


def load_generic(group: Group, address: Any, offset: int, kind: Kind) -> Any:
    space, base = _one_space(address, offset)
    if space == "global":
        return load_global(group, address, offset, kind)
    if space == "shared":
        return load_shared(group, address, offset - base, kind)
    if space == "local":
        return load_local(group, address, offset - base, kind)
    full: Any = None
    for mask in _split(address, offset):
        part = load_generic(group.subset(mask), address[mask], offset, kind)
        pieces = part if kind.count > 1 else (part,)
        if full is None:
            full = [np.empty(group.count, dtype=piece.dtype) for piece in pieces]
        for whole, piece in zip(full, pieces, strict=True):
            whole[mask] = piece
    return tuple(full) if kind.count > 1 else full[0]


def store_generic(group: Group, address: Any, offset: int, kind: Kind, values: Any) -> None:
    space, base = _one_space(address, offset)
    if space == "global":
        store_global(group, address, offset, kind, values)
    elif space == "shared":
        store_shared(group, address, offset - base, kind, values)
    elif space == "local":
        store_local(group, address, offset - base, kind, values)
    else:
        for mask in _split(address, offset):
            parts = tuple(v[mask] if v.ndim else v for v in (values if kind.count > 1 else (values,)))
            part = parts if kind.count > 1 else parts[0]
            store_generic(group.subset(mask), address[mask], offset, kind, part)


def atomic(
    group: Group, space: str, address: Any, offset: int, code: str, size: int, update: Any, *operands: Any
) -> Any:
    """``atom``: ``update(memory, element index, *operands)`` in lane order; the old values."""
    memory, index = locate(group, space, address, offset, size, True)
    flat = index if index.ndim else np.full(group.count, index)
    shift = size.bit_length() - 1
    if group.batch.checks and not (memory.shadows[size][flat >> shift] == WRITTEN[size]).all():
        position = int(np.argmin(memory.shadows[size][flat >> shift] == WRITTEN[size]))
        where = int(np.atleast_1d(_signed(address, offset))[position if address.ndim else 0])
        raise _unwritten(memory, where, size, position)
    if not group.batch.checks:
        memory.shadows[size][flat >> shift] = WRITTEN[size]
    group.batch.stores += 1
    return update(memory.views[code], flat >> shift, *operands)


# -- index and checks -----------------------------------------------------------------------------------------------
def locate(group: Group, space: str, address: Any, offset: int, size: int, write: bool) -> tuple[Bytes, Any]:
    """(bytes, byte index of each lane) of an access in one space, bounds and alignment checked."""
    if space == "generic":
        space, base = _one_space(address, offset)
        offset -= base
        if not space:
            raise LaneFault(FaultKind.OUT_OF_BOUNDS, "lanes of one access point into different state spaces")
    if space == "global":
        arena, index, _ = _global_index(group, address, offset, size, write)
        return arena, index
    if space == "shared":
        return group.batch.shared, shared_index(group, address, offset, size)
    return group.batch.local, _local_index(group, address, offset, size)


def shared_index(group: Group, address: Any, offset: int, size: int) -> Any:
    """Byte index of each lane in the batch's shared memory."""
    batch = group.batch
    low, high = _extent(address, offset)
    if low < batch.shared_start or high + size > batch.shared_end:
        raise _window_fault(address, offset, size, batch.shared_start, batch.shared_end, "shared")
    _check_alignment(address, offset, size)
    index = _signed(address, offset)
    return index if batch.shared_single else index + group.shared_base


def _local_index(group: Group, address: Any, offset: int, size: int) -> Any:
    batch = group.batch
    low, high = _extent(address, offset)
    if low < batch.local_start or high + size > batch.local_end:
        raise _window_fault(address, offset, size, batch.local_start, batch.local_end, "local")
    _check_alignment(address, offset, size)
    return _signed(address, offset) + group.local_base


def _global_index(group: Group, address: Any, offset: int, size: int, write: bool) -> tuple[Bytes, Any, bool]:
    """(arena, byte index of each lane, does the shadow matter)."""
    arena = group.batch.arena
    low, high = _extent(address, offset)
    allocation = arena.around(low, high + size)
    if allocation is None:
        _scattered(group, address, offset, size, write)
        matters = True
    else:
        matters = not allocation.complete
        if write and allocation.read_only:
            raise LaneFault(FaultKind.READ_ONLY, f"a store into {allocation.label}", 0, low, allocation.label)
    _check_alignment(address, offset, size)
    if not write:
        matters = matters and group.batch.checks
    return arena, _signed(address, offset - ARENA_BASE), matters


def _scattered(group: Group, address: Any, offset: int, size: int, write: bool) -> None:
    """Lanes that touch several allocations: each must lie inside one."""
    arena = group.batch.arena
    addresses = np.atleast_1d(_signed(address, offset)).view(_U8)
    good = arena.inside(addresses, size)
    if not good.all():
        position = int(np.argmin(good))
        raise arena.fault(int(addresses[position]), size, position)
    if write and any(arena_is_read_only(group, int(a)) for a in np.unique(addresses)):
        raise LaneFault(FaultKind.READ_ONLY, "a store into constant memory", 0, int(addresses[0]))


def arena_is_read_only(group: Group, address: int) -> bool:
    allocation = group.batch.arena.allocation_at(address)
    return allocation is not None and allocation.read_only


def _extent(address: Any, offset: int) -> tuple[int, int]:
    if address.ndim == 0:
        only = int(address) + offset
        return only, only
    return int(address.min()) + offset, int(address.max()) + offset


def _signed(address: Any, offset: int) -> Any:
    """address + offset as int64 (values are far below 2^63)."""
    if address.dtype.itemsize == 8:
        return address.view(_I8) + _I8(offset)
    return address.astype(_I8) + _I8(offset)


def _check_alignment(address: Any, offset: int, size: int) -> None:
    mask = size - 1
    if not mask:
        return
    if address.ndim == 0:
        wrong = (int(address) + offset) & mask
    else:
        wrong = int(np.bitwise_or.reduce(address)) & mask | offset & mask
        if wrong:
            wrong = int((_signed(address, offset) & _I8(mask)).any())
    if wrong:
        addresses = np.atleast_1d(_signed(address, offset))
        position = int(np.argmax((addresses & _I8(mask)) != 0))
        where = int(addresses[position])
        raise LaneFault(FaultKind.MISALIGNED, f"{size} bytes at {where:#x}: not {size}-byte aligned", position, where)


def _window_fault(address: Any, offset: int, size: int, start: int, end: int, space: str) -> LaneFault:
    addresses = np.atleast_1d(_signed(address, offset))
    position = int(np.argmax((addresses < start) | (addresses + size > end)))
    where = int(addresses[position])
    kind = FaultKind.SHARED_OUT_OF_BOUNDS if space == "shared" else FaultKind.LOCAL_OUT_OF_BOUNDS
    message = f"{size} bytes at {space} offset {where - start}: {space} memory of this launch has {end - start} bytes"
    return LaneFault(kind, message, position, where, f"{space} memory", where - start)


def _one_space(address: Any, offset: int) -> tuple[str, int]:
    """The state space that all generic addresses lie in, and its window; ("", 0) for a mixture."""
    low, high = _extent(address, offset)
    if low >= ARENA_BASE:
        return "global", 0
    for space, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        if window <= low and high < window + WINDOW_BYTES:
            return space, window
    if high < LOCAL_WINDOW or address.ndim == 0:
        return "global", 0
    return "", 0


def _split(address: Any, offset: int) -> list[Array]:
    addresses = _signed(address, offset)
    shared = (addresses >= SHARED_WINDOW) & (addresses < SHARED_WINDOW + WINDOW_BYTES)
    local = (addresses >= LOCAL_WINDOW) & (addresses < LOCAL_WINDOW + WINDOW_BYTES)
    return [mask for mask in (shared, local, ~(shared | local)) if mask.any()]


# -- moving -----------------------------------------------------------------------------------------------------------
def _read(source: Bytes, index: Any, kind: Kind, checked: bool, address: Any, offset: int) -> Any:
    place = index >> kind.shift
    if checked:
        _check_written(source, index, kind, address, offset)
    if kind.count == 1:
        return source.views[kind.word][place]
    words = np.stack([source.views[kind.word][place + i] for i in range(kind.words)], axis=-1)
    grid = words.reshape(-1, kind.words).view(source.views[kind.code].dtype)
    return tuple(np.ascontiguousarray(grid.T)) if index.ndim else tuple(grid[0])


def _check_written(source: Bytes, index: Any, kind: Kind, address: Any, offset: int) -> None:
    size = min(kind.total, 8)
    shift = size.bit_length() - 1
    for step in range(0, kind.total, size):
        good = source.shadows[size][(index + step) >> shift] == WRITTEN[size]
        if not good.all():
            position = int(np.argmin(np.atleast_1d(good)))
            where = int(np.atleast_1d(_signed(address, offset))[position]) + step
            raise _unwritten(source, where, kind.total, position)


def _unwritten(source: Bytes, where: int, size: int, position: int) -> LaneFault:
    allocation = source.allocation_at(where) if hasattr(source, "allocation_at") else None
    label = allocation.label if allocation is not None else "shared or local memory"
    offset = where - allocation.address if allocation is not None else where
    message = f"{size} bytes at {where:#x} hold bytes that nothing has written"
    return LaneFault(FaultKind.UNINITIALISED_READ, message, position, where, label, offset)


def _write(group: Group, target: Bytes, index: Any, kind: Kind, mark: bool, values: Any) -> None:
    place = index >> kind.shift
    batch = group.batch
    batch.stores += 1
    if kind.count == 1:
        words = values
    else:
        words = _pack(group, target, kind, values, index.ndim == 0)
    if kind.words == 1:
        target.views[kind.word][place] = words if index.ndim or words.ndim == 0 else words[-1]
    else:
        for i in range(kind.words):
            target.views["w16"][place + i] = words[..., i]
    if mark:
        size = min(kind.total, 8)
        shift = size.bit_length() - 1
        for step in range(0, kind.total, size):
            target.shadows[size][(index + step) >> shift] = WRITTEN[size]


def _pack(group: Group, target: Bytes, kind: Kind, values: Any, single: bool) -> Any:
    """Vector elements side by side, as words; for a uniform address those of the last lane."""
    rows = 1 if single else group.count
    grid = np.empty((rows, kind.count), dtype=target.views[kind.code].dtype)
    for column, value in enumerate(values):
        grid[:, column] = value[-1] if single and value.ndim else value
    words = grid.view(target.views[kind.word].dtype)
    if kind.words == 1:
        words = words[:, 0]
    return words[0] if single else words
