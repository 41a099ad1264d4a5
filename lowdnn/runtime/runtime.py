"""The runtime: one device of one driver, with everything that plans need to run there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Final

from lowdnn.arch.specs import spec_for
from lowdnn.config import CompilePolicy, Config
from lowdnn.driver import configured_driver
from lowdnn.driver.base import DeviceAttribute, Driver
from lowdnn.events import Counters, emit, event_logger, range_annotator
from lowdnn.logs import log_to, stop_logging
from lowdnn.observer import start
from lowdnn.plan import Plan
from lowdnn.runtime.ahead import Ahead, Task
from lowdnn.runtime.bundle import Bundle, Shipped
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.context import Context
from lowdnn.runtime.imported import ImportedBundles
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.modules import ModuleCache
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.watchdog import Watchdog

#: Threads that compile ahead, by default; each takes some 100 MB while it does.
_MOST_THREADS: Final = 8


class Runtime(ProcessBound):
    """Owns the context, the compiler, the loaded modules and the counters. Close it, or use ``with``.

    watchdog: looks for executes that do not end; None where ``Config.watchdog_s`` is.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        device: int = 0,
        config: Config | None = None,
        sources: SourceTree | None = None,
        bundle: Bundle | None = None,
    ) -> None:
        """sources: where kernels are read from, ``lowdnn/engines`` by default.  bundle: kernels and choices of plans
        for this device, which come before those that were imported into the disk cache.

        Raises ArchMismatchError for a bundle for another device.
        """
        self.config = Config.from_environment() if config is None else config
        start(self.config.telemetry)
        self.driver = driver
        self.counters = Counters()
        self.context = Context(driver, device)
        self.cache = _disk_cache(self.config)
        self.sources = SourceTree() if sources is None else sources
        self.bundle = bundle
        try:
            self.shipped = self._shipped()
        except BaseException:
            self.context.close()
            raise
        self.compiler = KernelCompiler(
            sources=self.sources,
            store=ModuleStore.installed(),
            cache=self.cache,
            counters=self.counters,
            shipped=self.shipped,
            leaves_assembly=self.config.compile_policy == CompilePolicy.WAIT,
        )
        self._ahead = Ahead(_threads(self.config, driver))
        self.modules = ModuleCache(self.context, self.compiler, self.counters, self._ahead)
        self._annotate = range_annotator(self.config)
        self._log_handler = log_to(self.config)
        limit_s = self.config.watchdog_s
        self.watchdog = None if limit_s is None else Watchdog(self.context, self.counters, limit_s)
        # Held while another thread uses the driver, and to close it.
        self._using_driver = RLock()

    @classmethod
    def open(
        cls,
        kind: str | None = None,
        *,
        device: int = 0,
        config: Config | None = None,
        faults: str = "",
        bundle: Bundle | None = None,
    ) -> Runtime:
        """A runtime on a driver of this kind (``auto``, ``cuda``, ``emulated``); by default the configuration's.

        faults: calls of the driver that are to fail, as in ``open_driver``.  bundle: as for the class.
        """
        chosen = Config.from_environment() if config is None else config
        return cls(configured_driver(chosen, kind, faults), device=device, config=chosen, bundle=bundle)

    def begin(self, plan: Plan) -> None:
        """Begins to compile the kernels of a plan that is about to be loaded, in other threads."""
        self.modules.begin(plan.kernels)

    def begin_kernels(self, find: Callable[[], Plan | None]) -> None:
        """Begins to find a plan, and to compile its kernels into the disk cache, in other threads; for a guess.

        Nothing waits for it, and its errors are not reported: a plan that needs a kernel compiles it then.
        """
        if self.cache is not None:
            self._ahead.begin(Task(partial(self._compile, find)))

    def begin_load(self, plan: Plan) -> Task[LoadedPlan]:
        """Begins to compile and to load a plan in another thread. Its errors are those of the task, and events."""
        task = Task(partial(self._load_here, plan))
        self._ahead.begin(task)
        return task

    def load(self, plan: Plan) -> LoadedPlan:
        """``plan`` ready to be executed here; compiles and loads kernels that are not there yet.

        Counts ``plans_loaded``.
        """
        self.context.liveness.check()
        loaded = LoadedPlan(plan, self.context, self.modules, annotate=self._annotate, checks_ranges=self.config.debug)
        if self.watchdog is not None:
            self.watchdog.watch(loaded)
        self.counters.add("plans_loaded")
        return loaded

    def _shipped(self) -> tuple[Shipped, ...]:
        """The bundle, and those that were imported for devices like this one."""
        arch = spec_for(*self.context.compute_capability).name
        sm_count = self.context.attribute(DeviceAttribute.MULTIPROCESSOR_COUNT)
        found: list[Shipped] = []
        if self.bundle is not None:
            self.bundle.check_device(arch, sm_count)
            found.append(self.bundle)
        if self.cache is not None:
            found.append(ImportedBundles(self.cache, arch, sm_count))
        return tuple(found)

    def _load_here(self, plan: Plan) -> LoadedPlan:
        try:
            self.context.liveness.check()
            self.modules.begin_here(plan.kernels)
            with self._using_driver:
                return self.load(plan)
        except Exception as error:
            emit(event_logger("runtime"), logging.WARNING, "load_ahead_failed", {"plan": plan.name, "reason": error})
            raise

    def _compile(self, find: Callable[[], Plan | None]) -> None:
        plan = find() if self.context.liveness.is_usable else None
        if plan is not None:
            self.modules.compile(plan.kernels)

    def close(self, reason: str = "") -> None:
        """Unloads modules and releases the context; closing twice does nothing.

        Failures of the driver, as they follow a fault on the device, are logged and not raised.
        reason: as for ``Context.close``.
        """
        if self.watchdog is not None:
            self.watchdog.close()
        with self._using_driver:
            self.modules.close()
            self.context.close(reason)
        if self._log_handler is not None:
            stop_logging(self._log_handler)
            self._log_handler = None

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _threads(config: Config, driver: Driver) -> int:
    """How many threads compile ahead. Machine code takes NVRTC long enough; PTX alone is often not asked for again."""
    if config.compile_threads is not None:
        return config.compile_threads
    is_worthwhile = driver.takes_machine_code or config.compile_policy == CompilePolicy.BACKGROUND
    return min(os.cpu_count() or 1, _MOST_THREADS) if is_worthwhile else 0


def _disk_cache(config: Config) -> DiskCache | None:
    if not config.disk_cache or config.cache_dir is None:
        return None
    return DiskCache(config.cache_dir, config.cache_limit_bytes)
