"""``conv_wgrad_wgmma``: convolution backward filter with im2col TMA and wgmma, for sm_90a.

fp16 and bf16 (summed in fp32), fp32 by TF32 (inputs rounded to 10 fraction bits, summed in fp32). 1 to 3 spatial axes,
both modes, groups of at least 32 channels and filters, any pointwise epilogue; strides, paddings and dilations as far
as im2col tensor maps reach. If taps read much padding, each walks only over its valid pixels. Pixels are cut into parts
that fill the device; their sums are added in a fixed order, so that equal inputs give equal bits. Channels-last tensors
are read in place; others are repacked into the workspace first. x of 16 bits may be a pointwise function of a tensor in
memory (batch norm applied to the input), which is converted in shared memory.
Kernels: ``conv_wgrad_wgmma.cu``, ``gemm/split_k_reduce.cu``, those of ``gemm/packing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.conv.wgmma import wgrad_model
from lowdnn.engines.conv.wgmma.spatial_axes import with_fewest_axes, with_taps_last
from lowdnn.engines.conv.wgmma.valid_pixels import valid_share
from lowdnn.engines.conv.wgmma.wgrad_product import LEAST_PADDING, PixelOperand, WgradProduct
from lowdnn.engines.conv.wgmma.wgrad_tiles import WgradTiling
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.converted_operand import fusion_problem, pixel_operand
from lowdnn.engines.gemm.instructions import TRUE_FP32_TERMS, wgmma_type
from lowdnn.engines.gemm.output_space import Slices, add_slice_sum, functor_of
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, TileStore
from lowdnn.engines.launch import i32, i64, macros, moved_bytes
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, match_anchored
from lowdnn.graph.prologue_pattern import Prologued, match_prologued
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import Argument, KernelRef, Launch, Pointer, Struct, TensorMap, Work, WorkspacePointer
from lowdnn.status import Status

_TYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_wgrad_wgmma.cu``, in addition to those of its tile and data types."""

    SPATIAL: int
    DY_AXES: int
    X_AXES: int
    TAP_RUN: int
    TAP_DISTANCE: int
    WINDOW_PIXELS: int
    OUTPUT_RANK: int
    ROW_AXES: int
    VECTOR: int
    STORE: int
    CONVERTED: int
    HAS_TAIL: int
    VALID_TAPS: int
    WALKS: int
    TF32X3: int


class ConvWgradWgmma(ProblemEngine["_Problem"], Floored, Modelled):
    """See the module's docstring."""

    name = "conv_wgrad_wgmma"
    index = 10
    terms: ClassVar[int] = 1
    numerical_notes: tuple[NumericalNote, ...] = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionBackwardFilter,)
    limits = reduced(*anchors)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other architectures, other types, geometry beyond tensor maps, and slow prologues."""
        product = self._turned_product(graph)
        if isinstance(product, Refusal):
            return product
        slow = _slowness(product, arch)
        return Refusal(self.name, slow) if slow else _Problem(product, arch)

    def floor(self, contraction: Contraction) -> Floor:
        """The least waste; much of the padding may be skipped."""
        share = valid_share(contraction) if isinstance(contraction, ConvolutionBackwardFilter) else 1.0
        return Floor(Multipliers.fastest(self.terms), waste=self.terms * (share if share <= 1 - LEAST_PADDING else 1.0))

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        work = Work(busy_s=wgrad_model.busy_seconds(self.accepted(graph, arch).best, arch))
        return Launch(0, (1, 1, 1), (1, 1, 1), (), work=work, overlaps_previous=True)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """Tile, ring, warps, cluster, windows, padding and parts of the pixels."""
        return wgrad_model.knobs(problem.product, problem.best)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Repacking launches if necessary, the product, and the sum of its slices if pixels are split."""
        parts = _parts(wgrad_model.tiling_of(self.name, problem.product, arch, chosen), arch)
        parts.numerical_notes = tiles.numerical_notes(problem.product.instruction.a, self.terms)
        return parts

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Plain 3x3 channels-last convolutions of 16-bit types at the tiles of ResNet-like layers."""
        types = (DataType.BFLOAT16, DataType.HALF)
        return tuple(_plain_kernel(data_type, channels) for data_type in types for channels in (64, 128))

    def _turned_product(self, graph: OperationGraph) -> WgradProduct | Refusal:
        over = with_fewest_axes(graph)
        product = self._product(over)
        if isinstance(product, Refusal):
            return product
        turned = with_taps_last(over)
        other = self._product(turned) if turned else None
        return replace(product, turned=other) if isinstance(other, WgradProduct) else product

    def _product(self, graph: OperationGraph) -> WgradProduct | Refusal:
        matched = _matched(graph)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation, dag, prologue = matched
        instruction = wgmma_type(operation.dy.data_type, operation.x.data_type, self.terms)
        if instruction is None or operation.dy.data_type not in _TYPES:
            got = f"{operation.x.data_type.name} and {operation.dy.data_type.name}"
            types = "HALF, BFLOAT16 or FLOAT" if self.terms == 1 else "FLOAT"
            reason = f"{operation.label}: expected x and dy both of {types}, got {got}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        if operation.convolution.compute_type is DataType.DOUBLE:
            reason = "convolution.compute_type: expected FLOAT or HALF, got DOUBLE"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        converted = pixel_operand(prologue, f"{operation.label}.x", operation.groups, 1) if prologue else None
        if isinstance(converted, str):
            return Refusal(self.name, converted, Status.NOT_SUPPORTED_LAYOUT)
        if converted is not None and not (converted.allows_in_place and instruction.has_mn_major):
            reason = f"{operation.label}.x: expected a prologue on 16-bit values to such, the same for all images"
            return Refusal(self.name, f"{reason}, got another one", Status.NOT_SUPPORTED_LAYOUT)
        product = WgradProduct.of(operation, dag, instruction, converted)
        if refused := product.refuse_shape():
            return Refusal(self.name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
        return product


class ConvWgradWgmmaTf32x3(ConvWgradWgmma):
    """``conv_wgrad_wgmma_tf32x3``: gradients of filters of FLOAT as accurate as those of fp32, by three TF32 products.

    Both operands are transposed and split on the multiprocessor (``include/tile/tf32x3_operands.cuh``); everything else
    is as in ``conv_wgrad_wgmma``, but taps share no windows of pixels.
    """

    name = "conv_wgrad_wgmma_tf32x3"
    index = 69
    terms: ClassVar[int] = TRUE_FP32_TERMS
    numerical_notes = tiles.TRUE_FP32_NOTES

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()


@dataclass(frozen=True)
class _Problem:
    """A product, and the time model's tiling of it for an architecture."""

    product: WgradProduct
    arch: ArchSpec

    @cached_property
    def best(self) -> WgradTiling:
        return wgrad_model.best(self.product, self.arch)


