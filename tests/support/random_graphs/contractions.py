"""Matrix products, convolutions in three directions and grouped products for growing graphs."""

from __future__ import annotations

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import ConvolutionMode, DataType, MoeGroupedMatmulMode
from lowdnn.ops import matmul as matmul_op
from lowdnn.ops import moe_grouped_matmul as moe_op
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.matmul_extents import MatmulWithExtents
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.tensor import Tensor
from tests.support.random_graphs.growth import FLOATS, SMALL_FLOATS, Dims, Growth

_OPERANDS = (*FLOATS, *FLOATS, *SMALL_FLOATS, DataType.INT8)


def matmul(growth: Growth) -> None:
    """A matmul; batches of a or b repeat where the other operand has more."""
    batches = int(growth.rng.integers(4))
    a = growth.value(
        lambda: growth.input(
            (
                *(growth.extent(f"b{axis}", 3) for axis in range(batches)),
                growth.extent("m", 20),
                growth.extent("k", 20),
            ),
            growth.choose(_OPERANDS),
        ),
        lambda tensor: tensor.rank >= 2,
    )
    shared = tuple(1 if growth.chance(0.3) else extent for extent in a.dims[:-2])
    b = growth.like((*shared, a.dims[-1], growth.extent("n", 20)), _partner(growth, a))
    c = growth.output(matmul_op.output_dims(a.dims, b.dims), _sum_type(growth, a))
    growth.add(MatmulOperation(Matmul(_compute_type(growth, a, b)), a=a, b=b, c=c))


def matmul_with_extents(growth: Growth) -> None:
    """A product of which each batch has rows, columns and terms of its own, or some of the three."""
    batch, m, n, k = (growth.extent(name, most) for name, most in (("batch", 3), ("m", 12), ("n", 12), ("k", 12)))
    a = growth.like((batch, m, k), growth.choose(FLOATS))
    b = growth.input((batch, k, n), _partner(growth, a), name="b")
    extents = {
        port: growth.packed_input(
            (batch, 1, 1), DataType.INT32, growth.rng.integers(0, most + 1, (batch, 1, 1)), f"extent_{port}"
        )
        for port, most in (("m", m), ("n", n), ("k", k))
        if growth.chance(0.6)
    }
    c = growth.output((batch, m, n), _sum_type(growth, a))
    padding = growth.choose((0.0, 3.0))
    growth.add(MatmulWithExtents(Matmul(_compute_type(growth, a, b), padding), a=a, b=b, c=c, **extents))


def convolution_forward(growth: Growth) -> None:
    geometry, x_dims, w_dims = _shapes(growth)
    x = growth.like(x_dims, growth.choose(_OPERANDS))
    w = growth.input(w_dims, _partner(growth, x), name="w")
    compute = _compute_type(growth, x, w)
    y = _result(growth, geometry.output_dims(x_dims, w_dims), x)
    growth.add(ConvolutionForward(_with(geometry, compute), x=x, w=w, y=y, **_factors(growth, y)))


def convolution_data_gradient(growth: Growth) -> None:
    geometry, x_dims, w_dims = _shapes(growth)
    dy = growth.like(geometry.output_dims(x_dims, w_dims), growth.choose(FLOATS), "dy")
    w = growth.input(w_dims, _partner(growth, dy), name="w")
    dx = _result(growth, x_dims, dy)
    compute = _with(geometry, _compute_type(growth, dy, w))
    growth.add(ConvolutionBackwardData(compute, w=w, dy=dy, dx=dx, **_factors(growth, dx)))


def convolution_filter_gradient(growth: Growth) -> None:
    geometry, x_dims, w_dims = _shapes(growth)
    dy = growth.like(geometry.output_dims(x_dims, w_dims), growth.choose(FLOATS), "dy")
    x = growth.input(x_dims, _partner(growth, dy))
    dw = _result(growth, w_dims, dy)
    compute = _with(geometry, _compute_type(growth, dy, x))
    growth.add(ConvolutionBackwardFilter(compute, x=x, dy=dy, dw=dw, **_factors(growth, dw)))


