"""pygraph: a graph written operation by operation, then planned, built and executed, with cudnn-frontend's names.

    graph = pygraph(handle=handle, io_data_type=..., compute_data_type=...)
    y = graph.conv_fprop(x, w, padding=[1, 1]); y.set_output(True)
    graph.build([heur_mode.A, heur_mode.FALLBACK])
    graph.execute({x: x_gpu, w: w_gpu, y: y_gpu}, workspace)

``build`` is validate, build_operation_graph, create_execution_plans, check_support and build_plans. Nothing compiles
before build_plans; nothing is allocated on the device by any of them but the kernels' code.

A graph for ``device_property`` or ``sm_version`` that has no handle is built without a device: build_plans chooses a
plan, which ``serialize`` writes, and which is compiled and loaded at the first execute.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from lowdnn.arch.specs import ArchSpec, spec_for
from lowdnn.backend.graph_descriptors import DeviceProperties
from lowdnn.backend.handle import Handle
from lowdnn.backend.override_shapes import Shapes
from lowdnn.checks import mapping, optional, shown
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineSet
from lowdnn.engines.registry import ENGINES
from lowdnn.events import emit, event_logger
from lowdnn.frontend.arguments import boolean, integer, member, members, text
from lowdnn.frontend.attention import AttentionMethods
from lowdnn.frontend.attention_gradients import AttentionGradientMethods
from lowdnn.frontend.autotuning import AutotuneMethods
from lowdnn.frontend.block_scaling import BlockScaleMethods
from lowdnn.frontend.builder import GraphContext
from lowdnn.frontend.causal_convolutions import CausalConvolutionMethods
from lowdnn.frontend.convolutions import ConvolutionMethods
from lowdnn.frontend.cuda_graphs import CudaGraphMethods
from lowdnn.frontend.data_types import DataTypeLike, as_data_type, data_type
from lowdnn.frontend.enums import (
    backend_knob,
    backend_mode,
    build_plan_policy,
    heur_mode,
    knob_type,
)
from lowdnn.frontend.enums import cuda_graph_retention as CudaGraphRetention
from lowdnn.frontend.execution import PreparedExecution, other_shapes, pair, with_arrays
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.handle import Handle as OwnHandle
from lowdnn.frontend.inspection import InspectionMethods
from lowdnn.frontend.kernel_caches import kernel_cache as KernelCache
from lowdnn.frontend.moves import MoveMethods
from lowdnn.frontend.norms import NormMethods
from lowdnn.frontend.operations import OperationMethods
from lowdnn.frontend.plan_filters import FilterMethods
from lowdnn.frontend.plans import PlanEntry, PlanList
from lowdnn.frontend.pointwise import PointwiseMethods
from lowdnn.frontend.random_numbers import RandomMethods
from lowdnn.frontend.refused_methods import RefusedMethods
from lowdnn.frontend.resampling import ResampleMethods
from lowdnn.frontend.rotary import RopeMethods
from lowdnn.frontend.running import run
from lowdnn.frontend.serialization import dump, load
from lowdnn.frontend.softmax import SoftmaxMethods
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.stored_plans import Reading
from lowdnn.plan import Plan
from lowdnn.status import AttributeTypeError, BadParamError, NotSupportedError

NOT_SET = data_type.NOT_SET


class HasHandle(Protocol):
    """An object with a handle, such as cudnn-frontend's execution context."""

    @property
    def handle(self) -> Handle: ...


