"""``conv_implicit_gemm_mma``: convolution forward on tensor cores with ``mma.sync``, for sm_80 and newer.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32), int8 (summed in
int32). 1 to 3 spatial axes, any strides, dilations, paddings, groups of at least 8 channels and filters, flipped
filters, any pointwise epilogue. Channels-last tensors are read in place; others are repacked into the workspace first.
Kernels: ``conv_implicit_gemm_mma.cu``, ``gemm/channels_last_pack.cu``, ``gemm/split_k_reduce.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A, ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.conv.mma_geometry import MmaGeometry
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.output_space import (
    Slices,
    functor_of,
)
from lowdnn.engines.gemm.plan_parts import PlanParts
from lowdnn.engines.gemm.tiles import Tiling
from lowdnn.engines.launch import bytes_of, i32, i64, macros, moved_bytes
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import match_anchored
from lowdnn.ops.convolution import Convolution, ConvolutionForward
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


class ConvImplicitGemmMma:
    """See the module's docstring."""

    name = "conv_implicit_gemm_mma"
    index = 0
    numerical_notes = tiles.NUMERICAL_NOTES
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses data types without an mma instruction, narrow groups and very large filters."""
        geometry = graph.derive(self._geometry)
        return geometry if isinstance(geometry, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, TILE_N (of the product as the kernel sees it), TILEK, STAGES, SPLIT_K_SLC."""
        return tiles.knobs(accepted(graph.derive(self._geometry)).product, arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """Repacking launches where they are needed, the product, the sum of its parts where k is split."""
        geometry = accepted(graph.derive(self._geometry))
        product = geometry.product
        chosen = resolve_choices(self.name, tiles.knobs(product, arch), choices)
        tiling = tiles.tiling_of(self.name, product, arch, chosen)
        parts = _parts(geometry, tiling)
        notes = tiles.numerical_notes(product.data_type)
        launches = tuple(parts.launches)
        return plan_of(self, graph, arch, chosen, parts.kernels, launches, parts.workspace_bytes, notes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain 3x3 channels-last convolutions of 16-bit types at the tiles of ResNet-like layers."""
        return tuple(
            _plain_kernel(data_type, channels)
            for data_type in (DataType.BFLOAT16, DataType.HALF)
            for channels in (64, 128)
        )

    def _geometry(self, graph: OperationGraph) -> MmaGeometry | Refusal:
        matched = match_anchored(graph, ConvolutionForward)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        x, w = matched.anchor.x, matched.anchor.w
        operands = {"convolution_forward.x": x.data_type, "convolution_forward.w": w.data_type}
        compute_type = matched.anchor.convolution.compute_type
        refused = tiles.refuse_types(operands, ("convolution.compute_type", compute_type))
        if refused:
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        geometry = MmaGeometry.of(matched)
        refused = geometry.refuse_shape()
        if refused:
            return Refusal(self.name, f"convolution_forward.{refused}", Status.NOT_SUPPORTED_SHAPE)
        return geometry


def _parts(geometry: MmaGeometry, tiling: Tiling) -> PlanParts:
    parts = PlanParts()
    if not geometry.operation.y.element_count:
        return parts
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
    return parts


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
        source="conv/conv_implicit_gemm_mma.cu",
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
