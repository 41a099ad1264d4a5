"""Cases of norms and softmax.

norm dims=2x16x8x8 mode=group groups=4 layout=nhwc dtype=bf16 epilogue=swish
norm dims=64x768 mode=rms dir=bwd scale=scale
softmax dims=16x1000 axes=1 log=yes dtype=fp16
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import steps, text
from lowdnn.cases.base import Case, check_axes
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.chains import layout_like
from lowdnn.cases.steps import Chain
from lowdnn.cases.text import key
from lowdnn.enums import DataType, NormFwdPhase, NormMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout, layout_of
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor

_EPSILON, _MOMENTUM = 1e-3, 0.1
_MODES = {
    "layer": NormMode.LAYER_NORM,
    "instance": NormMode.INSTANCE_NORM,
    "batch": NormMode.BATCH_NORM,
    "group": NormMode.GROUP_NORM,
    "rms": NormMode.RMS_NORM,
    "ada": NormMode.ADA_LAYER_NORM,
}
_PER_CHANNEL = (NormMode.INSTANCE_NORM, NormMode.BATCH_NORM, NormMode.GROUP_NORM)


@dataclass(frozen=True)
class NormCase(Case):
    """A norm of x, with pointwise steps before (on x, or on dy) and behind it (on y, or on dx).

    axes: the axes along which scale and bias extend, for the modes that say so; by default all but the first.
    scale: the ones of scale and bias that there are.  mean, deviation: the mean of the data of x, where they are real
    numbers.
    """

    family: ClassVar[str] = "norm"

    dims: tuple[int, ...] = key(text.extents(0))
    mode: str = key(text.choice(*_MODES))
    axes: tuple[int, ...] = key(text.axes(), ())
    groups: int = key(text.integer(0), 0)
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    phase: str = key(text.choice("training", "inference"), "training")
    scale: str = key(text.choice("none", "scale", "both"), "both")
    running: str = key(text.choice("no", "yes"), "no")
    mean: float = key(text.number(), 0.0)
    deviation: float = key(text.number(), 1.0)
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    stats: DataType | None = key(text.data_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    before: tuple[str, ...] = key(text.names(steps.NAMES), ())
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        check_axes(self.axes, len(self.dims), "norm.axes")
        layout, mode, compute = Layout(self.layout), _MODES[self.mode], _compute_type(self.dtype)
        builder = CaseBuilder(layout, alignment_bytes=self.align, virtual_type=self.virtual)
        statistics, out = self.stats or compute, self.out or self.dtype
        x = builder.tensor(self.dims, self.dtype, name="x")
        scale = None if self.scale == "none" else builder.tensor(self._scale_dims, statistics, name="scale")
        if self.dir == "bwd":
            dy = builder.tensor(self.dims, self.dtype, name="dy")
            value = _chain(self.before, dy, self.dtype).build(builder, dy, None, layout)
            dx = builder.norm_backward(
                mode,
                x,
                value,
                scale,
                groups=self.groups,
                store=None if self.epilogue else out,
                statistics=statistics,
                has_bias=self.scale == "both",
            )
            _chain(self.epilogue, dx, self.dtype).build(builder, dx, out, layout)
            return builder.graph()
        bias = builder.tensor(self._scale_dims, statistics, name="bias") if self.scale == "both" else None
        value = _chain(self.before, x, self.dtype).build(builder, x, None, layout)
        rank = len(self.dims)
        momentum = builder.by_value(rank, DataType.FLOAT, name="momentum") if self.running == "yes" else None
        y = builder.norm(
            mode,
            value,
            builder.constant(rank, DataType.FLOAT, _EPSILON, name="epsilon"),
            scale,
            bias,
            groups=self.groups,
            phase=NormFwdPhase[self.phase.upper()],
            momentum=momentum,
            store=None if self.epilogue else out,
            statistics=statistics,
        )
        _chain(self.epilogue, y, self.dtype).build(builder, y, out, layout)
        return builder.graph()

    @property
    def length(self) -> int:
        """Elements of a row."""
        if self.mode == "group":
            return prod(self.dims[1:]) // max(self.groups, 1)
        if self.mode in ("batch", "instance"):
            return prod(self.dims[2:]) * (self.dims[0] if self.mode == "batch" else 1)
        return prod(self.dims[axis] for axis in self._axes)

    @property
    def is_exact(self) -> bool:
        return False

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        values = super()._values(rng, tensor, exact)
        if tensor.name == "x" and (self.mean, self.deviation) != (0.0, 1.0):
            numbers = dtypes.to_values(values, tensor.data_type) * self.deviation + self.mean
            values = dtypes.from_float64(numbers, tensor.data_type)
        return values

    @property
    def _axes(self) -> tuple[int, ...]:
        return self.axes or tuple(range(1, len(self.dims)))

    @property
    def _scale_dims(self) -> tuple[int, ...]:
        if _MODES[self.mode] in _PER_CHANNEL:
            return tuple(extent if axis == 1 else 1 for axis, extent in enumerate(self.dims))
        kept = (0, *self._axes) if self.mode == "ada" else self._axes
        return tuple(extent if axis in kept else 1 for axis, extent in enumerate(self.dims))


@dataclass(frozen=True)
class SoftmaxCase(Case):
    """Softmax of x over ``axes`` (by default the last), or its gradient from y and dy, with pointwise steps before (on
    x, or on dy) and behind it.

    log: whether y is the logarithm of softmax.  sink: whether rows have one.  masked: y of a row of minus infinity.
    stats: the type in which log-sum-exp, maximum and sum are stored; without it they are not.
    """

    family: ClassVar[str] = "softmax"

    dims: tuple[int, ...] = key(text.extents(0))
    axes: tuple[int, ...] = key(text.axes(), ())
    dir: str = key(text.choice("fwd", "bwd"), "fwd")
    log: str = key(text.choice("no", "yes"), "no")
    layout: str = key(text.choice(*(item.value for item in Layout)), "row")
    dtype: DataType = key(text.data_type(), DataType.FLOAT)
    out: DataType | None = key(text.data_type(), None)
    sink: str = key(text.choice("no", "yes"), "no")
    masked: str = key(text.choice("zero", "nan"), "zero")
    stats: DataType | None = key(text.data_type(), None)
    virtual: DataType | None = key(text.data_type(), None)
    align: int = key(text.integer(1), 16)
    before: tuple[str, ...] = key(text.names(steps.NAMES), ())
    epilogue: tuple[str, ...] = key(text.names(steps.NAMES), ())

    def graph(self) -> OperationGraph:
        check_axes(self.axes, len(self.dims), "softmax.axes")
        layout, is_log, out = Layout(self.layout), self.log == "yes", self.out or self.dtype
        builder = CaseBuilder(layout, alignment_bytes=self.align, virtual_type=self.virtual)
        store = None if self.epilogue else out
        source = builder.tensor(self.dims, self.dtype, name="x" if self.dir == "fwd" else "dy")
        value = _chain(self.before, source, self.dtype).build(builder, source, None, layout)
        if self.dir == "fwd":
            result = builder.softmax(
                value, self._axes, is_log=is_log, masked_is_nan=self.masked == "nan", sink=self._sink(builder),
                statistics=self.stats, store=store,
            )  # fmt: skip
        else:
            y = builder.tensor(self.dims, self.dtype, name="y")
            result = builder.softmax_backward(value, y, self._axes, is_log=is_log, store=store)
        _chain(self.epilogue, result, self.dtype).build(builder, result, out, layout)
        return builder.graph()

    @classmethod
    def guesses(cls, graph: OperationGraph) -> Iterator[Self]:
        """Without steps and without a sink."""
        op, *behind = graph.operations
        if isinstance(op, Softmax) and not behind:
            yield cls(
                dims=op.x.dims,
                axes=op.normalised_axes,
                log="yes" if op.is_log else "no",
                masked="nan" if op.masked_is_nan else "zero",
                layout=layout_of(op.x).value,
                dtype=op.x.data_type,
                out=op.y.data_type,
                stats=None if op.stats is None else op.stats.data_type,
                align=op.x.alignment_bytes,
            )

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(self.dims[axis] for axis in self._axes)

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def _axes(self) -> tuple[int, ...]:
        return self.axes or (len(self.dims) - 1,)

    def _sink(self, builder: CaseBuilder) -> Tensor | None:
        """One number for the rows of all places along the first axis."""
        if self.sink == "no":
            return None
        dims = tuple(1 if axis in (0, *self._axes) else extent for axis, extent in enumerate(self.dims))
        return builder.tensor(dims, self.dtype, name="sink")

    def _values(self, rng: np.random.Generator, tensor: Tensor, exact: bool) -> NDArray[Any]:
        values = super()._values(rng, tensor, exact)
        if self.log == "yes" and tensor.name == "y":  # a logarithm of a share
            values = dtypes.from_float64(-np.abs(dtypes.to_float64(values, tensor.data_type)), tensor.data_type)
        return values


def _compute_type(data_type: DataType) -> DataType:
    return DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT


def _chain(steps: tuple[str, ...], value: Tensor, data_type: DataType) -> Chain:
    channels = tuple(extent if axis == min(1, value.rank - 1) else 1 for axis, extent in enumerate(value.dims))
    return Chain(
        steps=steps,
        dims=value.dims,
        operand_dims=value.dims,
        channel_dims=channels,
        operand_type=data_type,
        compute_type=_compute_type(data_type),
        operand_layout=layout_like(value),
    )
