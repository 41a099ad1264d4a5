"""Descriptors of how a graph may be computed: ENGINE, its knobs, ENGINECFG and ENGINEHEUR."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.backend.at_hand import choice_at_hand
from lowdnn.backend.graph_descriptors import DeviceProperties, GraphDescription
from lowdnn.backend.read_only import read_only
from lowdnn.engines.base import Engine, Knob
from lowdnn.enums import (
    OWN_NUMBERS,
    AttributeName,
    AttributeType,
    BehaviorNote,
    DescriptorType,
    HeurMode,
    KnobType,
    LayoutType,
    NumericalNote,
)
from lowdnn.heuristics.ranking import Candidate, Ranking, candidate_for, rank
from lowdnn.heuristics.shared_memory import shared_memory_of, within
from lowdnn.plan import Plan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.schema import attribute
from lowdnn.status import (
    EXCEPTIONS,
    BadParamError,
    DuplicatedEntriesError,
    NotSupportedError,
    SharedMemoryInsufficientError,
)

_MANY = 2**31 - 1


@dataclass(frozen=True)
class KnobChoice:
    """One knob and the value chosen for it."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.KNOB_CHOICE

    knob_type: KnobType = attribute(AttributeName.KNOB_CHOICE_KNOB_TYPE, AttributeType.KNOB_TYPE)
    knob_value: int = attribute(AttributeName.KNOB_CHOICE_KNOB_VALUE, AttributeType.INT64)


@dataclass(frozen=True)
class KnobInfo:
    """One knob of an engine, as cuDNN describes it: an evenly spaced range that holds every value of ``knob``.

    A value of the range that is not one of ``knob.values`` is refused when a plan is made with it.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.KNOB_INFO

    knob: Knob

    @read_only(AttributeName.KNOB_INFO_TYPE, AttributeType.KNOB_TYPE)
    def knob_type(self) -> KnobType:
        return self.knob.type

    @read_only(AttributeName.KNOB_INFO_MAXIMUM_VALUE, AttributeType.INT64)
    def maximum_value(self) -> int:
        return max(self.knob.values)

    @read_only(AttributeName.KNOB_INFO_MINIMUM_VALUE, AttributeType.INT64)
    def minimum_value(self) -> int:
        return min(self.knob.values)

    @read_only(AttributeName.KNOB_INFO_STRIDE, AttributeType.INT64)
    def stride(self) -> int:
        least = min(self.knob.values)
        return gcd(*(value - least for value in self.knob.values)) or 1


@dataclass(frozen=True)
class LayoutInfo:
    """A tensor's preferred layouts. No engine prefers one: each takes the strides that the graph declares."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.LAYOUT_INFO

    uid: int
    layouts: tuple[LayoutType, ...]

    @read_only(AttributeName.LAYOUT_INFO_TENSOR_UID, AttributeType.INT64)
    def tensor_uid(self) -> int:
        return self.uid

    @read_only(AttributeName.LAYOUT_INFO_TYPES, AttributeType.LAYOUT_TYPE)
    def types(self) -> tuple[LayoutType, ...]:
        return self.layouts


