"""``conv_winograd_fused_2x2*``: convolutions of 3x3 taps by Winograd's filtering, in one kernel but for the filter.

Tiles of 2 x 2 results; forward and the gradient of the data, which is a forward convolution (``data_gradient_views``).
The workspace holds the factors of the filter alone; those of the image and the products stay on the multiprocessor.
They round as ``conv_winograd_2x2`` and ``conv_winograd_2x2_fp32`` do, and take the same graphs but for gradients of the
filter. A ranking lists them last. For sm_80 and newer.
Kernels: ``winograd_transform.cu`` for the filter, ``winograd_fused.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import generate
from lowdnn.engines.base import Anchors, Choices, Knob, OptIn, Refusal
from lowdnn.engines.conv.implicit_gemm.data_gradient_views import data_gradient_views
from lowdnn.engines.conv.implicit_gemm.forward_views import ForwardView
from lowdnn.engines.conv.winograd.conv_winograd import (
    TENSOR_CORES,
    WINOGRAD_4X4,
    forward_problem,
    refuse_shape,
    refuse_types,
)
from lowdnn.engines.conv.winograd.transformed import Grid, Transform
from lowdnn.engines.floor import Contraction, Floor, Floored, Modelled, Multipliers
from lowdnn.engines.gemm.instructions import MMA_UNITS, TRUE_FP32_TERMS
from lowdnn.engines.gemm.tiles import numerical_notes
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import bytes_touched, ceil_div, divider, i32, i64, macros, moved_bytes
from lowdnn.engines.limits import fused
from lowdnn.engines.model.clock import waves
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, PointwiseDag, match_anchored
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work, WorkspacePointer
from lowdnn.status import Status

_THREADS = 512
_PLANES = 16
_CHUNK_BYTES = 64
_WORD_BYTES = 4
#: Tiles of a block.
_TILE_M = 32
_SHARED_BYTES = 96 * 1024
#: Seconds of a block before its first product and after its last one; an estimate.
_OVERHEAD_S = 3e-6
#: Share of the L2 cache's rate at which a multiprocessor reads factors and patches; an estimate.
_L2_REACH = 0.48


@dataclass(frozen=True)
class Params:
    """Macros of ``winograd_fused.cu``."""

    TYPE: str
    PRODUCT: str
    TILE_N: int
    WHOLE: int


class ConvWinogradFused(ProblemEngine["_Problem"], Floored, Modelled, OptIn):
    """See the module's docstring.

    types: types of the operands that it takes.  terms: TF32 products of a product of FLOAT.
    widths: filters of a block.
    """

    anchors: Anchors = (ConvolutionForward, ConvolutionBackwardData)
    limits = fused(ConvolutionOperation)
    types: ClassVar[tuple[DataType, ...]] = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
    terms: ClassVar[int] = 1
    widths: ClassVar[tuple[int, ...]] = (32, 64)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses gradients of filters, other taps than 3x3, strides, dilation, groups, other types."""
        matched = match_anchored(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        if isinstance(operation, ConvolutionBackwardFilter):
            return Refusal(self.name, f"{operation.label}: expected an output or a gradient of the data, got one of w")
        if refused := refuse_types(operation, self.types):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := refuse_shape(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        view = _forward_view(operation, matched.epilogue)
        if isinstance(view, str):
            return Refusal(self.name, view)
        problem = _Problem(view, *forward_problem(view, 2).transforms, self.terms)
        factors = (problem.image.stored, problem.padded_taps(self.widths[-1]).stored)
        if (most := max(stored.grid.items for stored in factors)) > MAX_INDEX:
            refused = f"{operation.label}: expected at most {MAX_INDEX} tiles of all channels, got {most}"
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        return problem

    def floor(self, contraction: Contraction) -> Floor:
        """Two launches; 16 products for the 36 of a direct sum."""
        return Floor(Multipliers.MMA_SYNC, launches=2, waste=self.terms * 16 / 36)

    def busy_launch(self, graph: OperationGraph, arch: ArchSpec) -> Launch:
        """The launch without that of the filter."""
        problem = self.accepted(graph, arch)
        work = Work(busy_s=min(problem.busy_s(tile_n, arch) for tile_n in self.widths))
        return Launch(0, (1, 1, 1), (1, 1, 1), (), work=work, overlaps_previous=True)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_N, the filters of a block."""
        best = min(self.widths, key=lambda tile_n: problem.busy_s(tile_n, arch))
        return (Knob("tile_n", KnobType.TILE_N, self.widths, best, "filters of a block"),)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The launch that transforms the filter, and the one of all else."""
        tile_n = chosen[KnobType.TILE_N]
        notes = (*numerical_notes(problem.image.source.data_type, self.terms), *WINOGRAD_4X4)
        parts = PlanParts(numerical_notes=notes)
        taps = problem.padded_taps(tile_n)
        at = parts.reserve(taps.stored.size_bytes)
        parts.add(taps.kernel, taps.launch(at))
        parts.add(*problem.step(taps, at, tile_n, arch))
        view = problem.view
        parts.launches = [replace(own, arguments=tuple(map(view.place, own.arguments))) for own in parts.launches]
        return parts


class ConvWinogradFused2x2(ConvWinogradFused):
    """fp16, bf16 and TF32: factors are rounded."""

    name = "conv_winograd_fused_2x2"
    index = 70
    numerical_notes = (*TENSOR_CORES, *WINOGRAD_4X4)


class ConvWinogradFused2x2Fp32(ConvWinogradFused):
    """True fp32, by three products of TF32; on an H200 slower than Winograd with 4x4 tiles."""

    name = "conv_winograd_fused_2x2_fp32"
    index = 71
    types = (DataType.FLOAT,)
    terms = TRUE_FP32_TERMS
    widths = (32,)
    numerical_notes = (NumericalNote.TF32X3, *WINOGRAD_4X4)


def _forward_view(operation: ConvolutionOperation, dag: PointwiseDag) -> ForwardView | str:
    if isinstance(operation, ConvolutionForward):
        return ForwardView(f"{operation.label}.x", f"{operation.label}.w", Anchored(operation, dag))
    assert isinstance(operation, ConvolutionBackwardData), operation
    views = data_gradient_views(Anchored(operation, dag))
    return views if isinstance(views, str) else views[0]


@dataclass(frozen=True)
class _Problem:
    """A forward convolution over parts of the graph's tensors.

    image, taps: the factors of x and w; those of x are never stored.  terms: TF32 products of a product of FLOAT.
    """

    view: ForwardView
    image: Transform
    taps: Transform
    terms: int

    @property
    def dag(self) -> PointwiseDag:
        return self.view.matched.epilogue

    @property
    def chunks(self) -> int:
        """Chunks of channels."""
        return ceil_div(self.image.source.dims[1] * self.image.source.element_bytes, _CHUNK_BYTES)

    def padded_taps(self, tile_n: int) -> Transform:
        """The factors of w with zeros up to whole blocks of filters and whole chunks of channels, chunk by chunk."""
        stored = self.taps.stored
        filters = ceil_div(stored.grid.images, tile_n) * tile_n
        chunk = _CHUNK_BYTES // self.image.source.element_bytes
        grid = Grid(filters, 1, 1, self.chunks * chunk, channels_first=False)
        return replace(self.taps, stored=replace(stored, grid=grid, chunk=chunk))

    def blocks(self, tile_n: int) -> tuple[int, int]:
        """Blocks along tiles and filters."""
        return ceil_div(self.image.stored.grid.tiles, _TILE_M), ceil_div(self.taps.stored.grid.images, tile_n)

    def flops(self, tile_n: int) -> int:
        """Operations of all products of a block."""
        channels = self.chunks * _CHUNK_BYTES // self.image.source.element_bytes
        return 2 * self.terms * _PLANES * _TILE_M * tile_n * channels

    def busy_s(self, tile_n: int, arch: ArchSpec) -> float:
        """Seconds of the fused launch: a block has a multiprocessor for itself, whose rates its products and its reads
        take; a tile reads its 16 pixels, of which the L1 cache holds about half."""
        rows, columns = self.blocks(tile_n)
        unit = MMA_UNITS[self.image.source.data_type]
        products_s = self.flops(tile_n) * arch.sm_count / arch.attained_rate(unit)
        read = self.chunks * _CHUNK_BYTES * (_PLANES * tile_n + 8 * _TILE_M)
        block_s = _OVERHEAD_S + products_s + read / (_L2_REACH * arch.timings.l2_bytes_per_s)
        return waves(rows * columns, arch.sm_count, lambda _: block_s)

    def step(self, taps: Transform, at: int, tile_n: int, arch: ArchSpec) -> tuple[KernelRef, Launch]:
        """The fused kernel and its launch.  at: where the factors of w lie in the workspace."""
        x, dag, grid = self.image.source, self.dag, self.image.stored.grid
        functor = generate(dag, accumulator=DataType.FLOAT, vector_axis=1)
        facts = dtypes.info(x.data_type)
        product = facts.c_type if self.terms == 1 else "tf32x3"
        params = Params(facts.c_type, product, tile_n, int(_has_whole_words(x)))
        label = facts.short_name if self.terms == 1 else "tf32x3"
        kernel = KernelRef(
            name=f"winograd_fused_{label}_n{tile_n}_w{params.WHOLE}_sm80_{functor.digest}",
            source="conv/winograd/winograd_fused.cu",
            target=BASE_TARGET,
            parameters=macros(params),
            generated=functor.text,
        )
        rows, columns = self.blocks(tile_n)
        arguments = Struct(
            (
                TensorPointer(x.uid),
                WorkspacePointer(at),
                *i64((*x.strides, taps.stored.strides[0], taps.stored.chunk_stride)),
                *i32((*x.dims[1:], *self.image.origin, *dag.dims[1:])),
                *(Struct(divider(extent)) for extent in (grid.images, grid.rows, grid.columns)),
                *i32((grid.tiles, self.chunks)),
                Struct(divider(columns)),
                functor.arguments,
            )
        )
        work = Work(
            flops=rows * columns * self.flops(tile_n),
            bytes=bytes_touched(x) + taps.stored.size_bytes + moved_bytes(dag),
            unit=MMA_UNITS[x.data_type],
            busy_s=self.busy_s(tile_n, arch),
        )
        return kernel, Launch(0, (rows * columns, 1, 1), (_THREADS, 1, 1), (arguments,), _SHARED_BYTES, work=work)


def _has_whole_words(x: Tensor) -> bool:
    """Whether words of channels of x are whole neighbouring channels, at addresses of whole words."""
    word = _WORD_BYTES // x.element_bytes
    others = (x.dims[1], x.strides[0], *x.strides[2:])
    is_word = x.strides[1] == 1 and x.alignment_bytes % _WORD_BYTES == 0 and not any(n % word for n in others)
    return word == 1 or is_word
