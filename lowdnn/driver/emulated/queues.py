"""The order of work on the emulated devices: streams, the tasks in them, and which of those goes on next.

A driver with one device runs work at once, in the order of the calls. With several devices work waits until the host
waits for it, and runs task by task as the policy picks. A kernel of which all lanes wait for a value is left, and taken
up again once others have changed memory, so that kernels of several devices can wait for each other. A host function
that waits (``HostWait``) is asked again whenever a task is picked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias
from weakref import WeakSet

from lowdnn.driver.emulated.checking.records import Records
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.execution import Execution
from lowdnn.driver.emulated.faults import EmulationFault, FaultKind, FaultReport, HostFailure, LaneFault
from lowdnn.driver.emulated.graphs import HostWork, KernelWork, OtherWork, Work
from lowdnn.driver.emulated.memory.space import AddressSpace
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.running.clock import DeviceClock
from lowdnn.driver.emulated.running.policy import Policy
from lowdnn.driver.emulated.running.scheduler import Turn

#: Seconds between looks at whether threads that may add work have ended.
_LOOK_S = 0.05


@dataclass(frozen=True)
class Marker:
    """A place in a stream: ``run`` notes that it has been reached, and takes no time of the device."""

    run: Callable[[], None]


#: A task ends with one of these where it fails.
Fault: TypeAlias = EmulationFault | LaneFault | HostFailure | RuntimeError

#: The work of a task that is done.
_OVER = Marker(lambda: None)


class Kind(Enum):
    """A device's legacy stream and its blocking streams wait for each other; other streams are free."""

    LEGACY = 0
    BLOCKING = 1
    FREE = 2


@dataclass(eq=False)
class Queue:
    """The order of a stream's tasks on ``device``, whose ``clock`` its work advances. ``tail``: the last of ``count``
    tasks."""

    device: int
    kind: Kind
    clock: DeviceClock
    tail: Task | None = None
    count: int = 0
    is_open: bool = True


@dataclass(eq=False)
class Task:
    """Work in a queue. It starts once those in ``after`` are done; ``order``: its place among all tasks. ``seen``: the
    count of changes to memory when all its lanes waited; None where they do not."""

    queue: Queue
    work: Work | Marker
    after: tuple[Task, ...]
    order: TaskOrder
    is_done: bool = False
    execution: Execution | None = None
    seen: int | None = None

    def is_ready(self) -> bool:
        self.after = tuple(task for task in self.after if not task.is_done)
        return not self.after and not self.waits_on_host()

    def waits_on_host(self) -> bool:
        """Whether its host function waits, once its stream has come to it."""
        return isinstance(self.work, HostWork) and not self.after and not self.work.is_ready


