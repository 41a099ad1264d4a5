"""Products and convolutions with what is around them: patterns of ``pattern``, ``prologue_pattern``,
``gemm.epilogue_reductions``, ``matmul.pixel_matmul``, ``matmul.shared_batches``, ``parts`` and
``conv.wgmma.spatial_axes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lowdnn.enums import DataType, MoeGroupedMatmulMode, PointwiseMode, ReduceTensorOp
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.tensor import Tensor
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF = DataType.FLOAT, DataType.HALF
_MODES, _ADD, _AMAX = PointwiseMode, ReduceTensorOp.ADD, ReduceTensorOp.AMAX
_NHWC = Layout.CHANNELS_LAST
_A, _B, _C = (2, 6, 16), (2, 16, 8), (2, 6, 8)
_IMAGE, _FILTER, _RESPONSE, _CHANNELS = (2, 8, 4, 3), (16, 8, 3, 1), (2, 16, 4, 3), (1, 16, 1, 1)


def product(sketch: Sketch) -> None:
    """With a bias, an activation whose argument is stored, and a second operand of the output's size."""
    c = sketch.matmul(sketch.tensor(_A, _HALF, name="a"), sketch.tensor(_B, _HALF, name="b"))
    added = sketch.pointwise(_MODES.ADD, c, sketch.tensor((1, 1, 8), _FLOAT, name="bias"), store=_HALF)
    active = sketch.pointwise(_MODES.RELU_FWD, added)
    sketch.pointwise(_MODES.SUB, active, sketch.tensor(_C, _HALF, name="other"), store=_FLOAT)


def product_of_floats(sketch: Sketch) -> None:
    """Behind which elements know their column."""
    c = sketch.matmul(sketch.tensor(_A, _FLOAT, name="a"), sketch.tensor(_B, _FLOAT, name="b"))
    column = sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _FLOAT, axis=2), c)
    sketch.pointwise(_MODES.MUL, c, column, store=_FLOAT)


def product_with_reductions(sketch: Sketch) -> None:
    """Sums of columns and the largest magnitude of what is stored."""
    c = sketch.matmul(sketch.tensor(_A, _HALF, name="a"), sketch.tensor(_B, _HALF, name="b"))
    y = sketch.pointwise(_MODES.MUL, c, sketch.value(0.5, rank=3), store=_FLOAT)
    sketch.reduction(_ADD, y, (0, 1), store=_FLOAT)
    sketch.reduction(_AMAX, y, (0, 1, 2), store=_FLOAT)


def product_with_row_sums(sketch: Sketch) -> None:
    c = sketch.matmul(sketch.tensor(_A, _HALF, name="a"), sketch.tensor(_B, _HALF, name="b"))
    active = sketch.pointwise(_MODES.RELU_FWD, c)
    sketch.reduction(_ADD, active, (2,), store=_FLOAT)
    sketch.pointwise(_MODES.IDENTITY, active, store=_HALF)


def moved_product(sketch: Sketch) -> None:
    """Behind which elements move, which no epilogue does."""
    c = sketch.matmul(sketch.tensor(_A, _HALF, name="a"), sketch.tensor(_B, _HALF, name="b"))
    sketch.transpose(sketch.pointwise(_MODES.RELU_FWD, c), (0, 2, 1), store=_FLOAT)


def repeated_product(sketch: Sketch) -> None:
    """A product of one row, which is added to several."""
    c = sketch.matmul(sketch.tensor((2, 1, 16), _HALF, name="a"), sketch.tensor(_B, _HALF, name="b"))
    sketch.pointwise(_MODES.ADD, c, sketch.tensor(_C, _FLOAT, name="rows"), store=_FLOAT)


def shared_batches(sketch: Sketch) -> None:
    """Four batches of a with two of b."""
    a, b = sketch.tensor((4, 6, 16), _HALF, name="a"), sketch.tensor(_B, _HALF, name="b")
    c = sketch.matmul(a, b)
    sketch.pointwise(_MODES.ADD, c, sketch.tensor((4, 1, 8), _FLOAT, name="bias"), store=_FLOAT)


def two_products(sketch: Sketch) -> None:
    """Between which no tensor goes, of different extents."""
    for rows in (6, 5):
        a, b = sketch.tensor((rows, 16), _HALF, name="a"), sketch.tensor((16, 8), _HALF, name="b")
        sketch.pointwise(_MODES.RELU_FWD, sketch.matmul(a, b), store=_HALF)


