"""``composite``: the engine of last resort. It runs a graph that no single engine takes as a chain of their plans, and
one that only engines take that round its inputs.

The cut is the one with the least estimated time (see ``partition``); intermediates lie in the workspace. Inputs are
never converted down (TF32) where an engine exists that keeps their precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    BEHAVIOR_NOTES,
    Anchors,
    Choices,
    Engine,
    Knob,
    Refusal,
    anchored,
    plan_tensors,
    resolve_choices,
)
from lowdnn.engines.composite.assembly import assemble
from lowdnn.engines.composite.partition import Uncovered, find_uncovered, partition
from lowdnn.enums import BehaviorNote, DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.observable import with_unread_stored
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import NotSupportedError

NoteT = TypeVar("NoteT", bound=NumericalNote | BehaviorNote)


class Composite:
    """See the module's docstring. ``engines``: those that may run a part, in order of preference."""

    name = "composite"
    index = 6
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = ()

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses a graph that one engine takes as it is, and one with an operation that no engine takes."""
        single = self._refuse_single(graph, arch)
        if single is not None:
            return single
        uncovered = find_uncovered(graph.derive(_with_unread_stored), arch, self._engines)
        return None if uncovered is None else Refusal(self.name, _reason(uncovered))

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None: every part runs with its engine's defaults."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """The chain of the parts' plans; ``Plan.parts`` names them in launch order."""
        resolve_choices(self.name, (), choices)
        single = self._refuse_single(graph, arch)
        if single is not None:
            raise NotSupportedError(str(single))
        parts = partition(graph.derive(_with_unread_stored), arch, self._engines)
        if isinstance(parts, Uncovered):
            raise NotSupportedError(str(Refusal(self.name, _reason(parts))))
        assembly = assemble(graph, parts)
        return Plan(
            engine=self.name,
            engine_index=self.index,
            graph_key=graph.key,
            target_arch=arch.name,
            choices=(),
            kernels=assembly.kernels,
            launches=assembly.launches,
            tensors=graph.derive(plan_tensors),
            workspace_bytes=assembly.workspace_bytes,
            numerical_notes=_union(part.plan.numerical_notes for part in parts),
            behavior_notes=_union(part.plan.behavior_notes for part in parts),
            parts=tuple(part.plan.name for part in parts),
        )

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None of its own."""
        return ()

    def _refuse_single(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        keeping = (engine for engine in anchored(self._engines, graph) if keeps_precision(engine, graph))
        taker = next((engine for engine in keeping if graph.derive(engine.refuse, arch) is None), None)
        return None if taker is None else Refusal(self.name, f"one engine takes the whole graph: {taker.name}")


def keeps_precision(engine: Engine, graph: OperationGraph) -> bool:
    """Whether ``engine`` computes with the graph's inputs as they are: fp32 operands are what some round to TF32."""
    contractions = (op for op in graph.operations if isinstance(op, ConvolutionOperation | MatmulOperation))
    has_float = any(tensor.data_type is DataType.FLOAT for op in contractions for tensor in inputs_of(op).values())
    return not (has_float and NumericalNote.DOWN_CONVERT_INPUTS in engine.numerical_notes)


def _with_unread_stored(graph: OperationGraph) -> OperationGraph:
    """``graph`` with outputs that nothing reads, and that their operations must write, as intermediates."""
    operations = with_unread_stored(graph.operations)
    return graph if operations is graph.operations else OperationGraph(operations)


def _reason(uncovered: Uncovered) -> str:
    label = ", ".join(tensor.label for tensor in outputs_of(uncovered.operation).values())
    reasons = "; ".join(str(refusal) for refusal in uncovered.refusals)
    return f"no engine takes {type(uncovered.operation).__name__} that writes {label}: {reasons}"


def _union(notes: Iterable[tuple[NoteT, ...]]) -> tuple[NoteT, ...]:
    """Every note once, in order of first appearance."""
    return tuple(dict.fromkeys(note for group in notes for note in group))
