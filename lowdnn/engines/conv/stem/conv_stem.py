"""``conv_stem``: the first layers of networks, convolutions of one group with at most 4 channels, in all directions.

Strides or taps become channels (``stem_fold``): the image and the filter are folded into the workspace, and another
engine computes the convolution of phases. That has rows of at least 16 bytes of channels and few taps; it has a single
tap if the image is cut into patches or is small compared with the response. A gradient of the image or of the filter is
unfolded afterwards. Gradients of last layers, with equally few filters and stride 1, are computed as convolutions of
the response (``exchanged.py``). Kernels: ``stem_fold.cu``, ``stem_unfold.cu`` and those of the other engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Engine,
    Refusal,
)
from lowdnn.engines.conv.stem.exchanged import with_few_channels
from lowdnn.engines.conv.stem.fold import FoldedConvolution, FoldedTensor
from lowdnn.engines.conv.stem.rows import MAX_CHANNELS
from lowdnn.engines.delegation import fastest_plan, refusals
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import is_dependent
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.plan import WorkspacePointer
from lowdnn.status import Status


@dataclass(frozen=True)
class _Problem:
    """graph: the convolution of phases, with the whole graph's epilogue.

    inputs, output: tensors that are folded, and the one that is unfolded.
    """

    graph: OperationGraph
    inputs: tuple[FoldedTensor, ...]
    output: FoldedTensor | None

    @property
    def folded(self) -> tuple[FoldedTensor, ...]:
        return (*self.inputs, self.output) if self.output else self.inputs

    def overlapping(self, overlaps: bool) -> _Problem:
        """This problem with dependent launches or without them, on sm_90a."""
        inputs = tuple(replace(folded, overlaps=overlaps) for folded in self.inputs)
        return replace(self, inputs=inputs, output=self.output and replace(self.output, overlaps=overlaps))


class ConvStem(ProblemEngine[_Problem], Floored):
    """See the module's docstring.  engines: the engines that may compute the convolution of phases."""

    name = "conv_stem"
    index = 13
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionOperation,)
    limits = reduced(ConvolutionOperation)

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses groups, more than 4 channels, gradients with an epilogue, and convolutions that no other engine
        computes.
        """
        problem = _problem_of(graph)
        if isinstance(problem, Refusal):
            return problem
        reasons = refusals(self._engines, problem.graph, arch)
        return Refusal(self.name, f"no engine takes the convolution of phases: {reasons}") if reasons else problem

    def floor(self, contraction: Contraction) -> Floor:
        """Two tensors are folded or unfolded."""
        return Floor(Multipliers.FASTEST, launches=3)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Folding launches, the launches of the other engine's plan, and one that unfolds a gradient."""
        problem, parts = problem.overlapping(is_dependent(arch)), PlanParts()
        at = {folded.tensor.uid: parts.reserve(folded.size_bytes) for folded in problem.folded}
        for folded in problem.inputs:
            kernel = parts.kernel(folded.fold_kernel())
            parts.launches.append(folded.fold_launch(kernel, WorkspacePointer(at[folded.tensor.uid])))
        product = fastest_plan(self._engines, problem.graph, arch)
        parts.add_plan(product, at)
        if problem.output:
            kernel = parts.kernel(problem.output.unfold_kernel())
            source = WorkspacePointer(at[problem.output.tensor.uid])
            parts.launches.append(problem.output.unfold_launch(kernel, source))
        parts.numerical_notes = product.numerical_notes
        return parts


def _problem_of(graph: OperationGraph) -> _Problem | Refusal:
    """The convolution of phases, or why there is none."""
    matched = match_anchored(graph, ConvolutionOperation)
    if isinstance(matched, str):
        return Refusal(ConvStem.name, matched)
    operation = with_few_channels(matched.anchor, MAX_CHANNELS)
    refused = _refuse_shape(operation)
    if refused:
        return Refusal(ConvStem.name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
    is_forward = isinstance(operation, ConvolutionForward)
    if not is_forward and (len(graph.operations) > 1 or operation.beta != 0):
        label = f"{operation.label}.{operation.output_port}"
        return Refusal(ConvStem.name, f"{label}: expected a stored gradient with beta 0 and no operations after it")
    folded_uids = {operation.image.uid, operation.filter.uid}
    for op in graph.operations:
        if op is not matched.anchor and any(tensor.uid in folded_uids for tensor in inputs_of(op).values()):
            refused = f"{operation.label}: expected an image and a filter that no other operation reads"
            return Refusal(ConvStem.name, refused)
    fold = FoldedConvolution.cheapest(operation)
    folded = (fold.image, fold.filter)
    if max(side.folded.element_count for side in folded) > MAX_INDEX:
        return Refusal(ConvStem.name, f"{operation.label}: expected at most {MAX_INDEX} folded elements, got more")
    if (stride := max(max(side.tensor.strides[1:]) for side in folded)) > MAX_INDEX:
        return Refusal(ConvStem.name, f"{operation.label}: expected strides of at most {MAX_INDEX}, got {stride}")
    return _Problem(
        graph=OperationGraph([_of_phases(operation, fold) if op is matched.anchor else op for op in graph.operations]),
        inputs=tuple(side for side in folded if side.tensor is not operation.output),
        output=next((side for side in folded if side.tensor is operation.output), None),
    )


def _refuse_shape(operation: ConvolutionOperation) -> str:
    if operation.groups != 1:
        return f"groups: expected 1, got {operation.groups}"
    if operation.image.dims[1] > MAX_CHANNELS:
        return f"image.dims[1]: expected at most {MAX_CHANNELS} channels, got {operation.image.dims[1]}"
    return ""


def _of_phases(operation: ConvolutionOperation, fold: FoldedConvolution) -> ConvolutionOperation:
    """``operation`` on folded tensors."""
    image, filters = fold.image.folded, fold.filter.folded
    if isinstance(operation, ConvolutionForward):
        return replace(operation, convolution=fold.geometry, x=image, w=filters)
    if isinstance(operation, ConvolutionBackwardData):
        return replace(operation, convolution=fold.geometry, dx=image, w=filters)
    assert isinstance(operation, ConvolutionBackwardFilter), operation
    return replace(operation, convolution=fold.geometry, x=image, dw=filters)