def grouped_matmul(growth: Growth) -> None:
    """A product of the rows of experts, as they are, gathered or scattered."""
    mode = growth.choose(tuple(MoeGroupedMatmulMode)[:3])
    rows, experts = growth.extent("rows", 24), 1 + int(growth.rng.integers(4))
    token = growth.input((1, rows, growth.extent("k", 20)), growth.choose(_OPERANDS), name="token")
    weight = growth.input((experts, token.dims[2], growth.extent("n", 20)), _partner(growth, token), name="weight")
    index = ks = None
    routed, top_k = rows, 0
    if mode is MoeGroupedMatmulMode.GATHER:
        routed = growth.extent("routed", 24) if rows else 0
        drawn = growth.rng.integers(0, rows, (1, routed, 1)) if rows else np.zeros((1, 0, 1))
        index = growth.packed_input((1, routed, 1), DataType.INT32, drawn, "token_index")
    if mode is MoeGroupedMatmulMode.SCATTER:
        top_k = growth.choose([k for k in range(1, 5) if rows % k == 0])
        places = growth.rng.permutation(rows).reshape(1, rows, 1)
        index = growth.packed_input((1, rows, 1), DataType.INT32, places // top_k, "token_index")
        ks = growth.packed_input((1, rows, 1), DataType.INT32, places % top_k, "token_ks")
    output = growth.output(moe_op.output_dims(mode, token.dims, weight.dims, (1, routed, 1)), _sum_type(growth, token))
    offsets = _offsets(growth, experts, routed)
    compute = _compute_type(growth, token, weight)
    growth.add(MoeGroupedMatmul(mode, compute, token, weight, offsets, output, index, ks, top_k))


def grouped_weight_gradient(growth: Growth) -> None:
    rows, experts = growth.extent("rows", 24), 1 + int(growth.rng.integers(4))
    doutput = growth.like((1, rows, growth.extent("n", 20)), growth.choose(FLOATS), "doutput")
    token = growth.input((1, rows, growth.extent("k", 20)), _partner(growth, doutput), name="token")
    dweight = growth.output((experts, token.dims[2], doutput.dims[2]), _sum_type(growth, token))
    compute = _compute_type(growth, doutput, token)
    growth.add(MoeGroupedMatmulBackward(compute, doutput, token, _offsets(growth, experts, rows), dweight))


def _offsets(growth: Growth, experts: int, rows: int) -> Tensor:
    """The first rows of groups that cover all rows, in ascending order."""
    inner = np.sort(growth.rng.integers(0, rows + 1, experts - 1))
    has_end = experts > 1 and growth.chance(0.5)
    bounds = np.array([0, *inner, *([rows] if has_end else [])]).reshape(-1, 1, 1)
    kind = growth.choose((DataType.INT32, DataType.INT64))
    return growth.packed_input(bounds.shape, kind, bounds, "first_token_offset")


def _shapes(growth: Growth) -> tuple[Convolution, Dims, Dims]:
    """A convolution's geometry, and the dims of its image and filter."""
    spatial = 1 + int(growth.rng.integers(3))
    most = (12, 7, 4)[spatial - 1]
    groups = growth.choose((1, 1, 1, 2, 3))
    of_group, filters = growth.extent("c", 5), growth.extent("k", 5)
    if growth.chance(0.15):
        groups, of_group, filters = growth.extent("channels", 9), 1, 1  # depthwise
    image = tuple(growth.extent(f"x{axis}", most) for axis in range(spatial))
    taps = tuple(growth.extent(f"r{axis}", 3) for axis in range(spatial))

    def each(*options: int) -> Dims:
        return tuple(growth.choose(options) for _ in range(spatial))

    geometry = Convolution(
        DataType.FLOAT,
        spatial,
        each(0, 0, 1, 2),
        each(0, 0, 1, 2),
        each(1, 1, 2, 3),
        each(1, 1, 2),
        growth.choose((ConvolutionMode.CROSS_CORRELATION, ConvolutionMode.CONVOLUTION)),
    )
    return geometry, (growth.extent("n", 3), groups * of_group, *image), (groups * filters, of_group, *taps)


def _with(geometry: Convolution, compute_type: DataType) -> Convolution:
    return Convolution(
        compute_type,
        geometry.spatial_dims,
        geometry.pre_paddings,
        geometry.post_paddings,
        geometry.strides,
        geometry.dilations,
        geometry.mode,
    )


def _partner(growth: Growth, operand: Tensor) -> DataType:
    """The type of the other operand, mostly the same."""
    if dtypes.info(operand.data_type).kind is not dtypes.Kind.FLOAT:
        return DataType.INT8
    return growth.choose(FLOATS) if growth.chance(0.15) else operand.data_type


def _compute_type(growth: Growth, *operands: Tensor) -> DataType:
    kinds = {tensor.data_type for tensor in operands}
    if any(dtypes.info(kind).kind is not dtypes.Kind.FLOAT for kind in kinds):
        return DataType.INT32
    if DataType.DOUBLE in kinds and growth.chance(0.7):
        return DataType.DOUBLE
    return DataType.HALF if kinds == {DataType.HALF} and growth.chance(0.1) else DataType.FLOAT


def _sum_type(growth: Growth, operand: Tensor) -> DataType:
    if dtypes.info(operand.data_type).kind is not dtypes.Kind.FLOAT:
        return growth.choose((DataType.INT32, DataType.FLOAT, DataType.INT8))
    return growth.choose((DataType.FLOAT, operand.data_type, operand.data_type, *FLOATS))


def _result(growth: Growth, dims: Dims, operand: Tensor) -> Tensor:
    return growth.output(dims, _sum_type(growth, operand))


def _factors(growth: Growth, result: Tensor) -> dict[str, float]:
    """The factors alpha and, for a stored result, beta."""
    factors = {"alpha": growth.choose((2.0, -1.0))} if growth.chance(0.15) else {}
    if not result.is_virtual and growth.chance(0.15):
        growth.accumulated(result)
        factors["beta"] = growth.choose((1.0, 2.0))
    return factors
