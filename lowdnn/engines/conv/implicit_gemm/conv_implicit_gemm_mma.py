"""``conv_implicit_gemm_mma``: the three convolutions on tensor cores with ``mma.sync``.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). 1 to 3 spatial axes, any strides, dilations, paddings, groups of at least 8 channels and filters, flipped
filters, any pointwise epilogue. Channels-last tensors are read in place; others are repacked into the workspace first.
The gradients run as forward convolutions over parts of their tensors, without groups: see ``data_gradient_views`` (one
for each residue class of dx's pixels modulo the stride) and ``filter_gradient_view``. For sm_80 and newer.
Kernels: ``conv_implicit_gemm_mma.cu``, ``gemm/channels_last_pack.cu``, ``gemm/split_k_reduce.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.conv.implicit_gemm.data_gradient_views import class_count, data_gradient_views
from lowdnn.engines.conv.implicit_gemm.filter_gradient_view import filter_gradient_view
from lowdnn.engines.conv.implicit_gemm.forward_views import ForwardView
from lowdnn.engines.conv.implicit_gemm.geometry import MmaGeometry
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.output_space import (
    Slices,
    functor_of,
)
from lowdnn.engines.gemm.plan_parts import PlanParts
from lowdnn.engines.gemm.tiles import Product, Tiling
from lowdnn.engines.launch import bytes_of, i32, i64, macros, moved_bytes
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, match_anchored
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import (
    Argument,
    KernelRef,
    Launch,
    Plan,
    Scalar,
    ScalarType,
    Struct,
    WorkspacePointer,
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
    TAP_MASK: str
    PIXELS_ARE_COLUMNS: int
    OUTPUT_RANK: int
    ROW_AXES: int
    VECTOR: int
    SPLIT_K: int


class ConvImplicitGemmMma(Floored):
    """See the module's docstring."""

    name = "conv_implicit_gemm_mma"
    index = 0
    numerical_notes = tiles.NUMERICAL_NOTES
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses data types without an mma instruction, narrow groups and very large filters."""
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def floor(self, contraction: Contraction) -> Floor:
        """A launch for each class of pixels; the output's channels fill a tile's side."""
        if isinstance(contraction, ConvolutionBackwardData):
            return Floor(Multipliers.MMA_SYNC, class_count(contraction), tiles.padding(contraction.dx.dims[1]))
        if isinstance(contraction, ConvolutionForward):
            return Floor(Multipliers.MMA_SYNC, waste=tiles.padding(contraction.y.dims[1]))
        return Floor(Multipliers.MMA_SYNC)

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N (of the product as the kernel sees it), TILEK, STAGES, SPLIT_K_SLC."""
        return tiles.knobs(accepted(graph.derive(self._problem)).product, arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """Repacking launches where they are needed, the product, the sum of its parts where k is split."""
        problem = accepted(graph.derive(self._problem))
        chosen = resolve_choices(self.name, graph.derive(self.knobs, arch), choices)
        parts = PlanParts()
        for part in problem.parts:
            tiling = tiles.tiling_of(self.name, part.geometry.product, arch, chosen)
            _add_part(parts, part, tiling)
        notes = tiles.numerical_notes(problem.product.data_type)
        launches = tuple(parts.launches)
        return plan_of(self, graph, arch, chosen, parts.kernels, launches, parts.workspace_bytes, notes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain 3x3 channels-last convolutions of 16-bit types at the tiles of ResNet-like layers."""
        return tuple(
            _plain_kernel(data_type, channels)
            for data_type in (DataType.BFLOAT16, DataType.HALF)
            for channels in (64, 128)
        )

    def _problem(self, graph: OperationGraph) -> _Problem | Refusal:
        views = _forward_views(graph)
        if isinstance(views, str):
            return Refusal(self.name, views)
        first = views[0].matched.anchor
        operands = {views[0].image: first.x.data_type, views[0].filter: first.w.data_type}
        refused = tiles.refuse_types(operands, ("convolution.compute_type", first.convolution.compute_type))
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        parts = tuple(_Part(view, MmaGeometry.of(view.matched)) for view in views)
        for part in parts:
            refused = part.geometry.refuse_shape(part.view.image, part.view.filter)
            if refused:
                return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        return _Problem(parts)


@dataclass(frozen=True)
class _Part:
    """One forward convolution over parts of the graph's tensors."""

    view: ForwardView
    geometry: MmaGeometry


@dataclass(frozen=True)
class _Problem:
    """One part, or one for each class of pixels in backward data."""

    parts: tuple[_Part, ...]

    @cached_property
    def product(self) -> Product:
        """The largest one, for which tiles are chosen."""
        products = [part.geometry.product for part in self.parts]
        return max(products, key=lambda product: product.m * product.n * product.k)


def _forward_views(graph: OperationGraph) -> tuple[ForwardView, ...] | str:
    data = match_anchored(graph, ConvolutionBackwardData)
    if isinstance(data, Anchored):
        return data_gradient_views(data)
    weights = match_anchored(graph, ConvolutionBackwardFilter)
    if isinstance(weights, Anchored):
        view = filter_gradient_view(weights)
        return view if isinstance(view, str) else (view,)
    forward = match_anchored(graph, ConvolutionForward)
    return (
        forward
        if isinstance(forward, str)
        else (ForwardView("convolution_forward.x", "convolution_forward.w", forward),)
    )


def _add_part(parts: PlanParts, part: _Part, tiling: Tiling) -> None:
    """Adds the launches of one forward convolution; its pointers move to its parts of the tensors."""
    geometry, before = part.geometry, len(parts.launches)
    if not geometry.operation.y.element_count:
        return
    functor = functor_of(geometry.dag, geometry.data_type, geometry.output)
    vector = geometry.vector(geometry.output.vector(functor))
    x = parts.operand(geometry.operation.x.uid, geometry.x_packing)
    w = parts.operand(geometry.operation.w.uid, geometry.w_packing)
    slices = Slices(tiling.splits, geometry.output.rows, geometry.output.columns)
    slices_at = parts.reserve(slices.size_bytes if tiling.splits > 1 else 0)
    kernel = parts.kernel(_kernel(geometry, tiling, functor, vector))
    parts.launches.append(_launch(kernel, geometry, tiling, functor, (x, w), slices, slices_at))
    if tiling.splits > 1:
        stored = moved_bytes(geometry.dag)
        parts.sum_slices(geometry.output, functor, vector, slices, slices_at, stored)
    parts.launches[before:] = [
        replace(launch, arguments=tuple(part.view.place(item) for item in launch.arguments))
        for launch in parts.launches[before:]
    ]


def _kernel(geometry: MmaGeometry, tiling: Tiling, functor: Functor, vector: int) -> KernelRef:
    tile, shape, splits = tiling.tile, tiling.tile.shape, tiling.splits > 1
    facts = dtypes.info(geometry.data_type)
    params = Params(
        TYPE=facts.c_type,
        TILE_M=shape.m,
        TILE_N=shape.n,
        TILE_K=tile.k,
        WARPS_M=shape.warps_m,
        WARPS_N=shape.warps_n,
        STAGES=tile.stages,
        ALIGNMENT=geometry.unit_bytes,
        SPATIAL=len(geometry.taps),
        TAP_MASK=geometry.mask_type,
        PIXELS_ARE_COLUMNS=int(geometry.pixels_are_columns),
        OUTPUT_RANK=geometry.output.space.rank,
        ROW_AXES=geometry.output.row_axes,
        VECTOR=1 if splits else vector,
        SPLIT_K=int(splits),
    )
    layout = f"{params.SPATIAL}d_{params.TAP_MASK}_a{params.ALIGNMENT}{'_t' if geometry.pixels_are_columns else ''}"
    ending = "partial_sm80" if splits else f"v{vector}_sm80_{functor.digest}"
    return KernelRef(
        name=f"conv_implicit_gemm_mma_{facts.short_name}_{tile.label}_{layout}_r{params.OUTPUT_RANK}_{ending}",
        source="conv/implicit_gemm/conv_implicit_gemm_mma.cu",
        target="sm_80",
        parameters=macros(params),
        generated="" if splits else functor.text,
    )


def _launch(
    kernel: int,
    geometry: MmaGeometry,
    tiling: Tiling,
    functor: Functor,
    operands: tuple[Argument, Argument],
    slices: Slices,
    slices_at: int,
) -> Launch:
    product, splits = geometry.product, tiling.splits > 1
    extents = (
        geometry.group_filters,
        geometry.group_channels,
        geometry.depth,
        product.batches,
        tiling.rows,
        tiling.columns,
        tiling.split_tiles,
    )
    arguments = Struct(
        (
            *operands,
            WorkspacePointer(slices_at) if splits else Scalar(ScalarType.U64, 0),
            *i64((slices.pitch, slices.slice_elements)),
            geometry.pixel_struct,
            *i32(extents),
            geometry.output.map,
            *(() if splits else (functor.arguments,)),
        )
    )
    stored = moved_bytes(geometry.dag)
    read = bytes_of((geometry.operation.x, geometry.operation.w))
    return tiling.launch(kernel, product, arguments, read + (slices.size_bytes if splits else stored))


def _plain_kernel(data_type: DataType, channels: int) -> KernelRef:
    """The kernel of a 3x3 channels-last convolution without epilogue; its extents are run-time values."""
    image, filters = (128, channels, 28, 28), (channels, channels, 3, 3)
    convolution = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, w, y = (
        Tensor(uid, data_type, dims, channels_last_strides(dims), alignment_bytes=16)
        for uid, dims in ((1, image), (2, filters), (3, image))
    )
    graph = OperationGraph([ConvolutionForward(convolution, x, w, y)])
    return ConvImplicitGemmMma().plan(graph, SM_90A, {}).kernels[0]
