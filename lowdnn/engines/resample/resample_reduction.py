"""``resample_reduction``: pooling with one window that holds the whole image (global pooling) is a reduction.

Its average or maximum is taken by the ``reduction`` engine, with the pointwise operations before and behind it, where a
team of threads joins the elements of one output. Estimates of its time and of ``resample``'s are often the same; it has
the lower index, and so comes first.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Engine, Knob, Refusal, accepted, plan_of
from lowdnn.engines.resample.axes import leaves_image
from lowdnn.enums import NanPropagation, NumericalNote, PaddingMode, ReduceTensorOp, ResampleMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.plan import KernelRef, Plan


class ResampleReduction:
    """See the module's docstring. ``reduction``: the engine that takes the reduction."""

    name = "resample_reduction"
    index = 28
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES

    def __init__(self, reduction: Engine) -> None:
        self._reduction = reduction

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses all but one average or maximum over whole images, and what the reduction engine refuses."""
        reduced = graph.derive(_reduced)
        if isinstance(reduced, Refusal):
            return reduced
        refusal = self._reduction.refuse(reduced, arch)
        return None if refusal is None else replace(refusal, engine=self.name)

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """The reduction engine's."""
        return self._reduction.knobs(accepted(graph.derive(_reduced)), arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """That of the reduction engine."""
        plan = self._reduction.plan(accepted(graph.derive(_reduced)), arch, choices)
        return plan_of(self, graph, arch, dict(plan.choices), plan.kernels, plan.launches, plan.workspace_bytes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None of its own."""
        return ()


def _reduced(graph: OperationGraph) -> OperationGraph | Refusal:
    """The graph with a reduction in place of the resampling, or why there is none."""
    found = [op for op in graph.operations if isinstance(op, ResampleForward)]
    if len(found) != 1:
        return Refusal(ResampleReduction.name, f"operations: expected one ResampleForward, got {len(found)}")
    operator = _operator(found[0])
    if isinstance(operator, str):
        return Refusal(ResampleReduction.name, f"resample.{operator}")
    reduction = Reduction(operator, found[0].resample.compute_type)
    return OperationGraph(
        ReductionOperation(reduction, op.x, op.y) if isinstance(op, ResampleForward) else op for op in graph.operations
    )


def _operator(operation: ResampleForward) -> ReduceTensorOp | str:
    """What reduces the image, or why nothing does."""
    resample = operation.resample
    for axis in operation.axes:
        first, end = -axis.offset // axis.unit, (axis.reach - axis.offset) // axis.unit
        if axis.outputs != 1 or first > 0 or end < axis.inputs:
            got = f"{axis.outputs} of {end - first}"
            return f"window_dims: expected one window over all {axis.inputs} positions, got {got}"
    if operation.index is not None:
        return f"index: expected none, got {operation.index.label}"
    reads_padding = any(map(leaves_image, operation.axes))
    match resample.mode:
        case ResampleMode.AVGPOOL_EXCLUDE_PADDING:
            return ReduceTensorOp.AVG
        case ResampleMode.AVGPOOL_INCLUDE_PADDING if not reads_padding:
            return ReduceTensorOp.AVG
        case ResampleMode.MAXPOOL if resample.nan_propagation is NanPropagation.NOT_PROPAGATE_NAN:
            return "nan_propagation: expected PROPAGATE_NAN, got NOT_PROPAGATE_NAN"
        case ResampleMode.MAXPOOL if not reads_padding or resample.padding_mode is not PaddingMode.ZERO_PAD:
            return ReduceTensorOp.MAX
        case ResampleMode.NEAREST | ResampleMode.BILINEAR:
            return f"mode: expected an average or a maximum, got {resample.mode.name}"
        case _:
            return f"pre_paddings: expected windows without padding for {resample.mode.name}, got some with it"
