"""Cases: one line of text is one graph with its input data.

    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 stride=1 dil=1 groups=1 layout=nhwc dtype=bf16 epilogue=bias+relu
    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 stride=2 dir=dgrad
    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 dtype=bf16 prologue=scale+bias+relu
    matmul b=2 m=64 n=96 k=40 layout=nt dtype=fp16 epilogue=scale+gelu
    matmuls m=64x100 n=96x32 k=40x72 layout=nt dtype=bf16
    pointwise dims=2x3x8x8 ops=add+relu dtype=fp32 broadcast=channel
    reduction dims=4x8x16 axes=1,2 op=avg dtype=bf16 before=abs after=sqrt
    resample n=2 c=8 hw=16x16 mode=max window=3 stride=2 pad=1 dtype=bf16 epilogue=relu
    resample n=2 c=8 hw=16x16 mode=linear size=32x32 dir=bwd
    moe experts=4 rows=300 n=96 k=64 mode=gather tokens=150 layout=nt dtype=bf16 epilogue=swish
    norm dims=64x768 mode=layer dtype=bf16 epilogue=relu
    softmax dims=64x768 dtype=bf16 dir=bwd
    transform op=transpose dims=2x3x8x8 perm=0,2,3,1 dtype=bf16
    block_scale dims=64x256 axis=1 block=32 dtype=bf16 out=e4m3
    rng dims=4x8x16 dist=bernoulli p=0.9 seed=7 offset=3 ops=mul+scalar dtype=bf16

Words are ``key=value`` in any order; keys with a default may be left out. The same lines serve tests, ``lowdnn run``
and the benchmarks. ``#`` starts a comment in a file of cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import (
    ConvolutionMode,
    DataType,
    MoeGroupedMatmulMode,
    NanPropagation,
    PaddingMode,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
    RngDistribution,
    TensorReordering,
)
from lowdnn.graph import case_exits, case_routing, case_steps, case_text
from lowdnn.graph.builder import GraphBuilder, Layout
from lowdnn.graph.case import Case, Inputs
from lowdnn.graph.case_steps import Chain
from lowdnn.graph.case_text import key
from lowdnn.graph.data import unit_values
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.row_cases import NormCase, SoftmaxCase
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.resample import Resample, maxima, whole
from lowdnn.ops.rng import Rng
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError

#: By what a prologue stands before: along which axes its steps' operands have their extent.
_LINES = {"image": "channel", "filter": "batch"}
#: What a scale and a shift of small integers make of such ones, in their squares.
_PROLOGUE_GROWTH = 16


def parse_case(line: str) -> Case:
    """The case of one line. Raises BadParamError naming the family or key, the rule and the value."""
    family, *words = line.split("#")[0].split() or [""]
    if family not in _FAMILIES:
        raise BadParamError.at("case", expected="a line that starts with " + ", ".join(_FAMILIES), got=repr(line))
    case: Case = case_text.parse_fields(_FAMILIES[family], family, words)
    return case


def parse_cases(lines: Iterable[str]) -> list[Case]:
    """The cases of a file's lines; blank and comment lines are left out."""
    return [parse_case(line) for line in lines if line.split("#")[0].strip()]


