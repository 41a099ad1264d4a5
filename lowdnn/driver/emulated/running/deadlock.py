"""The report of a deadlock: which lanes wait at which line, and for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Batch

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.scheduler import Scheduler

#: The most addresses that the report of one loop lists.
_MOST_ADDRESSES = 16


@dataclass(frozen=True)
class Wait:
    """Lanes that wait at PTX line ``line``; ``what`` reads on after "wait". ``address``: the place in global memory
    where they wait for a value, or 0."""

    what: str
    line: int
    lanes: Array
    address: int = 0


def deadlock(scheduler: Scheduler, others: Sequence[str] | None = None) -> LaneFault:
    """The fault of a batch in which no lane can run; it names the line of the first lanes that wait.

    ``others``: who waits in launches of other devices, where there are such devices; then the report names the first
    lanes that wait for a value in memory, on which those of barriers depend.
    """
    waits = list(waits_of(scheduler))
    first = waits[0] if others is None else next((wait for wait in waits if wait.address), waits[0])
    message = "nothing can run: " + "; ".join((waiting_text(scheduler), *(others or ())))
    fault = LaneFault(FaultKind.DEADLOCK, message, line=first.line, lane=int(first.lanes[0]))
    if first.address:
        label, offset = scheduler.batch.arena.name_of(first.address)
        fault.address, fault.buffer, fault.buffer_offset = first.address, label, offset
    return fault


def waiting_text(scheduler: Scheduler) -> str:
    """The lanes that wait, where and for what."""
    return "; ".join(_text(scheduler.batch, wait) for wait in waits_of(scheduler))


def waits_of(scheduler: Scheduler) -> Iterator[Wait]:
    """The lanes that wait, those of barriers first."""
    steps, batch = scheduler.steps, scheduler.batch
    for waiting in scheduler.barriers.waiting:
        yield Wait(f"at {_barrier(scheduler, waiting.number, waiting.lanes)}", waiting.line, waiting.lanes)
    for wait in scheduler.cluster_barriers.waiting:
        missing = scheduler.cluster_barriers.missing(int(wait.lanes[0]))
        block, thread, *_ = batch.place(int(missing[0]))
        what = f"at barrier.cluster.wait for {missing.size} threads, the first is thread {thread} of block {block},"
        yield Wait(what, wait.line, wait.lanes)
    for number, parts in scheduler.parked.items():
        step = steps[number]
        what = f"for other {'warps of the warpgroup' if step.warpgroup else 'lanes of the warp'}"
        yield from (Wait(what, step.line, lanes) for lanes in parts)
    for one in scheduler.spinning:
        looking = batch.mbarriers.polling(one.lanes)
        for barrier, line, lanes in batch.mbarriers.waited_for(one.lanes[looking]):
            yield Wait(f"at {barrier}", line, lanes)
        if not looking.all():
            yield from _value_waits(batch, steps[one.block].line, one.lanes[~looking])


def _value_waits(batch: Batch, line: int, lanes: Array) -> Iterator[Wait]:
    """The waits of lanes that read memory again and again, by the address in global memory where that is known."""
    if batch.polled is None:
        yield Wait("for a value that nobody stores", line, lanes)
        return
    places = batch.polled[lanes]
    for address in np.unique(places)[:_MOST_ADDRESSES].tolist():
        what = "for a value that nobody stores"
        if address:
            label, offset = batch.arena.name_of(address)
            what += f" at {address:#x} = {label} {offset:+d} bytes"
        yield Wait(what, line, lanes[places == address], address)


def _barrier(scheduler: Scheduler, number: int, lanes: Array) -> str:
    """The text about the barrier of the first lane's CTA: how many threads have arrived, are needed, and have
    exited."""
    batch = scheduler.batch
    slot = int(batch.slot[lanes[0]])
    arrived, expected = scheduler.barriers.progress(number, slot)
    mine = (batch.slot == slot) & (batch.thread < batch.geometry.threads)
    gone = int(np.count_nonzero(mine & ~batch.alive))
    exited = f", and {gone} threads of its block have exited" if gone else ""
    return f"barrier {number}, where {arrived} of {expected} threads have arrived{exited},"


def _text(batch: Batch, wait: Wait) -> str:
    block, thread, warp, _ = batch.place(int(wait.lanes[0]))
    warps = np.unique(wait.lanes // WARP).size
    return (
        f"{wait.lanes.size} threads of {warps} warps wait {wait.what} (PTX line {wait.line}), "
        f"the first is thread {thread} of block {block} in warp {warp}"
    )
