"""The interface of an engine: pure methods from a graph to a plan. An engine never touches a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.limits import Limits
from lowdnn.enums import BehaviorNote, DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.ragged_pattern import packed_uids
from lowdnn.ops.base import HasPorts, inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.plan import KernelRef, Plan, PlanTensor
from lowdnn.status import BadParamError, Status

#: Operations whose operands in FLOAT a kernel may round to TF32.
_CONTRACTIONS = ConvolutionOperation | MatmulOperation | MoeGroupedMatmul | MoeGroupedMatmulBackward

Choices = Mapping[KnobType, int]
Anchors = tuple[type[HasPorts], ...]

#: The behaviour of every engine: kernels may be compiled at run time, and any plan can be captured.
BEHAVIOR_NOTES: tuple[BehaviorNote, ...] = (
    BehaviorNote.RUNTIME_COMPILATION,
    BehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API,
)


@dataclass(frozen=True)
class Refusal:
    """The reason why an engine does not take a graph, ``<field>: expected <limit>, got <value>``, and its status."""

    engine: str
    reason: str
    status: Status = Status.NOT_SUPPORTED_GRAPH_PATTERN

    def __str__(self) -> str:
        return f"{self.engine}: {self.reason}"


@dataclass(frozen=True)
class Knob:
    """A tunable parameter of an engine: its values in ascending order, the default, and one line of help."""

    name: str
    type: KnobType
    values: tuple[int, ...]
    default: int
    help: str


class Engine(Protocol):
    """A family of kernels that can run some graphs. An engine with a better bound of its cost is ``Floored``
    (``floor.py``).

    ``name`` is ``<family>_<idea>``. ``index`` is the global index, given once and never reused. If the engine has
    ``anchors``, every graph that it takes has an operation of one of them.
    """

    name: str
    index: int
    numerical_notes: tuple[NumericalNote, ...]
    behavior_notes: tuple[BehaviorNote, ...]
    anchors: Anchors

    @property
    def limits(self) -> Limits:
        """The limits that every graph observes which the engine takes."""

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """None if ``plan`` will succeed with the default knobs, otherwise the first reason why not."""

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """The knobs for a graph that the engine takes; their defaults are the heuristic's choice."""

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """The plan for ``choices``; other knobs have their defaults.

        Raises BadParamError for an unknown knob or value, NotSupportedError if the engine refuses the graph.
        """

    def replan(self, graph: OperationGraph, arch: ArchSpec, chosen: Choices) -> Plan:
        """The plan for ``chosen``, which has the choices of a plan that was made before: a value for each knob.

        No default is searched for, which takes much longer than all else, and no value is checked: the caller has to
        compare the plan with the one that was made before. Values that no knob has may raise anything.
        """

    def precompiled(self) -> tuple[KernelRef, ...]:
        """The kernels whose PTX is shipped in ``ptx/``."""


class LastResort:
    """An engine that delegates to the others, and takes only what none of them takes as a whole."""


class OptIn:
    """An engine whose error bound lies beyond the tolerance of its operations, or that was nowhere fastest.

    A ranking lists it behind all others, so that nobody gets it who has not asked for it.
    """


class HasNumericalNotes(Protocol):
    """An engine or a plan."""

    @property
    def numerical_notes(self) -> tuple[NumericalNote, ...]: ...


def keeps_precision(noted: HasNumericalNotes, graph: OperationGraph) -> bool:
    """Whether an engine or a plan uses the graph's inputs unrounded; some round fp32 operands to TF32."""
    contractions = (op for op in graph.operations if isinstance(op, _CONTRACTIONS))
    has_float = any(tensor.data_type is DataType.FLOAT for op in contractions for tensor in inputs_of(op).values())
    return not (has_float and NumericalNote.TF32_INPUTS in noted.numerical_notes)


def resolve_choices(engine: str, knobs: tuple[Knob, ...], choices: Choices) -> dict[KnobType, int]:
    """All knobs with the chosen or default value; raises BadParamError for an unknown knob or value."""
    known = {knob.type: knob for knob in knobs}
    for knob_type, value in choices.items():
        if knob_type not in known:
            names = ", ".join(k.type.name for k in knobs) or "no knobs"
            raise BadParamError.at(f"{engine}.knob_choices", expected=names, got=knob_type.name)
        if value not in known[knob_type].values:
            allowed = list(known[knob_type].values)
            raise BadParamError.at(f"{engine}.{knob_type.name}", expected=f"one of {allowed}", got=value)
    return {knob.type: choices.get(knob.type, knob.default) for knob in knobs}


def plan_tensors(graph: OperationGraph) -> tuple[PlanTensor, ...]:
    """The tensors that execute must be given: every non-virtual tensor of the graph except constants.

    A packed ragged tensor (``packed_uids``) is as large as its offsets say, which only execute sees; its size here is
    one element, the least that it may have.
    """
    packed = packed_uids(graph)
    return tuple(
        PlanTensor(
            uid=tensor.uid,
            name=tensor.name,
            data_type=tensor.data_type,
            size_bytes=min(tensor.span_bytes, tensor.element_bytes) if tensor.uid in packed else tensor.span_bytes,
            alignment_bytes=tensor.alignment_bytes,
            is_output=graph.producer(tensor) is not None,
            is_by_value=tensor.is_by_value,
        )
        for tensor in graph.tensors.values()
        if not tensor.is_virtual and tensor.constant_value is None
    )