@dataclass(frozen=True)
class IntermediateInfo:
    """An intermediate that callers could provide. No engine has one: intermediates lie in the workspace."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.INTERMEDIATE_INFO

    uid: int
    intermediate_bytes: int

    @read_only(AttributeName.INTERMEDIATE_INFO_UNIQUE_ID, AttributeType.INT64)
    def unique_id(self) -> int:
        return self.uid

    @read_only(AttributeName.INTERMEDIATE_INFO_SIZE, AttributeType.INT64)
    def size(self) -> int:
        return self.intermediate_bytes

    @read_only(AttributeName.INTERMEDIATE_INFO_DEPENDENT_DATA_UIDS, AttributeType.INT64)
    def dependent_data_uids(self) -> tuple[int, ...]:
        return ()

    @read_only(AttributeName.INTERMEDIATE_INFO_DEPENDENT_ATTRIBUTES, AttributeType.ATTRIB_NAME)
    def dependent_attributes(self) -> tuple[AttributeName, ...]:
        return ()


@dataclass(frozen=True)
class EngineChoice:
    """One engine for one graph on one device.

    sm_count_target: plan for this many multiprocessors; 0 for all.  shared_memory_limit: bytes of dynamic shared memory
    that a block may have; 0 for what the device has.  disable_cluster_cooperative: no launch has clusters, nor
    blocks that wait for one another.
    Raises NotSupportedError for an index without an engine, and the refusal's status where the engine refuses.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.ENGINE

    description: GraphDescription = attribute(
        AttributeName.ENGINE_OPERATION_GRAPH,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATIONGRAPH,
    )
    global_index: int = attribute(AttributeName.ENGINE_GLOBAL_INDEX, AttributeType.INT64)
    sm_count_target: int = attribute(AttributeName.ENGINE_SM_COUNT_TARGET, AttributeType.INT32, default=0)
    device_properties: DeviceProperties | None = attribute(
        AttributeName.ENGINE_DEVICEPROP,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.DEVICEPROP,
        default=None,
    )
    shared_memory_limit: int = attribute(AttributeName.ENGINE_SHARED_MEMORY_LIMIT, AttributeType.INT32, default=0)
    disable_cluster_cooperative: bool = attribute(
        AttributeName.ENGINE_DISABLE_CLUSTER_COOPERATIVE, AttributeType.BOOLEAN, default=False
    )

    def __post_init__(self) -> None:
        check_limit("ENGINE descriptor.ENGINE_SHARED_MEMORY_LIMIT", self.shared_memory_limit)
        refusal = self.engine.refuse(self.description.graph, self.arch)
        if refusal is not None:
            raise EXCEPTIONS[refusal.status](f"ENGINE descriptor: {refusal}")

    @cached_property
    def arch(self) -> ArchSpec:
        return self.description.arch_for("ENGINE descriptor", self.device_properties, self.sm_count_target)

    @cached_property
    def engine(self) -> Engine:
        engines = self.description.engines
        engine = engines.at(self.global_index)
        if engine is not None:
            return engine
        raise NotSupportedError.at(
            "ENGINE descriptor.ENGINE_GLOBAL_INDEX", expected=f"0 to {len(engines) - 1}", got=self.global_index
        )

    def check_limits(self, plan: Plan) -> None:
        """Raises NotSupportedError for a plan that needs a feature that was switched off, SharedMemoryInsufficientError
        for one that needs more shared memory than was allowed."""
        shared_bytes = shared_memory_of(plan)
        if self.shared_memory_limit and shared_bytes > self.shared_memory_limit:
            raise SharedMemoryInsufficientError.at(
                "ENGINE descriptor.ENGINE_SHARED_MEMORY_LIMIT",
                expected=f"at least {shared_bytes} bytes for {plan.name}",
                got=self.shared_memory_limit,
            )
        if self.disable_cluster_cooperative and any(
            launch.cooperative or launch.cluster != (1, 1, 1) for launch in plan.launches
        ):
            raise NotSupportedError.at(
                "ENGINE descriptor.ENGINE_DISABLE_CLUSTER_COOPERATIVE",
                expected=f"false for {plan.name} with these knobs",
                got=True,
            )

    @property
    def has_limits(self) -> bool:
        return bool(self.shared_memory_limit) or self.disable_cluster_cooperative

    @read_only(AttributeName.ENGINE_KNOB_INFO, AttributeType.BACKEND_DESCRIPTOR)
    def knob_info(self) -> tuple[KnobInfo, ...]:
        return tuple(KnobInfo(knob) for knob in self.engine.knobs(self.description.graph, self.arch))

    @read_only(AttributeName.ENGINE_NUMERICAL_NOTE, AttributeType.NUMERICAL_NOTE)
    def numerical_notes(self) -> tuple[NumericalNote, ...]:
        """The engine's numerical notes that cuDNN defines, too; programs read them into arrays with room for no
        others."""
        return tuple(note for note in self.engine.numerical_notes if note < OWN_NUMBERS)

    @read_only(AttributeName.ENGINE_BEHAVIOR_NOTE, AttributeType.BEHAVIOR_NOTE)
    def behavior_notes(self) -> tuple[BehaviorNote, ...]:
        return self.engine.behavior_notes

    @read_only(AttributeName.ENGINE_LAYOUT_INFO, AttributeType.BACKEND_DESCRIPTOR)
    def layout_info(self) -> tuple[LayoutInfo, ...]:
        return ()


