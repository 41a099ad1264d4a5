"""A plan on a device: functions resolved, parameters laid out, ready to be launched again and again.

``execute`` is the hot path of the library. It compares the addresses with the last ones, patches what changed and
launches. It allocates nothing, waits for nothing and loads nothing, so a stream may be capturing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock

from lowdnn.driver.base import DriverError, LaunchConfig
from lowdnn.events import Annotate, emit, event_logger
from lowdnn.plan import Launch, Plan
from lowdnn.runtime.context import Context
from lowdnn.runtime.execute_counts import ExecuteCount
from lowdnn.runtime.modules import ModuleCache
from lowdnn.runtime.observing import Execute, ExecuteObserver, Step, Surroundings, surrounded
from lowdnn.runtime.parameters import ParameterBlock
from lowdnn.runtime.plan_rules import check_plan
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.tensor_maps import encode_map
from lowdnn.runtime.variant_pack import PackRules
from lowdnn.status import BadParamError, CudaGraphMismatchError, LowdnnError

#: Host memory of a loaded plan without launches; this and the next two are fitted to measured plans.
_PLAN_BYTES = 3000
#: Host memory that each launch adds.
_LAUNCH_BYTES = 800
#: Host memory of the parameter block with its slots and views, in bytes for each byte of the block.
_PER_BYTE = 3.5

#: Addresses in the order of ``plan.tensors``, or by uid.
Pointers = tuple[int, ...] | Mapping[int, int]


class LoadedPlan(ProcessBound):
    """``plan`` on the device of ``context``. Safe to share between threads: an execute is one whole.

    host_bytes: the estimated host memory that it takes in addition to the plan and the kernels.
    command: gives the ``lowdnn run`` line that repeats an execute; "" where nobody has said it.
    operation: the graph's operation in one word, such as ``matmul``; "unknown" where nobody has said it.
    """

    def __init__(
        self,
        plan: Plan,
        context: Context,
        modules: ModuleCache,
        *,
        annotate: Annotate | None = None,
        checks_ranges: bool = False,
    ) -> None:
        """Compiles and loads the kernels not loaded yet; raises BadParamError for a plan that breaks ``plan_rules``.

        ``annotate`` opens a profiler range for each execute. ``checks_ranges`` asks the driver about every new address.
        """
        check_plan(plan)
        self.plan = plan
        self.context = context
        self.uids = tuple(tensor.uid for tensor in plan.tensors)
        modules.load(plan.kernels)
        self._functions = tuple(_function(plan, launch, modules) for launch in plan.launches)
        self._configs = tuple(_launch_config(launch) for launch in plan.launches)
        with context.activated():
            self._block = ParameterBlock(plan, partial(encode_map, context.driver))
            launches = [context.driver.prepare_launch(*prepared) for prepared in self._prepared()]
            self._check_parameters()
        self.host_bytes = _PLAN_BYTES + _LAUNCH_BYTES * len(plan.launches) + int(_PER_BYTE * self._block.size_bytes)
        self._set_steps(tuple(zip(launches, plan.launches, strict=True)))
        self._lock = Lock()
        self._annotate = annotate
        self._pack = PackRules(plan, context, checks_ranges=checks_ranges)
        self._loggers = event_logger("execute"), event_logger("launch")
        self.is_logged = any(logger.isEnabledFor(logging.DEBUG) for logger in self._loggers)
        #: Whether an execute tells its ``command`` somewhere.
        self.tells_command = self._is_observed = annotate is not None or self.is_logged
        self._failed: tuple[Step, ...] = ()
        self._observer: ExecuteObserver | None = None
        self.command: Callable[[], str] = str
        self._liveness = context.liveness
        self._has_values = bool(self._block.value_slots)
        self._unbound: tuple[object, ...] = (object(),) * len(plan.tensors)
        self._pointers: tuple[int, ...] | None = None
        self._workspace: int | None = None
        self._begin = 0
        self._count: ExecuteCount | None = None
        self.operation = "unknown"

    def execute(self, pointers: Pointers, workspace: int = 0, stream: int = 0) -> None:
        """Launches the plan into ``stream``.

        ``pointers``: a device address for each tensor, or a host address for a by-value one. ``workspace``: any
        address with ``size_anywhere(plan.workspace_bytes)`` bytes behind it, or with ``plan.workspace_bytes`` where it
        is 256-byte aligned; 0 where the plan needs none. A call with the tuple of the last one is the fastest. Executes
        and launches are logged where the loggers ``lowdnn.execute`` and ``lowdnn.launch`` had level DEBUG at load.

        Raises NullPointerError, MisalignedPointerError, SizeInsufficientError, BadParamError (a uid missing or
        unknown), DriverError, NotInitializedError (context closed). The plan stays usable after each but the last.
        """
        # Checked before the lock, which may stay locked for ever in a child of fork.
        if not self._liveness.is_usable:
            self._liveness.check()
        with self._lock:
            if self._is_observed:
                self._execute_observed(pointers, workspace, stream)
                return
            bound = self._pointers
            if bound is None or pointers != bound or workspace != self._workspace:
                self._bind(pointers, workspace)
            elif self._has_values:
                self._block.patch_values(bound)
            try:
                for step in self._steps:
                    step(stream)
            except DriverError:
                self._tell_failed(stream)
                # The driver refuses a launch where another context is current; asking it first at each call costs more.
                if self.context.driver.context_get_current() == self.context.handle:
                    raise
                self._launch_activated(stream)

    def observe(self, observer: ExecuteObserver) -> None:
        """``observer`` looks at every execute from now on, in place of another one."""
        with self._lock:
            self._observer, self._is_observed = observer, True

    def surround(self, around: Surroundings) -> None:
        """Every execute from now on has these steps around its launches; nodes of CUDA graphs have none."""
        with self._lock:
            self._set_steps(surrounded(self._planned_steps, around))
            self._failed = (*self._failed, around.failed)

    def count_executes(self) -> ExecuteCount:
        """The count of executes that have launched the plan since the first call; the same object for every caller."""
        with self._lock:
            if self._count is None:
                self._count = ExecuteCount()
                self._set_steps((*self._planned_steps, (self._count.tick, None)))
            return self._count

    def add_to_graph(
        self, graph: int, pointers: Pointers, workspace: int = 0, dependencies: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Adds one kernel node for each launch to a CUgraph, one after the other, the first after ``dependencies``.

        Returns the nodes. Addresses and by-value tensors are copied now.
        """
        self._liveness.check()
        nodes: list[int] = []
        with self._lock:
            self._bind(pointers, workspace)
            with self.context.activated():
                for function, config, parameters in self._prepared():
                    after = nodes[-1:] or dependencies
                    nodes.append(self.context.driver.graph_add_kernel_node(graph, after, function, config, parameters))
        return tuple(nodes)

    def update_graph(self, graph_exec: int, nodes: Sequence[int], pointers: Pointers, workspace: int = 0) -> None:
        """Gives the nodes that ``add_to_graph`` returned new addresses in an instantiated graph."""
        set_params = self.context.driver.graph_exec_kernel_node_set_params
        self._set_nodes(partial(set_params, graph_exec), nodes, pointers, workspace)

    def update_nodes(self, graph: int, nodes: Sequence[int], pointers: Pointers, workspace: int = 0) -> None:
        """Gives the nodes that ``add_to_graph`` returned new addresses in the graph, for instances made later."""
        self._set_nodes(partial(self.context.driver.graph_kernel_node_set_params, graph), nodes, pointers, workspace)

    def _set_nodes(
        self,
        set_params: Callable[[int, int, LaunchConfig, int], None],
        nodes: Sequence[int],
        pointers: Pointers,
        workspace: int,
    ) -> None:
        if len(nodes) != len(self._functions):
            got = len(nodes)
            raise CudaGraphMismatchError.at("LoadedPlan.nodes", expected=f"{len(self._functions)} nodes", got=got)
        self._liveness.check()
        with self._lock:
            self._bind(pointers, workspace)
            with self.context.activated():
                for node, (function, config, parameters) in zip(nodes, self._prepared(), strict=True):
                    set_params(node, function, config, parameters)

    def _check_parameters(self) -> None:
        """Raises BadParamError where an argument has another size than the kernel's parameter.

        The driver reads as many bytes as the parameter has, whatever lies there.
        """
        for index, (function, sizes) in enumerate(zip(self._functions, self._block.argument_bytes, strict=True)):
            for place, size_bytes in enumerate(sizes):
                wanted = self.context.driver.function_parameter_bytes(function, place)
                if wanted not in (0, size_bytes):
                    raise BadParamError.at(
                        f"{self.plan.name}.launches[{index}].arguments[{place}]",
                        expected=f"{wanted} bytes, as the kernel's parameter has",
                        got=f"{size_bytes} bytes",
                    )

    def _prepared(self) -> list[tuple[int, LaunchConfig, int]]:
        return list(zip(self._functions, self._configs, self._block.launch_parameters, strict=True))

    def _set_steps(self, steps: tuple[tuple[Step, Launch | None], ...]) -> None:
        """``steps`` in the order of an execute, each with the planned launch that it is."""
        self._planned_steps = steps
        self._steps = tuple(step for step, _ in steps)

    def _execute_observed(self, pointers: Pointers, workspace: int, stream: int) -> None:
        execute = Execute(self.plan, pointers, workspace, stream, is_bound=False)
        observer = self._observer
        try:
            self._bind(pointers, workspace)
            execute = replace(execute, pointers=self._pointers, is_bound=True)
            if observer is not None:
                observer.begins(execute)
            if self.is_logged:
                emit(self._loggers[0], logging.DEBUG, "execute", _execute_fields(self.plan, stream, self.command()))
            self._launch_activated(stream)
            if observer is not None:
                observer.launched(execute)
        except LowdnnError as error:
            if observer is not None:
                observer.failed(execute, error)
            raise

    def _launch_activated(self, stream: int) -> None:
        """Launches the plan in its own context, with the events and profiler ranges that are asked for."""
        with (
            self.context.activated(),
            nullcontext() if self._annotate is None else self._annotate(self.plan.name, self.command()),
        ):
            try:
                for step, planned in self._planned_steps:
                    if planned is not None:
                        emit(self._loggers[1], logging.DEBUG, "launch", _launch_fields(self.plan, planned, stream))
                    step(stream)
            except DriverError:
                self._tell_failed(stream)
                raise

    def _tell_failed(self, stream: int) -> None:
        for failed in self._failed:
            failed(stream)

    def _bind(self, pointers: Pointers, workspace: int) -> None:
        """Checks and patches what differs from the last call; after an error the next call patches everything."""
        ordered = pointers if isinstance(pointers, tuple) else self._pack.in_order(pointers)
        if ordered == self._pointers and workspace == self._workspace and not self._has_values:
            return
        last, self._pointers = self._pointers or self._unbound, None
        self._pack.check_tensors(ordered, last)
        self._block.patch_tensors(ordered)
        if workspace != self._workspace:
            self._begin = self._pack.workspace_begin(workspace)
            self._block.patch_workspace(self._begin)
            self._workspace = workspace
        if self._has_values:
            self._block.patch_values(ordered)
        if self._block.map_slots:
            with self.context.activated():
                self._block.patch_maps(ordered, self._begin, self.context.driver.tensor_map_replace_address)
        self._pointers = ordered


def _function(plan: Plan, launch: Launch, modules: ModuleCache) -> int:
    return modules.function(
        plan.kernels[launch.kernel], shared_bytes=launch.shared_bytes, cluster_blocks=math.prod(launch.cluster)
    )


def _launch_config(launch: Launch) -> LaunchConfig:
    return LaunchConfig(
        launch.grid,
        launch.block,
        launch.shared_bytes,
        launch.cluster,
        launch.cooperative,
        programmatic_serialization=launch.overlaps_previous,
    )


def _execute_fields(plan: Plan, stream: int, command: str) -> dict[str, object]:
    return {"plan": plan.name, "stream": f"{stream:#x}", "repeat": command}


def _launch_fields(plan: Plan, launch: Launch, stream: int) -> dict[str, object]:
    return {
        "kernel": plan.kernels[launch.kernel].name,
        "plan": plan.name,
        "grid": "x".join(map(str, launch.grid)),
        "block": "x".join(map(str, launch.block)),
        "shared_bytes": launch.shared_bytes,
        "stream": f"{stream:#x}",
    }