@dataclass(frozen=True)
class ConvolutionCase(Case):
    """y = alpha * conv(x, w) + beta * y, then the epilogue; channels c and filters k are totals over the groups.

    dir: what is computed: y (fprop), or dx (dgrad) or dw (wgrad) of the same convolution from dy.
    prologue: steps before the input that ``before`` names, which lies in memory in type ``raw``; the image is x, in
    dgrad dy. Their operands are of fp32, for each channel of the image or each filter.
    exits: what is reduced of the epilogue's result: genstats, sum (over all axes but 1), rowsum, rowmax (over axis 1),
    amax.
    """

    family: ClassVar[str] = "conv"

    n: int = key(case_text.integer(0))
    c: int = key(case_text.integer(1))
    hw: tuple[int, ...] = key(case_text.extents(0, 3))
    k: int = key(case_text.integer(0))
    rs: tuple[int, ...] = key(case_text.extents(1, 3))
    pad: tuple[tuple[int, int], ...] = key(case_text.paddings(), ((0, 0),))
    stride: tuple[int, ...] = key(case_text.extents(1, 3), (1,))
    dil: tuple[int, ...] = key(case_text.extents(1, 3), (1,))
    groups: int = key(case_text.integer(1), 1)
    dir: str = key(case_text.choice("fprop", "dgrad", "wgrad"), "fprop")
    mode: str = key(case_text.choice("cross", "flipped"), "cross")
    layout: str = key(case_text.choice("nchw", "nhwc"), "nhwc")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    compute: DataType | None = key(case_text.sum_type(), None)
    virtual: DataType | None = key(case_text.data_type(), None)
    alpha: float = key(case_text.number(), 1.0)
    beta: float = key(case_text.number(), 0.0)
    align: int = key(case_text.integer(1), 16)
    prologue: tuple[str, ...] = key(case_text.names(tuple(case_steps.STEPS)), ())
    before: str = key(case_text.choice("image", "filter"), "image")
    raw: DataType | None = key(case_text.data_type(), None)
    epilogue: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())
    exits: tuple[str, ...] = key(case_text.names(case_exits.NAMES), ())

    def graph(self) -> OperationGraph:
        layout = Layout.CHANNELS_LAST if self.layout == "nhwc" else Layout.ROW_MAJOR
        builder = GraphBuilder(layout, alignment_bytes=self.align, virtual_type=self.virtual)
        compute = self.compute or contraction_type(self.dtype)
        store, final, steps = _stores(self.epilogue, self.out or contraction_output(self.dtype))
        output = self._convolve(builder, self._geometry(compute), store)
        channels = _broadcast_dims(output.dims, "channel")
        chain = _epilogue(steps, output, channels, self.dtype, compute)
        result = chain.build(builder, output, final, layout)
        case_exits.build(builder, self.exits, result, kept_axis=1, compute_type=chain.compute_type)
        return builder.graph()

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
        steps = (*self.prologue, *self.epilogue)
        return case_steps.is_exact(steps) and case_exits.is_exact(self.exits, self.length, elements)

    @property
    def exact_length(self) -> int:
        return case_exits.exact_length(self.exits, _PROLOGUE_GROWTH * self.length if self.prologue else self.length)

    @property
    def sum_type(self) -> DataType:
        return self.compute or DataType.FLOAT

    def _convolve(self, builder: GraphBuilder, geometry: Convolution, store: DataType | None) -> Tensor:
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

    def _input(self, builder: GraphBuilder, dims: tuple[int, ...], name: str) -> Tensor:
        image = "dy" if self.dir == "dgrad" else "x"
        if not self.prologue or name != (image if self.before == "image" else "w"):
            return builder.tensor(dims, self.dtype, name=name)
        lies = builder.tensor(dims, self.raw or self.dtype, name=name)
        return _prologue(builder, self.prologue, lies, _broadcast_dims(dims, _LINES[self.before]), self.dtype)

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
        pad = _each_axis("conv.pad", self.pad, spatial)
        return Convolution(
            compute,
            spatial,
            tuple(before for before, _ in pad),
            tuple(after for _, after in pad),
            _each_axis("conv.stride", self.stride, spatial),
            _each_axis("conv.dil", self.dil, spatial),
            ConvolutionMode.CROSS_CORRELATION if self.mode == "cross" else ConvolutionMode.CONVOLUTION,
        )

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        return [op.output for op in graph.operations if isinstance(op, ConvolutionOperation)] if self.beta else []


