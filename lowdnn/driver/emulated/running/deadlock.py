"""The report of a deadlock: which lanes wait at which line, and for what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Batch

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.scheduler import Scheduler


@dataclass(frozen=True)
class _Wait:
    """Lanes that wait at PTX line ``line``; ``what`` reads on after "wait"."""

    what: str
    line: int
    lanes: Array


def deadlock(scheduler: Scheduler) -> LaneFault:
    """The fault of a batch in which no lane can run; it names the line of the first lanes that wait."""
    waits = list(_waits(scheduler))
    message = "nothing can run: " + "; ".join(_text(scheduler.batch, wait) for wait in waits)
    return LaneFault(FaultKind.DEADLOCK, message, line=waits[0].line, lane=int(waits[0].lanes[0]))


def _waits(scheduler: Scheduler) -> Iterator[_Wait]:
    steps, batch = scheduler.steps, scheduler.batch
    for waiting in scheduler.barriers.waiting:
        yield _Wait(f"at {_barrier(scheduler, waiting.number, waiting.lanes)}", waiting.line, waiting.lanes)
    for wait in scheduler.cluster_barriers.waiting:
        missing = scheduler.cluster_barriers.missing(int(wait.lanes[0]))
        block, thread, *_ = batch.place(int(missing[0]))
        what = f"at barrier.cluster.wait for {missing.size} threads, the first is thread {thread} of block {block},"
        yield _Wait(what, wait.line, wait.lanes)
    for number, parts in scheduler.parked.items():
        step = steps[number]
        what = f"for other {'warps of the warpgroup' if step.warpgroup else 'lanes of the warp'}"
        yield from (_Wait(what, step.line, lanes) for lanes in parts)
    for one in scheduler.spinning:
        looking = batch.mbarriers.polling(one.lanes)
        for barrier, line, lanes in batch.mbarriers.waited_for(one.lanes[looking]):
            yield _Wait(f"at {barrier}", line, lanes)
        if not looking.all():
            yield _Wait("for a value that nobody stores", steps[one.block].line, one.lanes[~looking])


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


def _text(batch: Batch, wait: _Wait) -> str:
    block, thread, warp, _ = batch.place(int(wait.lanes[0]))
    warps = np.unique(wait.lanes // WARP).size
    return (
        f"{wait.lanes.size} threads of {warps} warps wait {wait.what} (PTX line {wait.line}), "
        f"the first is thread {thread} of block {block} in warp {warp}"
    )
