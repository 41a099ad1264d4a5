"""The descriptors of an execution: EXECUTION_PLAN and VARIANT_PACK."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import ClassVar
from weakref import WeakKeyDictionary

from lowdnn.backend.at_hand import load
from lowdnn.backend.engine_descriptors import EngineChoice, EngineConfig
from lowdnn.backend.gradients_ahead import begin_gradients
from lowdnn.backend.graph_descriptors import DeviceProperties, GraphDescription
from lowdnn.backend.handle import Handle
from lowdnn.backend.kernel_cache import KernelCache
from lowdnn.backend.override_shapes import KeptShapes, Shapes, candidate_with, per_tensor
from lowdnn.backend.read_only import read_only
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import AttributeName, AttributeType, CudaGraphRetention, DescriptorType
from lowdnn.events import Counters, emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.stored_plans import Reading, read_plan, write_plan
from lowdnn.plan import Plan
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.switching_plan import SwitchingPlan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.schema import attribute
from lowdnn.status import ArchMismatchError, BadParamError, DuplicatedEntriesError, NotSupportedError

_MANY = 2**31 - 1


@dataclass(frozen=True)
class ExecutionPlan:
    """A plan, from an engine configuration or from the JSON of another plan, which is made again and compared.

    Kernels stay loaded as long as the handle is open, so CUDA graphs of launches, captured or populated, outlive the
    plan under either value of ``cuda_graph_retention``, and never the handle.

    With a handle, the plan's kernels are loaded when the descriptor is finalized; otherwise at the first execute, and
    the device of the graph's handle has other threads that begin to compile them now.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.EXECUTION_PLAN

    engine_config: EngineConfig | None = attribute(
        AttributeName.EXECUTION_PLAN_ENGINE_CONFIG,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.ENGINECFG,
        default=None,
    )
    json: str = attribute(
        AttributeName.EXECUTION_PLAN_JSON_REPRESENTATION, AttributeType.CHAR, max_count=_MANY, default=""
    )
    handle: Handle | None = attribute(AttributeName.EXECUTION_PLAN_HANDLE, AttributeType.HANDLE, default=None)
    device_properties: DeviceProperties | None = attribute(
        AttributeName.EXECUTION_PLAN_DEVICEPROP,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.DEVICEPROP,
        default=None,
    )
    kernel_cache: KernelCache | None = attribute(
        AttributeName.EXECUTION_PLAN_KERNEL_CACHE,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.KERNEL_CACHE,
        default=None,
    )
    cuda_graph_retention: CudaGraphRetention = attribute(
        AttributeName.EXECUTION_PLAN_CUDA_GRAPH_RETENTION,
        AttributeType.CUDA_GRAPH_RETENTION,
        default=CudaGraphRetention.PER_GRAPH,
    )
    computed_intermediate_uids: tuple[int, ...] = attribute(
        AttributeName.EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS, AttributeType.INT64, max_count=_MANY, default=()
    )
    run_only_intermediate_uids: tuple[int, ...] = attribute(
        AttributeName.EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS, AttributeType.INT64, max_count=_MANY, default=()
    )

    def __post_init__(self) -> None:
        if (self.engine_config is None) == (not self.json):
            raise BadParamError.at(
                "EXECUTION_PLAN descriptor",
                expected="either an ENGINECFG or JSON",
                got="neither" if self.engine_config is None else "both",
            )
        _check_no_intermediates(
            "EXECUTION_PLAN descriptor",
            EXECUTION_PLAN_COMPUTED_INTERMEDIATE_UIDS=self.computed_intermediate_uids,
            EXECUTION_PLAN_RUN_ONLY_INTERMEDIATE_UIDS=self.run_only_intermediate_uids,
        )
        self._check_device(self.plan.target_arch)
        if self.handle is not None:
            self.loaded_for(self.handle)
        elif self.kernel_cache is None and self.engine_config is not None:
            self._begin(self.engine_config.engine.description.handle)
        if self.engine_config is not None:
            self._begin_gradients(self.engine_config.engine.description.handle)

    @property
    def plan(self) -> Plan:
        """The plan as data."""
        return self._candidate.plan

    def _begin(self, handle: Handle | None) -> None:
        if handle is not None:
            handle.begin(self.plan)

    def _begin_gradients(self, handle: Handle | None) -> None:
        if handle is not None and handle.is_open and handle.runtime.config.compile_gradients:
            begin_gradients(handle, self._candidate)

    def loaded_for(self, handle: Handle, pack: VariantPack | None = None) -> LoadedPlan | SwitchingPlan:
        """The plan on the handle's device, for the shapes that ``pack`` has; found again without a look at the plan."""
        if pack is not None and pack.override_uids:
            return self._loaded_with(handle, pack)
        loaded = self._loaded.get(handle)
        if loaded is None:
            loaded = self._loaded[handle] = self._load(handle)
        return loaded

    def _loaded_with(self, handle: Handle, pack: VariantPack) -> LoadedPlan:
        """The plan for the shapes that ``pack`` overrides: made at the first call with them, without compiling.

        It needs no more workspace than the plan itself. Raises NotSupportedError for a graph that does not allow it.
        """
        if self.engine_config is not None and not self.engine_config.engine.description.is_override_shape_enabled:
            where = "OPERATIONGRAPH descriptor.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED"
            raise NotSupportedError.at(where, expected="true for a variant pack with other shapes", got=False)
        shapes = pack.shapes(self._candidate.graph)
        return self._reshaped.setdefault(handle, KeptShapes()).find(shapes, lambda: self._load_with(handle, shapes))

    @cached_property
    def _reshaped(self) -> WeakKeyDictionary[Handle, KeptShapes[LoadedPlan]]:
        return WeakKeyDictionary()

    def _load_with(self, handle: Handle, shapes: Shapes) -> LoadedPlan:
        candidate = candidate_with(self._candidate, shapes, handle.engines)
        return handle.load_candidate(candidate, None if self.kernel_cache is None else self.kernel_cache.images)

    def _load(self, handle: Handle) -> LoadedPlan | SwitchingPlan:
        if self.kernel_cache is None:
            return load(handle, self._candidate)
        loaded = load(handle, self._candidate, self.kernel_cache.images)
        if self.engine_config is not None:
            self.kernel_cache.add_config(self.engine_config)
        return loaded

    @cached_property
    def _loaded(self) -> WeakKeyDictionary[Handle, LoadedPlan | SwitchingPlan]:
        return WeakKeyDictionary()

    @cached_property
    def _candidate(self) -> Candidate:
        """The plan with its graph, engine and knobs; one from JSON is made again for the device and compared."""
        if self.engine_config is not None:
            return self.engine_config.candidate
        where = "EXECUTION_PLAN descriptor.EXECUTION_PLAN_JSON_REPRESENTATION"
        if self.handle is None:
            return read_plan(self.json, Reading(ENGINES), where)
        return read_plan(self.json, Reading(self.handle.engines, self.handle.arch), where)

    def _check_device(self, target_arch: str) -> None:
        wanted = self.device_properties
        if wanted is not None and wanted.arch.name != target_arch:
            raise ArchMismatchError.at(
                "EXECUTION_PLAN descriptor.EXECUTION_PLAN_DEVICEPROP",
                expected=f"{target_arch}, for which the plan was made",
                got=wanted.arch.name,
            )

    @read_only(AttributeName.EXECUTION_PLAN_ENGINE_CONFIG, AttributeType.BACKEND_DESCRIPTOR)
    def configuration(self) -> EngineConfig:
        """The configuration that was set; for a plan from JSON, a new one with its graph, engine and knobs."""
        if self.engine_config is not None:
            return self.engine_config
        candidate = self._candidate
        description = GraphDescription(candidate.graph.operations, self.handle)
        device = DeviceProperties.of(candidate.arch) if self.handle is None else None
        engine = EngineChoice(description, candidate.engine.index, device_properties=device)
        return EngineConfig(engine, ranked=candidate)

    @read_only(AttributeName.EXECUTION_PLAN_WORKSPACE_SIZE, AttributeType.INT64)
    def workspace_size(self) -> int:
        return size_anywhere(self._candidate.workspace_bytes)

    @read_only(AttributeName.EXECUTION_PLAN_JSON_REPRESENTATION, AttributeType.CHAR)
    def json_representation(self) -> str:
        return write_plan(self._candidate)


