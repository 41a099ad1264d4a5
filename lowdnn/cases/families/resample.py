"""Pooling and interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import steps, text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    broadcast_dims,
    each_axis,
    epilogue_of,
    stores,
)
from lowdnn.cases.text import key
from lowdnn.enums import (
    DataType,
    NanPropagation,
    PaddingMode,
    ResampleMode,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.resample import Resample, maxima, whole
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class ResampleCase(Case):
    """Pooling or interpolation, then the epilogue.

    size: the outputs' extents, for windows around their middles (adaptive pooling); otherwise window, stride and pad.
    dir: the result: y (fwd), or dx of it from dy (bwd).
    index: the type of the places of maxima, which fwd writes and bwd reads; without, bwd reads x.
    places: whether fwd counts them in each window or in the image.
    padding: usual is minus infinity for maxima and 0 otherwise.
    """

    family: ClassVar[str] = "resample"

    n: int = key(text.integer(0))
    c: int = key(text.integer(0))
    hw: tuple[int, ...] = key(text.extents(1, 3))
    mode: str = key(text.choice("max", "avg", "avg_inside", "linear", "nearest"))
    window: tuple[Fraction, ...] = key(text.rationals(), ())
    stride: tuple[Fraction, ...] = key(text.rationals(), (Fraction(1),))
    pad: tuple[tuple[Fraction, Fraction], ...] = key(text.rational_paddings(), ((Fraction(0), Fraction(0)),))
    size: tuple[int, ...] = key(text.extents(1, 3), ())
    padding: str = key(text.choice("usual", "zero", "neg_inf", "edge"), "usual")
    nan: str = key(text.choice("wins", "loses"), "wins")
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    index: DataType | None = key(text.data_type(), None)
    places: str = key(text.choice("window", "image"), "window")
    layout: str = key(text.choice("nchw", "nhwc"), "nhwc")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType = key(text.data_type(), DataType.FLOAT)
    align: int = key(text.integer(1), 16)
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        layout = Layout.CHANNELS_LAST if self.layout == "nhwc" else Layout.ROW_MAJOR
        builder = CaseBuilder(layout, alignment_bytes=self.align)
        store, final, steps = stores(self.epilogue, self.out or self.dtype)
        output = self._resample(builder, store)
        chain = epilogue_of(steps, output, broadcast_dims(output.dims, "channel"), self.dtype, self.compute)
        chain.build(builder, output, final, layout)
        return builder.graph()

    @property
    def length(self) -> int:
        """Positions that an output reads, or outputs that read a position."""
        axes = self._geometry.axes(self._x_dims)
        return prod(axis.span if self.dir == "fwd" else -(-axis.reach // axis.step) for axis in axes)

    @property
    def is_exact(self) -> bool:
        return steps.is_exact(self.epilogue) and self._has_exact_weights

    @property
    def _has_exact_weights(self) -> bool:
        """Whether interpolation weights are powers of two, or sums are divided once: then the result for small integers
        is unique."""
        axes = self._geometry.axes(self._x_dims)
        if self.mode == "linear":
            return all(axis.unit & (axis.unit - 1) == 0 for axis in axes)
        if self.dir == "fwd" or self.mode in ("max", "nearest"):
            return True
        return all(axis.unit == 1 and (self.mode == "avg" or axis.span <= 2) for axis in axes)

    def _resample(self, builder: CaseBuilder, store: DataType | None) -> Tensor:
        """Adds the operation with its inputs; gives y or dx."""
        geometry = self._geometry
        if self.dir == "fwd":
            x = builder.tensor(self._x_dims, self.dtype, name="x")
            return builder.resample(
                x, geometry, store=store, index_type=self.index, index_in_image=self.places == "image"
            )
        y_dims = geometry.output_dims(self._x_dims)
        dy = builder.tensor(y_dims, self.dtype, name="dy")
        index = None if self.index is None else builder.tensor(y_dims, self.index, name="index")
        needs_x = self.mode == "max" and index is None
        x_or_none = builder.tensor(self._x_dims, self.dtype, name="x") if needs_x else None
        return builder.resample_gradient(dy, self._x_dims, geometry, index=index, x=x_or_none, store=store)

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if tensor.name == "index":
            places = maxima(self._geometry, rng.integers(-4, 5, self._x_dims).astype(np.float64))[1]
            return dtypes.from_float64(places, tensor.data_type)
        return super()._values(rng, tensor, exact)

    @property
    def _x_dims(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.hw)

    @property
    def _geometry(self) -> Resample:
        mode, nan = _RESAMPLE_MODES[self.mode], _NAN_RULES[self.nan]
        if self.size:
            return Resample.to_size(mode, self.hw, self.size, self.compute, nan)
        spatial = len(self.hw)
        windows = self.window or (Fraction(2 if self.mode == "linear" else 1),)
        pads = each_axis("resample.pad", self.pad, spatial)
        usual = PaddingMode.NEG_INF_PAD if self.mode == "max" else PaddingMode.ZERO_PAD
        return Resample(
            spatial,
            tuple(map(whole, each_axis("resample.window", windows, spatial))),
            tuple(map(whole, each_axis("resample.stride", self.stride, spatial))),
            tuple(whole(before) for before, _ in pads),
            tuple(whole(after) for _, after in pads),
            mode,
            self.compute,
            nan,
            _PADDINGS.get(self.padding, usual),
        )


_RESAMPLE_MODES = {
    "max": ResampleMode.MAXPOOL,
    "avg": ResampleMode.AVGPOOL_INCLUDE_PADDING,
    "avg_inside": ResampleMode.AVGPOOL_EXCLUDE_PADDING,
    "linear": ResampleMode.BILINEAR,
    "nearest": ResampleMode.NEAREST,
}
_PADDINGS = {"zero": PaddingMode.ZERO_PAD, "neg_inf": PaddingMode.NEG_INF_PAD, "edge": PaddingMode.EDGE_VAL_PAD}
_NAN_RULES = {"wins": NanPropagation.PROPAGATE_NAN, "loses": NanPropagation.NOT_PROPAGATE_NAN}
