"""``conv_winograd_*``: convolutions of 3x3 taps by Winograd's minimal filtering, in three steps.

Tiles of M x M results, M = 2 or 4, have A = M + 2 elements along an axis:

    factors    of image and filter, tile by tile: A^2 matrices of tiles by channels (winograd_transform.cu)
    products   A^2 matrix products, by another engine: tiles by channels times channels by filters
    results    tile by tile, with the epilogue (winograd_output.cu)

That takes A^2 multiplications for the 9 M^2 of a direct sum: 2.25 or 4 times fewer. A gradient of the data is a forward
convolution (``data_gradient_views``); a gradient of the filter sums products of factors of x and dy over the tiles.
fp16, bf16 and TF32 round the factors, whose errors lie beyond the tolerance of convolutions; a ranking lists these
engines last. True fp32 runs as three TF32 products or without tensor cores; its error is at most four times that of a
direct sum in fp32, and seven times with fewer than four channels (or tiles, in a gradient of the filter). An infinity
may become a NaN in all results of its tile.
Any strides and paddings, any pointwise epilogue; one group, stride and dilation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Engine, Knob, OptIn, Refusal
from lowdnn.engines.conv.implicit_gemm.data_gradient_views import data_gradient_views
from lowdnn.engines.conv.implicit_gemm.forward_views import ForwardView
from lowdnn.engines.conv.winograd.transformed import Grid, Matrix, Output, Stored, Transform
from lowdnn.engines.delegation import fastest_plan, refusals
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import simt_tile
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.limits import fused
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmmaTf32x3
from lowdnn.engines.model.plan_time import launch_us
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import ConvolutionMode, DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, match_anchored
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Launch
from lowdnn.status import Status

_TAPS = 3
WINOGRAD_4X4 = (NumericalNote.WINOGRAD, NumericalNote.WINOGRAD_TILE_4x4)
_WINOGRAD_6X6 = (NumericalNote.WINOGRAD, NumericalNote.WINOGRAD_TILE_6x6)
TENSOR_CORES = (NumericalNote.TENSOR_CORE, NumericalNote.TF32_INPUTS)
#: The uid of the products' first operand.
_FIRST = 1
#: The uid of the products' second operand.
_SECOND = 2
#: The uid of the products' results.
_PRODUCTS = 3
#: The engines of true fp32 that take the second factor in parts.
_TRUE_IN_PARTS = (MatmulWgmmaTf32x3(in_parts=_SECOND),)


class ConvWinograd(ProblemEngine["_Problem"], Floored):
    """See the module's docstring.

    engines: the engines that may compute the products.  types: types of the operands that it takes.
    in_parts: engines that take the second factor in parts, if there are any.
    results: M, the results of a tile along an axis.
    tile_notes: the numerical notes of tiles of that size.
    """

    anchors: Anchors = (ConvolutionOperation,)
    limits = fused(ConvolutionOperation)
    types: ClassVar[tuple[DataType, ...]] = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
    results: ClassVar[int]
    tile_notes: ClassVar[tuple[NumericalNote, ...]]
    in_parts: ClassVar[tuple[Engine, ...]] = ()

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses other taps than 3x3, strides, dilation, groups, other types, and factors beyond 32-bit counts."""
        matched = match_anchored(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        operation = matched.anchor
        if refused := refuse_types(operation, self.types):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_DATA_TYPE)
        if refused := refuse_shape(operation):
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        problem = _problem_of(matched, self.results)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        if (most := problem.items) > MAX_INDEX:
            refused = f"{operation.label}: expected at most {MAX_INDEX} tiles of all channels, got {most}"
            return Refusal(self.name, refused, Status.NOT_SUPPORTED_SHAPE)
        if reasons := refusals(self._engines, problem.product, arch):
            return Refusal(self.name, f"no engine takes the products: {reasons}")
        split = problem.split
        takes_parts = self.in_parts and split.items <= MAX_INDEX and not refusals(self.in_parts, split.product, arch)
        return replace(problem, may_split=bool(takes_parts))

    def floor(self, contraction: Contraction) -> Floor:
        """Two launches for factors, one for products, one for results."""
        alpha = self.results + _TAPS - 1
        return Floor(Multipliers.FASTEST, launches=4, waste=(alpha / (self.results * _TAPS)) ** 2)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """KERNEL_CFG, where the second factor may come in parts; the default is faster by the model."""
        if not problem.may_split:
            return ()

        def microseconds(is_split: int) -> float:
            launches = self.parts(problem, arch, {KnobType.KERNEL_CFG: is_split}).launches
            return sum(launch_us(launch, arch) for launch in launches)

        best = min((1, 0), key=microseconds)
        return (Knob("in_parts", KnobType.KERNEL_CFG, (0, 1), best, "1: the second factor is stored in parts"),)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The launches of both transforms, those of the products' plan, and the one of the results."""
        is_split = bool(chosen.get(KnobType.KERNEL_CFG, 0))
        engines, problem = (self.in_parts, problem.split) if is_split else (self._engines, problem)
        parts = PlanParts()
        at = {stored.uid: parts.reserve(stored.size_bytes) for stored in problem.stored}
        for transform in problem.transforms:
            parts.add(transform.kernel, transform.launch(at[transform.stored.uid]))
        product = fastest_plan(engines, problem.product, arch)
        parts.add_plan(product, at)
        parts.add(*problem.output.step(at[_PRODUCTS]))
        parts.launches = list(map(problem.placed, parts.launches))
        parts.numerical_notes = (*product.numerical_notes, *self.tile_notes)
        return parts


