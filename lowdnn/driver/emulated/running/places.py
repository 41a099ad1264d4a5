"""The places of all blocks of a batch: at which line of PTX their threads are, and what they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.deadlock import waits_of

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.scheduler import Scheduler, Step

#: The most blocks that are listed at one place.
_MOST_BLOCKS = 16


def places_text(scheduler: Scheduler, step: Step, lanes: Array) -> str:
    """A line for each place where threads are; ``lanes`` run ``step`` now."""
    batch = scheduler.batch
    lines = [_line(scheduler, what, line, there) for what, line, there in _places(scheduler, step, lanes)]
    gone = int(np.count_nonzero((batch.thread < batch.geometry.threads) & ~batch.alive))
    if gone:
        lines.append(f"{gone} threads have exited")
    total = int(np.prod(batch.geometry.grid))
    running = len(batch.geometry.ctas)
    if running < total:
        lines.append(f"{running} of the grid's {total} blocks run at a time")
    return "\n".join(lines)


def _places(scheduler: Scheduler, step: Step, lanes: Array) -> Iterator[tuple[str, int, Array]]:
    yield "run", step.end_line or step.line, lanes
    ready: dict[int, list[Array]] = {}
    for queue in scheduler.ready:
        for block, parts in queue.items():
            ready.setdefault(block, []).extend(parts)
    for block, parts in ready.items():
        yield "are ready to run", scheduler.steps[block].line, np.concatenate(parts)
    for wait in waits_of(scheduler):
        yield f"wait {wait.what.rstrip(',')}", wait.line, wait.lanes


def _line(scheduler: Scheduler, what: str, line: int, lanes: Array) -> str:
    batch = scheduler.batch
    _, first = np.unique(batch.slot[lanes], return_index=True)
    blocks = [str(batch.place(int(lane))[0]) for lane in lanes[first[:_MOST_BLOCKS]]]
    if len(first) > _MOST_BLOCKS:
        blocks.append(f"{len(first) - _MOST_BLOCKS} more")
    warps = np.unique(lanes // WARP).size
    word = "block" if len(first) == 1 else "blocks"
    return f"PTX line {line}: {lanes.size} threads in {warps} warps {what}, of {word} {', '.join(blocks)}"
