"""``conv_wgrad_packed``: filter gradients of 1x1 convolutions whose pixels are not whole pieces of 16 bytes, or few.

A pack of P neighbouring pixels is one row of the product, read in place:

    sums[(p, k), (q, c)] = sum over packs of dy[pack, (p, k)] * x[pack, (q, c)],    dw[k, c] = sum over p of
    sums[(p, k), (p, c)]

P times the multiplications, for which narrow pixels leave time, give rows that tensor maps can describe without
repacking, and that fill cache lines. Products of two different pixels stay unused: an infinity in one pixel does not
reach the sums of others. Kernels: those of the product's engine and of ``reduction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lowdnn.arch.multiprocessor import SECTOR_BYTES
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Engine,
    Knob,
    Refusal,
)
from lowdnn.engines.conv.refusals import refuse_nothing, refuse_pixels, refuse_several_taps
from lowdnn.engines.delegation import fastest_plan, refusals
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.limits import alone, names_of
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.status import Status

#: Bytes of which a tensor map's addresses and strides are multiples.
_PIECE_BYTES = 16
#: Pixels that are whole halves of a cache line in both tensors are no slower unpacked; measured on an H200.
_HALF_LINE_BYTES = 64
#: Choices of the pixels of a pack.
_PACKS = (2, 4, 8, 16)
_ALIGNMENT_BYTES = 256
_SUM_BYTES = 4


@dataclass(frozen=True)
class _Problem:
    """A filter gradient of one tap.  packs: choices of the pixels of a pack, the fewest first."""

    operation: ConvolutionBackwardFilter
    packs: tuple[int, ...]

    @property
    def best_pack(self) -> int:
        """The fewest pixels whose rows are whole sectors, or else whole pieces; measured on an H200."""
        return next((count for count in self.packs if _are_whole(self.operation, count, SECTOR_BYTES)), self.packs[0])

    @property
    def sums_uid(self) -> int:
        return max(self.operation.x.uid, self.operation.dy.uid, self.operation.dw.uid) + 1

    def sums_bytes(self, pixels: int) -> int:
        return aligned_bytes(pixels * pixels * self.operation.dw.element_count * _SUM_BYTES)

    def product(self, pixels: int) -> OperationGraph:
        """The gradient of packs, with one spatial axis."""
        return self._default_product if pixels == self.best_pack else self._product(pixels)

    @cached_property
    def _default_product(self) -> OperationGraph:
        """The graph of the best pack; it is made once, since engines cache what they derive from a graph."""
        return self._product(self.best_pack)

    def _product(self, pixels: int) -> OperationGraph:
        operation = self.operation
        dims = (pixels * operation.dw.dims[0], pixels * operation.dw.dims[1], 1)
        geometry = Convolution(operation.convolution.compute_type, 1, (0,), (0,), (1,), (1,))
        packed = replace(
            operation,
            convolution=geometry,
            x=_packed(operation.x, pixels),
            dy=_packed(operation.dy, pixels),
            dw=self._sums(dims, channels_last_strides(dims)),
        )
        return OperationGraph([packed])

    def total(self, pixels: int) -> OperationGraph:
        """The sum over the pixels of a pack of the products of each pixel with itself."""
        dw = self.operation.dw
        filters, channels, *_ = dw.dims
        row = pixels * channels
        x = self._sums((pixels, filters, channels), (filters * row + channels, row, 1))
        y = replace(dw, dims=(1, filters, channels), strides=(dw.strides[0] * filters, *dw.strides[:2]))
        return OperationGraph([ReductionOperation(Reduction(ReduceTensorOp.ADD, DataType.FLOAT), x, y)])

    def _sums(self, dims: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return Tensor(self.sums_uid, DataType.FLOAT, dims, strides, _ALIGNMENT_BYTES)


class ConvWgradPacked(ProblemEngine["_Problem"], Floored):
    """See the module's docstring.

    engines: the engines that may compute the gradient of packs.  reduction: the engine of its sum.
    """

    name = "conv_wgrad_packed"
    index = 38
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionBackwardFilter,)
    limits = alone(ConvolutionBackwardFilter)

    def __init__(self, engines: Sequence[Engine], reduction: Engine) -> None:
        self._engines = tuple(engines)
        self._reduction = reduction

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses all but one stored gradient of one tap, and pixels that are not dense or make no whole packs."""
        problem = _problem_of(graph)
        if isinstance(problem, Refusal):
            return problem
        reasons = refusals(self._engines, problem.product(problem.best_pack), arch)
        return Refusal(self.name, f"no engine takes the gradient of packs: {reasons}") if reasons else problem

    def floor(self, contraction: Contraction) -> Floor:
        """At least pairs of pixels are multiplied; another launch sums the products."""
        return Floor(Multipliers.FASTEST, launches=2, waste=_PACKS[0])

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """PACK_SIZE; the other engine runs with its defaults."""
        return (Knob("pixels", KnobType.PACK_SIZE, problem.packs, problem.best_pack, "pixels of a pack"),)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The launches of the gradient of packs, and those of its sum."""
        parts, pixels = PlanParts(), chosen[KnobType.PACK_SIZE]
        at = {problem.sums_uid: parts.reserve(problem.sums_bytes(pixels))}
        product = fastest_plan(self._engines, problem.product(pixels), arch)
        parts.add_plan(product, at)
        parts.numerical_notes = product.numerical_notes
        parts.add_plan(self._reduction.plan(problem.total(pixels), arch, {}), at)
        return parts


def _problem_of(graph: OperationGraph) -> _Problem | Refusal:
    name, operation = ConvWgradPacked.name, graph.operations[0]
    if len(graph.operations) > 1 or not isinstance(operation, ConvolutionBackwardFilter):
        got = names_of(graph.operations)
        return Refusal(name, f"operations: expected one ConvolutionBackwardFilter, got {got}")
    if refused := _refuse_shape(operation):
        return Refusal(name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
    if _are_whole(operation, 1, _HALF_LINE_BYTES):
        of_x, of_dy = _row_bytes(operation)
        expected = f"pixels of other sizes than multiples of {_HALF_LINE_BYTES} bytes, which are read well one by one"
        reason = f"{operation.label}.x.dims: expected {expected}, got {of_x} and {of_dy} bytes"
        return Refusal(name, reason, Status.NOT_SUPPORTED_SHAPE)
    pixels = _pixels(operation.x)
    packs = tuple(count for count in _PACKS if pixels % count == 0 and _are_whole(operation, count, _PIECE_BYTES))
    if not packs:
        expected = f"packs of at most {_PACKS[-1]} pixels with whole pieces of {_PIECE_BYTES} bytes"
        of_x, of_dy = _row_bytes(operation)
        reason = f"{operation.label}.x.dims: expected {expected}, got {pixels} pixels of {of_x} and {of_dy} bytes"
        return Refusal(name, reason, Status.NOT_SUPPORTED_SHAPE)
    return _Problem(operation, packs)


def _row_bytes(operation: ConvolutionBackwardFilter) -> tuple[int, int]:
    """Bytes of a pixel of x and of dy."""
    x, dy = operation.x, operation.dy
    return x.dims[1] * x.element_bytes, dy.dims[1] * dy.element_bytes


def _are_whole(operation: ConvolutionBackwardFilter, pixels: int, unit_bytes: int) -> bool:
    """Whether ``pixels`` pixels take whole units in both tensors."""
    return all(pixels * row % unit_bytes == 0 for row in _row_bytes(operation))


def _refuse_shape(operation: ConvolutionBackwardFilter) -> str:
    """Why the operation is not a sum over neighbouring pixels, or an empty string."""
    if refused := refuse_several_taps(operation):
        return refused
    if refused := refuse_nothing(operation):
        return refused
    if operation.beta != 0:
        return f"beta: expected 0, got {operation.beta}"
    of_x, of_dy = (refuse_pixels(tensor, _PIECE_BYTES) for tensor in (operation.x, operation.dy))
    return of_x or of_dy


def _pixels(tensor: Tensor) -> int:
    """Pixels of all images."""
    return tensor.dims[0] * prod(tensor.dims[2:])


def _packed(tensor: Tensor, pixels: int) -> Tensor:
    """``tensor`` with ``pixels`` neighbours as one pixel."""
    dims = (1, pixels * tensor.dims[1], _pixels(tensor) // pixels)
    return replace(tensor, dims=dims, strides=channels_last_strides(dims))
