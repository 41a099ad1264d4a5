"""CTA barriers: ``bar``/``barrier`` sync, arrive and red, 16 per CTA. PTX ISA manual, "bar, barrier".

Arrivals count per barrier number, whatever instruction they come from. ``.aligned`` forms arrive as whole warps, each
counting 32; the others count threads. Without a thread count the barrier takes every thread of the CTA that has not
exited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Batch, Group

BARRIERS = 16
_ALL = -1


@dataclass(frozen=True)
class BarrierOp:
    """Static part of a barrier instruction. ``kind``: sync, arrive or red, or the cluster's cluster.arrive and
    cluster.wait; ``reduction``: popc, and, or; ``slot`` and ``code``: the register that takes its result, and the type
    that it is kept in. ``ordered``: it orders memory accesses (all but ``.relaxed`` arrivals)."""

    kind: str
    aligned: bool
    reduction: str = ""
    slot: int = -1
    code: str = ""
    ordered: bool = True


@dataclass(frozen=True)
class Waiting:
    """Lanes that wait at a barrier and go on at block ``next``."""

    number: int
    next: int
    line: int
    lanes: Array
    operation: BarrierOp


@dataclass(frozen=True)
class Released:
    """Lanes that go on at block ``next``; ``result`` is what a ``red`` form gives them."""

    waiting: Waiting
    lanes: Array
    result: Array | None


class Barriers:
    """Arrivals of a batch: arrays [16, CTAs]."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        shape = (BARRIERS, batch.cta_count)
        self.arrived = np.zeros(shape, dtype=np.int64)
        self.needed = np.zeros(shape, dtype=np.int64)
        self.waiting: list[Waiting] = []
        self.votes = np.zeros((BARRIERS, batch.lane_count), dtype=np.bool_)

    def arrive(
        self, group: Group, operation: BarrierOp, operands: tuple[Any, Any, Any], next_block: int, line: int
    ) -> list[Released]:
        """The group arrives with (barrier number, thread count or None, predicate or None). Returns the lanes that may
        go on."""
        number, count, predicate = operands
        released: list[Released] = []
        if number.ndim == 0:
            released += self._arrive_at(group, operation, int(number), count, predicate, next_block, line)
        else:
            for value in np.unique(number):
                mask = number == value
                part = group.subset(mask)
                counts = count[mask] if count is not None and count.ndim else count
                votes = predicate[mask] if predicate is not None and predicate.ndim else predicate
                released += self._arrive_at(part, operation, int(value), counts, votes, next_block, line)
        return released

    def lanes_exited(self) -> list[Released]:
        """Lanes have exited, which may complete barriers without a thread count."""
        released: list[Released] = []
        for number in {w.number for w in self.waiting}:
            released += self._complete(number)
        return released

    def progress(self, number: int, slot: int) -> tuple[int, int]:
        """(threads that have arrived, threads that the barrier takes) in the CTA ``slot``."""
        needed = int(self.needed[number][slot])
        return int(self.arrived[number][slot]), int(self._live()[slot]) if needed == _ALL else needed

    def _arrive_at(
        self, group: Group, operation: BarrierOp, number: int, count: Any, predicate: Any, next_block: int, line: int
    ) -> list[Released]:
        if not 0 <= number < BARRIERS:
            raise LaneFault(FaultKind.BARRIER_MISUSE, f"barrier {number}: a CTA has barriers 0 to {BARRIERS - 1}", 0)
        batch = self.batch
        lanes = group.lanes
        slots = batch.slot[lanes]
        needed = self._needed(count, operation, slots)
        before = self.needed[number][slots]
        if ((before != 0) & (before != needed)).any():
            position = int(np.argmax((before != 0) & (before != needed)))
            raise LaneFault(FaultKind.BARRIER_MISUSE, f"barrier {number}: its threads give different counts", position)
        self.needed[number][slots] = needed
        arriving = np.bincount(slots, minlength=batch.cta_count)
        if operation.aligned:
            warps = np.unique(lanes // WARP)
            arriving = WARP * np.bincount(batch.slot[warps * WARP], minlength=batch.cta_count)
        self.arrived[number] += arriving
        if operation.kind == "red":
            self.votes[number][lanes] = predicate
        if batch.races is not None:
            batch.races.order.barrier_arrives(number, lanes)
        waiting = Waiting(number, next_block, line, lanes, operation)
        released = []
        if operation.kind == "arrive":
            released.append(Released(waiting, lanes, None))
        else:
            self.waiting.append(waiting)
        return released + self._complete(number)

    def _needed(self, count: Any, operation: BarrierOp, slots: Array) -> Any:
        if count is None:
            return _ALL
        wrong = (count % WARP != 0) | (count <= 0) if operation.aligned or operation.kind != "sync" else count <= 0
        if np.any(wrong):
            position = int(np.argmax(np.atleast_1d(wrong)))
            bad = int(np.atleast_1d(count)[position])
            raise LaneFault(
                FaultKind.BARRIER_MISUSE, f"thread count {bad}: expected a positive multiple of 32", position
            )
        return count.astype(np.int64)

    def _complete(self, number: int) -> list[Released]:
        arrived, needed = self.arrived[number], self.needed[number]
        live = self._live() if (needed == _ALL).any() else arrived
        goal = np.where(needed == _ALL, live, needed)
        over = (arrived > goal) & (needed > 0)
        if over.any():
            cta = int(np.argmax(over))
            message = f"barrier {number}: {int(arrived[cta])} threads arrive where {int(goal[cta])} are expected"
            raise LaneFault(FaultKind.BARRIER_MISUSE, message, None)
        done = (arrived >= goal) & (needed != 0)
        if not done.any():
            return []
        released, kept = [], []
        for waiting in self.waiting:
            if waiting.number != number:
                kept.append(waiting)
                continue
            go = done[self.batch.slot[waiting.lanes]]
            if go.any():
                lanes = waiting.lanes if go.all() else waiting.lanes[go]
                released.append(Released(waiting, lanes, self._result(waiting, lanes)))
                if self.batch.races is not None:
                    self.batch.races.order.barrier_passes(number, lanes)
            if not go.all():
                kept.append(Waiting(number, waiting.next, waiting.line, waiting.lanes[~go], waiting.operation))
        self.waiting = kept
        if self.batch.races is not None:
            self.batch.races.order.barrier_ends(number, done)
        arrived[done] = 0
        needed[done] = 0
        self.votes[number][done[self.batch.slot]] = False
        return released

    def _live(self) -> Array:
        """Threads that a barrier without a count waits for: whole warps with at least one live thread."""
        batch = self.batch
        warps = batch.alive.reshape(-1, batch.cta_count, WARP).any(axis=2)
        return np.asarray(WARP * warps.sum(axis=0))

    def _result(self, waiting: Waiting, lanes: Array) -> Array | None:
        operation = waiting.operation
        if operation.kind != "red":
            return None
        batch = self.batch
        taking = np.zeros(batch.lane_count, dtype=np.bool_)
        for other in self.waiting:
            if other.number == waiting.number:
                taking[other.lanes] = True
        taking[waiting.lanes] = True
        votes = self.votes[waiting.number]
        yes = np.bincount(batch.slot[taking & votes], minlength=batch.cta_count)
        total = np.bincount(batch.slot[taking], minlength=batch.cta_count)
        per_cta: Array
        if operation.reduction == "popc":
            per_cta = yes.astype(np.uint32)
        else:
            per_cta = yes == total if operation.reduction == "and" else yes > 0
        return per_cta[batch.slot[lanes]]
