"""Runs the blocks of a kernel over a batch until every lane has exited.

Groups of lanes wait in ``ready`` by unit and block; the earliest block of a unit goes first, so that lanes which went
different ways meet again. A group that comes to a member mask, a barrier or a spinning back edge is set aside until
others have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import WARP
from lowdnn.driver.emulated.memory.arena import DTYPES, Array
from lowdnn.driver.emulated.running.accumulators import holds_elements, part_of
from lowdnn.driver.emulated.running.barriers import BarrierOp, Barriers, Released
from lowdnn.driver.emulated.running.batch import Batch, Group, merge_into
from lowdnn.driver.emulated.running.cluster_barriers import ClusterBarriers, ClusterWait
from lowdnn.driver.emulated.running.deadlock import deadlock
from lowdnn.driver.emulated.running.inquiry import Inquiry
from lowdnn.driver.emulated.running.places import places_text
from lowdnn.driver.emulated.running.time_limit import TimeLimit

BlockFunction = Callable[[Group, list[Any]], Any]

# -- ends of a block
GO, BRANCH, TABLE, EXIT, TRAP, BARRIER = range(6)

_FULL = 0xFFFFFFFF
#: Iterations that spinning lanes may run although no store has come: a loop that counts its iterations while it reads
#: volatile data is no deadlock, and a loop around an mbarrier may give up.
_PATIENCE = 20_000
_SHORT_PATIENCE = 20
_KEPT_GROUPS = 64
#: A count of stores that no batch has.
_OLDER = -1


@dataclass(frozen=True)
class Step:
    """The facts about a basic block that running it needs.

    ``mask``: None, a member mask, or the register slot (as ``~slot``) that holds it.
    ``warpgroup``: its lanes must come as whole warpgroups. ``spins``, ``polls``, ``varies``: as of ``flow.Block``.
    """

    index: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    end: int
    next: int
    targets: tuple[int, ...]
    line: int
    mask: int | None = None
    barrier: BarrierOp | None = None
    spins: bool = False
    polls: bool = False
    end_line: int = 0
    warpgroup: bool = False
    instructions: int = 1
    varies: bool = False


@dataclass(frozen=True)
class Spinning:
    """Lanes in a waiting loop that have been set aside.

    stores: the batch's count of stores at that time.  polling: they test mbarriers.  varies: their next iteration may
    differ from the last although no store came between.
    """

    block: int
    lanes: Array
    stores: int
    polling: bool
    varies: bool


class Turn(Enum):
    """The outcome of a turn: lanes have run; all wait for what other launches may store; every lane has exited."""

    RAN = 0
    WAITS = 1
    ENDED = 2


class BlockFault(Exception):
    """Any exception of a block function, with the group that ran it."""

    def __init__(self, cause: BaseException, group: Group, step: Step) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.group = group
        self.step = step


class Scheduler:
    """One run of a batch, within the time that ``limit`` leaves to the launch: ``blocks`` are the functions of its
    ``steps``. It answers the questions of ``inquiry``."""

    def __init__(
        self,
        batch: Batch,
        steps: Sequence[Step],
        blocks: Sequence[BlockFunction],
        limit: TimeLimit,
        inquiry: Inquiry,
    ) -> None:
        self.batch = batch
        self.steps = steps
        self._blocks = blocks
        self.barriers = Barriers(batch)
        self.cluster_barriers = ClusterBarriers(batch)
        self.picker = batch.picker
        self.unit_of, units = self.picker.units(batch)
        self.ready: list[dict[int, list[Array]]] = [{} for _ in range(units)]
        self.parked: dict[int, list[Array]] = {}
        self.spinning: list[Spinning] = []
        self._limit = limit
        self._inquiry = inquiry
        # Number of exits and of barriers that have released lanes, by which progress is seen.
        self._moves = 0
        self._work: list[Any] = [None] * len(batch.registers)
        self._rounds = 0
        self._patience = _PATIENCE
        self._stores_seen = 0
        #: Cached groups of adjacent lanes, by the first and the last lane, since a unit's groups recur.
        self._groups: dict[tuple[int, int], Group] = {}
        self._push(0, batch.lanes[batch.alive])

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes where lanes store, pass a barrier or exit."""
        return self._moves, self.batch.stores

    def advance(self) -> Turn:
        """One unit runs as far as it goes, or as the policy lets it. Raises ``BlockFault`` for what a block does wrong
        and ``LaneFault`` for a deadlock that no other launch can end."""
        units = [unit for unit, queue in enumerate(self.ready) if queue]
        if units:
            self._run_unit(self.ready[self.picker.pick(units)])
            return Turn.RAN
        if self._wake():
            return Turn.RAN
        if self.spinning:
            return Turn.WAITS
        if self.parked or self.barriers.waiting or self.cluster_barriers.waiting:
            raise deadlock(self)
        self.batch.async_work.land_all()
        return Turn.ENDED

    def retry(self) -> bool:
        """Resumes lanes that wait although nothing has changed, for a loop that counts; False once they have been
        patient long enough."""
        if self.batch.stores != self._stores_seen:
            self._patience, self._stores_seen = _PATIENCE, self.batch.stores
        counting = any(one.varies and not one.polling for one in self.spinning)
        self._patience -= 1 if counting else _PATIENCE // _SHORT_PATIENCE
        if self._patience <= 0:
            return False
        spinning, self.spinning = self.spinning, []
        for one in spinning:
            self._push(one.block, one.lanes)
        return True

    def others_stored(self) -> None:
        """Lanes that wait for a value look again, since others have changed memory."""
        self.spinning = [replace(one, stores=_OLDER) for one in self.spinning]

    # -- one unit ---------------------------------------------------------------------------------------------------
    def _run_unit(self, queue: dict[int, list[Array]]) -> None:
        while queue:
            block = self.picker.pick_block(queue)
            self._run_group(queue, block, self._group(queue.pop(block)))
            if self.picker.interrupts:
                self.batch.async_work.land_between()
                return

    def _run_group(self, queue: dict[int, list[Array]], block: int, group: Group) -> None:
        """Runs a group as long as it is not split and no other group waits at an earlier block."""
        steps, interrupts = self.steps, self.picker.interrupts
        while True:
            step = steps[block]
            if step.mask is not None and group.index is not None:
                gathered = self._gather(step, group)
                if gathered is None:
                    return
                group = gathered
            block = self._follow(step, group, self._execute(step, group))
            if block < 0:
                return
            if (queue and block >= min(queue)) or (interrupts and self.picker.preempts()):
                self._push(block, group.lanes)
                return

    def _execute(self, step: Step, group: Group) -> Any:
        self._rounds += 1
        if not self._rounds & 0xFF:
            if self._inquiry.is_asked:
                self._inquiry.reply(places_text(self, step, group.lanes))
            problem = self._limit.problem((id(self), *self.progress))
            if problem:
                raise BlockFault(LaneFault(FaultKind.TIMEOUT, problem, 0), group, step)
        self.batch.clock.issue(step.instructions * group.count)
        registers = self.batch.registers
        try:
            if group.index is None:
                return self._blocks[step.index](group, registers)
            return self._execute_part(step, group, registers)
        except Exception as cause:
            raise BlockFault(cause, group, step) from cause

    def _execute_part(self, step: Step, group: Group, registers: list[Any]) -> Any:
        """Gathers the block's registers, runs the same code on them, and scatters what it wrote."""
        work, index = self._work, group.index
        for slot in step.reads:
            value = registers[slot]
            if value.__class__ is np.ndarray:
                work[slot] = value[index] if value.ndim else value
            else:
                work[slot] = part_of(value, group) if holds_elements(value) else value
        result = self._blocks[step.index](group, work)
        for slot in step.writes:
            merge_into(registers, slot, work[slot], group)
        for slot in (*step.reads, *step.writes):
            work[slot] = None
        return result

    # -- ends of blocks ---------------------------------------------------------------------------------------------
    def _follow(self, step: Step, group: Group, result: Any) -> int:
        """The next block of the whole group, or -1 if the group has been split or set aside."""
        if step.end == GO:
            return self._turn_back(step, step.next, group.lanes) if step.spins or step.polls else step.next
        if step.end == BRANCH:
            return self._branch(step, group, result)
        return self._end(step, group, result)

    def _turn_back(self, step: Step, target: int, lanes: Array) -> int:
        """Takes the back edge of a waiting loop: lanes whose last test of an mbarrier succeeded go on at once, the
        others after other lanes have run."""
        if not step.spins:
            polling = self.batch.mbarriers.polling(lanes)
            if not polling.all():
                self._push(target, lanes[~polling])
                lanes = lanes[polling]
        if lanes.size:
            self.spinning.append(Spinning(target, lanes, self.batch.stores, not step.spins, step.varies))
        return -1

    def _branch(self, step: Step, group: Group, taken: Any) -> int:
        target = step.targets[0]
        count = (group.count if taken else 0) if taken.ndim == 0 else int(np.count_nonzero(taken))
        if count == 0:
            return step.next
        backward = (step.spins or step.polls) and target <= step.index
        if count == group.count:
            return self._turn_back(step, target, group.lanes) if backward else target
        lanes = group.lanes
        if backward:
            self._turn_back(step, target, lanes[taken])
        else:
            self._push(target, lanes[taken])
        self._push(step.next, lanes[~taken])
        return -1

    def _end(self, step: Step, group: Group, result: Any) -> int:
        if step.end == TABLE:
            return self._table(step, group, result)
        if step.end == EXIT:
            self._exit(step, group)
            self._release(self.barriers.lanes_exited())
            self._release_cluster(self.cluster_barriers.lanes_exited())
            if self.parked:
                self._unpark()
            return -1
        if step.end == TRAP:
            raise BlockFault(LaneFault(FaultKind.TRAP, "the kernel trapped", 0), group, step)
        return self._barrier(step, group, result)

    def _exit(self, step: Step, group: Group) -> None:
        """Ends lanes. Raises LaneFault if a CTA ends before asynchronous work that uses its shared memory or
        registers."""
        batch = self.batch
        self._moves += 1
        try:
            batch.commit_groups.lanes_exit(group)
            batch.alive[group.lanes] = False
            if batch.async_work.pending:
                slots = np.unique(batch.slot[group.lanes])
                batch.async_work.check_exit(slots[~batch.running_ctas()[slots]])
            if batch.races is not None:
                batch.races.lanes_exit(group)
        except LaneFault as cause:
            raise BlockFault(cause, group, step) from cause

    def _table(self, step: Step, group: Group, choice: Any) -> int:
        if choice.ndim == 0:
            if int(choice) >= len(step.targets):
                raise BlockFault(LaneFault(FaultKind.OUT_OF_BOUNDS, "brx.idx: index past its table", 0), group, step)
            return step.targets[int(choice)]
        for value in np.unique(choice):
            if int(value) >= len(step.targets):
                position = int(np.argmax(choice == value))
                raise BlockFault(
                    LaneFault(FaultKind.OUT_OF_BOUNDS, "brx.idx: index past its table", position), group, step
                )
            self._push(step.targets[int(value)], group.lanes[choice == value])
        return -1

    def _barrier(self, step: Step, group: Group, operands: Any) -> int:
        operation = step.barrier
        if operation is None:
            return step.next
        if operation.kind.startswith("cluster."):
            return self._cluster_barrier(step, group, operation)
        simple = group.index is None and operation.kind == "sync" and operands[1] is None
        if simple and operands[0].ndim == 0 and not self.barriers.waiting and int(operands[0]) < 16:
            if self.batch.races is not None:
                self.batch.races.order.barrier_of_all()
            return step.next
        try:
            self._release(self.barriers.arrive(group, operation, operands, step.next, step.end_line))
        except LaneFault as cause:
            raise BlockFault(cause, group, step) from cause
        return -1

    def _cluster_barrier(self, step: Step, group: Group, operation: BarrierOp) -> int:
        try:
            if operation.kind == "cluster.arrive":
                self._release_cluster(self.cluster_barriers.arrive(group, operation.ordered))
                return step.next
            self._release_cluster(self.cluster_barriers.wait(group, step.next, step.end_line))
        except LaneFault as cause:
            raise BlockFault(cause, group, step) from cause
        return -1

    def _release_cluster(self, released: list[ClusterWait]) -> None:
        self._moves += len(released)
        for one in released:
            self._push(one.next, one.lanes)

    def _release(self, released: list[Released]) -> None:
        self._moves += len(released)
        for one in released:
            operation = one.waiting.operation
            if one.result is not None and operation.slot >= 0:
                value = one.result.view(DTYPES[operation.code])
                merge_into(self.batch.registers, operation.slot, value, self._group([one.lanes]))
            self._push(one.waiting.next, one.lanes)

    # -- waiting ------------------------------------------------------------------------------------------------------
    def _gather(self, step: Step, group: Group) -> Group | None:
        """The lanes whose member mask is complete, or None; the rest is parked at the block."""
        batch = self.batch
        parked = self.parked.pop(step.index, None)
        if parked is not None:
            group = self._group([group.lanes, *parked])
            if group.index is None:
                return group
        lanes = group.lanes
        here = np.zeros(batch.lane_count, dtype=np.bool_)
        here[lanes] = True
        bits = _lane_bits(here)
        mask = self._mask(step, lanes)
        warps = lanes // WARP
        wanted = mask & _lane_bits(batch.alive)[warps]
        complete = (bits[warps] & wanted) == wanted
        if step.warpgroup:
            complete = self._warpgroups_of(warps, complete)
        if complete.all():
            return group
        self.parked[step.index] = [lanes[~complete]]
        return self._group([lanes[complete]]) if complete.any() else None

    def _warpgroups_of(self, warps: Array, complete: Array) -> Array:
        """Which lanes belong to a warpgroup whose living warps are all complete."""
        batch = self.batch
        missing = np.asarray(batch.alive.reshape(-1, WARP).any(axis=1))
        missing[warps[complete]] = False
        ctas = batch.cta_count
        groups = np.logical_or.reduceat(missing.reshape(-1, ctas), np.arange(0, missing.size // ctas, 4), axis=0)
        return np.asarray(~groups[warps // ctas // 4, warps % ctas])

    def _mask(self, step: Step, lanes: Array) -> Any:
        if step.mask is None or step.mask >= 0:
            return np.int64(_FULL if step.mask is None else step.mask)
        value = self.batch.registers[~step.mask]
        return (value[lanes] if value.ndim else value).view(np.uint32).astype(np.int64)

    def _unpark(self) -> None:
        """Retries parked lanes, since lanes have exited that need no longer be waited for."""
        parked, self.parked = self.parked, {}
        for block, parts in parked.items():
            for lanes in parts:
                self._push(block, lanes)

    def _wake(self) -> bool:
        """Called if no lane is ready: resumes spinning lanes if memory may have changed, otherwise lands asynchronous
        work. Returns False if neither is possible."""
        if not self.spinning:
            return False
        if self._wake_spinning():
            return True
        if self.batch.async_work.land_next():
            self._wake_spinning()
            return True
        return False

    def _wake_spinning(self) -> bool:
        """Resumes lanes whose mbarrier has completed its phase and, if a store has come, lanes that read memory."""
        spinning, self.spinning = self.spinning, []
        woken = False
        for one in spinning:
            go = self.batch.mbarriers.passable(one.lanes) if one.polling else one.stores != self.batch.stores
            if np.any(go):
                self._push(one.block, one.lanes[go] if one.polling else one.lanes)
                woken = True
            if not np.all(go):
                self.spinning.append(replace(one, lanes=one.lanes[~go]) if one.polling else one)
        return woken

    def _push(self, block: int, lanes: Array) -> None:
        if self.unit_of is None:
            self.ready[0].setdefault(block, []).append(lanes)
            return
        units = self.unit_of[lanes]
        first = int(units[0])
        if (units == first).all():
            self.ready[first].setdefault(block, []).append(lanes)
            return
        for unit in np.unique(units):
            self.ready[int(unit)].setdefault(block, []).append(lanes[units == unit])

    def _group(self, parts: list[Array]) -> Group:
        lanes = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        if lanes.size == self.batch.lane_count:
            return Group(self.batch, None)
        first, last = int(lanes[0]), int(lanes[-1])
        if last - first + 1 != lanes.size:
            return Group(self.batch, lanes)
        group = self._groups.get((first, last))
        if group is None:
            if len(self._groups) == _KEPT_GROUPS:
                self._groups.clear()
            group = self._groups[first, last] = Group(self.batch, slice(first, last + 1))
        return group


def _lane_bits(flags: Array) -> Array:
    """bool over the batch -> one 32-bit mask per warp (as int64)."""
    packed = np.packbits(flags.reshape(-1, WARP), axis=1, bitorder="little")
    return packed.view(np.uint32).reshape(-1).astype(np.int64)