@dataclass(frozen=True)
class VariantPack:
    """Addresses for one execute: ``pointers[i]`` is that of tensor ``uids[i]``.

    A by-value tensor's pointer is the host address of its value. ``workspace`` is any
    address with EXECUTION_PLAN_WORKSPACE_SIZE bytes behind it; it may be 0 for a plan that needs none.

    Tensors ``override_uids`` have other dims and strides than in the graph: those of all tensors in a row (INT64), or
    the address of a std::vector<int64_t> for each of them (VOID_PTR), which are read at execute.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.VARIANT_PACK

    uids: tuple[int, ...] = attribute(AttributeName.VARIANT_PACK_UNIQUE_IDS, AttributeType.INT64, max_count=_MANY)
    pointers: tuple[int, ...] = attribute(
        AttributeName.VARIANT_PACK_DATA_POINTERS, AttributeType.VOID_PTR, max_count=_MANY
    )
    workspace: int = attribute(AttributeName.VARIANT_PACK_WORKSPACE, AttributeType.VOID_PTR, default=0)
    override_uids: tuple[int, ...] = attribute(
        AttributeName.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, AttributeType.INT64, max_count=_MANY, default=()
    )
    override_shapes: tuple[int, ...] = attribute(
        AttributeName.VARIANT_PACK_OVERRIDE_SHAPES,
        AttributeType.INT64,
        AttributeType.VOID_PTR,
        max_count=_MANY,
        default=(),
    )
    override_strides: tuple[int, ...] = attribute(
        AttributeName.VARIANT_PACK_OVERRIDE_STRIDES,
        AttributeType.INT64,
        AttributeType.VOID_PTR,
        max_count=_MANY,
        default=(),
    )
    intermediates: tuple[int, ...] = attribute(
        AttributeName.VARIANT_PACK_INTERMEDIATES, AttributeType.VOID_PTR, max_count=_MANY, default=()
    )

    def __post_init__(self) -> None:
        if self.intermediates:
            _check_no_intermediates("VARIANT_PACK descriptor", VARIANT_PACK_INTERMEDIATES=self.intermediates)
        if self.override_uids:
            self._check_overrides()
        if len(self.uids) != len(self.pointers):
            raise BadParamError.at(
                "VARIANT_PACK descriptor.VARIANT_PACK_DATA_POINTERS",
                expected=f"{len(self.uids)} pointers, one for each uid",
                got=len(self.pointers),
            )
        if len(set(self.uids)) != len(self.uids):
            repeated = sorted({uid for uid in self.uids if self.uids.count(uid) > 1})
            raise DuplicatedEntriesError.at(
                "VARIANT_PACK descriptor.VARIANT_PACK_UNIQUE_IDS", expected="each uid once", got=repeated
            )

    def shapes(self, graph: OperationGraph) -> Shapes:
        """The shapes that tensors of ``graph`` have in the place of its own; raises BadParamError for others."""
        where = "VARIANT_PACK descriptor.VARIANT_PACK_OVERRIDE"
        unknown = [uid for uid in self.override_uids if uid not in graph.tensors]
        if unknown:
            raise BadParamError.at(f"{where}_UNIQUE_IDS", expected="uids of the graph", got=unknown)
        ranks = [graph.tensors[uid].rank for uid in self.override_uids]
        dims = per_tensor(f"{where}_SHAPES", self.override_shapes, ranks)
        strides = per_tensor(f"{where}_STRIDES", self.override_strides, ranks)
        return tuple(zip(self.override_uids, dims, strides, strict=True))

    def _check_overrides(self) -> None:
        where = "VARIANT_PACK descriptor.VARIANT_PACK_OVERRIDE"
        if len(set(self.override_uids)) != len(self.override_uids):
            got = list(self.override_uids)
            raise DuplicatedEntriesError.at(f"{where}_UNIQUE_IDS", expected="each uid once", got=got)
        for name, values in (("SHAPES", self.override_shapes), ("STRIDES", self.override_strides)):
            if not values:
                raise BadParamError.at(f"{where}_{name}", expected="numbers for each of the uids", got="none")

    def in_order(self, uids: tuple[int, ...], counters: Counters) -> tuple[int, ...] | Mapping[int, int]:
        """The pointers in the order of ``uids``; all of them by uid where one is missing, which ``LoadedPlan`` refuses.

        Other uids are passed over; ``keys_passed_over`` counts them at the first call with this order, with an event.
        """
        found = permuted(self.uids, self.pointers, uids)
        if found is not None:
            return found
        if uids in self._orders:
            return self._orders[uids]
        unknown = set(self.uids) - set(uids)
        if len(self.uids) - len(unknown) < len(uids):
            return self._by_uid
        if unknown:
            counters.add("keys_passed_over", len(unknown))
            emit(event_logger("backend"), logging.WARNING, "keys_passed_over", {"unknown": sorted(unknown)})
        ordered = self._orders[uids] = tuple(self._by_uid[uid] for uid in uids)
        return ordered

    @cached_property
    def _by_uid(self) -> dict[int, int]:
        return dict(zip(self.uids, self.pointers, strict=True))

    @cached_property
    def _orders(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}


def permuted(uids: tuple[int, ...], pointers: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """``pointers``, those of ``uids``, in the order of ``wanted``; None where these are not the same uids."""
    if uids == wanted:
        return pointers
    order = _permutation(uids, wanted)
    return None if order is None else order(pointers)


@lru_cache(maxsize=1024)
def _permutation(
    given: tuple[int, ...], wanted: tuple[int, ...]
) -> Callable[[tuple[int, ...]], tuple[int, ...]] | None:
    """The permutation from the order of uids ``given`` to that of ``wanted``; None if the uids differ."""
    is_other_order = len(wanted) > 1 and sorted(given) == sorted(wanted)
    return itemgetter(*map(given.index, wanted)) if is_other_order else None


def _check_no_intermediates(where: str, **given: tuple[int, ...]) -> None:
    """Intermediates lie in the workspace: no engine has one that callers could provide or compute alone."""
    for name, elements in given.items():
        if elements:
            raise NotSupportedError.at(f"{where}.{name}", expected="none", got=f"{len(elements)} elements")
