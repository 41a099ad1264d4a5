"""Pointwise operations and random numbers for growing graphs."""

from __future__ import annotations

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode, RngDistribution
from lowdnn.ops import pointwise as ops
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor
from tests.support.random_graphs.growth import ANY_TYPE, FLOATS, INTEGERS, Dims, Growth

#: Modes that make integers of small integers.
_EXACT_MODES = (
    PointwiseMode.ADD,
    PointwiseMode.SUB,
    PointwiseMode.MUL,
    PointwiseMode.MIN,
    PointwiseMode.MAX,
    PointwiseMode.ABS,
    PointwiseMode.NEG,
    PointwiseMode.ADD_SQUARE,
    PointwiseMode.IDENTITY,
    PointwiseMode.RELU_FWD,
    PointwiseMode.RELU_BWD,
    PointwiseMode.CMP_EQ,
    PointwiseMode.CMP_NEQ,
    PointwiseMode.CMP_GT,
    PointwiseMode.CMP_GE,
    PointwiseMode.CMP_LT,
    PointwiseMode.CMP_LE,
    PointwiseMode.LOGICAL_AND,
    PointwiseMode.LOGICAL_OR,
    PointwiseMode.LOGICAL_NOT,
    PointwiseMode.GEN_INDEX,
    PointwiseMode.BINARY_SELECT,
)


def pointwise(growth: Growth, mode: PointwiseMode | None = None) -> None:
    """A pointwise operation of any mode and compute type."""
    mode = mode or growth.choose(_EXACT_MODES if growth.is_exact else tuple(PointwiseMode))
    compute_type = growth.choose((DataType.FLOAT,) * 4 + ops.compute_types(mode))
    if compute_type in (DataType.HALF, DataType.BFLOAT16) and growth.is_exact:
        compute_type = DataType.FLOAT
    x = growth.value(lambda: growth.input(_dims(growth), _operand_type(growth, compute_type)))
    ports: dict[str, Tensor] = {}
    for port in ops.input_ports(mode):
        ports[port] = x if not ports else _other(growth, x.dims, compute_type)
    dims = ops.output_dims({port: tensor.dims for port, tensor in ports.items()})
    ports[ops.output_port(mode)] = growth.output(dims, _result_type(growth, mode, compute_type))
    alphas = {name: growth.choose((2.0, -1.0)) for name in _scaled(mode, compute_type) if growth.chance(0.2)}
    growth.add(PointwiseOperation(_arithmetic(growth, mode, compute_type, x.rank), **ports, **alphas))


def random_numbers(growth: Growth) -> None:
    """Random numbers of a distribution, whose seed and offset are numbers or tensors."""
    rank = 1 + int(growth.rng.integers(4))
    dims = tuple(growth.extent(f"y{axis}") for axis in range(rank))
    distribution = growth.choose(tuple(RngDistribution))
    rng = Rng(distribution, 0.5, 2.0, 3.0, -1.0, 0.25)
    is_float = distribution is not RngDistribution.BERNOULLI
    y = growth.output(dims, growth.choose(FLOATS if is_float else ANY_TYPE))
    seed: Tensor | int = int(growth.rng.integers(1 << 40))
    if growth.chance(0.5):
        seed = growth.packed_input((1,) * rank, DataType.INT64, growth.rng.integers(1 << 20, size=(1,) * rank), "seed")
    offset = growth.scalar(rank, DataType.INT64, 7, name="offset") if growth.chance(0.3) else None
    growth.add(RngOperation(rng, y, seed, offset))


def _dims(growth: Growth) -> Dims:
    rank = 1 + int(growth.rng.integers(5))
    return tuple(growth.extent(f"x{axis}", 7 if rank < 5 else 4) for axis in range(rank))


def _operand_type(growth: Growth, compute_type: DataType) -> DataType:
    if dtypes.info(compute_type).kind is dtypes.Kind.FLOAT:
        return growth.float_type() if growth.chance(0.8) else growth.choose(ANY_TYPE)
    return growth.choose((*INTEGERS, DataType.BOOLEAN))


def _result_type(growth: Growth, mode: PointwiseMode, compute_type: DataType) -> DataType:
    if ops.is_predicate(mode):
        return growth.choose((DataType.BOOLEAN, DataType.FLOAT, DataType.INT8))
    if growth.chance(0.15):
        return growth.choose(ANY_TYPE)
    return growth.float_type() if dtypes.info(compute_type).kind is dtypes.Kind.FLOAT else growth.choose(INTEGERS)


def _other(growth: Growth, dims: Dims, compute_type: DataType) -> Tensor:
    """An operand of these dims, with some of extent 1, or one number."""
    if growth.chance(0.15):
        is_float = dtypes.info(compute_type).kind is dtypes.Kind.FLOAT
        return growth.scalar(len(dims), DataType.FLOAT if is_float else DataType.INT32, growth.choose((1.0, 2.0, -3.0)))
    repeated = growth.chance(0.4)
    own = tuple(1 if repeated and growth.chance(0.5) else extent for extent in dims)
    return growth.like(own, _operand_type(growth, compute_type))


def _scaled(mode: PointwiseMode, compute_type: DataType) -> tuple[str, ...]:
    """The names of the factors that the mode takes."""
    if not ops.takes_alpha(mode) or compute_type is DataType.BOOLEAN:
        return ()
    ports = ops.input_ports(mode)
    return tuple(name for name, port in (("alpha1", "x"), ("alpha2", "b")) if port in ports)


def _arithmetic(growth: Growth, mode: PointwiseMode, compute_type: DataType, rank: int) -> Pointwise:
    if mode is PointwiseMode.GEN_INDEX:
        return Pointwise(mode, compute_type, axis=int(growth.rng.integers(rank)))
    if mode in (PointwiseMode.RELU_FWD, PointwiseMode.RELU_BWD) and growth.chance(0.3):
        return Pointwise(mode, compute_type, -1.0, 3.0, growth.choose((0.0, 2.0)))
    return Pointwise(mode, compute_type)
