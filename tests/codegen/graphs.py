"""Graphs whose generated text is kept in ``golden/``, by file name."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.cases.builder import CaseBuilder
from lowdnn.codegen.functor import Functor, generate
from lowdnn.enums import DataType, PointwiseMode, RngDistribution
from lowdnn.graph.pattern import PointwiseDag, dag_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor

MODES = PointwiseMode


@dataclass(frozen=True)
class Golden:
    """One DAG and the arguments for its functor."""

    dag: PointwiseDag
    vector_axis: int
    accumulator: DataType | None = None
    result: DataType | None = None
    copies: bool = False

    def functor(self) -> Functor:
        return generate(
            self.dag,
            accumulator=self.accumulator,
            vector_axis=self.vector_axis,
            result=self.result,
            copies=self.copies,
        )


def goldens() -> dict[str, Golden]:
    return {
        "copy": copy(),
        "scale_bias_relu": scale_bias_relu(),
        "residual_gelu": residual_gelu(),
        "index_select": index_select(),
        "squares": squares(),
        "masked": masked(),
        "dropout": dropout(),
    }


def copy() -> Golden:
    builder = CaseBuilder()
    x = builder.tensor((4, 64), DataType.BFLOAT16)
    builder.pointwise(MODES.IDENTITY, x, store=DataType.FLOAT)
    return Golden(_dag(builder), vector_axis=1)


def masked() -> Golden:
    """A prologue whose tensors are copied to shared memory: a value, its mask, and a scale of each row."""
    builder = CaseBuilder()
    x, mask = (builder.tensor((4, 64), data_type) for data_type in (DataType.BFLOAT16, DataType.BOOLEAN))
    scaled = builder.pointwise(MODES.MUL, x, builder.tensor((4, 1), DataType.FLOAT))
    y = builder.pointwise(MODES.MUL, scaled, mask)
    return Golden(_dag(builder, result=y), vector_axis=1, result=DataType.FLOAT, copies=True)


def scale_bias_relu() -> Golden:
    """An epilogue: relu(scale * accumulator + bias), the accumulator stored as well."""
    builder = CaseBuilder()
    y = builder.tensor((2, 3, 8, 16), DataType.HALF, name="y")
    scale = builder.by_value(4, DataType.FLOAT)
    bias = builder.tensor((1, 1, 1, 16), DataType.FLOAT)
    scaled = builder.pointwise(MODES.MUL, y, scale)
    moved = builder.pointwise(MODES.ADD, scaled, bias)
    clip = Pointwise(MODES.RELU_FWD, DataType.FLOAT, relu_upper_clip=6.0)
    builder.pointwise(clip, moved, store=DataType.HALF)
    return Golden(_dag(builder, anchor=y), vector_axis=3, accumulator=DataType.FLOAT)


def residual_gelu() -> Golden:
    """bf16 arithmetic, two alphas, a residual in another layout, an unaligned output."""
    builder = CaseBuilder()
    y = builder.tensor((8, 32), DataType.FLOAT, is_virtual=True, name="y")
    residual = builder.tensor((8, 32), DataType.BFLOAT16, strides=(1, 8))
    total = builder.pointwise(
        Pointwise(MODES.ADD, DataType.BFLOAT16), y, residual, alpha1=0.5, alpha2=2.0, store=DataType.BFLOAT16
    )
    gelu = builder.pointwise(MODES.GELU_FWD, total)
    builder.pointwise(MODES.MUL, gelu, builder.constant(2, DataType.HALF, 0.1), store=DataType.INT8)
    return Golden(_dag(builder, anchor=y), vector_axis=1, accumulator=DataType.FLOAT)


def index_select() -> Golden:
    """x where its index along axis 0 is below a limit, otherwise -infinity."""
    builder = CaseBuilder()
    x = builder.tensor((16, 24), DataType.FLOAT)
    limit = builder.tensor((1, 24), DataType.INT32)
    index = builder.pointwise(Pointwise(MODES.GEN_INDEX, DataType.INT32, axis=0), x)
    inside = builder.pointwise(MODES.CMP_LT, index, limit, compute_type=DataType.BOOLEAN)
    masked = builder.constant(2, DataType.FLOAT, float("-inf"))
    builder.pointwise(MODES.BINARY_SELECT, x, masked, inside, store=DataType.FLOAT)
    return Golden(_dag(builder), vector_axis=1)


def squares() -> Golden:
    """The operations before a reduction: x * x, handed back in fp64."""
    builder = CaseBuilder()
    x = builder.tensor((16, 24), DataType.FP8_E4M3)
    square = builder.pointwise(MODES.MUL, x, x)
    return Golden(_dag(builder, result=square), vector_axis=1, result=DataType.DOUBLE)


def dropout() -> Golden:
    """x times coins, with a seed in device memory and rows that begin anywhere, plus a normal number for each row."""
    builder = CaseBuilder()
    x = builder.tensor((16, 13), DataType.BFLOAT16, strides=(16, 1))
    seed = builder.tensor((1,), DataType.INT64)
    coins = builder.rng(Rng(probability=0.9), x.dims, seed=seed, offset=builder.by_value(1, DataType.INT64))
    noise = builder.rng(Rng(RngDistribution.NORMAL, mean=0.0, standard_deviation=1.0), (16, 1), seed=5)
    kept = builder.pointwise(MODES.MUL, x, coins)
    builder.pointwise(MODES.ADD, kept, noise, store=DataType.BFLOAT16)
    return Golden(_dag(builder), vector_axis=1)


def _dag(builder: CaseBuilder, anchor: Tensor | None = None, result: Tensor | None = None) -> PointwiseDag:
    operations = tuple(op for op in builder._operations if isinstance(op, PointwiseOperation))
    randoms = tuple(op for op in builder._operations if isinstance(op, RngOperation))
    return dag_of(operations[-1].output.dims, operations, anchor=anchor, result=result, randoms=randoms)