@dataclass(frozen=True)
class MatmulCase(Case):
    """c = a b, then the epilogue. layout: memory order of a and b, n as the formula has it or t transposed.

    prologue: steps before the input that ``before`` names, which lies in memory in type ``raw``; their operands are of
    fp32, for each k of a or each n of b.
    exits: what is reduced of the epilogue's result: sum (over all axes but the last), rowsum, rowmax (over the last),
    amax.
    """

    family: ClassVar[str] = "matmul"

    m: int = key(case_text.integer(0))
    n: int = key(case_text.integer(0))
    k: int = key(case_text.integer(0))
    b: tuple[int, ...] = key(case_text.extents(0, 6), ())
    broadcast: str = key(case_text.choice("none", "a", "b"), "none")
    layout: str = key(case_text.choice("nn", "nt", "tn", "tt"), "nn")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    compute: DataType | None = key(case_text.sum_type(), None)
    virtual: DataType | None = key(case_text.data_type(), None)
    align: int = key(case_text.integer(1), 16)
    prologue: tuple[str, ...] = key(case_text.names(tuple(case_steps.STEPS)), ())
    before: str = key(case_text.choice("a", "b"), "a")
    raw: DataType | None = key(case_text.data_type(), None)
    epilogue: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())
    exits: tuple[str, ...] = key(case_text.names(tuple(n for n in case_exits.NAMES if n != case_exits.GEN_STATS)), ())

    def graph(self) -> OperationGraph:
        builder = GraphBuilder(alignment_bytes=self.align, virtual_type=self.virtual)
        compute = self.compute or contraction_type(self.dtype)
        a_layout, b_layout = (Layout.TRANSPOSED if letter == "t" else Layout.ROW_MAJOR for letter in self.layout)
        ones = (1,) * len(self.b)
        a_batch, b_batch = (ones if self.broadcast == name else self.b for name in "ab")
        a = self._input(builder, (*a_batch, self.m, self.k), a_layout, "a")
        b = self._input(builder, (*b_batch, self.k, self.n), b_layout, "b")
        store, final, steps = _stores(self.epilogue, self.out or contraction_output(self.dtype))
        c = builder.matmul(a, b, compute_type=compute, store=store)
        columns = (*(1,) * (len(self.b) + 1), self.n)
        chain = _epilogue(steps, c, columns, self.dtype, compute)
        result = chain.build(builder, c, final, Layout.ROW_MAJOR)
        case_exits.build(builder, self.exits, result, kept_axis=c.rank - 1, compute_type=chain.compute_type)
        return builder.graph()

    @property
    def length(self) -> int:
        return self.k

    @property
    def is_exact(self) -> bool:
        elements = prod(self.b) * self.m * self.n
        steps = (*self.prologue, *self.epilogue)
        return case_steps.is_exact(steps) and case_exits.is_exact(self.exits, self.length, elements)

    @property
    def exact_length(self) -> int:
        return case_exits.exact_length(self.exits, _PROLOGUE_GROWTH * self.length if self.prologue else self.length)

    @property
    def sum_type(self) -> DataType:
        return self.compute or DataType.FLOAT

    def _input(self, builder: GraphBuilder, dims: tuple[int, ...], layout: Layout, name: str) -> Tensor:
        if not self.prologue or name != self.before:
            return builder.tensor(dims, self.dtype, layout=layout, name=name)
        lies = builder.tensor(dims, self.raw or self.dtype, layout=layout, name=name)
        return _prologue(builder, self.prologue, lies, _broadcast_dims(dims, "row"), self.dtype)


@dataclass(frozen=True)
class MatmulListCase(Case):
    """Independent products of m[i] x n[i] x k[i], each with a chain of its own behind it."""

    family: ClassVar[str] = "matmuls"

    m: tuple[int, ...] = key(case_text.extents(1, 1024))
    n: tuple[int, ...] = key(case_text.extents(1, 1024))
    k: tuple[int, ...] = key(case_text.extents(1, 1024))
    layout: str = key(case_text.choice("nn", "nt", "tn", "tt"), "nn")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    align: int = key(case_text.integer(1), 16)
    epilogue: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())

    def graph(self) -> OperationGraph:
        if not len(self.m) == len(self.n) == len(self.k):
            raise BadParamError.at(
                "matmuls.n, k", expected=f"{len(self.m)} extents as m", got=[list(self.n), list(self.k)]
            )
        builder = GraphBuilder(alignment_bytes=self.align)
        compute = contraction_type(self.dtype)
        a_layout, b_layout = (Layout.TRANSPOSED if letter == "t" else Layout.ROW_MAJOR for letter in self.layout)
        for m, n, k in zip(self.m, self.n, self.k, strict=True):
            a = builder.tensor((1, m, k), self.dtype, layout=a_layout, name="a")
            b = builder.tensor((1, k, n), self.dtype, layout=b_layout, name="b")
            store, final, steps = _stores(self.epilogue, self.out or contraction_output(self.dtype))
            c = builder.matmul(a, b, compute_type=compute, store=store)
            _epilogue(steps, c, (1, 1, n), self.dtype, compute).build(builder, c, final, Layout.ROW_MAJOR)
        return builder.graph()

    @property
    def length(self) -> int:
        return max(self.k)

    @property
    def is_exact(self) -> bool:
        return case_steps.is_exact(self.epilogue)


