"""Loaded plans of handles, bounded by their number and by bytes; the plan used longest ago goes first.

Each handle has a cache of its own, unless it is given one that several share: a plan that one of them has loaded costs
the others nothing. A shared cache holds a context of its own on each device, so that its plans outlive the handles.

Kernels are loaded once for all plans of a device, and stay until the cache is closed, or the handle where the cache is
its own: a CUDA graph may launch them as long. So the bytes of a plan are the host memory that it takes beside them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Self

from lowdnn.checks import integer
from lowdnn.forking import tell_after_fork
from lowdnn.observer import counted
from lowdnn.plan import Plan
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import NotInitializedError

#: Loaded plans that a cache keeps, unless it is told otherwise.
MAX_PLANS = 256


@dataclass(frozen=True)
class PlanCacheStatistics:
    """plans: loaded plans that are kept now.  size_bytes: the host memory that they take, estimated.
    kernels: modules that are loaded for them, and for plans that have gone.
    hits, misses: how often a handle found the plan that it asked for, and how often it had to load it.
    evictions: plans that had to make room.
    """

    max_plans: int
    max_bytes: int | None
    plans: int
    size_bytes: int
    kernels: int
    hits: int
    misses: int
    evictions: int


class PlanCache(ProcessBound):
    """The loaded plans of handles, bounded by number and bytes; the one used longest ago goes first.

        with lowdnn.PlanCache(max_plans=64) as cache:
            handles = [lowdnn.create_handle(ordinal=device, plan_cache=cache) for device in devices]

    A plan that one handle has loaded costs the others of its device nothing. Plans that graphs hold stay usable when
    they are evicted. Threads may share a cache. It outlives its handles; close it behind them, with ``close`` or
    ``with``.
    """

    def __init__(self, max_plans: int = MAX_PLANS, max_bytes: int | None = None) -> None:
        """max_plans: the most loaded plans that are kept.  max_bytes: the most host memory that they take together, by
        default without a limit. A plan that is larger by itself is loaded and not kept."""
        self.max_plans = integer(max_plans, "PlanCache.max_plans", 1)
        self.max_bytes = None if max_bytes is None else integer(max_bytes, "PlanCache.max_bytes", 1)
        self._lock = threading.Lock()
        self._loaded: OrderedDict[tuple[Runtime, Plan], LoadedPlan] = OrderedDict()
        self._homes: list[Runtime] = []
        self._size_bytes = self._hits = self._misses = self._evictions = 0
        self._is_open = True
        tell_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def home(self, runtime: Runtime) -> Runtime:
        """The runtime of the cache on the device of ``runtime``, with its bundle; made at the first call."""
        with self._lock:
            self._check_open()
            same = (home for home in self._homes if home.context.is_of_device(runtime.context))
            found = next((home for home in same if home.bundle is runtime.bundle), None)
            if found is None:
                # The handle's runtime logs already.
                config = replace(runtime.config, log_level="off")
                found = Runtime(
                    runtime.driver,
                    device=runtime.context.device,
                    config=config,
                    sources=runtime.sources,
                    bundle=runtime.bundle,
                )
                self._homes.append(found)
            return found

    def find(self, runtime: Runtime, plan: Plan) -> LoadedPlan | None:
        """The plan as ``runtime`` has loaded it, if it is kept."""
        with self._lock:
            found = self._loaded.get((runtime, plan))
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
                self._loaded.move_to_end((runtime, plan))
        counted("plan_misses" if found is None else "plan_hits")
        return found

    def keep(self, runtime: Runtime, loaded: LoadedPlan) -> LoadedPlan:
        """Keeps a plan that ``runtime`` has loaded, and returns it; the one that is kept already, if there is one."""
        with self._lock:
            self._check_open()
            key = runtime, loaded.plan
            if key in self._loaded:
                return self._loaded[key]
            if self.max_bytes is None or loaded.host_bytes <= self.max_bytes:
                self._loaded[key] = loaded
                self._size_bytes += loaded.host_bytes
                self._make_room()
            return loaded

    def statistics(self) -> PlanCacheStatistics:
        with self._lock:
            runtimes = {*self._homes, *(runtime for runtime, _ in self._loaded)}
            return PlanCacheStatistics(
                self.max_plans,
                self.max_bytes,
                len(self._loaded),
                self._size_bytes,
                sum(len(runtime.modules) for runtime in runtimes),
                self._hits,
                self._misses,
                self._evictions,
            )

    def clear(self) -> None:
        """Forgets every plan; those that graphs and descriptors hold stay usable, and kernels stay loaded."""
        with self._lock:
            self._loaded.clear()
            self._size_bytes = 0

    def close(self) -> None:
        """Forgets every plan, and unloads the kernels of a shared cache: its plans raise NotInitializedError then.

        Closing twice does nothing.
        """
        self.clear()
        with self._lock:
            self._is_open = False
            homes, self._homes = self._homes, []
        for home in homes:
            home.close("that of a closed PlanCache; close the cache behind the handles that share it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_room(self) -> None:
        while len(self._loaded) > self.max_plans or (self.max_bytes is not None and self._size_bytes > self.max_bytes):
            _, gone = self._loaded.popitem(last=False)
            self._size_bytes -= gone.host_bytes
            self._evictions += 1

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotInitializedError.at("PlanCache", expected="an open cache", got="a closed one")