def _matched(
    graph: OperationGraph,
) -> tuple[ConvolutionBackwardFilter, PointwiseDag, PointwiseDag | None] | str:
    """The gradient, its epilogue and the prologue of x, or why the graph has another form."""
    prologued = match_prologued(graph, ConvolutionBackwardFilter)
    if isinstance(prologued, Prologued) and prologued.port == "x":
        return prologued.matched.anchor, prologued.matched.epilogue, prologued.prologue
    matched = match_anchored(graph, ConvolutionBackwardFilter)
    return matched if isinstance(matched, str) else (matched.anchor, matched.epilogue, None)


def _slowness(product: WgradProduct, arch: ArchSpec) -> str:
    """Why x is better converted in a launch of its own, or an empty string."""
    if product.converted is None:
        return ""
    fused_s, apart_s = (wgrad_model.least_seconds(cut, arch) for cut in (product, replace(product, converted=None)))
    return fusion_problem(product.converted, fused_s, apart_s, arch)


def _parts(tiling: WgradTiling, arch: ArchSpec) -> PlanParts:
    parts, product = PlanParts(), tiling.product
    functor = functor_of(product.dag, product.operation.x.data_type, product.output)
    vector = product.vector(product.output.vector(functor))
    dy = packed_operand(parts, product.operation.dy.uid, product.dy.packing, overlaps=True)
    x = packed_operand(parts, product.x.tensor.uid, product.x.packing, overlaps=True)
    splits = tiling.schedule.splits
    slices = Slices(splits, product.output.rows, product.output.columns, part_splits=tiling.tap_splits)
    slices_at = parts.reserve(slices.size_bytes if splits > 1 else 0)
    output = _slice_output(slices, slices_at) if splits > 1 else (product.output.map, functor.arguments)
    kernel = parts.kernel(_kernel(tiling, functor, vector))
    written_bytes = slices.size_bytes if splits > 1 else moved_bytes(product.dag)
    parts.launches.append(_launch(kernel, tiling, arch, (dy, x), output, written_bytes))
    if splits > 1:
        stored = moved_bytes(product.dag)
        add_slice_sum(parts, product.output, functor, vector, slices, slices_at, stored, overlaps=True)
    return parts


def _slice_output(slices: Slices, slices_at: int) -> tuple[Argument, ...]:
    return (WorkspacePointer(slices_at), *i64((slices.pitch, slices.slice_elements)))


def _store(tiling: WgradTiling) -> TileStore:
    return TileStore.SLICE if tiling.schedule.splits > 1 else TileStore.FUNCTOR