@dataclass(frozen=True)
class EngineConfig:
    """An engine with knob choices; knobs left out take the engine's defaults.

    Without any, a limit of shared memory is met with the nearest knobs (``heuristics.shared_memory``).

    Raises DuplicatedEntriesError for a knob chosen twice, BadParamError for a knob or value that the engine has not.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.ENGINECFG

    engine: EngineChoice = attribute(
        AttributeName.ENGINECFG_ENGINE, AttributeType.BACKEND_DESCRIPTOR, descriptor=DescriptorType.ENGINE
    )
    knob_choices: tuple[KnobChoice, ...] = attribute(
        AttributeName.ENGINECFG_KNOB_CHOICES,
        AttributeType.BACKEND_DESCRIPTOR,
        max_count=_MANY,
        descriptor=DescriptorType.KNOB_CHOICE,
        default=(),
    )
    ranked: Candidate | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        types = [choice.knob_type for choice in self.knob_choices]
        for knob_type in types:
            if types.count(knob_type) > 1:
                raise DuplicatedEntriesError.at(
                    "ENGINECFG descriptor.ENGINECFG_KNOB_CHOICES", expected="each knob once", got=knob_type.name
                )
        if types or self.engine.has_limits:
            self.engine.check_limits(self.candidate.plan)

    @cached_property
    def candidate(self) -> Candidate:
        """The candidate of this engine and these choices, with its plan; the heuristics' own where they made it."""
        if self.ranked is not None:
            return self.ranked
        choices = {choice.knob_type: choice.knob_value for choice in self.knob_choices}
        found = candidate_for(self.engine.engine, self.engine.description.graph, self.engine.arch, choices)
        limit = self.engine.shared_memory_limit
        return found if choices or not limit else within(found, limit) or found

    @read_only(AttributeName.ENGINECFG_KNOB_CHOICES, AttributeType.BACKEND_DESCRIPTOR)
    def chosen(self) -> tuple[KnobChoice, ...]:
        """The choices that were set; if none were, those of the plan, from which an equal ENGINECFG can be made."""
        return self.knob_choices or tuple(KnobChoice(*choice) for choice in self.candidate.plan.choices)

    @read_only(AttributeName.ENGINECFG_WORKSPACE_SIZE, AttributeType.INT64)
    def workspace_size(self) -> int:
        return size_anywhere(self.candidate.workspace_bytes)

    @read_only(AttributeName.ENGINECFG_SHARED_MEMORY_USED, AttributeType.INT32)
    def shared_memory_used(self) -> int:
        return shared_memory_of(self.candidate.plan)

    @read_only(AttributeName.ENGINECFG_INTERMEDIATE_INFO, AttributeType.BACKEND_DESCRIPTOR)
    def intermediate_info(self) -> tuple[IntermediateInfo, ...]:
        return ()


@dataclass(frozen=True)
class EngineHeuristics:
    """A question to the heuristics: which engine configurations run the graph, best first."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.ENGINEHEUR

    mode: HeurMode = attribute(AttributeName.ENGINEHEUR_MODE, AttributeType.HEUR_MODE)
    description: GraphDescription = attribute(
        AttributeName.ENGINEHEUR_OPERATION_GRAPH,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATIONGRAPH,
    )
    sm_count_target: int = attribute(AttributeName.ENGINEHEUR_SM_COUNT_TARGET, AttributeType.INT32, default=0)
    device_properties: DeviceProperties | None = attribute(
        AttributeName.ENGINEHEUR_DEVICEPROP,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.DEVICEPROP,
        default=None,
    )
    shared_memory_limit: int = attribute(AttributeName.ENGINEHEUR_SHARED_MEMORY_LIMIT, AttributeType.INT32, default=0)

    def __post_init__(self) -> None:
        check_limit("ENGINEHEUR descriptor.ENGINEHEUR_SHARED_MEMORY_LIMIT", self.shared_memory_limit)
        _ = self.ranking

    @cached_property
    def ranking(self) -> Ranking:
        """The ranked candidates and the reasons of the engines that refused."""
        arch = self.description.arch_for("ENGINEHEUR descriptor", self.device_properties, self.sm_count_target)
        graph, handle = self.description.graph, self.description.handle
        return handle.rank(graph, self.mode, arch) if handle else rank(graph, arch, self.mode, self.description.engines)

    @read_only(AttributeName.ENGINEHEUR_RESULTS, AttributeType.BACKEND_DESCRIPTOR)
    def results(self) -> tuple[EngineConfig, ...]:
        return self._results

    @cached_property
    def _results(self) -> tuple[EngineConfig, ...]:
        """The configurations, made once: callers ask for their number first."""
        limit = self.shared_memory_limit
        candidates: Iterable[Candidate | None] = self._candidates()
        if limit:
            candidates = (within(candidate, limit) for candidate in self.ranking.candidates)
        return tuple(
            EngineConfig(
                EngineChoice(
                    self.description, candidate.engine.index, self.sm_count_target, self.device_properties, limit
                ),
                ranked=candidate,
            )
            for candidate in candidates
            if candidate is not None
        )

    def _candidates(self) -> tuple[Candidate, ...]:
        """The ranked candidates, preceded by the plan that runs instead of the first one under the handle's compile
        policy."""
        candidates, handle = self.ranking.candidates, self.description.handle
        if not candidates or handle is None or not handle.is_open or self.device_properties or self.shared_memory_limit:
            return candidates
        taken = choice_at_hand(handle, candidates[0])
        others = (found for found in candidates if found.made_plan != taken.plan)
        return candidates if taken.plan == candidates[0].plan else (taken, *others)


def check_limit(where: str, limit_bytes: int) -> None:
    if limit_bytes < 0:
        raise BadParamError.at(where, expected="0 or more bytes", got=limit_bytes)