class Queues:
    """All queues of a driver. The thread that uses them holds ``condition``, and gives it back while it waits for
    others to add work. ``faults``: the first fault of each device that nobody has been told of."""

    def __init__(self, options: Options, condition: threading.Condition, space: AddressSpace) -> None:
        policy = Policy.parse(options.policy)
        self.faults: dict[int, Fault] = {}
        self.defers = options.devices > 1
        self._timeout_s = options.timeout_s
        self._picker = policy.launch_picker()
        self._queues: list[Queue] = []
        self._pending: list[Task] = []
        self._current: Task | None = None
        self._records = Records() if options.races else None
        # By queue, up to which task the host has waited for it.
        self._known: dict[object, int] = {}
        # By queue, up to which task the host functions that have been called come after it.
        self._told: dict[object, int] = {}
        # The thread in a host function.
        self._host_thread: threading.Thread | None = None
        # Changes to memory that waiting lanes may see.
        self._changes = 0
        self._condition = condition
        self._space = space
        self._users: WeakSet[threading.Thread] = WeakSet()
        # By thread that waits for work, the tasks that it waits for.
        self._waiting: dict[threading.Thread, list[Task]] = {}
        # Whether other threads have added nothing for the time limit.
        self._is_quiet = False

    # -- adding work ------------------------------------------------------------------------------------------------
    def begin(self, device: int, kind: Kind, clock: DeviceClock) -> Queue:
        made = Queue(device, kind, clock)
        self._queues.append(made)
        return made

    def end(self, queue: Queue) -> None:
        """No further work comes into a queue."""
        queue.is_open = False
        self._forget_ended()

    def add(self, queue: Queue, work: Work | Marker, after: Iterable[Task] = ()) -> Task | None:
        """Adds work to a queue, after further tasks; None where it has run already."""
        if not self.defers:
            self._run_at_once(queue, work)
            return None
        tails = [queue.tail, *(other.tail for other in self._queues if _are_ordered(queue, other))]
        before = [*after, *(tail for tail in tails if tail is not None)]
        queue.count += 1
        known = self._known_after(before, {queue: queue.count})
        unfinished = tuple(one for one in before if not one.is_done)
        task = Task(queue, work, unfinished, TaskOrder(queue, queue.count, known))
        queue.tail = task
        self._pending.append(task)
        self._is_quiet = False
        self._condition.notify_all()
        return task

    def _known_after(self, before: list[Task], own: Mapping[object, int]) -> Mapping[object, int]:
        """By queue, the last task before a new one, where races are looked for."""
        if self._records is None:
            return own
        return _latest(self._known, *(one.order.known for one in before), own)

    def use(self, is_user: bool) -> None:
        """Tells whether the calling thread may add work."""
        thread = threading.current_thread()
        if is_user:
            self._users.add(thread)
        else:
            self._users.discard(thread)
            self._condition.notify_all()

    # -- running ----------------------------------------------------------------------------------------------------
    def finish(self, tasks: Iterable[Task | None]) -> None:
        """Returns when these tasks are done; all devices go on meanwhile."""
        left = [task for task in tasks if task is not None]
        while any(not task.is_done for task in left):
            if not (self._turn() or self._others_act(left) or self._retry()):
                self._end_in_deadlock()
        self._host_knows(left)

    def finish_device(self, device: int) -> None:
        """Returns when all tasks of a device are done."""
        self.finish([queue.tail for queue in self._queues if queue.device == device])

    def is_done(self, task: Task | None) -> bool:
        """Whether a task is done, after as much of all work as can be done."""
        while task is not None and not task.is_done and self._turn():
            pass
        if task is None or not task.is_done:
            return task is None
        self._host_knows([task])
        return True

    def close(self, device: int) -> None:
        """Ends all queues of a device, with the tasks in them."""
        self.drop(device)
        self.faults.pop(device, None)
        self._queues = [queue for queue in self._queues if queue.device != device]

    def drop(self, device: int) -> None:
        """Ends the tasks of a device, done or not."""
        for task in [task for task in self._pending if task.queue.device == device]:
            if task.execution is not None:
                task.execution.close()
            self._done(task)

    def _turn(self) -> bool:
        """A task goes on; False where none can."""
        ready = [task for task in self._pending if task.seen != self._changes and task.is_ready()]
        if not ready:
            return False
        if self._current not in ready or self._picker.interrupts:
            self._current = ready[self._picker.pick([task.queue.device for task in ready])]
        task = self._current
        try:
            self._advance(task)
        except (EmulationFault, LaneFault, HostFailure, RuntimeError) as fault:
            self._fail(task.queue.device, fault)
        return True

    def _advance(self, task: Task) -> None:
        if not isinstance(task.work, KernelWork):
            self._record(task)
            self._run_at_once(task.queue, task.work)
            self._tell(task)
            self._done(task)
            return
        execution = task.execution
        if execution is None:
            execution = task.execution = task.work.begin(task.queue, self._records, task.order)
        elif task.seen is not None:
            execution.others_stored()
        before = execution.progress
        turn = execution.advance()
        if execution.progress != before:
            self._changes += 1
        if turn is Turn.ENDED:
            self._done(task)
        else:
            task.seen = self._changes if turn is Turn.WAITS else None

    def _run_at_once(self, queue: Queue, work: Work | Marker) -> None:
        if isinstance(work, KernelWork):
            work.begin(queue, None, None).run()
            return
        if isinstance(work, HostWork):
            self._call(queue, work)
            return
        work.run()
        if isinstance(work, OtherWork):
            queue.clock.copy(work.size_bytes)

    def _call(self, queue: Queue, work: HostWork) -> None:
        """Calls a host function; where nothing is deferred, other threads may come in while it waits."""
        end_s = time.monotonic() + self._timeout_s
        while not work.is_ready and time.monotonic() < end_s:
            self._condition.wait(_LOOK_S)
        fault = _given_up(queue, work, "" if work.wait is None else work.wait.text())
        if fault is not None:
            raise fault
        self._host_thread = threading.current_thread()
        try:
            work.run()
        except Exception as error:
            raise HostFailure(error) from error
        finally:
            self._host_thread = None

    def calls_host(self) -> bool:
        """Whether the calling thread is in a host function."""
        return self._host_thread is threading.current_thread()

    def _tell(self, task: Task) -> None:
        """Work behind a host function that has waited comes after all that came before the earlier ones, too."""
        if self._records is None or not isinstance(task.work, HostWork):
            return
        self._told = _latest(self._told, task.order.known)
        if task.work.wait is not None:
            for one in self._pending:
                if one.order.follows(task.order):
                    one.order = replace(one.order, known=_latest(one.order.known, self._told))

    def _record(self, task: Task) -> None:
        """Looks for races of a copy with what may run beside it."""
        work, device = task.work, task.queue.device
        if self._records is None or not isinstance(work, OtherWork):
            return
        for address, is_write in ((work.reads, False), (work.writes, True)):
            if address is None:
                continue
            try:
                self._records.add_copy(task.order, device, address, work.size_bytes, write=is_write)
            except LaneFault as fault:
                raise EmulationFault(self._report(fault, device)) from None

    def _report(self, fault: LaneFault, device: int) -> FaultReport:
        """The report of a copy's fault."""
        near = None if fault.address is None else self._space.nearest(fault.address)
        report = FaultReport(fault.kind, fault.message, address=fault.address, device=device)
        if near is None or fault.address is None:
            return report
        return replace(report, buffer=near.label, buffer_offset=fault.address - near.address)

    def _host_knows(self, tasks: Iterable[Task]) -> None:
        """The host has waited for tasks: what it adds from now on comes after them."""
        if self._records is not None:
            self._known = _latest(self._known, *(task.order.known for task in tasks))
            self._records.forget(self._is_over)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Forgets ended queues, once their tasks are done and the host knows of all that others may run beside."""
        self._queues = [queue for queue in self._queues if queue.is_open or not self._is_known(queue)]
        if self._records is not None:
            named = {*self._queues, *self._records.queues()}
            self._known = {queue: number for queue, number in self._known.items() if queue in named}
            self._told = {queue: number for queue, number in self._told.items() if queue in named}

    def _is_known(self, queue: Queue) -> bool:
        if queue.tail is None or not queue.tail.is_done:
            return queue.tail is None
        return self._records is None or self._known.get(queue, 0) >= queue.count

    def _is_over(self, order: TaskOrder) -> bool:
        """Whether all that is and will be under way comes after a task."""
        is_known = self._known.get(order.queue, 0) >= order.number
        return is_known and all(task.order.follows(order) for task in self._pending)

    def _done(self, task: Task) -> None:
        task.is_done, task.after, task.execution, task.work = True, (), None, _OVER
        self._pending.remove(task)
        self._changes += 1
        self._condition.notify_all()

    def _fail(self, device: int, fault: Fault) -> None:
        self.faults.setdefault(device, fault)
        self.drop(device)

    # -- waiting ----------------------------------------------------------------------------------------------------
    def _others_act(self, left: list[Task]) -> bool:
        """Waits for other threads to add work; False where none is left to, or none has for the time limit. ``left``:
        what the calling thread waits for."""
        me = threading.current_thread()
        self._waiting[me] = left
        waits = [task for task in self._pending if task.waits_on_host()]
        try:
            end_s = time.monotonic() + self._timeout_s
            while not self._is_quiet and any(self._may_act(thread) for thread in self._users):
                if self._condition.wait(_LOOK_S) or any(task.is_ready() for task in waits):
                    return True
                self._is_quiet = time.monotonic() > end_s
            return False
        finally:
            del self._waiting[me]

    def _may_act(self, thread: threading.Thread) -> bool:
        """Whether a thread may add work before any further task is done. One whose tasks are done will go on as soon as
        it gets ``condition``."""
        left = self._waiting.get(thread)
        return thread.is_alive() and (left is None or all(task.is_done for task in left))

    def _retry(self) -> bool:
        """Kernels whose lanes all wait look once more, for loops that count."""
        patient = [task for task in self._executing() if task.execution is not None and task.execution.retry()]
        for task in patient:
            task.seen = None
        return bool(patient)

    def _executing(self) -> list[Task]:
        return [task for task in self._pending if task.execution is not None]

    def _end_in_deadlock(self) -> None:
        """All that is under way waits for ever: a fault of each device that has such a kernel, and host functions that
        wait no longer."""
        on_host = [task for task in self._pending if task.waits_on_host()]
        waits = {task: _who_waits(task) for task in [*self._executing(), *on_host]}
        faults: dict[int, EmulationFault | RuntimeError] = {}
        for task in waits:
            others = [text for other, text in waits.items() if other is not task]
            if task.execution is not None and task.queue.device not in faults:
                faults[task.queue.device] = task.execution.deadlock([*others, *self._failures()])
        for device, fault in faults.items():
            self._fail(device, fault)
        for task in on_host:
            insists = _given_up(task.queue, task.work, "; ".join((*waits.values(), *self._failures())))
            if insists is not None:
                self._fail(task.queue.device, insists)

    def _failures(self) -> list[str]:
        return [f"device {device} has failed: {str(fault).splitlines()[0]}" for device, fault in self.faults.items()]


def _latest(*known: Mapping[object, int]) -> dict[object, int]:
    """By queue, the last of the tasks that are known."""
    merged: dict[object, int] = {}
    for one in known:
        for queue, number in one.items():
            merged[queue] = max(number, merged.get(queue, 0))
    return merged


def _given_up(queue: Queue, work: Work | Marker, waits: str) -> EmulationFault | None:
    """Ends the wait of a host function; the fault of one that insists. ``waits`` tells who waits."""
    if not isinstance(work, HostWork) or work.wait is None or work.is_ready:
        return None
    message = f"nothing can run: {waits}"
    work.wait.give_up(message)
    return None if work.is_ready else EmulationFault(FaultReport(FaultKind.DEADLOCK, message, device=queue.device))


def _are_ordered(queue: Queue, other: Queue) -> bool:
    """Whether tasks of two streams of a device wait for each other: one is the legacy stream, none is free."""
    kinds = (queue.kind, other.kind)
    return queue.device == other.device and queue is not other and Kind.LEGACY in kinds and Kind.FREE not in kinds


def _who_waits(task: Task) -> str:
    execution = task.execution
    if isinstance(task.work, HostWork) and task.work.wait is not None:
        return f"a host function on device {task.queue.device} waits: {task.work.wait.text()}"
    if execution is None:
        return ""
    return f"kernel {execution.kernel.name} on device {task.queue.device}: {execution.waits}"
