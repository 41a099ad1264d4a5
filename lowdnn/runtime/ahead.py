"""Calls that other threads make: before their results are needed, or side by side."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """A call that is made once, by the thread that comes first."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._future: Future[T] = Future()
        self._claim = Lock()

    def result(self) -> T:
        """The result of the call, or its error; makes the call here where no thread has begun it."""
        self.run()
        return self._future.result()

    @property
    def is_done(self) -> bool:
        """Whether the call has ended, with a result or an error, or was given up."""
        return self._future.done()

    @property
    def has_failed(self) -> bool:
        """Whether a call that is done has no result."""
        return self._future.cancelled() or self._future.exception() is not None

    def run(self) -> None:
        """Makes the call, unless a thread has begun it."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)

    def cancel(self) -> None:
        """Makes sure that no thread begins the call any more; asking for its result then raises CancelledError."""
        if self._claim.acquire(blocking=False):
            self._future.cancel()


class Ahead:
    """At most ``most_threads`` threads that make calls in the order in which they came, and end when none is left.

    The interpreter waits for its threads when it ends: these finish the calls under way and begin no other. A program
    that has started Python by itself may end without it, so that there no thread is begun.
    """

    def __init__(self, most_threads: int) -> None:
        self.most_threads = most_threads if sys.orig_argv else 0
        self._lock = Lock()
        self._waiting: deque[Task[Any]] = deque()
        self._threads = 0

    def begin(self, task: Task[Any]) -> None:
        with self._lock:
            if self._threads < self.most_threads:
                try:
                    # A thread of C counts as a daemon, for whose threads the interpreter would not wait.
                    threading.Thread(target=self._work, args=(task,), name="lowdnn ahead", daemon=False).start()
                    self._threads += 1
                except RuntimeError:
                    pass  # no thread can begin where there are too many, and at the interpreter's end
            elif self._threads:
                self._waiting.append(task)

    def _work(self, task: Task[Any] | None) -> None:
        while task is not None:
            task.run()
            task = self._next()

    def _next(self) -> Task[Any] | None:
        with self._lock:
            if self._waiting and threading.main_thread().is_alive():
                return self._waiting.popleft()
            self._threads -= 1
            return None


def side_by_side(calls: Iterable[Callable[[], T]], most_threads: int) -> list[T]:
    """The results of the calls in their order, made by this thread and by as many others as can begin.

    An executor refuses calls once the interpreter has begun to end; this thread then makes all of them.
    most_threads: how many make calls at a time, this one included. Raises the first of the calls' errors after all
    have ended.
    """
    tasks = [Task(call) for call in calls]

    def work() -> None:
        for task in tasks:
            task.run()

    others: list[threading.Thread] = []
    try:
        for _ in range(min(len(tasks), most_threads) - 1):
            other = threading.Thread(target=work, name="lowdnn side by side")
            other.start()
            others.append(other)
    except RuntimeError:
        pass  # no thread can begin where there are too many, and at the interpreter's end
    work()
    for other in others:
        other.join()
    return [task.result() for task in tasks]