def _kernel(tiling: WgradTiling, functor: Functor, vector: int) -> KernelRef:
    product, tile, is_slice = tiling.product, tiling.tile, _store(tiling) is TileStore.SLICE
    window, converted = product.window(tile.cluster_m), product.converted
    has_tail = product.channels % MN_MAJOR_BOX != 0
    params = Params(
        SPATIAL=len(product.taps),
        DY_AXES=product.dy.axes,
        X_AXES=product.x.axes,
        TAP_RUN=product.tap_run,
        TAP_DISTANCE=product.tap_distance if product.tap_run > 1 else 0,
        WINDOW_PIXELS=window,
        OUTPUT_RANK=1 if is_slice else product.output.space.rank,
        ROW_AXES=0 if is_slice else product.output.row_axes,
        VECTOR=1 if is_slice else vector,
        STORE=int(_store(tiling)),
        CONVERTED=int(converted is not None),
        HAS_TAIL=int(converted is not None and has_tail),
        VALID_TAPS=len(tiling.tap_splits),
        WALKS=len(product.dy.walks) if product.is_valid_only else 1,
        TF32X3=int(product.instruction.is_split),
    )
    walks = f"{params.SPATIAL}d{params.DY_AXES}{params.X_AXES}"
    taps = f"_r{params.TAP_RUN}x{params.TAP_DISTANCE}p{window}" if params.TAP_RUN > 1 else ""
    taps += f"_v{params.VALID_TAPS}w{params.WALKS}" if product.is_valid_only else ""
    prologue = f"_{converted.label(has_tail=has_tail)}_{converted.functor.digest}" if converted else ""
    texts = (*((converted.functor.text,) if converted else ()), *(() if is_slice else (functor.text,)))
    functor_label = f"{params.ROW_AXES}of{params.OUTPUT_RANK}_v{vector}_sm90a_{functor.digest}"
    ending = "slice_sm90a" if is_slice else functor_label
    return KernelRef(
        name=f"conv_wgrad_wgmma_{product.instruction.label}_{tile.label}_{walks}{taps}{prologue}_{ending}",
        source="conv/wgmma/conv_wgrad_wgmma.cu",
        target=WGMMA_TARGET,
        parameters=(
            *product.instruction.macros,
            *tile.macros,
            *macros(params),
        ),
        generated="\n".join(texts),
    )


def _launch(
    kernel: int,
    tiling: WgradTiling,
    arch: ArchSpec,
    operands: tuple[Pointer, Pointer],
    output: tuple[Argument, ...],
    written_bytes: int,
) -> Launch:
    product, tile, schedule, kind = tiling.product, tiling.tile, tiling.schedule, tiling.product.instruction
    dy, x = operands
    busy_s = wgrad_model.busy_seconds(tiling, arch)
    dy_maps = product.dy.maps(kind.map_type, tile.k // tile.cluster_n)
    x_maps = product.x.maps(product.x_map_type, product.window(tile.cluster_m) // tile.cluster_m)
    arguments = Struct(
        (
            *((Struct(product.valid_argument),) if product.is_valid_only else ()),
            *(_walks(operand) for operand in (product.dy, product.x) if operand.walks),
            *((Struct(product.converted_arguments),) if product.converted else ()),
            *(TensorMap(dy, layout) for layout in dy_maps),
            *(TensorMap(x, layout) for layout in x_maps),
            Struct((*i32((product.filters,)), *product.columns_argument(tiling.tap_chunks), *output)),
            tiling.schedule_argument(arch),
            *i32((product.dy.group_channels,)),
        )
    )
    return Launch(
        kernel,
        grid=(schedule.grid(arch.sm_count), 1, 1),
        block=(tile.threads, 1, 1),
        arguments=(arguments,),
        shared_bytes=tiling.shared_bytes(_store(tiling)),
        cluster=(tile.cluster, 1, 1),
        work=Work(kind.terms * schedule.flops, product.read_bytes + written_bytes, kind.unit, busy_s),
        overlaps_previous=True,
    )


def _walks(operand: PixelOperand) -> Struct:
    return Struct(tuple(walk.struct for walk in operand.walks))


def _plain_kernel(data_type: DataType, channels: int) -> KernelRef:
    """The kernel of a 3x3 channels-last convolution without epilogue; its extents are run-time values."""
    image, filters = (128, channels, 28, 28), (channels, channels, 3, 3)
    convolution = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    x, dy, dw = (
        Tensor(uid, data_type, dims, channels_last_strides(dims), alignment_bytes=16)
        for uid, dims in ((1, image), (2, image), (3, filters))
    )
    graph = OperationGraph([ConvolutionBackwardFilter(convolution, x, dy, dw)])
    return ConvWgradWgmma().plan(graph, spec_named(WGMMA_TARGET), {}).kernels[0]