@dataclass(frozen=True)
class PointwiseCase(Case):
    """The chain ``ops`` over x; broadcast: along which axes the second operands have their extent."""

    family: ClassVar[str] = "pointwise"

    dims: tuple[int, ...] = key(case_text.extents(0))
    ops: tuple[str, ...] = key(case_text.names(case_steps.NAMES))
    broadcast: str = key(case_text.choice("none", "channel", "row", "column", "batch", "scalar"), "none")
    layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    operand_layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    compute: DataType | None = key(case_text.data_type(), None)
    virtual: DataType | None = key(case_text.data_type(), None)
    axis: int = key(case_text.integer(0), 0)
    align: int = key(case_text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = GraphBuilder(alignment_bytes=self.align, virtual_type=self.virtual)
        x = builder.tensor(self.dims, self.dtype, layout=Layout(self.layout), name="x")
        chain = Chain(
            steps=self.ops,
            dims=self.dims,
            operand_dims=_broadcast_dims(self.dims, self.broadcast),
            channel_dims=_broadcast_dims(self.dims, "channel"),
            operand_type=self.dtype,
            compute_type=self.compute or pointwise_type(self.dtype),
            operand_layout=Layout(self.operand_layout),
            axis=self.axis,
        )
        chain.build(builder, x, self.out or self.dtype, Layout(self.out_layout))
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return case_steps.is_exact(self.ops)


@dataclass(frozen=True)
class ReductionCase(Case):
    """y = op over ``axes`` of x, with pointwise steps before (on x) and after (on the reduced value)."""

    family: ClassVar[str] = "reduction"

    dims: tuple[int, ...] = key(case_text.extents(0))
    axes: tuple[int, ...] = key(case_text.axes())
    op: str = key(case_text.choice(*(operator.name.lower() for operator in ReduceTensorOp)))
    layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    compute: DataType | None = key(case_text.data_type(), None)
    virtual: DataType | None = key(case_text.data_type(), None)
    align: int = key(case_text.integer(1), 16)
    before: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())
    after: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())

    def graph(self) -> OperationGraph:
        if self.axes[-1] >= len(self.dims):
            raise BadParamError.at(
                "reduction.axes", expected=f"axes under the rank {len(self.dims)}", got=list(self.axes)
            )
        builder = GraphBuilder(alignment_bytes=self.align, virtual_type=self.virtual)
        compute = self.compute or pointwise_type(self.dtype)
        x = builder.tensor(self.dims, self.dtype, layout=Layout(self.layout), name="x")
        value = _same_dims_chain(self.before, x, self.dtype, compute).build(builder, x, None, Layout(self.layout))
        store, final, steps = _stores(self.after, self.out or self.dtype)
        layout = Layout(self.out_layout)
        y = builder.reduction(
            ReduceTensorOp[self.op.upper()], value, self.axes, compute_type=compute, store=store, layout=layout
        )
        _same_dims_chain(steps, y, self.dtype, compute).build(builder, y, final, layout)
        return builder.graph()

    @property
    def length(self) -> int:
        return prod(self.dims[axis] for axis in self.axes)

    @property
    def is_exact(self) -> bool:
        return case_steps.is_exact(self.before) and case_steps.is_exact(self.after)

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if exact and self.op.startswith("mul"):
            return unit_values(rng, tensor.dims, tensor.data_type)
        return super()._values(rng, tensor, exact)


