"""``conv_implicit_gemm_mma``: the three convolutions on tensor cores with ``mma.sync``.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). 1 to 3 spatial axes, any strides, dilations, paddings, groups of at least 8 channels and filters, flipped
filters, any pointwise epilogue. Channels-last tensors are read in place; others are repacked into the workspace first.
Except in a gradient of the filter, a value of the epilogue may be reduced for each channel, for each pixel (not in a
gradient of the data with strides), and as a whole.
The gradients run as forward convolutions over parts of their tensors, without groups: see ``data_gradient_views`` (one
for each residue class of dx's pixels modulo the stride) and ``filter_gradient_view``. For sm_80 and newer.
Kernels: ``conv_implicit_gemm_mma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``,
``reduction/reduction_combine.cu``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.conv.implicit_gemm.data_gradient_views import class_count, data_gradient_views
from lowdnn.engines.conv.implicit_gemm.filter_gradient_view import filter_gradient_view
from lowdnn.engines.conv.implicit_gemm.forward_views import ForwardView
from lowdnn.engines.conv.implicit_gemm.geometry import MmaGeometry
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.epilogue_reductions import EpilogueReductions, ReductionSlices
from lowdnn.engines.gemm.instructions import TRUE_FP32_TERMS
from lowdnn.engines.gemm.mma_cut import MmaCut
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.gemm.tiles import Product, Tiling
from lowdnn.engines.launch import dependent_target, i32, i64, is_dependent
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import (
    Anchored,
    AnchoredWithReductions,
    PointwiseDag,
    match_anchored,
    match_anchored_with_reductions,
)
from lowdnn.graph.reduction_pattern import AnyReduction
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Struct,
)
from lowdnn.status import Status


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_implicit_gemm_mma.cu``."""

    TYPE: str
    TILE_M: int
    TILE_N: int
    TILE_K: int
    WARPS_M: int
    WARPS_N: int
    STAGES: int
    ALIGNMENT: int
    SPATIAL: int
    TAPS_INSIDE: str
    PIXELS_ARE_COLUMNS: int
    OUTPUT_RANK: int
    ROW_AXES: int
    VECTOR: int
    SPLIT_K: int