def prologue(sketch: Sketch) -> None:
    """An operand of bytes that is scaled, of as many elements as the output."""
    raw, scale = sketch.tensor((64, 64), DataType.INT8, name="raw"), sketch.tensor((1, 64), _HALF, name="scale")
    a = sketch.pointwise(_MODES.MUL, raw, scale, virtual=_HALF)
    c = sketch.matmul(a, sketch.tensor((64, 64), _HALF, name="b"))
    sketch.pointwise(_MODES.NEG, c, store=_FLOAT)


def indexed_prologue(sketch: Sketch) -> None:
    """An operand of indices, which no prologue has."""
    raw = sketch.tensor((64, 64), _HALF, name="raw")
    a = sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _HALF, axis=1), raw, virtual=_HALF)
    sketch.matmul(a, sketch.tensor((64, 16), _HALF, name="b"), store=_FLOAT)


def reduced_prologue(sketch: Sketch) -> None:
    """An operand that is scaled by its own sums."""
    raw = sketch.tensor((64, 64), _HALF, name="raw")
    total = sketch.reduction(_AMAX, raw, (1,))
    a = sketch.pointwise(_MODES.DIV, raw, total, virtual=_HALF)
    sketch.matmul(a, sketch.tensor((64, 16), _HALF, name="b"), store=_FLOAT)


def _geometry(pads: tuple[int, int] = (1, 0)) -> Convolution:
    return Convolution(_FLOAT, 2, pads, pads, (1, 1), (1, 1))


def _convolution(sketch: Sketch, kind: DataType = _HALF, **options: Any) -> Tensor:
    x = sketch.tensor(_IMAGE, kind, layout=_NHWC, name="x")
    w = sketch.tensor(_FILTER, kind, layout=_NHWC, name="w")
    return sketch.convolution(x, w, geometry=_geometry(), layout=_NHWC, **options)


def convolution(sketch: Sketch) -> None:
    """Scaled, with a bias of channels and an activation."""
    y = _convolution(sketch, alpha=0.5)
    added = sketch.pointwise(_MODES.ADD, y, sketch.tensor(_CHANNELS, _FLOAT, name="bias"))
    sketch.pointwise(_MODES.RELU_FWD, added, store=_HALF, layout=_NHWC)


def accumulating_convolution(sketch: Sketch) -> None:
    y = _convolution(sketch, _FLOAT, alpha=0.5, beta=2.0, store=_FLOAT)
    sketch.pointwise(_MODES.NEG, y, store=_FLOAT, layout=_NHWC)


def convolution_with_statistics(sketch: Sketch) -> None:
    y = _convolution(sketch)
    active = sketch.pointwise(_MODES.RELU_FWD, y, store=_HALF, layout=_NHWC)
    sketch.gen_stats(active)


def pixel_convolution(sketch: Sketch) -> None:
    """A convolution of one tap: a matrix product."""
    x = sketch.tensor(_IMAGE, _HALF, layout=_NHWC, name="x")
    w = sketch.tensor((16, 8, 1, 1), _HALF, layout=_NHWC, name="w")
    y = sketch.convolution(x, w, geometry=_geometry((0, 0)), layout=_NHWC)
    added = sketch.pointwise(_MODES.ADD, y, sketch.tensor(_CHANNELS, _FLOAT, name="bias"))
    sketch.pointwise(_MODES.RELU_FWD, added, store=_HALF, layout=_NHWC)


def convolution_prologue(sketch: Sketch) -> None:
    """A convolution of an image behind a norm's scale and bias, and an activation."""
    dims = (2, 64, 4, 3)
    raw = sketch.tensor(dims, _HALF, layout=_NHWC, name="raw")
    scale, bias = (sketch.tensor((1, 64, 1, 1), _FLOAT, name=name) for name in ("scale", "bias"))
    added = sketch.pointwise(_MODES.ADD, sketch.pointwise(_MODES.MUL, raw, scale), bias)
    x = sketch.pointwise(_MODES.RELU_FWD, added, virtual=_HALF)
    w = sketch.tensor((16, 64, 3, 1), _HALF, layout=_NHWC, name="w")
    y = sketch.convolution(x, w, geometry=_geometry(), layout=_NHWC)
    sketch.pointwise(_MODES.NEG, y, store=_HALF, layout=_NHWC)


def depthwise_convolution(sketch: Sketch) -> None:
    x = sketch.tensor(_IMAGE, _HALF, layout=_NHWC, name="x")
    w = sketch.tensor((8, 1, 3, 1), _HALF, layout=_NHWC, name="w")
    y = sketch.convolution(x, w, geometry=_geometry(), layout=_NHWC)
    active = sketch.pointwise(_MODES.RELU_FWD, y, store=_HALF, layout=_NHWC)
    sketch.reduction(_ADD, active, (0, 2, 3), store=_FLOAT)


