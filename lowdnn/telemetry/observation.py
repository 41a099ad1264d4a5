"""From events and counts of the library to measures."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, Final

from lowdnn.driver.results import KERNEL_FAULTS, CuResult
from lowdnn.forking import tell_after_fork
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.telemetry import measures
from lowdnn.telemetry.executes import PlanWatcher
from lowdnn.telemetry.measures import Measure
from lowdnn.telemetry.registry import Registry

#: The measure of each count of ``events.Counters``, with its label values; the others have none.
_COUNTS: Final[Mapping[str, tuple[Measure, tuple[str, ...]]]] = {
    "compiles": (measures.COMPILES, ()),
    "modules_loaded": (measures.MODULE_LOADS, ()),
    "plan_hits": (measures.CACHE_HITS, ("plan",)),
    "plan_misses": (measures.CACHE_MISSES, ("plan",)),
    "cache_hits": (measures.CACHE_HITS, ("disk",)),
    "cache_misses": (measures.CACHE_MISSES, ("disk",)),
    "store_hits": (measures.CACHE_HITS, ("module",)),
    "bundle_hits": (measures.CACHE_HITS, ("module",)),
    "not_precompiled": (measures.CACHE_MISSES, ("module",)),
    "plans_at_hand": (measures.FALLBACKS, ("cache",)),
    "hangs": (measures.HANGS, ()),
}
#: Results after which a context, and mostly the process, is of no use any more.
_STICKY: Final = KERNEL_FAULTS | {
    CuResult.ECC_UNCORRECTABLE,
    CuResult.NVLINK_UNCORRECTABLE,
    CuResult.CONTAINED,
    CuResult.DEVICE_UNAVAILABLE,
}
#: Graphs whose last plan is remembered.
_MOST_GRAPHS: Final = 4096

Fields = Mapping[str, Any]


class Observation:
    """The observer that telemetry is: it counts into ``registry``, and hands plans to ``watcher``."""

    def __init__(self, registry: Registry, watcher: PlanWatcher) -> None:
        self._registry = registry
        self._watcher = watcher
        self._switches = _Switches()
        self._handlers: Mapping[str, Callable[[Fields], None]] = {
            "compiled": self._compiled,
            "plan_taken": self._taken,
            "plan_selected": self._selected,
            "algorithm_switch": self._switched,
            "call_failed": lambda fields: self._add(measures.REFUSALS, fields["status"]),
            "graph_refused": lambda fields: self._add(measures.REFUSALS, fields["status"]),
            "workspace_refused": lambda fields: self._add(measures.WORKSPACE_FAILURES),
            "driver_error": self._driver_failed,
        }

    def counted(self, name: str, amount: int) -> None:
        if name in _COUNTS:
            measure, labels = _COUNTS[name]
            self._registry.counter(measure, *labels).add(amount)

    def happened(self, event: str, fields: Fields) -> None:
        handler = self._handlers.get(event)
        if handler is not None:
            handler(fields)

    def met(self, subject: object) -> None:
        if isinstance(subject, LoadedPlan):
            self._watcher.watch(subject)

    def _add(self, measure: Measure, *labels: str) -> None:
        self._registry.counter(measure, *labels).add()

    def _compiled(self, fields: Fields) -> None:
        self._registry.counter(measures.COMPILE_SECONDS).add(float(fields["ms"]) * 1e-3)

    def _taken(self, fields: Fields) -> None:
        self._add(measures.PLANS, fields["source"])
        if fields["engine"] == "composite":
            self._add(measures.FALLBACKS, "composite")

    def _selected(self, fields: Fields) -> None:
        former = self._switches.former_engine(fields["key"], fields["plan"], fields["engine"])
        if former is not None:
            self._add(measures.ALGORITHM_SWITCHES, fields["operation"], former, fields["engine"])

    def _switched(self, fields: Fields) -> None:
        self._switches.former_engine(fields["graph"], fields["to"], fields["to_engine"])
        self._add(measures.ALGORITHM_SWITCHES, fields["operation"], fields["from_engine"], fields["to_engine"])

    def _driver_failed(self, fields: Fields) -> None:
        if fields["result"] == CuResult.OUT_OF_MEMORY:
            self._add(measures.OUT_OF_MEMORY)
        self._add(measures.DRIVER_ERRORS, "sticky" if fields["result"] in _STICKY else "other")


class _Switches:
    """The last plan of each graph, of as many graphs as are remembered."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._last: OrderedDict[str, tuple[str, str]] = OrderedDict()
        tell_after_fork(self)

    def after_fork(self) -> None:
        self._lock = RLock()

    def former_engine(self, key: str, plan: str, engine: str) -> str | None:
        """Notes a graph's plan; returns the engine of the one that it had before, where that was another plan."""
        with self._lock:
            former = self._last.pop(key, None)
            self._last[key] = plan, engine
            if len(self._last) > _MOST_GRAPHS:
                self._last.popitem(last=False)
        return None if former is None or former[0] == plan else former[1]
