"""Reductions, statistics of channels and resampling for growing graphs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from lowdnn import dtypes
from lowdnn.cases.building.operators import OPERATORS, operator_of
from lowdnn.enums import BnFinalizeStatsMode, DataType, NanPropagation, PaddingMode, ReduceTensorOp, ResampleMode
from lowdnn.ops import gen_stats as gen_stats_op
from lowdnn.ops.bn_backward_weights import BnBackwardWeights
from lowdnn.ops.bn_finalize import BnFinalize
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.described_reduction import DescribedReduction
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.resample import Resample, maxima
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import Tensor
from tests.support.random_graphs.growth import ANY_TYPE, FLOATS, INTEGERS, Dims, Growth

_EXACT_OPERATORS = (
    ReduceTensorOp.ADD,
    ReduceTensorOp.MIN,
    ReduceTensorOp.MAX,
    ReduceTensorOp.AMAX,
    ReduceTensorOp.NORM1,
)
#: The first uid of tensors of an operator, far from those of a graph.
_INNER_UID = 10**6
_INDEX_TYPES = (DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64)


def reduction(growth: Growth) -> None:
    operator = growth.choose(_EXACT_OPERATORS if growth.is_exact else tuple(ReduceTensorOp))
    x = growth.value(lambda: growth.input(_dims(growth), growth.choose((*FLOATS, *FLOATS, *ANY_TYPE))))
    reduced = [growth.chance(0.5) for _ in x.dims]
    dims = tuple(1 if is_reduced else extent for is_reduced, extent in zip(reduced, x.dims, strict=True))
    is_integer = dtypes.info(x.data_type).kind is not dtypes.Kind.FLOAT and operator is not ReduceTensorOp.NORM2
    options = (DataType.INT32, DataType.INT64) if is_integer else (DataType.FLOAT, DataType.FLOAT, DataType.DOUBLE)
    y = growth.output(dims, growth.choose(INTEGERS if is_integer else (DataType.FLOAT, *FLOATS)))
    growth.add(ReductionOperation(Reduction(operator, growth.choose(options)), x=x, y=y))


def custom_reduction(growth: Growth) -> None:
    """An operator that a sub-graph describes: of exact integers any, otherwise one that differences of a unit in the
    last place do not change much."""
    name = growth.choose(("add", "last", "affine") if growth.is_exact else ("add", "last", "argmax", "logsumexp"))
    kind = growth.choose((DataType.FLOAT, DataType.FLOAT, DataType.DOUBLE))
    drawn = growth.input(_dims(growth), growth.float_type())
    x = drawn if name == "argmax" else growth.value(lambda: drawn, lambda tensor: tensor.data_type in FLOATS)
    kinds, others = (kind,) * len(OPERATORS[name].initial), []
    if name == "argmax":
        kinds, others = (kind, DataType.INT32), [growth.like(x.dims, DataType.INT32, "index")]
    elif len(kinds) > 1:
        others = [growth.input(x.dims, DataType.FLOAT, np.abs(growth.rng.integers(-3, 4, x.dims)))]
    axes = tuple(axis for axis in range(x.rank) if growth.chance(0.5))
    dims = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.dims))
    outputs = tuple(growth.output(dims, DataType.INT32 if held is DataType.INT32 else kind) for held in kinds)
    operator = operator_of(name, kinds, _INNER_UID)
    growth.add(CustomReduction((x, *others), outputs, axes, OPERATORS[name].initial, operator))


def described_reduction(growth: Growth) -> None:
    """A reduction as its descriptor has it: a ``DescribedReduction``, by a name or by a sub-graph."""
    x = growth.value(
        lambda: growth.input(_dims(growth), growth.float_type()), lambda tensor: tensor.data_type in FLOATS
    )
    axes = tuple(axis for axis in range(x.rank) if growth.chance(0.5))
    dims = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.dims))
    y = growth.output(dims, growth.choose((DataType.FLOAT, DataType.DOUBLE)))
    if growth.chance(0.3):
        growth.add(DescribedReduction((x,), (y,), Reduction(ReduceTensorOp.ADD, y.data_type)))
        return
    operator = operator_of("add", (y.data_type,), 1)
    left, right, made = ((tensor.uid,) for tensor in (*operator.given, *operator.made))
    growth.add(DescribedReduction((x,), (y,), None, axes, (1.0,), operator, left, right, made))


def gen_stats(growth: Growth) -> None:
    x = _channels(growth)
    dims = gen_stats_op.output_dims(x.dims)
    kind = DataType.DOUBLE if x.data_type is DataType.DOUBLE else DataType.FLOAT
    total, squares = (growth.output(dims, growth.choose((kind, *FLOATS)), name=name) for name in ("sum", "squares"))
    growth.add(GenStats(x, total, squares, kind))


def bn_finalize(growth: Growth) -> None:
    """A ``BnFinalize`` of sums of actual values, so that no variance is negative."""
    channels, kind = (1, growth.extent("c", 9), 1, 1), growth.choose((DataType.FLOAT, DataType.DOUBLE))
    count = 2 + int(growth.rng.integers(30))
    values = growth.rng.standard_normal((count, *channels))
    sums = [growth.input(channels, kind, part.sum(0)) for part in (values, values**2)]
    scale, bias = (growth.like(channels, growth.float_type()) for _ in range(2))
    numbers = [growth.scalar(4, DataType.FLOAT, value) for value in (float(count), 1e-3)]
    outputs = [growth.output(channels, growth.float_type(), name=name) for name in ("mean", "inv_std", "scale", "bias")]
    running: list[Tensor] = []
    if growth.chance(0.5):
        before = [growth.input(channels, DataType.FLOAT) for _ in range(2)]
        after = [growth.output(channels, DataType.FLOAT, name="running") for _ in range(2)]
        running = [growth.scalar(4, DataType.FLOAT, 0.25), *before, *after]
    growth.add(BnFinalize(BnFinalizeStatsMode.TRAINING, kind, *sums, scale, bias, *numbers, *outputs, *running))


def bn_backward_weights(growth: Growth) -> None:
    x = _channels(growth)
    dims = gen_stats_op.output_dims(x.dims)
    mean, inv_std, scale = (growth.like(dims, DataType.FLOAT) for _ in range(3))
    outputs = [growth.output(dims, DataType.FLOAT, name=f"y{number}") for number in range(5)]
    compute = DataType.DOUBLE if x.data_type is DataType.DOUBLE else DataType.FLOAT
    growth.add(BnBackwardWeights(compute, mean, inv_std, scale, x, growth.like(x.dims, x.data_type, "dy"), *outputs))


def resample_forward(growth: Growth) -> None:
    resample, dims = _resampling(growth)
    x = growth.like(dims, growth.choose((*FLOATS, *FLOATS, *ANY_TYPE)))
    y_dims = resample.output_dims(dims)
    index = None
    if resample.mode is ResampleMode.MAXPOOL and growth.chance(0.5):
        index = growth.output(y_dims, growth.choose(_INDEX_TYPES), name="index")
    growth.add(ResampleForward(resample, x=x, y=growth.output(y_dims, growth.float_type()), index=index))


def resample_backward(growth: Growth) -> None:
    resample, dims = _resampling(growth)
    dy = growth.like(resample.output_dims(dims), growth.float_type(), "dy")
    index = x = None
    if resample.mode is ResampleMode.MAXPOOL:
        image = growth.rng.standard_normal(dims)
        if growth.chance(0.5):
            x = growth.input(dims, DataType.FLOAT, image)
        else:
            kind = growth.choose(_INDEX_TYPES)
            index = growth.input(dy.dims, kind, maxima(resample, image)[1], name="index")
    growth.add(ResampleBackward(resample, dy=dy, dx=growth.output(dims, growth.float_type()), index=index, x=x))


def _dims(growth: Growth) -> Dims:
    rank = 1 + int(growth.rng.integers(5))
    return tuple(growth.extent(f"x{axis}", 12 if rank < 4 else 5) for axis in range(rank))


def _channels(growth: Growth) -> Tensor:
    """A tensor (N, C, spatial...)."""
    rank = 2 + int(growth.rng.integers(4))
    return growth.value(
        lambda: growth.input(tuple(growth.extent(f"x{axis}", 6) for axis in range(rank)), growth.float_type()),
        lambda tensor: tensor.rank >= 2 and dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT,
    )


def _resampling(growth: Growth) -> tuple[Resample, Dims]:
    """The geometry of a resampling, and the dims of its image."""
    spatial = 1 + int(growth.rng.integers(3))
    names = ("n", "c", *(f"x{axis}" for axis in range(spatial)))
    dims = tuple(growth.extent(name, 3 if name in "nc" else 8 - spatial) for name in names)
    mode = growth.choose(tuple(ResampleMode))
    if growth.is_exact and mode in (ResampleMode.BILINEAR, ResampleMode.AVGPOOL_EXCLUDE_PADDING, ResampleMode.AVGPOOL):
        mode = ResampleMode.MAXPOOL
    nan = growth.choose(tuple(NanPropagation))
    compute = growth.choose((DataType.FLOAT, DataType.FLOAT, DataType.DOUBLE))
    if growth.chance(0.3) and min(dims[2:]) > 0:
        sizes = tuple(1 + int(growth.rng.integers(8)) for _ in range(spatial))
        return Resample.to_size(mode, dims[2:], sizes, compute, nan), dims
    is_pooling = mode not in (ResampleMode.NEAREST, ResampleMode.BILINEAR)

    def each(*options: int | Fraction) -> tuple[int | Fraction, ...]:
        return tuple(growth.choose(options) for _ in range(spatial))

    windows = each(1, 2, 3) if is_pooling else (2,) * spatial if mode is ResampleMode.BILINEAR else (1,) * spatial
    strides = each(1, 2, 3) if is_pooling else each(1, 2, Fraction(1, 2), Fraction(2, 3))
    paddings = [each(0, 0, 1) for _ in range(2)]
    padding_mode = growth.choose(tuple(PaddingMode))
    return Resample(spatial, windows, strides, *paddings, mode, compute, nan, padding_mode), dims
