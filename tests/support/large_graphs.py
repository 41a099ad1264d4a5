"""Graphs of as many operations as wanted, of several shapes: what planning is measured and tested with.

Each layer of a graph has the extents of the others, or (``is_varied``) extents of its own, so that nothing repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, NormFwdPhase, NormMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.base import outputs_of, with_tensors
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.tensor import Tensor

#: The type of activations; sums are in FLOAT.
_TYPE = DataType.BFLOAT16
_GEOMETRY = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))


def convolutions(count: int, *, is_varied: bool = False) -> OperationGraph:
    """A chain of convolutions, each with ReLU behind it."""
    builder = CaseBuilder(Layout.CHANNELS_LAST, virtual_type=_TYPE)
    value, channels = builder.tensor((1, 8, 4, 4), _TYPE), 8
    for layer in range(count // 2):
        filters = 8 * (1 + (layer + 1) % 509) if is_varied else channels
        value = builder.convolution(value, builder.tensor((filters, channels, 3, 3), _TYPE), geometry=_GEOMETRY)
        value, channels = builder.pointwise(PointwiseMode.RELU_FWD, value), filters
    return _ended(builder)


def norms(count: int, *, is_varied: bool = False) -> OperationGraph:
    """A chain of norms over rows, each with ReLU behind it."""
    builder = CaseBuilder(virtual_type=_TYPE)
    value = builder.tensor((4, 8, 1, 32), _TYPE)
    for layer in range(count // 2):
        if is_varied:
            value = _product(builder, value, 8 * (4 + layer % 509))
        value = builder.pointwise(PointwiseMode.RELU_FWD, _norm(builder, value))
    return _ended(builder)


def blocks(count: int, *, is_varied: bool = False) -> OperationGraph:
    """Blocks of a transformer: norm, attention with its products, sum, norm, two products with GELU between, sum."""
    builder = CaseBuilder(virtual_type=_TYPE)
    width, value = 32, builder.tensor((1, 1, 16, 32), _TYPE)
    for block in range(-(-count // 15)):
        hidden = 8 * (4 + block % 509) if is_varied else 2 * width
        normed = _norm(builder, value)
        q, k, v = (_product(builder, normed, width) for _ in range(3))
        scores = builder.matmul(q, builder.transpose(k, (0, 1, 3, 2)))
        scaled = builder.pointwise(PointwiseMode.MUL, scores, builder.constant(4, DataType.FLOAT, 0.25))
        attended = builder.matmul(builder.softmax(scaled, (3,)), v)
        value = builder.pointwise(PointwiseMode.ADD, value, _product(builder, attended, width))
        active = builder.pointwise(PointwiseMode.GELU_FWD, _product(builder, _norm(builder, value), hidden))
        value = builder.pointwise(PointwiseMode.ADD, value, _product(builder, active, width))
    return _ended(builder)


def diamonds(count: int, *, is_varied: bool = False) -> OperationGraph:
    """A chain of diamonds: a product that two others read, whose results are added."""
    builder = CaseBuilder(virtual_type=_TYPE)
    value = builder.tensor((1, 16, 32), _TYPE)
    for layer in range(count // 4):
        width = 8 * (4 + layer % 509) if is_varied else 32
        top = _product(builder, value, width)
        sides = [_product(builder, top, width) for _ in range(2)]
        value = builder.pointwise(PointwiseMode.ADD, *sides)
    return _ended(builder)


def fan(count: int, *, is_varied: bool = False) -> OperationGraph:
    """One input that many products read, which are added up into one."""
    builder = CaseBuilder(virtual_type=_TYPE)
    x = builder.tensor((1, 16, 32), _TYPE)
    widths = [8 * (4 + branch % 509) if is_varied else 32 for branch in range(count // 3 if is_varied else count // 2)]
    inner = [_product(builder, x, width) for width in widths]
    return _summed(builder, [_product(builder, value, 32) for value in inner] if is_varied else inner)


def pointwise(count: int, *, is_varied: bool = False) -> OperationGraph:
    """A product, and a chain of pointwise operations behind it that ends in a norm."""
    builder = CaseBuilder(virtual_type=_TYPE)
    value = _product(builder, builder.tensor((1, 16, 32), _TYPE), 32)
    for number in range(count - 2):
        mode = (PointwiseMode.RELU_FWD, PointwiseMode.TANH_FWD, PointwiseMode.ABS)[number % 3 if is_varied else 0]
        value = builder.pointwise(mode, value)
    _product(builder, value, 32)
    return _ended(builder)


SHAPES: Mapping[str, Callable[..., OperationGraph]] = {
    "convolutions": convolutions,
    "norms": norms,
    "blocks": blocks,
    "diamonds": diamonds,
    "fan": fan,
    "pointwise": pointwise,
}


def _product(builder: CaseBuilder, x: Tensor, columns: int) -> Tensor:
    return builder.matmul(x, builder.tensor((*(1,) * (x.rank - 2), x.dims[-1], columns), _TYPE))


def _norm(builder: CaseBuilder, x: Tensor) -> Tensor:
    ones = (1,) * x.rank
    scale, bias = (builder.tensor((*ones[:-1], x.dims[-1]), DataType.FLOAT) for _ in range(2))
    epsilon = builder.constant(x.rank, DataType.FLOAT, 1e-5)
    return builder.norm(NormMode.LAYER_NORM, x, epsilon, scale, bias, phase=NormFwdPhase.INFERENCE)


def _summed(builder: CaseBuilder, values: list[Tensor]) -> OperationGraph:
    total = values[0]
    for value in values[1:]:
        total = builder.pointwise(PointwiseMode.ADD, total, value)
    return _ended(builder)


def _ended(builder: CaseBuilder) -> OperationGraph:
    """The graph with its last result stored."""
    *others, last = builder.operations
    stored = {tensor.uid: replace(tensor, is_virtual=False) for tensor in outputs_of(last).values()}
    return OperationGraph([*others, with_tensors(last, stored)])
