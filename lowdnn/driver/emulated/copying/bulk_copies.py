"""Bulk copies of bytes in a row, and asynchronous stores of registers: from operands to ``Transfer`` rows. Generated
code calls these.

Source: PTX ISA manual, "cp.async.bulk", "cp.reduce.async.bulk", "cp.async.bulk.prefetch", "st.async", "red.async".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.driver.emulated.copying.async_work import Reduction
from lowdnn.driver.emulated.copying.batch import CopyingBatch
from lowdnn.driver.emulated.copying.transfer import Places, Transfer, check_signal, multicast, run_of_units
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.address import Address, check, shared_bytes
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.memory.space import ARENA_BASE

#: A base and an offset in bytes.
Place = tuple[Address, int]

_UNIT = 16
_SHIFT = 4
_BARRIER_BYTES = 8


def load(
    group: Lanes[CopyingBatch], to: Place, of: Place, size: Any, barrier: Place, space: str, ctas: Any | None, line: int
) -> None:
    """Global to shared memory of ``space`` (shared, cluster), completing at ``barrier``. With ``ctas``, a mask of ranks
    in the cluster, data and completion go to the same place in each of those CTAs."""
    for part in _parts(group, size):
        with part:
            first, signal = _target(part, to, barrier, space)
            outside, written = _global_units(part, of, write=False)
            transfer = _transfer(part, first, outside, written)
            if ctas is not None:
                masks = part.pick(group.spread(ctas)).astype(np.int64)
                transfer, signal = multicast(group.batch, transfer, signal, masks)
            part.group.batch.async_work.load(part.group, transfer, signal, line)


def exchange(
    group: Lanes[CopyingBatch],
    to: Place,
    of: Place,
    size: Any,
    barrier: Place,
    line: int,
    reduction: Reduction | None = None,
) -> None:
    """Own shared memory to that of any CTA of the cluster, completing at ``barrier`` there."""
    for part in _parts(group, size):
        with part:
            first, signal = _target(part, to, barrier, "cluster")
            source = shared_bytes(part.group, part.address(of), of[1], part.nbytes, align=_UNIT, space="shared")
            transfer = _transfer(part, first, _units(source >> _SHIFT, part.nbytes), written=False)
            part.group.batch.async_work.exchange(part.group, transfer, signal, line, reduction)


def store(
    group: Lanes[CopyingBatch], to: Place, of: Place, size: Any, line: int, reduction: Reduction | None = None
) -> None:
    """Own shared to global memory, in the lane's bulk group."""
    for part in _parts(group, size):
        with part:
            first = shared_bytes(part.group, part.address(of), of[1], part.nbytes, align=_UNIT, space="shared")
            outside, _ = _global_units(part, to, write=True)
            transfer = _transfer(part, first, outside, written=False)
            part.group.batch.async_work.store(part.group, transfer, line, reduction)


def prefetch(group: Lanes[CopyingBatch], of: Place, size: Any) -> None:
    """Prefetches: checks that the bytes exist, and changes nothing."""
    for part in _parts(group, size):
        with part:
            _global_units(part, of, write=False)


def send(
    group: Lanes[CopyingBatch],
    to: Place,
    values: tuple[Any, ...],
    size: int,
    barrier: Place,
    line: int,
    reduction: Reduction | None = None,
) -> None:
    """``values``, unsigned words of ``size`` bytes, to shared memory of the cluster, completing at ``barrier``
    there."""
    nbytes = size * len(values)
    part = _Part(group, nbytes, None)
    first = shared_bytes(group, *to, nbytes, write=True, space="cluster")
    signal = _signal(part, barrier, first, "cluster")
    places = run_of_units(first // size, len(values))
    content = np.stack([group.spread(value) for value in values], axis=1)
    transfer = Transfer(group.lanes, places, places, size, np.full(group.count, nbytes, dtype=np.int64))
    group.batch.async_work.send(group, transfer, content, signal, line, reduction)


@dataclass(frozen=True)
class _Part:
    """The lanes of a group that copy ``nbytes`` bytes each. ``rows``: which of ``group``'s parent they are, None for
    all; used as a context, faults inside it name the parent's lane."""

    group: Lanes[CopyingBatch]
    nbytes: int
    rows: Array | None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, LaneFault) and fault.position is not None and self.rows is not None:
            fault.position = int(np.flatnonzero(self.rows)[fault.position])

    def address(self, place: Place) -> Address:
        return place[0] if self.rows is None else place[0].subset(self.rows)

    def pick(self, values: Array) -> Array:
        return values if self.rows is None else values[self.rows]


def _parts(group: Lanes[CopyingBatch], size: Any) -> Iterator[_Part]:
    """The group's lanes by size; those that copy nothing are left out."""
    sizes = np.atleast_1d(size)
    wrong = sizes % _UNIT != 0
    if wrong.any():
        position = int(np.argmax(wrong))
        message = f"bulk copy of {int(sizes[position])} bytes: expected a multiple of {_UNIT}"
        raise LaneFault(FaultKind.MISALIGNED, message, position)
    for nbytes in np.unique(sizes).tolist():
        if nbytes == 0:
            continue
        if (sizes == nbytes).all():
            yield _Part(group, nbytes, None)
        else:
            rows = sizes == nbytes
            yield _Part(group.subset(rows), nbytes, rows)


def _target(part: _Part, to: Place, barrier: Place, space: str) -> tuple[Array, Array]:
    """Byte numbers in ``batch.shared`` of the target and of its barrier."""
    first = shared_bytes(part.group, part.address(to), to[1], part.nbytes, write=True, align=_UNIT, space=space)
    return first, _signal(part, barrier, first, space)


def _signal(part: _Part, barrier: Place, first: Array, space: str) -> Array:
    """Byte number of the mbarrier, which must lie in the CTA that gets the data."""
    group = part.group
    signal = shared_bytes(group, part.address(barrier), barrier[1], _BARRIER_BYTES, write=True, space=space)
    check_signal(group.batch, signal, first)
    return signal


def _global_units(part: _Part, place: Place, write: bool) -> tuple[Places, bool]:
    """Units in the arena, and whether all of them are known to be written."""
    group, address, offset = part.group, part.address(place), place[1]
    _, unwritten = check(group, "global", ARENA_BASE, address, offset, part.nbytes, write, align=_UNIT)
    first = np.broadcast_to(address.places(group, "global", ARENA_BASE, offset, _SHIFT), group.count)
    return _units(first, part.nbytes), not unwritten


def _transfer(part: _Part, first: Array, outside: Places, written: bool) -> Transfer:
    return Transfer(
        lanes=part.group.lanes,
        shared=_units(first >> _SHIFT, part.nbytes),
        outside=outside,
        unit=_UNIT,
        nbytes=np.full(part.group.count, part.nbytes, dtype=np.int64),
        written=written,
    )


def _units(first: Array, nbytes: int) -> Places:
    return run_of_units(first, nbytes >> _SHIFT)
