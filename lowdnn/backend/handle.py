"""The handle: one user's view of one device. It owns what the library keeps between calls, and nothing else does.

A handle serves one thread at a time. With ``Config.debug`` a call that finds another thread inside raises; plans that
a handle has loaded may be executed from any thread, each with its own handle. Handles share loaded plans where they are
given one cache for them.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lowdnn.arch.specs import ArchSpec, spec_for
from lowdnn.checks import instance, integer, optional, shown
from lowdnn.config import CompilePolicy, Config
from lowdnn.driver import configured_driver
from lowdnn.driver.base import DeviceAttribute, Driver, DriverError
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineSet
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.bundled_plans import BundledPlans
from lowdnn.heuristics.kernels_at_hand import KnownChoices
from lowdnn.heuristics.ranking import Candidate, Ranking, rank
from lowdnn.heuristics.tuning.record_books import records_of
from lowdnn.observer import introduce
from lowdnn.plan import Plan
from lowdnn.runtime.bundle import Bundle
from lowdnn.runtime.dlpack import CUDA_DEVICE_TYPES
from lowdnn.runtime.kernel_images import KernelImages
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.plan_cache import PlanCache
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import ArchMismatchError, BadParamError, InvalidValueError, LowdnnError, NotInitializedError

if TYPE_CHECKING:
    from lowdnn.backend.dumping import Dumper
    from lowdnn.backend.recording import CaseRecorder
    from lowdnn.heuristics.tuning.tuner import TuningOptions

CompanionT = TypeVar("CompanionT")


class Handle(ProcessBound):
    """A device, its context, a stream, and the plans loaded for it (cudnnHandle_t).

    stream: the CUstream as an integer.  arch: the device's facts.  engines: the engines that may run here, by global
    index.
    cuda_device: the GPU's ordinal; None for the emulated device.
    bundled_plans, records: the plans of bundles and the tuning records that plans follow, the former first.
    tuning: how much heuristics in mode B tune; None for not at all.
    plan_cache: the loaded plans that are kept.
    loader: the runtime that loads them; another one than ``runtime`` where the cache is shared.
    last_error: the message of the last call on this handle that failed, or "".
    dumper: keeps failing calls; None without ``Config.dump_dir``.
    known_choices: engines and knobs whose kernels are likely to be at hand (``at_hand``).

    Everything that an execute reads is a plain attribute. Close with ``close`` or
    ``with``; afterwards every call raises NotInitializedError.
    """

    def __init__(
        self, runtime: Runtime, engine_set: Sequence[Engine] | None = None, plan_cache: PlanCache | None = None
    ) -> None:
        """Takes over ``runtime``, which ``close`` closes. ``engine_set``: all of the registry by default.

        ``plan_cache``: shared with other handles; by default one of the handle's own.
        """
        self.runtime = runtime
        self.plan_cache = PlanCache() if plan_cache is None else plan_cache
        self.loader = runtime if plan_cache is None else plan_cache.home(runtime)
        self.engines = ENGINES if engine_set is None else EngineSet.of(engine_set)
        self.cuda_device = _cuda_device(runtime)
        self.arch = _arch_from(runtime.driver, runtime.context.device, runtime.context.attribute)
        self.bundled_plans = BundledPlans(self.arch, runtime.shipped, runtime.counters)
        self.records = records_of(runtime.config, runtime.sources, takes_estimates=self.cuda_device is None)
        self._tuning = _tuning(runtime.config)
        self.stream = 0
        self._borrowed_stream = Stream.borrow(runtime.context, 0)
        self.last_error = ""
        self.known_choices = KnownChoices(runtime.cache, runtime.shipped)
        self._companions: dict[type, Any] = {}
        self.is_open = True
        self.is_debug = runtime.config.debug
        self._user: int | None = None
        self._recorder = _recorder(runtime.config)
        self.dumper = _dumper(runtime)
        # Also where the handle is never closed: when it goes, or the process does.
        self._write_cases = weakref.finalize(self, self._recorder.close) if self._recorder else None

    @classmethod
    def open(
        cls,
        device: str | None = None,
        *,
        ordinal: int = 0,
        arch: str | None = None,
        policy: str | None = None,
        faults: str = "",
        compile_policy: CompilePolicy | str | None = None,
        bundle: Bundle | None = None,
        config: Config | None = None,
        plan_cache: PlanCache | None = None,
        watchdog_s: float | None = None,
    ) -> Self:
        """A handle on ``device``: ``cuda``, ``emulated`` or ``auto``; what is left out comes from ``config``.

        ordinal: the device's number.  arch, policy: choices of the emulated device.  faults: calls of the driver that
        are to fail, as in ``driver.open_driver``.  compile_policy: ``wait``, ``avoid`` or ``background``
        (``config.CompilePolicy``).  bundle: kernels and choices of plans for this device (``load_bundle``).
        plan_cache: shared with other handles; by default one of the handle's own.  watchdog_s: executes that take more
        seconds are named (``runtime.watchdog``).  config: the environment's, if left out.
        """
        settings = optional(config, Config, "handle.config") or Config.from_environment()
        settings = replace(
            settings,
            device=optional(device, str, "handle.device") or settings.device,
            emulated_arch=optional(arch, str, "handle.arch") or settings.emulated_arch,
            emulated_policy=optional(policy, str, "handle.policy") or settings.emulated_policy,
            compile_policy=settings.compile_policy if compile_policy is None else _compile_policy(compile_policy),
            watchdog_s=settings.watchdog_s if watchdog_s is None else _positive(watchdog_s, "handle.watchdog_s"),
        )
        cache = optional(plan_cache, PlanCache, "handle.plan_cache")
        runtime = Runtime.open(
            device=integer(ordinal, "handle.ordinal", 0),
            config=settings,
            faults=instance(faults, str, "handle.faults"),
            bundle=optional(bundle, Bundle, "handle.bundle", "None, or a Bundle, which load_bundle gives"),
        )
        handle = cls.__new__(cls)
        try:
            Handle.__init__(handle, runtime, plan_cache=cache)  # a subclass's constructor may take other arguments
            return handle
        except BaseException:
            runtime.close()
            raise

    @property
    def tuning(self) -> TuningOptions | None:
        return self._tuning

    @tuning.setter
    def tuning(self, options: TuningOptions | None) -> None:
        from lowdnn.heuristics.tuning.tuner import TuningOptions  # most programs never tune

        self._tuning = optional(options, TuningOptions, "handle.tuning", "TuningOptions or None")

    def set_stream(self, stream: object) -> None:
        """Work goes into ``stream`` from now on: an integer, or an object with ``__cuda_stream__``.

        Raises StreamMismatchError for a stream of another context.
        """
        if type(stream) is int and stream == self.stream and self.is_open:
            return
        with self.entered("set_stream"):
            self._borrowed_stream = Stream.borrow(self.runtime.context, stream)
            self.stream = self._borrowed_stream.handle

    def borrowed_stream(self) -> Stream:
        """The handle's stream as an object of the runtime, which does not own it."""
        self.check_open("stream")
        return self._borrowed_stream

    def begin(self, plan: Plan) -> None:
        """Begins to compile a plan's kernels in other threads, where it may be loaded here; ``load`` has the errors."""
        if self.is_open and plan.target_arch == self.arch.name:
            self.loader.begin(plan)

    def load(self, plan: Plan, kept: KernelImages | None = None) -> LoadedPlan:
        """``plan`` on this handle's device: compiled and loaded at the first call, taken from the cache afterwards.

        kept: gets the images of its kernels, and saves compiling them.
        Raises ArchMismatchError for a plan made for a newer architecture.
        """
        self.check_open("load")
        if kept is not None:
            self._check_target(plan)
            self.loader.modules.load(plan.kernels, kept)
        found = self.plan_cache.find(self.loader, plan)
        if found is not None:
            return found
        with self.entered("load"):
            self._check_target(plan)
            return self.plan_cache.keep(self.loader, self.loader.load(plan))

    def load_candidate(self, candidate: Candidate, kept: KernelImages | None = None) -> LoadedPlan:
        """``load`` of the candidate's plan, whose graph logs can name then; with ``Config.record_cases`` its graph and
        executes are recorded."""
        loaded = self.load(candidate.plan, kept)
        self._watch(candidate, loaded)
        fields = {"plan": loaded.plan.name, "engine": loaded.plan.engine, "source": candidate.source}
        emit(event_logger("backend"), logging.DEBUG, "plan_taken", fields)
        return loaded

    def adopt(self, candidate: Candidate, loaded: LoadedPlan) -> None:
        """``load_candidate`` for a candidate whose plan another thread has loaded on this handle's device."""
        self.plan_cache.keep(self.loader, loaded)
        self._watch(candidate, loaded)

    def rank(self, graph: OperationGraph, mode: HeurMode, arch: ArchSpec | None = None) -> Ranking:
        """The engines that take ``graph``, fastest first, behind the plans of bundles and of tuning records.

        arch: the facts to plan for, if not the device's own: it with a part of its multiprocessors, or another device.
        In mode B a graph without a record is tuned now, where ``tuning`` says how.
        """
        if mode is HeurMode.B and self.tuning is not None and arch in (None, self.arch):
            from lowdnn.backend.autotuning import tune_where_new  # most programs never tune

            tune_where_new(self, graph, self.tuning)
        return rank(graph, arch or self.arch, mode, self.engines, self.records, self.bundled_plans)

    def companion(self, kind: type[CompanionT]) -> CompanionT:
        """The object of ``kind`` that the handle keeps until it is closed, made by ``kind()`` at the first call."""
        self.check_open("companion")
        found: CompanionT | None = self._companions.get(kind)
        if found is None:
            found = self._companions[kind] = kind()
        return found

    def _watch(self, candidate: Candidate, loaded: LoadedPlan) -> None:
        if self._recorder is not None:
            self._recorder.watch(candidate.graph, loaded)
        if self.dumper is not None:
            loaded.observe(self.dumper.observer(candidate))
        if loaded.tells_command or self.runtime.watchdog is not None:
            from lowdnn.backend.repeating import RunCommand  # nobody else needs the families of cases

            loaded.command = RunCommand.of(candidate, self.runtime).line
        loaded.operation = candidate.graph.operation
        introduce(loaded)

    def _check_target(self, plan: Plan) -> None:
        if plan.target_arch != self.arch.name:
            raise ArchMismatchError.at(
                "plan.target_arch", expected=self.arch.name, got=plan.target_arch, hint="make the plan again"
            )

    def synchronize(self) -> None:
        """Waits for all work in the handle's stream."""
        with self.entered("synchronize"), self.runtime.context.activated():
            try:
                self.runtime.driver.stream_synchronize(self.stream)
            except DriverError as error:
                if self.dumper is not None:
                    self.dumper.wait_failed(error)
                raise

    @contextmanager
    def entered(self, call: str) -> Iterator[None]:
        """A context in which every call on the handle runs: it checks that the handle is open and used by one thread at
        a time, and remembers the error."""
        self.check_open(call)
        outer = self._user
        me = threading.get_ident()
        if self.is_debug and outer not in (None, me):
            raise BadParamError.at(
                f"handle.{call}", expected="one thread at a time", got=f"thread {me} while thread {outer} is inside"
            )
        self._user = me
        try:
            yield
        except LowdnnError as error:
            if outer is None:
                self.note_failure(error)
            raise
        finally:
            self._user = outer

    def note_failure(self, error: LowdnnError) -> None:
        """Keeps the message of a call that has failed, and tells it as an event."""
        self.last_error = str(error)
        emit(event_logger("backend"), logging.DEBUG, "call_failed", {"status": error.status.name, "reason": error})

    def check_open(self, call: str) -> None:
        """Raises NotInitializedError for a closed handle."""
        if not self.is_open:
            raise NotInitializedError.at(f"handle.{call}", expected="an open handle", got="a closed one")

    def close(self) -> None:
        """Unloads everything and releases the context. Closing twice does nothing, and no driver error is raised.

        Tensors, streams and events that are still open cannot be used any more, and keep their memory until they are
        closed or collected; the context is released behind them.
        """
        if self.is_open:
            self.is_open = False
            if self._write_cases is not None:
                self._write_cases()
            if self.loader is self.runtime:
                self.plan_cache.close()
            self._companions.clear()
            self.runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"stream {self.stream:#x}" if self.is_open else "closed"
        return f"<Handle {self.arch.name}, {state}>"


