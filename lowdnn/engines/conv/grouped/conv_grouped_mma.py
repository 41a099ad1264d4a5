"""``conv_grouped_mma``: convolutions with narrow groups on tensor cores, for sm_80 and newer.

Forward, backward in the data and backward in the filter; fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded
to 10 fraction bits), int8 forward. Groups of up to 64 channels and filters, in packs that fill the instruction; 1 to 3
spatial axes, any strides, dilations and paddings whose box of inputs fits shared memory, flipped filters, any pointwise
epilogue.
Tensor cores are driven with ``mma.sync``, and on sm_90a with ``wgmma`` if 16-bit filters of a wide group do not fit
registers. Channels-last tensors are read in place, on sm_90a by tensor map if a block takes 64, 96 or 128 bytes of
their channels; others are repacked into the workspace first. Backward in the filter the sum is split over blocks and
added up in a fixed order.

Kernels: ``conv_grouped_mma.cu``, ``conv_grouped_wgmma.cu``, ``conv_grouped_wgrad_mma.cu``,
``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from typing import Protocol

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.conv.grouped.axes import taps_problem
from lowdnn.engines.conv.grouped.filter_gradient import FilterGeometry
from lowdnn.engines.conv.grouped.geometry import SLOWNESS, GroupedGeometry, pack_of, width_problem
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, match_anchored
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import KernelRef, Launch
from lowdnn.status import Status


class _Problem(Protocol):
    """A convolution in one direction, as its kernel computes it."""

    @property
    def operation(self) -> ConvolutionOperation: ...

    @property
    def data_type(self) -> DataType: ...

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""

    def fits(self, arch: ArchSpec) -> bool:
        """Whether shared memory holds the smallest tile."""

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """The knobs of a convolution that fits."""

    def busy_launch(self, arch: ArchSpec, chosen: Choices) -> Launch:
        """A launch whose estimated time is a lower bound of that of the operation's launches."""

    def add_to(self, parts: PlanParts, arch: ArchSpec, chosen: Choices) -> None:
        """Adds the launches."""


class ConvGroupedMma(ProblemEngine["_Problem"], Floored, Modelled):
    """See the module's docstring."""

    name = "conv_grouped_mma"
    index = 12
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionOperation,)
    limits = reduced(ConvolutionOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses data types without an mma instruction, wide groups, large filters, boxes that do not fit."""
        problem = self._matched(graph)
        if isinstance(problem, Refusal):
            return problem
        if problem.fits(arch):
            return problem
        limit = f"{arch.shared_bytes_per_block} bytes of shared memory"
        reason = f"expected the filters of a block and the inputs of one output place in {limit}, got more"
        return Refusal(self.name, f"{problem.operation.label}: {reason}", Status.NOT_SUPPORTED_SHAPE)

    def floor(self, contraction: Contraction) -> Floor:
        """A lower bound: a pack of groups is multiplied as one group; in the filter gradient, blocks without a common
        group are skipped."""
        if isinstance(contraction, ConvolutionForward | ConvolutionBackwardData):
            packed = pack_of(contraction).groups
            units = Multipliers.MMA_SYNC if packed > 1 else Multipliers.FASTEST
            return Floor(units, waste=packed, slowness=SLOWNESS)
        return Floor(Multipliers.MMA_SYNC)

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        chosen = {knob.type: knob.default for knob in self.knobs(graph, arch)}
        return self.accepted(graph, arch).busy_launch(arch, chosen)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, the most output places of a block, and BLOCK_SIZE; backward in the filter also SPLIT_K_SLC, its
        parts.
        """
        return problem.knobs(arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, and one launch for the product."""
        parts = PlanParts(numerical_notes=tiles.numerical_notes(problem.data_type))
        problem.add_to(parts, arch, chosen)
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """3x3 channels-last convolutions of bf16, as in ResNeXt: 4 to 32 channels in a group, both directions."""
        return tuple(
            self.plan(_plain_graph(channels, is_backward), spec_named(WGMMA_TARGET), {}).kernels[0]
            for channels in (4, 8, 16, 32)
            for is_backward in (False, True)
        )

    def _matched(self, graph: OperationGraph) -> _Problem | Refusal:
        matched = match_anchored(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        tensors = zip(operation.roles, (operation.image, operation.filter, operation.response), strict=True)
        operands = {f"{operation.label}.{port}": t.data_type for port, t in tensors if t is not operation.output}
        refused = tiles.refuse_types(operands, ("convolution.compute_type", operation.convolution.compute_type))
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        found = _problem_of(operation, matched.epilogue)
        refused = found if isinstance(found, str) else found.refuse_shape()
        if isinstance(found, str) or refused:
            return Refusal(self.name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
        return found


def _problem_of(operation: ConvolutionOperation, epilogue: PointwiseDag) -> _Problem | str:
    """The problem, or why its groups are too wide or its filters too long."""
    if isinstance(operation, ConvolutionBackwardFilter):
        return taps_problem(operation) or FilterGeometry.of(operation, epilogue)
    return width_problem(operation) or taps_problem(operation) or GroupedGeometry.of(operation, epilogue)


def _plain_graph(channels: int, is_backward: bool) -> OperationGraph:
    """A layer of ResNeXt-50 32x4d: 32 groups; the extents are run-time values."""
    image, filters = (32, 32 * channels, 28, 28), (32 * channels, channels, 3, 3)
    convolution = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, w, y = (
        Tensor(uid, DataType.BFLOAT16, dims, channels_last_strides(dims), alignment_bytes=16)
        for uid, dims in ((1, image), (2, filters), (3, image))
    )
    if is_backward:
        return OperationGraph([ConvolutionBackwardData(convolution, w, y, x)])
    return OperationGraph([ConvolutionForward(convolution, x, w, y)])
