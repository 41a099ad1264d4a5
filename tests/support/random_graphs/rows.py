"""Norms, softmax and their gradients for growing graphs."""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.enums import DataType, NormFwdPhase, NormMode, PointwiseMode, ReduceTensorOp
from lowdnn.ops.norm import NormShape, compute_type_of
from lowdnn.ops.norm_backward import NormBackward
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.norm_inference import BatchNormInference
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor
from tests.support.random_graphs.growth import Dims, Growth

_STATISTICS = (DataType.FLOAT, DataType.FLOAT, DataType.DOUBLE, DataType.HALF)


def norm_forward(growth: Growth) -> None:
    mode, x = growth.choose(tuple(NormMode)), _rows(growth)
    groups = _groups(growth, x) if mode is NormMode.GROUP_NORM else 0
    scale_dims = _scale_dims(growth, mode, x)
    parameters = [growth.like(scale_dims, growth.float_type()) if growth.chance(0.8) else None for _ in range(2)]
    parameter = parameters[0] or parameters[1]
    shape = NormShape(mode, x.dims, None if parameter is None else parameter.dims, groups)
    is_training = mode is NormMode.BATCH_NORM or growth.chance(0.5)
    kind = growth.choose(_STATISTICS)

    def statistic(name: str) -> Tensor:
        return growth.output(shape.stats_dims, kind, name=name)

    mean = statistic("mean") if is_training and mode is not NormMode.RMS_NORM else None
    inv_variance = statistic("inv_variance") if is_training else None
    running: list[Tensor] = []
    if mode is NormMode.BATCH_NORM and growth.chance(0.4):
        before = [growth.input(shape.stats_dims, DataType.FLOAT, name="running") for _ in range(2)]
        running = [growth.scalar(x.rank, DataType.FLOAT, 0.25), *before, statistic("mean2"), statistic("var2")]
    phase = NormFwdPhase.TRAINING if is_training else NormFwdPhase.INFERENCE
    epsilon = growth.scalar(x.rank, DataType.FLOAT, 0.01, name="epsilon")
    y = growth.output(x.dims, growth.float_type())
    growth.add(NormForward(mode, phase, x, epsilon, y, *parameters, mean, inv_variance, *running, groups=groups))


def batch_norm_inference(growth: Growth) -> None:
    x = _rows(growth)
    dims = NormShape(NormMode.BATCH_NORM, x.dims, None, 0).stats_dims
    given = {name: growth.input(dims, growth.choose(_STATISTICS), name=name) for name in ("mean", "inv_variance")}
    parameters = {name: growth.like(dims, growth.float_type()) for name in ("scale", "bias") if growth.chance(0.7)}
    y = growth.output(x.dims, growth.float_type())
    growth.add(BatchNormInference(NormMode.BATCH_NORM, NormFwdPhase.INFERENCE, x=x, y=y, **given, **parameters))


def norm_backward(growth: Growth) -> None:
    mode, x = growth.choose(tuple(NormMode)), _rows(growth)
    groups = _groups(growth, x) if mode is NormMode.GROUP_NORM else 0
    scale = growth.like(_scale_dims(growth, mode, x), growth.float_type()) if growth.chance(0.8) else None
    shape = NormShape(mode, x.dims, None if scale is None else scale.dims, groups)
    kind = growth.choose(_STATISTICS)
    mean = None if mode is NormMode.RMS_NORM else growth.input(shape.stats_dims, kind, name="mean")
    inv_variance = growth.input(shape.stats_dims, kind, growth.rng.uniform(0.5, 2, shape.stats_dims), name="inv")
    gradients = [
        growth.output(scale.dims, growth.choose(_STATISTICS), name=name) if scale and growth.chance(0.8) else None
        for name in ("dscale", "dbias")
    ]
    dy, dx = growth.like(x.dims, growth.float_type(), "dy"), growth.output(x.dims, growth.float_type(), name="dx")
    growth.add(NormBackward(mode, x, dy, dx, mean, inv_variance, scale, None, *gradients))


def softmax(growth: Growth) -> None:
    x = _rows(growth, least_rank=1)
    axes = tuple(axis for axis in range(x.rank) if growth.chance(0.4))
    dims = Softmax(x, x, axes=axes).stats_dims
    statistics = [
        growth.output(dims, DataType.FLOAT, name=name) if growth.chance(0.3) else None
        for name in ("stats", "max", "sum_exp")
    ]
    sink_dims = tuple(1 if growth.chance(0.5) else extent for extent in dims)
    sink = growth.input(sink_dims, DataType.FLOAT, name="sink") if growth.chance(0.2) else None
    is_log = growth.chance(0.3)
    normalised = axes or Softmax(x, x).normalised_axes
    y = growth.output(x.dims, growth.float_type())
    log2 = growth.chance(0.3)
    growth.add(Softmax(x, y, *statistics, sink=sink, stats_log2=log2, axes=normalised, is_log=is_log))


def softmax_backward(growth: Growth) -> None:
    """y * (dy - sum of dy * y), as pointwise operations and a sum."""
    y = _rows(growth, least_rank=1)
    dy, compute = growth.like(y.dims, growth.float_type(), "dy"), compute_type_of(y)
    axes = {axis for axis in range(y.rank) if growth.chance(0.4)}

    def pointwise(mode: PointwiseMode, x: Tensor, b: Tensor) -> Tensor:
        result = growth.output(y.dims, compute, is_stored=growth.chance(0.2))
        growth.add(PointwiseOperation(Pointwise(mode, compute), x=x, b=b, y=result))
        return result

    product = pointwise(PointwiseMode.MUL, dy, y)
    total = growth.output(tuple(1 if axis in axes else e for axis, e in enumerate(y.dims)), compute, is_stored=False)
    growth.add(ReductionOperation(Reduction(ReduceTensorOp.ADD, compute), x=product, y=total))
    pointwise(PointwiseMode.MUL, pointwise(PointwiseMode.SUB, dy, total), y)


def _rows(growth: Growth, least_rank: int = 2) -> Tensor:
    rank = least_rank + int(growth.rng.integers(4))
    return growth.value(
        lambda: growth.input(tuple(growth.extent(f"x{axis}", 6) for axis in range(rank)), growth.float_type()),
        lambda tensor: tensor.rank >= least_rank and dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT,
    )


def _groups(growth: Growth, x: Tensor) -> int:
    return growth.choose([count for count in range(1, max(x.dims[1], 1) + 1) if x.dims[1] % count == 0])


def _scale_dims(growth: Growth, mode: NormMode, x: Tensor) -> Dims:
    if mode in (NormMode.BATCH_NORM, NormMode.INSTANCE_NORM, NormMode.GROUP_NORM):
        return tuple(extent if axis == 1 else 1 for axis, extent in enumerate(x.dims))
    first = int(growth.rng.integers(1, x.rank))
    is_ada = mode is NormMode.ADA_LAYER_NORM
    return tuple(extent if axis >= first or (axis == 0 and is_ada) else 1 for axis, extent in enumerate(x.dims))