class ConvWinograd2x2(ConvWinograd, OptIn):
    """2 x 2 results of a tile, for fp16, bf16 and TF32."""

    name = "conv_winograd_2x2"
    index = 62
    results = 2
    tile_notes = WINOGRAD_4X4
    numerical_notes = (*TENSOR_CORES, *WINOGRAD_4X4)


class ConvWinograd4x4(ConvWinograd, OptIn):
    """4 x 4 results of a tile, for fp16, bf16 and TF32."""

    name = "conv_winograd_4x4"
    index = 63
    results = 4
    tile_notes = _WINOGRAD_6X6
    numerical_notes = (*TENSOR_CORES, *_WINOGRAD_6X6)


class ConvWinograd2x2Fp32(ConvWinograd):
    """2 x 2 results of a tile, in true fp32."""

    name = "conv_winograd_2x2_fp32"
    index = 64
    results = 2
    types = (DataType.FLOAT,)
    in_parts = _TRUE_IN_PARTS
    tile_notes = WINOGRAD_4X4
    numerical_notes = (NumericalNote.TF32X3, *WINOGRAD_4X4)


class ConvWinograd4x4Fp32(ConvWinograd):
    """4 x 4 results of a tile, in true fp32."""

    name = "conv_winograd_4x4_fp32"
    index = 65
    results = 4
    types = (DataType.FLOAT,)
    in_parts = _TRUE_IN_PARTS
    tile_notes = _WINOGRAD_6X6
    numerical_notes = (NumericalNote.TF32X3, *_WINOGRAD_6X6)


@dataclass(frozen=True)
class _Problem:
    """A convolution as products of factors.

    transforms: the factors of both operands.  sums_over_tiles: whether products sum over tiles, as a filter's gradient
    does.
    view: the forward convolution over parts of the graph's tensors whose factors they are, if they are parts.
    may_split: whether an engine takes the products of ``split``.
    """

    transforms: tuple[Transform, Transform]
    output: Output
    sums_over_tiles: bool
    view: ForwardView | None = None
    may_split: bool = False

    @cached_property
    def split(self) -> _Problem:
        """This problem with contiguous rows of the axis that products sum over, those of the second factor in parts.

        It is worked out once, as ``product`` is.
        """
        first, second = self.transforms
        if self.sums_over_tiles:
            first = _in_rows_of_tiles(first)
            second = _in_rows_of_tiles(second)
        second = replace(second, stored=replace(second.stored, is_blocked=True, is_split=True))
        return replace(self, transforms=(first, second))

    @property
    def items(self) -> int:
        """The most items of a launch."""
        return max(stored.items for stored in self.stored)

    @property
    def stored(self) -> tuple[Stored, ...]:
        return (*(transform.stored for transform in self.transforms), self.output.stored)

    def placed(self, launch: Launch) -> Launch:
        """``launch`` with pointers to the parts of tensors."""
        return replace(launch, arguments=tuple(map(self.view.place, launch.arguments))) if self.view else launch

    @cached_property
    def product(self) -> OperationGraph:
        """The batch of products; it is made once, since engines cache what they derive from a graph."""
        first, second, products = self.stored
        a = first.tensor(is_transposed=self.sums_over_tiles)
        b = second.tensor(is_transposed=not self.sums_over_tiles)
        c = products.tensor(is_transposed=False)
        return OperationGraph([MatmulOperation(Matmul(DataType.FLOAT), a, b, c)])


def _problem_of(matched: Anchored[ConvolutionOperation], results: int) -> _Problem | str:
    operation, dag = matched.anchor, matched.epilogue
    if isinstance(operation, ConvolutionBackwardFilter):
        return _filter_gradient(operation, matched, results)
    if isinstance(operation, ConvolutionForward):
        names = (f"{operation.label}.x", f"{operation.label}.w")
        return forward_problem(ForwardView(*names, Anchored(operation, dag)), results)
    assert isinstance(operation, ConvolutionBackwardData), operation
    views = data_gradient_views(Anchored(operation, dag))
    return views if isinstance(views, str) else forward_problem(views[0], results)


