"""The order of work on the emulated devices: streams, the tasks in them, and which of those goes on next.

A driver with one device runs work at once, in the order of the calls. With several devices work waits until the host
waits for it, and runs task by task as the policy picks. A kernel of which all lanes wait for a value is left, and taken
up again once others have changed memory, so that kernels of several devices can wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from weakref import WeakSet

from lowdnn.driver.emulated.checking.records import Records
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.execution import Execution
from lowdnn.driver.emulated.faults import EmulationFault, FaultReport, LaneFault
from lowdnn.driver.emulated.graphs import KernelWork, OtherWork
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


class Kind(Enum):
    """A device's legacy stream and its blocking streams wait for each other; other streams are free."""

    LEGACY = 0
    BLOCKING = 1
    FREE = 2


@dataclass(eq=False)
class Line:
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
    """Work in a line. It starts once those in ``after`` are done; ``order``: its place among all tasks. ``seen``: the
    count of changes to memory when all its lanes waited; None where they do not."""

    line: Line
    work: KernelWork | OtherWork | Marker
    after: tuple[Task, ...]
    order: TaskOrder
    is_done: bool = False
    execution: Execution | None = None
    seen: int | None = None

    def is_ready(self) -> bool:
        self.after = tuple(task for task in self.after if not task.is_done)
        return not self.after