def _compile_policy(given: object) -> CompilePolicy:
    if not isinstance(given, str) or given not in list(CompilePolicy):
        rule = "one of " + ", ".join(CompilePolicy)
        raise BadParamError.at("handle.compile_policy", expected=rule, got=shown(given))
    return CompilePolicy(given)


def _positive(given: object, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise BadParamError.at(where, expected="a finite number of seconds, more than 0", got=shown(given))
    return float(given)


def arch_of_device(ordinal: int) -> ArchSpec:
    """The facts of a device by its number, of the driver that the environment chooses; no context is made."""
    driver = configured_driver(Config.from_environment())
    count = driver.device_count()
    if not 0 <= ordinal < count:
        raise InvalidValueError.at("device_id", expected=f"0 to {count - 1}", got=ordinal)
    return _arch_from(driver, ordinal, partial(driver.device_attribute, ordinal))


def _recorder(config: Config) -> CaseRecorder | None:
    """A recorder of the graphs that are loaded; None where they are not to be recorded."""
    if config.record_cases is None:
        return None
    from lowdnn.backend.recording import CaseRecorder  # nobody else needs the families of cases

    return CaseRecorder(config.record_cases)


def _dumper(runtime: Runtime) -> Dumper | None:
    """A keeper of failing calls; None where they are not to be kept."""
    if runtime.config.dump_dir is None:
        return None
    from lowdnn.backend.dumping import Dumper  # nobody else needs the families of cases

    return Dumper(runtime, runtime.config.dump_dir)


def _tuning(config: Config) -> TuningOptions | None:
    """How heuristics in mode B tune; None where they do not."""
    if config.tuning_s is None:
        return None
    from lowdnn.heuristics.tuning.tuner import TuningOptions  # most programs never tune

    return TuningOptions(budget_s=config.tuning_s)


def _arch_from(driver: Driver, device: int, ask: Callable[[DeviceAttribute], int]) -> ArchSpec:
    """The facts of a device whose attributes ``ask`` returns. An emulated device has the product name of its facts."""
    major, minor = (
        ask(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR),
        ask(DeviceAttribute.COMPUTE_CAPABILITY_MINOR),
    )
    spec = spec_for(major, minor).with_sm_count(ask(DeviceAttribute.MULTIPROCESSOR_COUNT))
    if driver.dlpack_device_type in CUDA_DEVICE_TYPES:
        spec = spec.with_product(driver.device_name(device))
    return spec.with_shared_bytes(
        per_block=ask(DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        per_sm=ask(DeviceAttribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    )


def _cuda_device(runtime: Runtime) -> int | None:
    context = runtime.context
    return context.device if context.driver.dlpack_device_type in CUDA_DEVICE_TYPES else None
