"""``resample_reduction``: pooling with one window that holds the whole image (global pooling), as a reduction.

The ``reduction`` engine computes the average or maximum, with the pointwise operations before and after it, by teams of
threads for each output. The gradient of the average is a quotient, the same for a whole image, which the ``pointwise``
engine repeats. Images of few positions with contiguous channels are left to ``resample``, whose threads write them
whole. Estimated times of this engine and of ``resample`` are often equal; this one then comes first by its lower index.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Engine, Knob, Refusal
from lowdnn.engines.limits import fused
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.resample import backward
from lowdnn.engines.resample.axes import leaves_image
from lowdnn.engines.resample.problem import Problem
from lowdnn.enums import (
    NanPropagation,
    PaddingMode,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.base import Operation
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.resample import ResampleOperation
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import Tensor


class ResampleReduction(ProblemEngine["_Rewritten"]):
    """Global pooling, as the module's docstring says, by the engines ``reduction`` and ``pointwise``."""

    name = "resample_reduction"
    index = 28
    anchors: Anchors = (ResampleOperation,)
    limits = fused(ResampleOperation)

    def __init__(self, reduction: Engine, pointwise: Engine) -> None:
        self._reduction = reduction
        self._pointwise = pointwise

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Rewritten | Refusal:
        """Refuses all but one average or maximum over whole images or gradient of an average, and what the engine that
        computes it refuses."""
        found = rewritten(graph, arch)
        if isinstance(found, Refusal):
            return found
        is_reduction = any(isinstance(op, ReductionOperation) for op in found.operations)
        engine = self._reduction if is_reduction else self._pointwise
        refusal = engine.refuse(found, arch)
        return _Rewritten(found, engine) if refusal is None else replace(refusal, engine=self.name)

    def knobs_of(self, problem: _Rewritten, arch: ArchSpec) -> tuple[Knob, ...]:
        """The knobs of the engine that computes it."""
        return problem.engine.knobs(problem.graph, arch)

    def parts(self, problem: _Rewritten, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The launches of the engine that computes it."""
        parts = PlanParts()
        parts.add_plan(problem.engine.plan(problem.graph, arch, chosen), {})
        return parts


@dataclass(frozen=True)
class _Rewritten:
    """A graph with a reduction or a quotient instead of the resampling, and the engine that computes it."""

    graph: OperationGraph
    engine: Engine


def rewritten(graph: OperationGraph, arch: ArchSpec) -> OperationGraph | Refusal:
    """The graph with a reduction or a quotient instead of the resampling, or the reason why there is none."""
    found = [op for op in graph.operations if isinstance(op, ResampleOperation)]
    if len(found) != 1:
        return Refusal(ResampleReduction.name, f"operations: expected one resampling, got {len(found)}")
    operator = _operator(found[0])
    if isinstance(operator, str):
        return Refusal(ResampleReduction.name, f"resample.{operator}")
    if isinstance(found[0], ResampleBackward) and _repeats_in_threads(graph, arch):
        return Refusal(ResampleReduction.name, "resample.dx: expected more than threads of `resample` write at a time")
    constant_uid = max(graph.tensors) + 1
    return OperationGraph(_replaced(op, operator, constant_uid) for op in graph.operations)


def _repeats_in_threads(graph: OperationGraph, arch: ArchSpec) -> bool:
    """Whether ``resample`` has threads that write whole images, each read once, and enough of them for the device."""
    matched = match_anchored(graph, ResampleOperation)
    if isinstance(matched, str):
        return False
    problem = Problem(matched.anchor, matched.epilogue)
    if problem.refuse() or not backward.holds_image(problem):
        return False
    return backward.fills_device(problem, min(backward.IMAGE_CHANNELS), arch)


def _replaced(operation: Operation, operator: ReduceTensorOp, constant_uid: int) -> Operation:
    """The replacement of an operation.  constant_uid: a uid that no tensor has."""
    match operation:
        case ResampleForward():
            return ReductionOperation(Reduction(operator, operation.resample.compute_type), operation.x, operation.y)
        case ResampleBackward():
            ones = (1,) * operation.dx.rank
            data_type = operation.resample.compute_type
            count = prod(axis.inputs for axis in operation.axes)
            size_bytes = dtypes.info(data_type).size_bytes
            divisor = Tensor(constant_uid, data_type, ones, ones, size_bytes, constant_value=count)
            quotient = Pointwise(PointwiseMode.DIV, data_type)
            return PointwiseOperation(quotient, x=operation.dy, b=divisor, y=operation.dx)
        case _:
            return operation


def _operator(operation: ResampleOperation) -> ReduceTensorOp | str:
    """The operator that reduces the image, or the reason why none does."""
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
        case ResampleMode.MAXPOOL if isinstance(operation, ResampleBackward):
            return "mode: expected an average for a gradient, got MAXPOOL"
        case ResampleMode.MAXPOOL if resample.nan_propagation is NanPropagation.NOT_PROPAGATE_NAN:
            return "nan_propagation: expected PROPAGATE_NAN, got NOT_PROPAGATE_NAN"
        case ResampleMode.MAXPOOL if not reads_padding or resample.padding_mode is not PaddingMode.ZERO_PAD:
            return ReduceTensorOp.MAX
        case ResampleMode.NEAREST | ResampleMode.BILINEAR:
            return f"mode: expected an average or a maximum, got {resample.mode.name}"
        case _:
            return f"pre_paddings: expected windows without padding for {resample.mode.name}, got some with it"
