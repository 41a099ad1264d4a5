"""Convolutions: forward pass, data gradient, filter gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

from lowdnn.cases import exits, steps, text
from lowdnn.cases.base import Case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import (
    PROLOGUE_GROWTH,
    broadcast_dims,
    contraction_output,
    contraction_type,
    each_axis,
    epilogue_of,
    prologue_of,
    stores,
    virtual_type,
)
from lowdnn.cases.text import key
from lowdnn.enums import (
    ConvolutionMode,
    DataType,
)
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.base import inputs_of
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor

#: The axis along which a prologue's operands extend, by the input that it precedes.
_LINES = {"image": "channel", "filter": "batch"}
_DIRECTIONS: Mapping[type, str] = {
    ConvolutionForward: "fprop",
    ConvolutionBackwardData: "dgrad",
    ConvolutionBackwardFilter: "wgrad",
}


@dataclass(frozen=True)
class ConvolutionCase(Case):
    """y = alpha * conv(x, w) + beta * y, then the epilogue; channels c and filters k are totals over the groups.

    dir: the result: y (fprop), or dx (dgrad) or dw (wgrad) of the same convolution from dy.
    prologue: steps before the input that ``before`` names, which lies in memory in type ``raw``; the image is x, in
    dgrad dy. Their operands are of fp32, for each channel of the image or each filter.
    exits: reductions of the epilogue's result: genstats, sum (over all axes but 1), rowsum, rowmax (over axis 1),
    amax.
    """

    family: ClassVar[str] = "conv"

    n: int = key(text.integer(0))
    c: int = key(text.integer(1))
    hw: tuple[int, ...] = key(text.extents(0, 3))
    k: int = key(text.integer(0))
    rs: tuple[int, ...] = key(text.extents(1, 3))
    pad: tuple[tuple[int, int], ...] = key(text.paddings(), ((0, 0),))
    stride: tuple[int, ...] = key(text.extents(1, 3), (1,))
    dil: tuple[int, ...] = key(text.extents(1, 3), (1,))
    groups: int = key(text.integer(1), 1)
    dir: str = key(text.choice("fprop", "dgrad", "wgrad"), "fprop")
    mode: str = key(text.choice("cross", "flipped"), "cross")
    layout: str = key(text.choice("nchw", "nhwc"), "nhwc")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    compute: DataType | None = key(text.sum_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    alpha: float = key(text.number(), 1.0)
    beta: float = key(text.number(), 0.0)
    align: int = key(text.integer(1), 16)
    prologue: tuple[str, ...] = key(text.names(tuple(steps.STEPS)), ())
    before: str = key(text.choice("image", "filter"), "image")
    raw: DataType | None = key(text.data_type(), None)
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())
    exits: tuple[str, ...] = key(text.names(exits.NAMES), ())

    def graph(self) -> OperationGraph:
        layout = Layout.CHANNELS_LAST if self.layout == "nhwc" else Layout.ROW_MAJOR
        builder = CaseBuilder(layout, alignment_bytes=self.align, virtual_type=self.virtual)
        compute = self.compute or contraction_type(self.dtype)
        store, final, steps = stores(self.epilogue, self.out or contraction_output(self.dtype))
        output = self._convolve(builder, self._geometry(compute), store)
        channels = broadcast_dims(output.dims, "channel")
        chain = epilogue_of(steps, output, channels, self.dtype, compute)
        result = chain.build(builder, output, final, layout)
        exits.build(builder, self.exits, result, kept_axis=1, compute_type=chain.compute_type)
        return builder.graph()

    @classmethod
    def guesses(cls, graph: OperationGraph) -> Iterator[Self]:
        """Without a prologue and without exits."""
        op, *behind = graph.operations
        if not isinstance(op, ConvolutionOperation):
            return
        geometry, output, given = op.convolution, op.output, next(iter(inputs_of(op).values()))
        chain = steps.names_of(behind, output, output.dims, broadcast_dims(output.dims, "channel"))
        if chain is None:
            return
        for layout in ("nhwc", "nchw"):
            yield cls(
                n=op.image.dims[0],
                c=op.image.dims[1],
                hw=op.image.dims[2:],
                k=op.filter.dims[0],
                rs=op.filter.dims[2:],
                pad=tuple(zip(geometry.pre_paddings, geometry.post_paddings, strict=True)),
                stride=geometry.strides,
                dil=geometry.dilations,
                groups=op.image.dims[1] // max(op.filter.dims[1], 1),
                dir=_DIRECTIONS[type(op)],
                mode="cross" if geometry.mode is ConvolutionMode.CROSS_CORRELATION else "flipped",
                layout=layout,
                dtype=given.data_type,
                out=graph.outputs[-1].data_type,
                compute=geometry.compute_type,
                virtual=virtual_type(graph),
                alpha=op.alpha,
                beta=op.beta,
                align=given.alignment_bytes,
                epilogue=chain,
            )

    @property
    def length(self) -> int:
        images, filters, *outputs = self._y_dims
        return {
            "fprop": self.c // self.groups * prod(self.rs),
            "dgrad": filters // self.groups * prod(self.rs),
            "wgrad": images * prod(outputs),
        }[self.dir]

    @property
    def is_exact(self) -> bool:
        elements = prod({"fprop": self._y_dims, "dgrad": self._x_dims, "wgrad": self._w_dims}[self.dir])
        chain = (*self.prologue, *self.epilogue)
        return steps.is_exact(chain) and exits.is_exact(self.exits, self.length, elements)

    @property
    def exact_length(self) -> int:
        return exits.exact_length(self.exits, PROLOGUE_GROWTH * self.length if self.prologue else self.length)

    @property
    def sum_type(self) -> DataType:
        return self.compute or DataType.FLOAT

    def _convolve(self, builder: CaseBuilder, geometry: Convolution, store: DataType | None) -> Tensor:
        """Adds the convolution with its two inputs; gives its output."""
        if self.dir == "fprop":
            x = self._input(builder, self._x_dims, "x")
            w = self._input(builder, self._w_dims, "w")
            return builder.convolution(x, w, geometry=geometry, store=store, alpha=self.alpha, beta=self.beta)
        dy = self._input(builder, self._y_dims, "dy")
        if self.dir == "dgrad":
            w = self._input(builder, self._w_dims, "w")
            return builder.convolution_data_gradient(
                dy, w, self._x_dims, geometry=geometry, store=store, alpha=self.alpha, beta=self.beta
            )
        x = self._input(builder, self._x_dims, "x")
        return builder.convolution_filter_gradient(
            x, dy, self._w_dims, geometry=geometry, store=store, alpha=self.alpha, beta=self.beta
        )

    def _input(self, builder: CaseBuilder, dims: tuple[int, ...], name: str) -> Tensor:
        image = "dy" if self.dir == "dgrad" else "x"
        if not self.prologue or name != (image if self.before == "image" else "w"):
            return builder.tensor(dims, self.dtype, name=name)
        lies = builder.tensor(dims, self.raw or self.dtype, name=name)
        return prologue_of(builder, self.prologue, lies, broadcast_dims(dims, _LINES[self.before]), self.dtype)

    @property
    def _x_dims(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.hw)

    @property
    def _w_dims(self) -> tuple[int, ...]:
        return (self.k, self.c // self.groups, *self.rs)

    @property
    def _y_dims(self) -> tuple[int, ...]:
        return self._geometry(DataType.FLOAT).output_dims(self._x_dims, self._w_dims)

    def _geometry(self, compute: DataType) -> Convolution:
        spatial = len(self.hw)
        pad = each_axis("conv.pad", self.pad, spatial)
        return Convolution(
            compute,
            spatial,
            tuple(before for before, _ in pad),
            tuple(after for _, after in pad),
            each_axis("conv.stride", self.stride, spatial),
            each_axis("conv.dil", self.dil, spatial),
            ConvolutionMode.CROSS_CORRELATION if self.mode == "cross" else ConvolutionMode.CONVOLUTION,
        )

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        return [op.output for op in graph.operations if isinstance(op, ConvolutionOperation)] if self.beta else []