def forward_problem(view: ForwardView, results: int) -> _Problem:
    """Tiles of y's pixels: the factors of x are tiles by channels, those of w filters by channels."""
    operation, dag = view.matched.anchor, view.matched.epilogue
    (images, filters, *pixels), channels, geometry = dag.dims, operation.w.dims[1], operation.convolution
    rows, columns = (ceil_div(extent, results) for extent in pixels)
    stores_tiles = simt_tile.vector_axis(dag, (1, len(dag.dims) - 1)) != 1

    def grid(channels: int, channels_first: bool) -> Grid:
        return Grid(images, rows, columns, channels, channels_first)

    alpha, is_flipped = results + _TAPS - 1, geometry.mode is ConvolutionMode.CONVOLUTION
    origin = (-geometry.pre_paddings[0], -geometry.pre_paddings[1])
    of_x = Stored(_FIRST, operation.x.data_type, alpha, grid(channels, not has_channels_last(operation.x)))
    of_w = Stored(_SECOND, operation.w.data_type, alpha, Grid(filters, 1, 1, channels, False))
    image = Transform(operation.x, Matrix.DATA, results, origin, False, of_x)
    taps = Transform(operation.w, Matrix.TAPS, 0, (0, 0), is_flipped, of_w)
    products = Stored(_PRODUCTS, DataType.FLOAT, alpha, grid(filters, stores_tiles))
    return _Problem((image, taps), Output(dag, Matrix.RESULTS, products), sums_over_tiles=False, view=view)


def _filter_gradient(
    operation: ConvolutionBackwardFilter, matched: Anchored[ConvolutionOperation], results: int
) -> _Problem:
    """Tiles of dy's pixels: the factors of dy and x are tiles by their channels, and the products sum over tiles.

    The gradient of a flipped filter is that of a cross-correlation of both tensors walked backwards.
    """
    geometry, is_flipped = operation.convolution, operation.convolution.mode is ConvolutionMode.CONVOLUTION
    images, (rows, columns) = operation.dy.dims[0], (ceil_div(extent, results) for extent in operation.dy.dims[2:])
    first, second = geometry.post_paddings if is_flipped else geometry.pre_paddings
    alpha = results + _TAPS - 1

    def transform(tensor: Tensor, matrix: Matrix, uid: int, origin: tuple[int, int]) -> Transform:
        grid = Grid(images, rows, columns, tensor.dims[1], not has_channels_last(tensor))
        return Transform(tensor, matrix, results, origin, is_flipped, Stored(uid, tensor.data_type, alpha, grid))

    response = transform(operation.dy, Matrix.RESULTS, _FIRST, (0, 0))
    image = transform(operation.x, Matrix.DATA, _SECOND, (-first, -second))
    filters, channels, *_ = matched.epilogue.dims
    products = Stored(_PRODUCTS, DataType.FLOAT, alpha, Grid(filters, 1, 1, channels, False))
    return _Problem((response, image), Output(matched.epilogue, Matrix.TAPS, products), sums_over_tiles=True)


def _in_rows_of_tiles(transform: Transform) -> Transform:
    """Its factors with contiguous tiles."""
    stored = transform.stored
    grid = replace(stored.grid, channels_first=True)
    return replace(
        transform, stored=replace(stored, grid=grid, is_blocked=True), is_turned=not stored.grid.channels_first
    )


def has_channels_last(tensor: Tensor) -> bool:
    """Whether neighbours in memory are channels."""
    return tensor.dims[1] > 1 and tensor.strides[1] <= min(tensor.strides[2:])


def refuse_types(operation: ConvolutionOperation, types: Sequence[DataType]) -> str:
    known = ", ".join(data_type.name for data_type in types)
    first, *others = inputs_of(operation).values()
    for tensor in (first, *others):
        if tensor.data_type not in types:
            return f"{tensor.label}.data_type: expected one of {known}, got {tensor.data_type.name}"
        if tensor.data_type is not first.data_type:
            return f"{tensor.label}.data_type: expected {first.data_type.name}, got {tensor.data_type.name}"
    if (compute_type := operation.convolution.compute_type) is DataType.DOUBLE:
        return f"convolution.compute_type: expected FLOAT or HALF, got {compute_type.name}"
    return ""


def refuse_shape(operation: ConvolutionOperation) -> str:
    geometry, taps = operation.convolution, operation.filter.dims[2:]
    if taps != (_TAPS, _TAPS):
        return f"{operation.label}.filter.dims: expected {_TAPS} x {_TAPS} taps, got {list(taps)}"
    if {*geometry.strides, *geometry.dilations} != {1}:
        got = f"{list(geometry.strides)}, {list(geometry.dilations)}"
        return f"convolution.strides, dilations: expected 1, got {got}"
    pads = zip(geometry.pre_paddings, geometry.post_paddings, strict=True)
    padded = max(extent + sum(pad) for extent, pad in zip(operation.image.dims[2:], pads, strict=True))
    if padded > MAX_INDEX:
        expected = f"padded spatial extents of at most {MAX_INDEX}"
        return f"{operation.label}.{operation.roles[0]}.dims: expected {expected}, got {padded}"
    return f"{operation.label}.groups: expected 1, got {operation.groups}" if operation.groups > 1 else ""