class Queues:
    """All lines of a driver. The thread that uses them holds ``condition``, and gives it back while it waits for others
    to add work. ``faults``: the first fault of each device that nobody has been told of."""

    def __init__(self, options: Options, condition: threading.Condition, space: AddressSpace) -> None:
        policy = Policy.parse(options.policy)
        self.faults: dict[int, EmulationFault | LaneFault | RuntimeError] = {}
        self.defers = options.devices > 1
        self._timeout_s = options.timeout_s
        self._picker = policy.launch_picker()
        self._lines: list[Line] = []
        self._pending: list[Task] = []
        self._current: Task | None = None
        self._records = Records() if options.races else None
        # By line, up to which task the host has waited for it.
        self._known: dict[object, int] = {}
        # Changes to memory that waiting lanes may see.
        self._changes = 0
        self._condition = condition
        self._space = space
        self._users: WeakSet[threading.Thread] = WeakSet()
        self._waiting: set[threading.Thread] = set()
        # Whether other threads have added nothing for the time limit.
        self._is_quiet = False

    # -- adding work ------------------------------------------------------------------------------------------------
    def line(self, device: int, kind: Kind, clock: DeviceClock) -> Line:
        made = Line(device, kind, clock)
        self._lines.append(made)
        return made

    def end_line(self, line: Line) -> None:
        """No further work comes into a line."""
        line.is_open = False
        self._forget_lines()

    def add(self, line: Line, work: KernelWork | OtherWork | Marker, after: Iterable[Task] = ()) -> Task | None:
        """Adds work to a line, after further tasks; None where it has run already."""
        if not self.defers:
            _run_at_once(line, work)
            return None
        tails = [line.tail, *(other.tail for other in self._lines if _are_ordered(line, other))]
        before = [*after, *(tail for tail in tails if tail is not None)]
        line.count += 1
        known = _latest(self._known, *(one.order.known for one in before), {line: line.count})
        unfinished = tuple(one for one in before if not one.is_done)
        task = Task(line, work, unfinished, TaskOrder(line, line.count, known))
        line.tail = task
        self._pending.append(task)
        self._is_quiet = False
        self._condition.notify_all()
        return task

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
            if not (self._turn() or self._others_act() or self._retry()):
                self._end_in_deadlock()
        self._host_knows(left)

    def finish_device(self, device: int) -> None:
        """Returns when all tasks of a device are done."""
        self.finish([line.tail for line in self._lines if line.device == device])

    def is_done(self, task: Task | None) -> bool:
        """Whether a task is done, after as much of all work as can be done."""
        while task is not None and not task.is_done and self._turn():
            pass
        if task is None or not task.is_done:
            return task is None
        self._host_knows([task])
        return True

    def close(self, device: int) -> None:
        """Ends all lines of a device, with the tasks in them."""
        self.drop(device)
        self.faults.pop(device, None)
        self._lines = [line for line in self._lines if line.device != device]

    def drop(self, device: int) -> None:
        """Ends the tasks of a device, done or not."""
        for task in [task for task in self._pending if task.line.device == device]:
            if task.execution is not None:
                task.execution.close()
            self._done(task)

    def _turn(self) -> bool:
        """A task goes on; False where none can."""
        ready = [task for task in self._pending if task.seen != self._changes and task.is_ready()]
        if not ready:
            return False
        if self._current not in ready or self._picker.interrupts:
            self._current = ready[self._picker.pick([task.line.device for task in ready])]
        task = self._current
        try:
            self._advance(task)
        except (EmulationFault, LaneFault, RuntimeError) as fault:
            self._fail(task.line.device, fault)
        return True

    def _advance(self, task: Task) -> None:
        if not isinstance(task.work, KernelWork):
            self._record(task)
            _run_at_once(task.line, task.work)
            self._done(task)
            return
        execution = task.execution
        if execution is None:
            execution = task.execution = task.work.begin(task.line, self._records, task.order)
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

    def _record(self, task: Task) -> None:
        """Looks for races of a copy with what may run beside it."""
        work, device = task.work, task.line.device
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
        self._known = _latest(self._known, *(task.order.known for task in tasks))
        if self._records is not None:
            self._records.forget(self._is_over)
        self._forget_lines()

    def _forget_lines(self) -> None:
        """Forgets ended lines of which the host knows all."""
        known = self._known
        self._lines = [line for line in self._lines if line.is_open or known.get(line, 0) < line.count]

    def _is_over(self, order: TaskOrder) -> bool:
        """Whether all that is and will be under way comes after a task."""
        is_known = self._known.get(order.line, 0) >= order.number
        return is_known and all(task.order.follows(order) for task in self._pending)

    def _done(self, task: Task) -> None:
        task.is_done, task.after, task.execution = True, (), None
        self._pending.remove(task)
        self._changes += 1
        self._condition.notify_all()

    def _fail(self, device: int, fault: EmulationFault | LaneFault | RuntimeError) -> None:
        self.faults.setdefault(device, fault)
        self.drop(device)

    # -- waiting ----------------------------------------------------------------------------------------------------
    def _others_act(self) -> bool:
        """Waits for other threads to add work; False where none is left to, or none has for the time limit."""
        me = threading.current_thread()
        self._waiting.add(me)
        try:
            end_s = time.monotonic() + self._timeout_s
            while not self._is_quiet and any(thread.is_alive() for thread in self._users - self._waiting):
                if self._condition.wait(_LOOK_S):
                    return True
                self._is_quiet = time.monotonic() > end_s
            return False
        finally:
            self._waiting.discard(me)

    def _retry(self) -> bool:
        """Kernels whose lanes all wait look once more, for loops that count."""
        patient = [task for task in self._executing() if task.execution is not None and task.execution.retry()]
        for task in patient:
            task.seen = None
        return bool(patient)

    def _executing(self) -> list[Task]:
        return [task for task in self._pending if task.execution is not None]

    def _end_in_deadlock(self) -> None:
        """Every kernel that is under way waits for ever: a fault of each device that has one."""
        waits = {task: _who_waits(task) for task in self._executing()}
        faults = {}
        for task in waits:
            others = [text for other, text in waits.items() if other is not task]
            if task.execution is not None and task.line.device not in faults:
                faults[task.line.device] = task.execution.deadlock([*others, *self._failures()])
        for device, fault in faults.items():
            self._fail(device, fault)

    def _failures(self) -> list[str]:
        return [f"device {device} has failed: {str(fault).splitlines()[0]}" for device, fault in self.faults.items()]


def _latest(*known: Mapping[object, int]) -> dict[object, int]:
    """By line, the last of the tasks that are known."""
    merged: dict[object, int] = {}
    for one in known:
        for line, number in one.items():
            merged[line] = max(number, merged.get(line, 0))
    return merged


def _run_at_once(line: Line, work: KernelWork | OtherWork | Marker) -> None:
    if isinstance(work, KernelWork):
        work.begin(line, None, None).run()
        return
    work.run()
    if isinstance(work, OtherWork):
        line.clock.copy(work.size_bytes)


def _are_ordered(line: Line, other: Line) -> bool:
    """Whether tasks of two streams of a device wait for each other: one is the legacy stream, none is free."""
    kinds = (line.kind, other.kind)
    return line.device == other.device and line is not other and Kind.LEGACY in kinds and Kind.FREE not in kinds


def _who_waits(task: Task) -> str:
    execution = task.execution
    if execution is None:
        return ""
    return f"kernel {execution.kernel.name} on device {task.line.device}: {execution.waits}"
