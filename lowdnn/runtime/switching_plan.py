"""A plan that runs until a better one is loaded, which another thread compiles meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

from lowdnn.events import emit, event_logger
from lowdnn.plan import Plan
from lowdnn.runtime.loaded_plan import LoadedPlan, Pointers
from lowdnn.runtime.runtime import Runtime


class SwitchingPlan:
    """``loaded`` runs; the first execute after ``better`` is loaded switches to it, unless the stream is captured.

    Both are plans of one graph, so that they have the same tensors; the workspace must be large enough for either.
    A switch may change results by rounding, as any two algorithms differ; it counts as ``algorithm_switches``, with an
    event. Safe to share between threads: each execute runs one of the plans as a whole.

    """

    def __init__(self, loaded: LoadedPlan, better: Plan, runtime: Runtime, keep: Callable[[LoadedPlan], None]) -> None:
        """Begins to compile and to load ``better``. ``keep`` is called with it by the execute that switches."""
        self.loaded = self._first = loaded
        self.uids = loaded.uids
        self._is_settled = False
        self._runtime = runtime
        self._keep = keep
        self._lock = Lock()
        self._task = runtime.begin_load(better)

    @property
    def has_switched(self) -> bool:
        """Whether the better plan runs."""
        return self.loaded is not self._first

    def stay(self) -> LoadedPlan:
        """The plan that runs now, which is not left any more: another object, such as a CUDA graph, relies on it."""
        with self._lock:
            self._task.cancel()
            self._is_settled = True
            return self.loaded

    def execute(self, pointers: Pointers, workspace: int = 0, stream: int = 0) -> None:
        """As ``LoadedPlan.execute``."""
        if not self._is_settled and self._task.is_done and not self._is_capturing(stream):
            with self._lock:
                self._switch()
        self.loaded.execute(pointers, workspace, stream)

    def _switch(self) -> None:
        """Takes the better plan, where it could be loaded and no other thread has taken it."""
        if self._is_settled:
            return
        if not self._task.has_failed:
            better = self._task.result()
            fields = {
                "operation": self.loaded.operation,
                "graph": better.plan.graph_key,
                "from": self.loaded.plan.name,
                "to": better.plan.name,
                "from_engine": self.loaded.plan.engine,
                "to_engine": better.plan.engine,
            }
            emit(event_logger("runtime"), logging.INFO, "algorithm_switch", fields)
            self._runtime.counters.add("algorithm_switches")
            self._keep(better)
            self.loaded = better
        self._is_settled = True

    def _is_capturing(self, stream: int) -> bool:
        with self._runtime.context.activated():
            return self._runtime.driver.stream_is_capturing(stream)