class ConvImplicitGemmMma(ProblemEngine["_Problem"], Floored, Modelled):
    """See the module's docstring."""

    name = "conv_implicit_gemm_mma"
    index = 0
    terms: ClassVar[int] = 1
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionOperation,)
    limits = reduced(ConvolutionOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses data types without an mma instruction, narrow groups and slow reductions."""
        problem = self._matched(graph)
        if isinstance(problem, Refusal):
            return problem
        slow = tiles.reduction_problem(problem.largest.geometry.product, arch) if problem.reductions.exist else ""
        return Refusal(self.name, slow) if slow else problem

    def floor(self, contraction: Contraction) -> Floor:
        """A launch for each class of pixels; the output's channels fill a tile's side."""
        if isinstance(contraction, ConvolutionBackwardData):
            waste = self.terms * tiles.padding(contraction.dx.dims[1])
            return Floor(Multipliers.MMA_SYNC, class_count(contraction), waste)
        if isinstance(contraction, ConvolutionForward):
            return Floor(Multipliers.MMA_SYNC, waste=self.terms * tiles.padding(contraction.y.dims[1]))
        return Floor(Multipliers.MMA_SYNC, waste=self.terms)

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        """The launch of the class with the most pixels."""
        return tiles.busy_launch(self.accepted(graph, arch).product, arch)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N (of the product as the kernel sees it), TILEK, STAGES, SPLIT_K_SLC."""
        return tiles.knobs(problem.product, arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, the product, and the sum of its slices if k is split."""
        parts = PlanParts(numerical_notes=tiles.numerical_notes(problem.product.data_type, self.terms))
        tilings = [tiles.tiling_of(self.name, problem.product_of(part), arch, chosen) for part in problem.parts]
        left = [_reduction_slices(part.geometry, tiling) for part, tiling in zip(problem.parts, tilings, strict=True)]
        together = ReductionSlices.together(left)
        totals = problem.reductions.reserve(parts, together)
        before = ReductionSlices(0, 0, 0)
        for part, tiling, own in zip(problem.parts, tilings, left, strict=True):
            _add_part(parts, part, tiling, problem.reductions, problem.reductions.arguments(totals, before), own, arch)
            before = ReductionSlices.together((before, own))
        problem.reductions.combine(parts, together, totals, overlaps=is_dependent(arch))
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain 3x3 channels-last convolutions of 16-bit types at the tiles of ResNet-like layers."""
        return tuple(
            _plain_kernel(self, data_type, channels)
            for data_type in (DataType.BFLOAT16, DataType.HALF)
            for channels in (64, 128)
        )

    def _matched(self, graph: OperationGraph) -> _Problem | Refusal:
        found = _forward_views(graph)
        if isinstance(found, str):
            return Refusal(self.name, found)
        views, reducing, dag = found
        first = views[0].matched.anchor
        operands = {views[0].image: first.x.data_type, views[0].filter: first.w.data_type}
        compute = ("convolution.compute_type", first.convolution.compute_type)
        refused = tiles.refuse_types(operands, compute, self.terms)
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        parts = tuple(_Part(view, MmaGeometry.of(view.matched, self.terms)) for view in views)
        for part in parts:
            refused = part.geometry.refuse_shape(part.view.image, part.view.filter)
            if refused:
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        reductions = EpilogueReductions.of(reducing, dag, parts[0].geometry.output)
        return Refusal(self.name, reductions) if isinstance(reductions, str) else _Problem(parts, reductions)


class ConvImplicitGemmMmaTf32x3(ConvImplicitGemmMma):
    """``conv_implicit_gemm_mma_tf32x3``: convolutions of FLOAT as accurate as those of fp32, by three TF32 products.

    See ``include/tile/mma_tf32x3.cuh``; everything else is as in ``conv_implicit_gemm_mma``.
    """

    name = "conv_implicit_gemm_mma_tf32x3"
    index = 61
    numerical_notes = tiles.TRUE_FP32_NOTES
    terms: ClassVar[int] = TRUE_FP32_TERMS

    def precompiled(self) -> tuple[KernelRef, ...]:
        """A plain 3x3 channels-last convolution."""
        return (_plain_kernel(self, DataType.FLOAT, 128),)


@dataclass(frozen=True)
class _Part:
    """One forward convolution over parts of the graph's tensors."""

    view: ForwardView
    geometry: MmaGeometry


@dataclass(frozen=True)
class _Problem:
    """One part, or one for each class of pixels in backward data.  reductions: the reductions of all parts together."""

    parts: tuple[_Part, ...]
    reductions: EpilogueReductions

    @cached_property
    def largest(self) -> _Part:
        """The part with the most multiply-adds, for which the tiles of all parts are chosen."""
        return max(self.parts, key=lambda part: part.geometry.product.m * part.geometry.product.n * part.geometry.depth)

    @property
    def product(self) -> Product:
        return self.product_of(self.largest)

    def product_of(self, part: _Part) -> Product:
        """The part's product; with reductions k is whole and the tiles are large."""
        product, reductions = part.geometry.product, self.reductions.exist
        return replace(product, allows_split=product.allows_split and not reductions, allows_small_shape=not reductions)


#: Forward convolutions, the reductions in their epilogue, and the epilogue as a whole.
_Found = tuple[tuple[ForwardView, ...], Sequence[AnyReduction], PointwiseDag]


def _forward_views(graph: OperationGraph) -> _Found | str:
    data = match_anchored_with_reductions(graph, ConvolutionBackwardData)
    if isinstance(data, AnchoredWithReductions):
        views = data_gradient_views(Anchored(data.anchor, data.epilogue))
        return views if isinstance(views, str) else (views, data.reductions, data.epilogue)
    weights = match_anchored(graph, ConvolutionBackwardFilter)
    if isinstance(weights, Anchored):
        view = filter_gradient_view(weights)
        return view if isinstance(view, str) else ((view,), (), weights.epilogue)
    forward = match_anchored_with_reductions(graph, ConvolutionForward)
    if isinstance(forward, str):
        return forward
    whole = Anchored(forward.anchor, forward.epilogue)
    return (
        (ForwardView("convolution_forward.x", "convolution_forward.w", whole),),
        forward.reductions,
        forward.epilogue,
    )


def _reduction_slices(geometry: MmaGeometry, tiling: Tiling) -> ReductionSlices:
    """The slices of the totals: each group has its own columns, or rows if the columns are pixels."""
    rows, columns, groups = tiling.rows, tiling.columns, geometry.product.batches
    if geometry.pixels_are_columns:
        rows *= groups
    else:
        columns *= groups
    return ReductionSlices(columns=rows, rows=columns, whole=tiling.block_count(geometry.product))


def _add_part(
    parts: PlanParts,
    part: _Part,
    tiling: Tiling,
    reductions: EpilogueReductions,
    totals: tuple[Argument, ...],
    left: ReductionSlices,
    arch: ArchSpec,
) -> None:
    """Adds the launches of one forward convolution, with pointers to its parts of the tensors.

    totals: the kernel's arguments for the reductions.  left: the totals that it leaves.
    """
    geometry, before, overlaps = part.geometry, len(parts.launches), is_dependent(arch)
    if not geometry.operation.y.element_count:
        return
    cut = MmaCut(geometry.product, geometry.dag, geometry.output, reductions, tiling)
    vector = geometry.vector(geometry.output.vector(cut.functor))
    x = packed_operand(parts, geometry.operation.x.uid, geometry.x_packing, overlaps=overlaps)
    w = packed_operand(parts, geometry.operation.w.uid, geometry.w_packing, overlaps=overlaps)
    slices_at = cut.reserve(parts)
    arguments = _arguments(geometry, cut, (x, w), slices_at, totals)
    kernel = _kernel(geometry, cut, vector, dependent_target(arch))
    operands = (geometry.operation.x, geometry.operation.w)
    cut.add_to(parts, kernel, arguments, operands, left, slices_at, vector, arch)
    parts.launches[before:] = [
        replace(launch, arguments=tuple(part.view.place(item) for item in launch.arguments))
        for launch in parts.launches[before:]
    ]


def _kernel(geometry: MmaGeometry, cut: MmaCut, vector: int, target: str) -> KernelRef:
    tile, shape = cut.tiling.tile, cut.tiling.tile.shape
    params = Params(
        TYPE=geometry.product.c_type,
        TILE_M=shape.m,
        TILE_N=shape.n,
        TILE_K=tile.k,
        WARPS_M=shape.warps_m,
        WARPS_N=shape.warps_n,
        STAGES=tile.stages,
        ALIGNMENT=geometry.unit_bytes,
        SPATIAL=len(geometry.taps),
        TAPS_INSIDE=geometry.taps_inside,
        PIXELS_ARE_COLUMNS=int(geometry.pixels_are_columns),
        OUTPUT_RANK=cut.output.space.rank,
        ROW_AXES=cut.output.row_axes,
        VECTOR=1 if cut.is_split else vector,
        SPLIT_K=int(cut.is_split),
    )
    form = "masks" if params.TAPS_INSIDE == "TapMasks" else "bounds"
    layout = f"{params.SPATIAL}d_{form}_a{params.ALIGNMENT}{'_t' if geometry.pixels_are_columns else ''}"
    return cut.kernel("conv/implicit_gemm/conv_implicit_gemm_mma.cu", layout, params, vector, target)


def _arguments(
    geometry: MmaGeometry,
    cut: MmaCut,
    operands: tuple[Argument, Argument],
    slices_at: int,
    totals: tuple[Argument, ...],
) -> Struct:
    tiling = cut.tiling
    extents = (
        geometry.group_filters,
        geometry.group_channels,
        geometry.depth,
        geometry.product.batches,
        tiling.rows,
        tiling.columns,
        tiling.split_tiles,
    )
    return Struct(
        (
            *totals,
            *operands,
            cut.slices_pointer(slices_at),
            *i64((cut.slices.pitch, cut.slices.slice_elements)),
            geometry.pixel_struct,
            *i32(extents),
            *cut.epilogue_arguments,
        )
    )


def _plain_kernel(engine: ConvImplicitGemmMma, data_type: DataType, channels: int) -> KernelRef:
    """The kernel of a 3x3 channels-last convolution without epilogue; its extents are run-time values."""
    image, filters = (128, channels, 28, 28), (channels, channels, 3, 3)
    convolution = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, w, y = (
        Tensor(uid, data_type, dims, channels_last_strides(dims), alignment_bytes=16)
        for uid, dims in ((1, image), (2, filters), (3, image))
    )
    graph = OperationGraph([ConvolutionForward(convolution, x, w, y)])
    return engine.plan(graph, spec_named(BASE_TARGET), {}).kernels[0]