class pygraph(
    PointwiseMethods,
    ConvolutionMethods,
    CausalConvolutionMethods,
    OperationMethods,
    NormMethods,
    SoftmaxMethods,
    ResampleMethods,
    MoveMethods,
    RandomMethods,
    BlockScaleMethods,
    AttentionMethods,
    AttentionGradientMethods,
    RopeMethods,
    InspectionMethods,
    RefusedMethods,
    AutotuneMethods,
    FilterMethods,
    CudaGraphMethods,
):
    """See the module's docstring."""

    def __init__(
        self,
        name: str = "test_graph",
        io_data_type: DataTypeLike = NOT_SET,
        intermediate_data_type: DataTypeLike = NOT_SET,
        compute_data_type: DataTypeLike = NOT_SET,
        handle: Handle | None = None,
        sm_count: int | None = None,
        sm_version: int | None = None,
        kernel_cache: KernelCache | None = None,
        device_property: DeviceProperties | None = None,
        is_dynamic_shape_enabled: bool = False,
        is_override_shape_enabled: bool = False,
        cuda_graph_retention: CudaGraphRetention | None = None,
        *,
        is_cuda_graph_replay_expected: bool = False,
    ) -> None:
        """A graph for the device of ``handle``, or for ``device_property`` or ``sm_version`` (90 for 9.0) without one.

        intermediate_data_type, compute_data_type: io_data_type where they are left out.
        handle: without one, the graph makes its own when it needs a device, as ``create_handle()`` does.
        sm_count: plan for this many multiprocessors.
        kernel_cache: a cache of ``create_kernel_cache``; it gets the kernels of the graph's plans, and saves compiling
        them.
        is_override_shape_enabled: ``execute`` may be given other shapes.
        is_dynamic_shape_enabled, is_cuda_graph_replay_expected, cuda_graph_retention: behaviour that always holds
        (kernels take extents at run time, every plan may be captured, kernels stay loaded until the handle is closed),
        so they change nothing.
        """
        io = as_data_type(io_data_type, "pygraph.io_data_type")
        context = GraphContext(
            io,
            as_data_type(intermediate_data_type, "pygraph.intermediate_data_type") or io,
            as_data_type(compute_data_type, "pygraph.compute_data_type") or io,
        )
        super().__init__(text(name, "pygraph.name"), context)
        _check_device_arguments(handle, sm_count, sm_version, device_property)
        if kernel_cache is not None and not isinstance(kernel_cache, KernelCache):
            raise AttributeTypeError.at("pygraph.kernel_cache", expected="a kernel_cache", got=repr(kernel_cache))
        self._cache = kernel_cache
        self._may_have_other_shapes = boolean(is_override_shape_enabled, "pygraph.is_override_shape_enabled")
        self._retention = (
            CudaGraphRetention.PER_GRAPH
            if cuda_graph_retention is None
            else member(CudaGraphRetention, cuda_graph_retention, "pygraph.cuda_graph_retention")
        )
        self._handle = handle
        self._sm_count = sm_count
        self._sm_version = sm_version
        self._device_property = device_property
        self._validated: tuple[object, ...] = ()
        self._plans: PlanList | None = None
        self._prepared: PreparedExecution | None = None

    @property
    def handle(self) -> Handle:
        """The handle whose device the graph runs on; its own, which is closed with the graph, if it was given none."""
        return self._open_handle()

    # -- life cycle -----------------------------------------------------------------------------------------
    def validate(self) -> None:
        """Infers what was left out and checks the graph; afterwards every tensor has dims, strides, type and uid.

        Raises BadParamError and NotSupportedError (with their subclasses), naming the tensor or the operation.
        """
        self._graph = self._plans = self._prepared = None
        self._is_fixed = False
        self._graph = self._lowered()
        self._validated = self._written()

    def build_operation_graph(self) -> None:
        """Fixes the graph for planning; validates it first where that has not happened since it changed."""
        if self._graph is None or self._validated != self._written():
            self.validate()
        self._prepared = None
        self._is_fixed = True
        self._plans = PlanList(
            graph=self._graph_or_raise(),
            arch=self._arch(),
            engines=self._engines(),
            tensors={tensor.get_uid(): tensor for tensor in self._used()},
            name=self.name,
            cache=self._cache,
            handle=self._handle,
        )

    def create_execution_plans(self, heuristics: Sequence[heur_mode] | None = None) -> None:
        """Adds the candidates of each mode (default: A) to the plan list, best first."""
        plans = self._planned()
        modes = () if heuristics is None else members(heur_mode, heuristics, "create_execution_plans.heuristics")
        for mode in modes or (heur_mode.A,):
            plans.query(backend_mode(mode))

    def create_execution_plan(self, engine_id: int, knobs: Mapping[knob_type, int] | None = None) -> Self:
        """Adds the plan of one engine with knob choices; knobs left out take the engine's defaults."""
        where = "create_execution_plan.knobs"
        given = {} if knobs is None else mapping(knobs, where, "knob_type")
        choices = {backend_knob(kind, where): integer(value, f"knobs[{kind!r}]") for kind, value in given.items()}
        self._planned().add(self._engine(engine_id), choices)
        return self

    def check_support(self) -> None:
        """Raises cudnnGraphNotSupportedError, with each engine's reason, unless a plan is left to build.

        Compiles nothing.
        """
        self._planned().check_support()

    def build_plans(
        self, policy: build_plan_policy = build_plan_policy.HEURISTICS_CHOICE, *, ctx: HasHandle | None = None
    ) -> None:
        """Compiles and loads the first plan that works, or all. Raises cudnnGraphNotSupportedError if none does.

        ctx: has the handle for a graph that was given none.
        """
        self._take_handle(ctx)
        chosen, plans = member(build_plan_policy, policy, "build_plans.policy"), self._planned()
        plans.chosen = None
        if self._is_without_device:
            plans.check_support()
        else:
            self._prepared = plans.build(chosen, self._open_handle())

    def build_plan_at_index(self, index: int) -> Self:
        """Compiles and loads one plan and selects it for ``execute``."""
        plans = self._planned()
        plans.chosen = plans.usable(index)
        if not self._is_without_device:
            self._prepared = plans.prepare(plans.chosen, self._open_handle())
        return self

    def build(self, heuristics: Sequence[heur_mode] | None = None, ctx: HasHandle | None = None) -> None:
        """All steps from validate to build_plans (default: modes A and FALLBACK); after select_plan the last alone.

        ctx: as in ``build_plans``.
        """
        modes = () if heuristics is None else members(heur_mode, heuristics, "build.heuristics")
        self._take_handle(ctx)
        if self._plans is None or self._plans.pinned is None:
            self.validate()
            self.build_operation_graph()
            self.create_execution_plans(modes or (heur_mode.A, heur_mode.FALLBACK))
            self.check_support()
        self.build_plans()

    def execute(
        self,
        tensor_dict: Mapping[Any, object] | Sequence[object],
        workspace: object = None,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """Launches the selected plan into the handle's stream; does not wait. Builds the graph at first use.

        tensor_dict: the value of each input and output, by tensor, name or uid; with ``tensor_uids``, values in the
        order of these uids. Arrays that stood for tensors when the graph was written are the values of those that are
        not given. Keys of None, and tensors that the graph does not have, are passed over and counted. A
        value is an array with DLPack or ``__cuda_array_interface__``, a device tensor or buffer, or a device address;
        for a by-value tensor a float, any host array of one element, read at each call, or a host address.
        workspace: ``get_workspace_size()`` bytes at any address, as any of these; or a WorkspacePool. None where that
        is 0.
        override_uids: tensors that have other dims and strides than in the graph, for which a plan is made at the first
        call with them; it needs no more workspace than the graph's own.

        Raises NotSupportedError for other shapes of a graph without ``is_override_shape_enabled``, and for those that
        no engine takes; SizeInsufficientError for those that need more workspace.
        """
        if handle is not None and not isinstance(handle, Handle):
            raise AttributeTypeError.at("execute.handle", expected="a Handle", got=repr(handle))
        prepared = self._prepared or self._ready(handle)
        if override_uids is not None or override_shapes is not None or override_strides is not None:
            prepared = prepared.with_shapes(self._other_shapes(override_uids, override_shapes, override_strides))
        if tensor_uids is not None:
            tensor_dict = pair(tensor_uids, tensor_dict)
        if self._given_arrays:
            tensor_dict = self._complete(tensor_dict)  # type: ignore[arg-type]
        prepared.execute(tensor_dict, workspace, handle or self._open_handle())  # type: ignore[arg-type]

    def execute_plan_at_index(
        self,
        tensor_dict: Mapping[Any, object] | Sequence[object],
        workspace: object = None,
        index: int = 0,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
        tensor_uids: Sequence[int] | None = None,
    ) -> None:
        """Executes the plan at ``index``, which is built now if it is not; arguments and errors are those of
        ``execute``."""
        chosen = handle or self._open_handle()
        shapes = self._other_shapes(override_uids, override_shapes, override_strides)
        values = tensor_dict if tensor_uids is None else pair(tensor_uids, tensor_dict)
        plans = self._planned()
        prepared = plans.prepare(plans.usable(index), chosen)
        prepared.with_shapes(shapes).execute(self._complete(values), workspace, chosen)  # type: ignore[arg-type]

    def run(
        self, values: Mapping[Any, object] | None = None, /, *, handle: Handle | None = None, **named: object
    ) -> dict[str, Any]:
        """Executes the graph and waits; returns its outputs by name. Builds the graph at first use.

        named: the value of each input by its tensor's name; keys of ``values`` may be tensors and uids too. A NumPy
        array is copied to the device in the data type and strides of its tensor. A by-value tensor takes a number.
        Other values are those of ``execute``. An output that is given is written in place.
        handle: the graph's own by default.

        Other outputs are new: PyTorch tensors where an input on the GPU is one, otherwise DeviceTensors. They and the
        workspace are allocated at each call, where ``execute`` allocates nothing and does not wait.

        Raises BadParamError for a name that the graph does not have, ShapeMismatchError for a NumPy array of another
        shape, and what ``execute`` raises.
        """
        chosen = optional(handle, Handle, "run.handle") or self._open_handle()
        given = {} if values is None else mapping(values, "run.values", "values by tensor, name or uid")
        self._ready(chosen)
        return run(self, self._complete({**given, **named}), chosen)

    def get_cuda_graph_retention(self) -> CudaGraphRetention:
        return self._retention

    # -- identity -------------------------------------------------------------------------------------------
    def key(self) -> int:
        """A number equal for equal graphs, whatever their names and uids, in every process."""
        if self._graph is None:
            self.validate()
        return int(self._graph_or_raise().key[:15], 16)

    def query_tensor_attributes_of_uid(self, uid: int) -> Tensor:
        wanted = integer(uid, f"pygraph {self.name!r}: uid")
        for tensor in self._known_tensors():
            if tensor.get_uid() == wanted:
                return tensor
        raise BadParamError.at(f"pygraph {self.name!r}: uid", expected="the uid of a tensor of the graph", got=uid)

    def serialize(self, *, as_bytes: bool = False, include_kernels: bool = True) -> str | bytes:
        """The selected plan with what it follows from, and the graph's tensors, as JSON for ``deserialize``.

        include_kernels: changes nothing. Kernels are named, never stored: no call takes machine code from a document.
        """
        boolean(include_kernels, "pygraph.serialize.include_kernels")
        text = dump(self.name, self._selected().candidate, self._known_tensors())
        return text.encode() if as_bytes else text

    def deserialize(
        self,
        *arguments: Any,
        handle_: Handle | None = None,
        pyobj: str | bytes | Sequence[int] | None = None,
        enforce_precompiled: bool = False,
        rebuild: bool = False,
    ) -> None:
        """Takes over a serialised graph: (handle, data) or (data); afterwards ``execute`` runs its plan.

        handle_, pyobj: handle and data by name. Data is text, bytes, or a list of the bytes' values.

        The plan is made again from the graph, the engine and its choices in ``data``, and compared with the one there;
        what runs is the one made here. Where they differ ``data`` is refused, with both versions of lowdnn and the
        first field that differs; ``rebuild=True`` takes the plan made here, or the heuristics' choice where the stored
        engine does not take the graph on this device.

        Raises BadParamError, SerializationVersionMismatchError, ArchMismatchError (a plan for another device), and
        NotSupportedError for enforce_precompiled.
        """
        if enforce_precompiled:
            where, hint = "pygraph.deserialize.enforce_precompiled", "ship the disk cache of kernels with the plan"
            raise NotSupportedError.at(where, expected="False", got=True, hint=hint)
        given = [*(() if handle_ is None else (handle_,)), *arguments, *(() if pyobj is None else (pyobj,))]
        if not 1 <= len(given) <= 2:
            raise BadParamError.at("pygraph.deserialize", expected="(handle, data) or (data)", got=shown(arguments))
        handle = self._open_handle() if len(given) == 1 or given[0] is None else given[0]
        if not isinstance(handle, Handle):
            raise BadParamError.at("pygraph.deserialize.handle", expected="a Handle", got=handle)
        anew = boolean(rebuild, "pygraph.deserialize.rebuild")
        restored = load(given[-1], Reading(handle.engines, handle.arch, anew))
        candidate, tensors = restored.candidate, {tensor.get_uid(): tensor for tensor in restored.tensors}
        plans = PlanList(candidate.graph, candidate.arch, handle.engines, tensors, restored.name, self._cache, handle)
        plans.entries.append(PlanEntry(candidate))
        prepared = plans.prepare(plans.usable(0), handle)
        self.name, self._handle, self._tensors, self._entries = restored.name, handle, list(restored.tensors), []
        self._calls, self._given_arrays = [], {}
        self._graph, self._plans, self._prepared = candidate.graph, plans, prepared
        self._is_fixed = True

    # -- internals ------------------------------------------------------------------------------------------
    def _filter(self, check: Callable[[Plan], str]) -> Self:
        self._planned().filters.append(check)
        self._forget_selected()
        return self

    def _forget_selected(self) -> None:
        self._planned().chosen = self._prepared = None

    def _complete(self, values: Mapping[Any, object]) -> Mapping[Any, object]:
        return with_arrays(self._given_arrays, values) if self._given_arrays else values

    def _ready(self, handle: Handle | None) -> PreparedExecution:
        if self._prepared is not None:
            return self._prepared
        self._handle = self._handle or handle or self._open_handle()
        if self._plans is None or self._plans.is_empty:
            self.build()
        elif self._plans.chosen is not None:
            self._prepared = self._plans.prepare(self._plans.chosen, self._handle)
        else:
            self.build_plans()
        if self._prepared is None:
            raise BadParamError.at(f"pygraph {self.name!r}", expected="a plan to execute", got="none")
        return self._prepared

    def _known_tensors(self) -> list[Tensor]:
        return self._used() or self._tensors

    def _take_handle(self, ctx: HasHandle | None) -> None:
        handle = getattr(ctx, "handle", None)
        if ctx is not None and not isinstance(handle, Handle):
            raise AttributeTypeError.at("pygraph.build.ctx", expected="None or what has a handle", got=shown(ctx))
        self._handle = self._handle or handle

    def _planned(self) -> PlanList:
        if self._plans is None:
            raise BadParamError.at(
                f"pygraph {self.name!r}", expected="build_operation_graph first", got="no graph built"
            )
        return self._plans

    def _selected(self) -> PlanEntry:
        """The plan that ``execute`` runs; before build_plans the first one not deselected."""
        found = None if self._prepared is None else self._planned().prepared_as(self._prepared)
        return found or self._planned().first()

    def _other_shapes(self, uids: object, shapes: object, strides: object) -> Shapes:
        """The shapes that are given instead of the graph's."""
        if uids is None and shapes is None and strides is None:
            return ()
        if not self._may_have_other_shapes:
            where = "pygraph.is_override_shape_enabled"
            raise NotSupportedError.at(where, expected="True for execute with other shapes", got=False)
        return other_shapes(uids, shapes, strides, self._graph_or_raise(), self._planned().tensors)

    def _graph_or_raise(self) -> OperationGraph:
        if self._graph is None:
            raise BadParamError.at(f"pygraph {self.name!r}", expected="validate first", got="a graph not validated")
        return self._graph

    def _open_handle(self) -> Handle:
        """The graph's handle; if none was given, it is made now and closed with the graph."""
        if self._handle is None:
            self._handle = OwnHandle.open()
            weakref.finalize(self, self._handle.close)
            fields = {"graph": self.name, "device": self._handle.arch.name, "reason": "the graph was given none"}
            emit(event_logger("frontend"), logging.INFO, "handle_made", fields)
        self._handle.check_open("pygraph")
        return self._handle

    @property
    def _is_without_device(self) -> bool:
        return self._handle is None and (self._device_property is not None or self._sm_version is not None)

    def _arch(self) -> ArchSpec:
        if self._device_property is not None:
            arch = self._device_property.arch
        elif self._handle is None and self._sm_version is not None:
            arch = spec_for(*divmod(self._sm_version, 10))
        else:
            arch = self._open_handle().arch
        if self._sm_count is None:
            return arch
        if not 1 <= self._sm_count <= arch.sm_count:
            raise BadParamError.at("pygraph.sm_count", expected=f"1 to {arch.sm_count}", got=self._sm_count)
        return arch.with_sm_count(self._sm_count)

    def _engines(self) -> EngineSet:
        return ENGINES if self._handle is None else self._handle.engines

    def _engine(self, engine_id: int) -> Engine:
        wanted = integer(engine_id, "pygraph.engine_id")
        engine = self._engines().at(wanted)
        if engine is not None:
            return engine
        raise BadParamError.at("pygraph.engine_id", expected=f"0 to {self.get_engine_count() - 1}", got=engine_id)


def _check_device_arguments(handle: object, sm_count: object, sm_version: object, device_property: object) -> None:
    for value, wanted, name in (
        (handle, Handle, "handle"),
        (device_property, DeviceProperties, "device_property"),
    ):
        if value is not None and not isinstance(value, wanted):
            raise AttributeTypeError.at(f"pygraph.{name}", expected=f"a {wanted.__name__}", got=repr(value))
    for number, name in ((sm_count, "sm_count"), (sm_version, "sm_version")):
        if number is not None:
            integer(number, f"pygraph.{name}")
