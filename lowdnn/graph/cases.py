"""Cases: one line of text is one graph with its input data.

    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 stride=1 dil=1 groups=1 layout=nhwc dtype=bf16 epilogue=bias+relu
    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 stride=2 dir=dgrad
    conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 dtype=bf16 prologue=scale+bias+relu
    matmul b=2 m=64 n=96 k=40 layout=nt dtype=fp16 epilogue=scale+gelu
    pointwise dims=2x3x8x8 ops=add+relu dtype=fp32 broadcast=channel
    reduction dims=4x8x16 axes=1,2 op=avg dtype=bf16 before=abs after=sqrt

Words are ``key=value`` in any order; keys with a default may be left out. The same lines serve tests, ``lowdnn run``
and the benchmarks. ``#`` starts a comment in a file of cases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import ConvolutionMode, DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph import case_exits, case_steps, case_text
from lowdnn.graph.builder import GraphBuilder, Layout
from lowdnn.graph.case_steps import Chain
from lowdnn.graph.case_text import key
from lowdnn.graph.data import exact_values, real_values, unit_values
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError

Inputs = dict[int, NDArray[Any]]

#: By what a prologue stands before: along which axes its steps' operands have their extent.
_LINES = {"image": "channel", "filter": "batch"}
#: What a scale and a shift of small integers make of such ones, in their squares.
_PROLOGUE_GROWTH = 16


class Case(ABC):
    """One graph with data. ``str(case)`` is its text; ``parse_case`` reads it back to an equal case."""

    family: ClassVar[str]

    @abstractmethod
    def graph(self) -> OperationGraph:
        """The graph; raises the operations' errors where the values do not fit together."""

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """True where exact inputs must give the reference's result bit for bit."""

    @property
    def length(self) -> int:
        """Terms that are summed for one output element, for tolerances."""
        return 1

    @property
    def exact_length(self) -> int:
        """The same for the size of exact inputs, where more is summed than in one output element."""
        return self.length

    @property
    def sum_type(self) -> DataType:
        """The arithmetic in which sums of exact inputs must be exact."""
        return DataType.FLOAT

    def inputs(self, seed: int, exact: bool) -> Inputs:
        """Storage arrays in logical dims for every tensor that execute must be given values of.

        exact: small integers for which every order of summation gives the same bits; otherwise normal numbers.
        """
        rng = np.random.default_rng(seed)
        graph = self.graph()
        needed = [t for t in graph.inputs if t.constant_value is None] + self._accumulated(graph)
        return {tensor.uid: self._values(rng, tensor, exact) for tensor in needed}

    def __str__(self) -> str:
        return case_text.format_fields(self, self.family)

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        """Outputs whose old values are read."""
        return []

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        if exact:
            return exact_values(rng, tensor.dims, tensor.data_type, self.exact_length, self.sum_type)
        return real_values(rng, tensor.dims, tensor.data_type)


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
    exits: what is reduced of the epilogue's result: genstats, sum (over all axes but 1), amax.
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
        pad = _each_axis("pad", self.pad, spatial)
        return Convolution(
            compute,
            spatial,
            tuple(before for before, _ in pad),
            tuple(after for _, after in pad),
            _each_axis("stride", self.stride, spatial),
            _each_axis("dil", self.dil, spatial),
            ConvolutionMode.CROSS_CORRELATION if self.mode == "cross" else ConvolutionMode.CONVOLUTION,
        )

    def _accumulated(self, graph: OperationGraph) -> list[Tensor]:
        return [op.output for op in graph.operations if isinstance(op, ConvolutionOperation)] if self.beta else []


@dataclass(frozen=True)
class MatmulCase(Case):
    """c = a b, then the epilogue. layout: memory order of a and b, n as the formula has it or t transposed.

    prologue: steps before the input that ``before`` names, which lies in memory in type ``raw``; their operands are of
    fp32, for each k of a or each n of b.
    exits: what is reduced of the epilogue's result: sum (over all axes but the last), amax.
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


_FAMILIES: Mapping[str, type[Any]] = {
    cls.family: cls for cls in (ConvolutionCase, MatmulCase, PointwiseCase, ReductionCase)
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
        raise BadParamError.at(f"conv.{name}", expected=f"1 or {spatial} values", got=list(values))
    return values if len(values) == spatial else values * spatial