def empty_convolution(sketch: Sketch) -> None:
    """A gradient of no channels: zeros, to which the old values and a bias are added."""
    dy = sketch.tensor((2, 0, 4, 3), _FLOAT, layout=_NHWC, name="dy")
    w = sketch.tensor((0, 8, 3, 1), _FLOAT, layout=_NHWC, name="w")
    options = {"geometry": _geometry(), "layout": _NHWC, "alpha": 0.5, "beta": 2.0, "store": _FLOAT}
    dx = sketch.convolution_data_gradient(dy, w, _IMAGE, **options)
    bias = sketch.tensor((1, 8, 1, 1), _FLOAT, name="bias")
    sketch.pointwise(_MODES.ADD, dx, bias, store=_FLOAT, layout=_NHWC)


def empty_convolution_with_sums(sketch: Sketch) -> None:
    dy = sketch.tensor((2, 0, 4, 3), _FLOAT, layout=_NHWC, name="dy")
    w = sketch.tensor((0, 8, 3, 1), _FLOAT, layout=_NHWC, name="w")
    dx = sketch.convolution_data_gradient(dy, w, _IMAGE, geometry=_geometry(), layout=_NHWC)
    y = sketch.pointwise(_MODES.ADD, dx, sketch.tensor(_IMAGE, _FLOAT, name="other"), store=_FLOAT, layout=_NHWC)
    sketch.reduction(_ADD, y, (0, 2, 3), store=_FLOAT)


def data_gradient(sketch: Sketch) -> None:
    dy = sketch.tensor(_RESPONSE, _HALF, layout=_NHWC, name="dy")
    w = sketch.tensor(_FILTER, _HALF, layout=_NHWC, name="w")
    dx = sketch.convolution_data_gradient(dy, w, _IMAGE, geometry=_geometry(), layout=_NHWC)
    x = sketch.tensor(_IMAGE, _HALF, layout=_NHWC, name="x")
    sketch.pointwise(_MODES.RELU_BWD, dx, x, store=_HALF, layout=_NHWC)


def filter_gradient(sketch: Sketch) -> None:
    """The filter gradient of an image behind an activation."""
    raw = sketch.tensor(_IMAGE, _HALF, layout=_NHWC, name="raw")
    x = sketch.pointwise(_MODES.RELU_FWD, raw, virtual=_HALF)
    dy = sketch.tensor(_RESPONSE, _HALF, layout=_NHWC, name="dy")
    sketch.convolution_filter_gradient(x, dy, _FILTER, geometry=_geometry(), store=_FLOAT, layout=_NHWC)


def grouped_product(sketch: Sketch) -> None:
    """Tokens of two experts."""
    token = sketch.tensor((1, 7, 16), _HALF, name="token")
    weight = sketch.tensor((2, 16, 8), _HALF, name="weight")
    first = sketch.holding(np.reshape([0, 3], (2, 1, 1)), DataType.INT32, name="first")
    y = sketch.moe_grouped_matmul(token, weight, first, mode=MoeGroupedMatmulMode.NONE)
    sketch.pointwise(_MODES.ADD, y, sketch.tensor((1, 7, 8), _HALF, name="other"), store=_HALF)


PATTERNS: Mapping[str, Known] = {
    **taken_by("matmul_mma matmul_simt matmul_wgmma", product, product_of_floats, shared_batches),
    **taken_by("matmul_mma matmul_wgmma", product_with_reductions, product_with_row_sums),
    **taken_by("matmul_list_wgmma", two_products),
    **taken_by("matmul_prologue_wgmma", prologue),
    **taken_by(
        "composite", indexed_prologue, reduced_prologue, moved_product, repeated_product, empty_convolution_with_sums
    ),
    **taken_by(
        "conv_implicit_gemm_mma conv_direct conv_fprop_wgmma conv_grouped_mma", convolution, accumulating_convolution
    ),
    **taken_by("conv_implicit_gemm_mma conv_fprop_wgmma", convolution_with_statistics),
    **taken_by(
        "conv_implicit_gemm_mma conv_direct matmul_mma matmul_wgmma conv_fprop_wgmma conv_narrow_mma", pixel_convolution
    ),
    **taken_by("conv_prologue_wgmma", convolution_prologue),
    **taken_by("conv_depthwise", depthwise_convolution),
    **taken_by("pointwise", empty_convolution),
    **taken_by("conv_implicit_gemm_mma conv_direct conv_dgrad_wgmma conv_grouped_mma", data_gradient),
    **taken_by("conv_wgrad_wgmma", filter_gradient),
    **taken_by("moe_matmul_simt moe_matmul_wgmma moe_matmul_mma", grouped_product),
}