@dataclass(frozen=True)
class ResampleCase(Case):
    """Pooling or interpolation, then the epilogue.

    size: the outputs' extents, for windows around their middles (adaptive pooling); otherwise window, stride and pad.
    dir: what is computed: y (fwd), or dx of it from dy (bwd).
    index: the type of the places of maxima, which fwd writes and bwd reads; without, bwd reads x.
    padding: usual is minus infinity for maxima and 0 otherwise.
    """

    family: ClassVar[str] = "resample"

    n: int = key(case_text.integer(0))
    c: int = key(case_text.integer(0))
    hw: tuple[int, ...] = key(case_text.extents(1, 3))
    mode: str = key(case_text.choice("max", "avg", "avg_inside", "linear", "nearest"))
    window: tuple[Fraction, ...] = key(case_text.rationals(), ())
    stride: tuple[Fraction, ...] = key(case_text.rationals(), (Fraction(1),))
    pad: tuple[tuple[Fraction, Fraction], ...] = key(case_text.rational_paddings(), ((Fraction(0), Fraction(0)),))
    size: tuple[int, ...] = key(case_text.extents(1, 3), ())
    padding: str = key(case_text.choice("usual", "zero", "neg_inf", "edge"), "usual")
    nan: str = key(case_text.choice("wins", "loses"), "wins")
    dir: str = key(case_text.choice("fwd", "bwd"), "fwd")
    index: DataType | None = key(case_text.data_type(), None)
    layout: str = key(case_text.choice("nchw", "nhwc"), "nhwc")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    compute: DataType = key(case_text.data_type(), DataType.FLOAT)
    align: int = key(case_text.integer(1), 16)
    epilogue: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())

    def graph(self) -> OperationGraph:
        layout = Layout.CHANNELS_LAST if self.layout == "nhwc" else Layout.ROW_MAJOR
        builder = GraphBuilder(layout, alignment_bytes=self.align)
        store, final, steps = _stores(self.epilogue, self.out or self.dtype)
        output = self._resample(builder, store)
        chain = _epilogue(steps, output, _broadcast_dims(output.dims, "channel"), self.dtype, self.compute)
        chain.build(builder, output, final, layout)
        return builder.graph()

    @property
    def length(self) -> int:
        """Positions that an output reads, or outputs that read a position."""
        axes = self._geometry.axes(self._x_dims)
        return prod(axis.span if self.dir == "fwd" else -(-axis.reach // axis.step) for axis in axes)

    @property
    def is_exact(self) -> bool:
        return case_steps.is_exact(self.epilogue) and self._has_exact_weights

    @property
    def _has_exact_weights(self) -> bool:
        """Whether weights are powers of two, or sums are divided once: small integers then have one right result."""
        axes = self._geometry.axes(self._x_dims)
        if self.mode == "linear":
            return all(axis.unit & (axis.unit - 1) == 0 for axis in axes)
        if self.dir == "fwd" or self.mode in ("max", "nearest"):
            return True
        return all(axis.unit == 1 and (self.mode == "avg" or axis.span <= 2) for axis in axes)

    def _resample(self, builder: GraphBuilder, store: DataType | None) -> Tensor:
        """Adds the operation with its inputs; gives y or dx."""
        geometry = self._geometry
        if self.dir == "fwd":
            x = builder.tensor(self._x_dims, self.dtype, name="x")
            return builder.resample(x, geometry, store=store, index_type=self.index)
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
        pads = _each_axis("resample.pad", self.pad, spatial)
        usual = PaddingMode.NEG_INF_PAD if self.mode == "max" else PaddingMode.ZERO_PAD
        return Resample(
            spatial,
            tuple(map(whole, _each_axis("resample.window", windows, spatial))),
            tuple(map(whole, _each_axis("resample.stride", self.stride, spatial))),
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


@dataclass(frozen=True)
class MoeCase(Case):
    """Routed rows times the weights of their experts, or the weights' gradient (dir=wgrad), in ``batches`` of groups.

    sizes: rows of each group, batch after batch; drawn where there are none.  ends: the last group's end is given, and
    may leave rows over.  tokens: to gather from.  layout: of the weights; nt: K is contiguous.  offset: of the offsets.
    """

    family: ClassVar[str] = "moe"

    experts: int = key(case_text.integer(1))
    rows: int = key(case_text.integer(0))
    n: int = key(case_text.integer(0))
    k: int = key(case_text.integer(0))
    batches: int = key(case_text.integer(1), 1)
    sizes: tuple[int, ...] = key(case_text.extents(0, 1024), ())
    ends: int = key(case_text.integer(0), 0)
    mode: str = key(case_text.choice("none", "gather", "scatter"), "none")
    tokens: int = key(case_text.integer(1), 1)
    top_k: int = key(case_text.integer(1), 1)
    dir: str = key(case_text.choice("fprop", "wgrad"), "fprop")
    layout: str = key(case_text.choice("nn", "nt"), "nn")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    offset: DataType = key(case_text.data_type(), DataType.INT32)
    out: DataType | None = key(case_text.data_type(), None)
    compute: DataType | None = key(case_text.data_type(), None)
    align: int = key(case_text.integer(1), 16)
    epilogue: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())

    def graph(self) -> OperationGraph:
        self._check_sizes()
        builder = GraphBuilder(alignment_bytes=self.align)
        offsets = builder.tensor((self._groups + (self.ends > 0), 1, 1), self.offset, name="first_token_offset")
        compute = self.compute or contraction_type(self.dtype)
        weights = Layout.TRANSPOSED if self.layout == "nt" else Layout.ROW_MAJOR
        store, final, steps = _stores(self.epilogue, self.out or contraction_output(self.dtype))
        if self.dir == "wgrad":
            token = builder.tensor((1, self.rows, self.k), self.dtype, name="token")
            doutput = builder.tensor((1, self.rows, self.n), self.dtype, name="doutput")
            output = builder.moe_weight_gradient(
                doutput, token, offsets, self.experts, compute_type=compute, store=store, layout=weights
            )
            last = weights
        else:
            output = self._product(builder, offsets, weights, compute, store)
            last = Layout.ROW_MAJOR
        _epilogue(steps, output, (1, 1, self.n), self.dtype, compute).build(builder, output, final, last)
        return builder.graph()

    def inputs(self, seed: int, exact: bool) -> Inputs:
        return super().inputs(seed, exact) | self.routing(seed)

    def routing(self, seed: int) -> Inputs:
        """Those of the inputs that say which rows are whose, come from where and go where."""
        rng = np.random.default_rng([seed, 1])
        sizes = self.sizes or case_routing.group_sizes(rng, self.rows, self._groups)
        values = {"first_token_offset": case_routing.offsets(sizes, self.ends > 0)}
        values |= case_routing.routing(rng, self._mode, self.tokens, self.rows, self.top_k)
        tensors = (tensor for tensor in self.graph().inputs if tensor.name in values)
        return {tensor.uid: dtypes.from_float64(values[tensor.name], tensor.data_type) for tensor in tensors}

    @property
    def length(self) -> int:
        return self.k if self.dir == "fprop" else max(self.sizes, default=self.rows) * self.batches

    @property
    def is_exact(self) -> bool:
        return case_steps.is_exact(self.epilogue)

    def _product(
        self, builder: GraphBuilder, offsets: Tensor, weights: Layout, compute: DataType, store: DataType | None
    ) -> Tensor:
        gathers, scatters = self.mode == "gather", self.mode == "scatter"
        token = builder.tensor((1, self.tokens if gathers else self.rows, self.k), self.dtype, name="token")
        weight = builder.tensor((self.experts, self.k, self.n), self.dtype, layout=weights, name="weight")
        rows = (1, self.rows, 1)
        index = builder.tensor(rows, DataType.INT32, name="token_index") if gathers or scatters else None
        ks = builder.tensor(rows, DataType.INT32, name="token_ks") if scatters else None
        return builder.moe_grouped_matmul(
            token, weight, offsets, index, ks, mode=self._mode, top_k=self.top_k, compute_type=compute, store=store
        )

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        """The output, where rows of it are left as they were."""
        return list(graph.outputs) if self.dir == "fprop" and self._left_over else []

    @property
    def _mode(self) -> MoeGroupedMatmulMode:
        return MoeGroupedMatmulMode[self.mode.upper()]

    @property
    def _groups(self) -> int:
        return self.experts * self.batches

    @property
    def _left_over(self) -> int:
        return self.rows - sum(self.sizes) if self.sizes else 0

    def _check_sizes(self) -> None:
        if self.experts == 1 < self.batches and not self.ends:
            raise BadParamError.at("moe.ends", expected="1 for several groups of one expert", got=self.ends)
        if self.sizes and len(self.sizes) != self._groups:
            raise BadParamError.at("moe.sizes", expected=f"{self._groups} groups", got=len(self.sizes))
        has_rest = self.ends and (self.dir == "wgrad" or not self.epilogue)
        if self._left_over < 0 or (self._left_over and not has_rest):
            expected = f"{self.rows} rows, or fewer with ends=1 and without an epilogue of rows"
            raise BadParamError.at("moe.sizes", expected=expected, got=sum(self.sizes))


@dataclass(frozen=True)
class RngCase(Case):
    """Random numbers, and the chain ``ops`` over them: ``ops=mul+scalar`` is dropout of a tensor.

    source: what seed and offset are: number (the offset a constant), host (by-value tensors) or device.
    """

    family: ClassVar[str] = "rng"

    dims: tuple[int, ...] = key(case_text.extents(0))
    dist: str = key(case_text.choice(*(distribution.name.lower() for distribution in RngDistribution)), "bernoulli")
    p: float = key(case_text.number(), 0.5)
    low: float = key(case_text.number(), 0.0)
    high: float = key(case_text.number(), 1.0)
    mean: float = key(case_text.number(), 0.0)
    deviation: float = key(case_text.number(), 1.0)
    seed: int = key(case_text.integer(0), 0)
    offset: int = key(case_text.integer(0), 0)
    source: str = key(case_text.choice("number", "host", "device"), "number")
    ops: tuple[str, ...] = key(case_text.names(case_steps.NAMES), ())
    layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    virtual: DataType | None = key(case_text.data_type(), None)
    align: int = key(case_text.integer(1), 16)

    def graph(self) -> OperationGraph:
        layout = Layout(self.layout)
        builder = GraphBuilder(layout, alignment_bytes=self.align, virtual_type=self.virtual)
        store, final, steps = _stores(self.ops, self.out or self.dtype)
        seed = self.seed if self.source == "number" else self._scalar(builder, "seed")
        offset = self._scalar(builder, "offset")
        distribution = Rng(RngDistribution[self.dist.upper()], self.mean, self.deviation, self.high, self.low, self.p)
        y = builder.rng(distribution, self.dims, seed=seed, offset=offset, store=store)
        chain = replace(_same_dims_chain(steps, y, self.dtype, pointwise_type(self.dtype)), operand_layout=layout)
        chain.build(builder, y, final, layout)
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return self.dist == "bernoulli" and case_steps.is_exact(self.ops)

    def _scalar(self, builder: GraphBuilder, name: str) -> Tensor:
        if self.source == "number":
            return builder.constant(1, DataType.INT64, getattr(self, name), name=name)
        if self.source == "host":
            return builder.by_value(1, DataType.INT64, name=name)
        return builder.tensor((1,), DataType.INT64, name=name)

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if tensor.name in ("seed", "offset"):
            return np.full(tensor.dims, getattr(self, tensor.name), np.int64)
        return super()._values(rng, tensor, exact)


@dataclass(frozen=True)
class TransformCase(Case):
    """A move of elements: transpose (perm), slice (start, limit, step), reshape (to), concat (axis; parts are the
    inputs' extents along it), copy between layouts and types, expand a band to a matrix of ``dims`` or contract one
    (axis, lower, upper, pad)."""

    family: ClassVar[str] = "transform"

    op: str = key(case_text.choice("transpose", "slice", "reshape", "concat", "copy", "expand", "contract"))
    dims: tuple[int, ...] = key(case_text.extents(0))
    perm: tuple[int, ...] = key(case_text.indices(), ())
    start: tuple[int, ...] = key(case_text.indices(), ())
    limit: tuple[int, ...] = key(case_text.indices(), ())
    step: tuple[int, ...] = key(case_text.indices(), ())
    to: tuple[int, ...] = key(case_text.extents(0), ())
    axis: int = key(case_text.integer(0), 0)
    parts: tuple[int, ...] = key(case_text.indices(), ())
    lower: int = key(case_text.integer(0), 0)
    upper: int = key(case_text.integer(0), 0)
    pad: float = key(case_text.number(), 0.0)
    layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType | None = key(case_text.data_type(), None)
    align: int = key(case_text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = GraphBuilder(Layout(self.layout), alignment_bytes=self.align)
        store, layout = self.out or self.dtype, Layout(self.out_layout)
        if self.op == "concat":
            shapes = [(*self.dims[: self.axis], part, *self.dims[self.axis + 1 :]) for part in self.parts]
            inputs = [builder.tensor(dims, self.dtype, name=f"x{number}") for number, dims in enumerate(shapes)]
            builder.concat(inputs, self.axis, store=store, layout=layout)
            return builder.graph()
        if self.op == "expand":
            band = (*self.dims[: self.axis], self.lower + 1 + self.upper, *self.dims[self.axis + 1 :])
            x, bandwidths = builder.tensor(band, self.dtype, name="x"), (self.lower, self.upper)
            columns = self.dims[self.axis]
            builder.expand_band_matrix(x, columns, bandwidths, axis=self.axis, pad=self.pad, store=store, layout=layout)
            return builder.graph()
        x = builder.tensor(self.dims, self.dtype, name="x")
        match self.op:
            case "contract":
                bandwidths = (self.lower, self.upper)
                builder.contract_band_matrix(x, bandwidths, axis=self.axis, pad=self.pad, store=store, layout=layout)
            case "transpose":
                builder.transpose(x, self.perm, store=store, layout=layout)
            case "slice":
                builder.slice(x, self.start, self.limit, self.step, store=store, layout=layout)
            case "reshape":
                builder.reshape(x, self.to, store=store, layout=layout)
            case "copy":
                compute = pointwise_type(self.dtype)
                builder.pointwise(PointwiseMode.IDENTITY, x, compute_type=compute, store=store, layout=layout)
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return True


@dataclass(frozen=True)
class BlockScaleCase(Case):
    """Quantisation of x of ``dtype`` to ``out``, or dequantisation, with a scale for each block of neighbours.

    order: in which the scales lie, row by row or in tiles (F8_128x4).
    """

    family: ClassVar[str] = "block_scale"

    dims: tuple[int, ...] = key(case_text.extents(0))
    axis: int = key(case_text.integer(0))
    dir: str = key(case_text.choice("quantize", "dequantize"), "quantize")
    block: int = key(case_text.integer(1), 32)
    layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    out_layout: str = key(case_text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(case_text.data_type(), DataType.FLOAT)
    out: DataType = key(case_text.data_type(), DataType.FP8_E4M3)
    scale: DataType = key(case_text.data_type(), DataType.FP8_E8M0)
    order: str = key(case_text.choice("rows", "tiles"), "rows")
    align: int = key(case_text.integer(1), 16)

    def graph(self) -> OperationGraph:
        builder = GraphBuilder(Layout(self.layout), alignment_bytes=self.align)
        layout = Layout(self.out_layout)
        x = builder.tensor(self.dims, self.dtype, name="x")
        reordering = TensorReordering.F8_128x4 if self.order == "tiles" else TensorReordering.NONE
        if self.dir == "quantize":
            builder.block_scale_quantize(
                x,
                self.block,
                self.axis,
                store=self.out,
                scale_type=self.scale,
                layout=layout,
                reordering=reordering,
            )
        else:
            scale = builder.block_scales(self.dims, self.axis, self.block, self.scale, reordering)
            builder.block_scale_dequantize(x, scale, self.block, store=self.out, layout=layout)
        return builder.graph()

    @property
    def is_exact(self) -> bool:
        return True


_FAMILIES: Mapping[str, type[Any]] = {
    cls.family: cls
    for cls in (
        ConvolutionCase,
        MatmulCase,
        MatmulListCase,
        MoeCase,
        PointwiseCase,
        ReductionCase,
        NormCase,
        SoftmaxCase,
        ResampleCase,
        TransformCase,
        BlockScaleCase,
        RngCase,
    )
}


def contraction_type(data_type: DataType) -> DataType:
    """The default compute type of a contraction over operands of ``data_type``."""
    if data_type is DataType.DOUBLE:
        return DataType.DOUBLE
    return DataType.INT32 if data_type in (DataType.INT8, DataType.INT32) else DataType.FLOAT


def contraction_output(data_type: DataType) -> DataType:
    """The default output type of a contraction: the operands' own, INT32 for INT8."""
    return DataType.INT32 if data_type is DataType.INT8 else data_type


def pointwise_type(data_type: DataType) -> DataType:
    """The default compute type of pointwise operations and reductions over operands of ``data_type``."""
    if data_type in (DataType.DOUBLE, DataType.INT64, DataType.BOOLEAN):
        return data_type
    return DataType.INT32 if data_type in (DataType.INT8, DataType.UINT8, DataType.INT32) else DataType.FLOAT


def _stores(steps: tuple[str, ...], out: DataType) -> tuple[DataType | None, DataType, tuple[str, ...]]:
    """(data type in which the anchor stores, that of the last step, steps after the anchor)."""
    if steps and steps[0] == case_steps.STORE:
        return out, out, steps[1:]
    return (None if steps else out), out, steps


def _prologue(
    builder: GraphBuilder, steps: tuple[str, ...], value: Tensor, line_dims: tuple[int, ...], data_type: DataType
) -> Tensor:
    """The virtual input of ``data_type``, after float arithmetic."""
    chain = Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=line_dims,
        operand_type=DataType.FLOAT,
        compute_type=DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT,
        operand_layout=Layout.CHANNELS_LAST if _is_channels_last(value) else Layout.ROW_MAJOR,
    )
    changed = chain.build(builder, value, None, Layout.ROW_MAJOR)
    return builder.pointwise(PointwiseMode.IDENTITY, changed, compute_type=chain.compute_type, virtual=data_type)


def _epilogue(
    steps: tuple[str, ...], value: Tensor, channel_dims: tuple[int, ...], data_type: DataType, compute: DataType
) -> Chain:
    """The chain behind a contraction: float arithmetic, operands in the contraction's float type or fp32."""
    is_integer = compute is DataType.INT32
    return Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=channel_dims,
        operand_type=DataType.FLOAT if is_integer else data_type,
        compute_type=DataType.DOUBLE if compute is DataType.DOUBLE else DataType.FLOAT,
        operand_layout=Layout.CHANNELS_LAST if _is_channels_last(value) else Layout.ROW_MAJOR,
    )


def _same_dims_chain(steps: tuple[str, ...], value: Tensor, data_type: DataType, compute: DataType) -> Chain:
    return Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=_broadcast_dims(value.dims, "channel"),
        operand_type=data_type,
        compute_type=compute,
    )


def _is_channels_last(value: Tensor) -> bool:
    return value.rank > 2 and value.strides[1] == 1 and value.strides[-1] != 1


def _broadcast_dims(dims: tuple[int, ...], broadcast: str) -> tuple[int, ...]:
    """``dims`` with 1 on every axis but those named: batch 0, channel 1, row the last, column all but the last."""
    last = len(dims) - 1
    kept = {
        "none": range(last + 1),
        "batch": (0,),
        "channel": (min(1, last),),
        "row": (last,),
        "column": range(last),
        "scalar": (),
    }[broadcast]
    return tuple(extent if axis in kept else 1 for axis, extent in enumerate(dims))


def _each_axis(name: str, values: tuple[Any, ...], spatial: int) -> tuple[Any, ...]:
    """One value for each spatial axis; a single one serves all."""
    if len(values) not in (1, spatial):
        raise BadParamError.at(name, expected=f"1 or {spatial} values", got=list(values))
    return values if len(values) == spatial else values * spatial
