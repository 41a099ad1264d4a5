from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.codegen.functor import generate
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.pattern import dag_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.plan import Scalar, ScalarType, TensorPointer, TensorValue
from tests.codegen.graphs import goldens, residual_gelu, scale_bias_relu

GOLDEN = Path(__file__).parent / "golden"
MODES = PointwiseMode


@pytest.mark.parametrize("name", goldens())
def test_the_text_is_the_reviewed_one(name: str) -> None:
    """After an intended change, ``python -m tests.codegen.test_functor`` writes the files anew: review what changed."""
    assert goldens()[name].functor().text == (GOLDEN / f"{name}.cuh").read_text(encoding="utf-8")


def test_arguments_lie_in_the_order_of_the_fields() -> None:
    golden = scale_bias_relu()
    functor = golden.functor()
    declared = [line.split()[-1].rstrip(";") for line in _block(functor.text, "struct Args {")]
    assert len(declared) == len(functor.arguments.fields)
    by_name = dict(zip(declared, functor.arguments.fields, strict=True))
    load, scalar = golden.dag.loads[0], golden.dag.scalars[0]
    assert by_name["tensor0"] == TensorPointer(load.uid)
    assert by_name["scalar2"] == TensorValue(scalar.uid, ScalarType.F32)
    assert by_name["op5_relu_upper_clip"] == Scalar(ScalarType.F32, 6.0)
    assert by_name["tensor1_stride0"] == Scalar(ScalarType.I64, 3 * 8 * 16)


def test_the_digest_is_of_the_text() -> None:
    first, again, other = scale_bias_relu().functor(), scale_bias_relu().functor(), residual_gelu().functor()
    assert first == again
    assert first.digest != other.digest
    assert len(first.digest) == 10


def test_no_uid_and_no_name_reaches_the_text() -> None:
    def text(first_uid: int, name: str) -> str:
        builder = CaseBuilder()
        for _ in range(first_uid):
            builder.tensor((1,), DataType.FLOAT)
        x = builder.tensor((4, 4), DataType.FLOAT, name=name)
        builder.pointwise(MODES.NEG, x, store=DataType.FLOAT)
        operations = builder.graph().operations
        pointwise = tuple(op for op in operations if isinstance(op, PointwiseOperation))
        return generate(dag_of((4, 4), pointwise), accumulator=None, vector_axis=1).text

    assert text(0, "x") == text(7, "*/ evil")


@pytest.mark.parametrize(
    ("data_type", "align", "strides", "vector"),
    [
        (DataType.FLOAT, 16, (64, 1), 4),
        (DataType.HALF, 16, (64, 1), 8),
        (DataType.INT8, 16, (64, 1), 16),
        (DataType.INT8, 4, (64, 1), 4),
        (DataType.HALF, 16, (68, 1), 4),
        (DataType.HALF, 16, (67, 1), 1),
        (DataType.DOUBLE, 16, (64, 1), 2),
    ],
)
def test_vector(data_type: DataType, align: int, strides: tuple[int, ...], vector: int) -> None:
    builder = CaseBuilder(alignment_bytes=align)
    x = builder.tensor((4, 64), data_type, strides=strides)
    builder.pointwise(MODES.IDENTITY, x, store=data_type)
    operations = tuple(op for op in builder.graph().operations if isinstance(op, PointwiseOperation))
    assert generate(dag_of((4, 64), operations), accumulator=None, vector_axis=1).vector == vector


@pytest.mark.parametrize(
    ("value", "data_type", "field"),
    [
        (1e300, DataType.FLOAT, Scalar(ScalarType.F32, float("inf"))),
        (-1e300, DataType.HALF, Scalar(ScalarType.F32, float("-inf"))),
        (2.5, DataType.INT32, Scalar(ScalarType.I32, 2)),
        (1e300, DataType.INT64, Scalar(ScalarType.I64, 2**63 - 1)),
        (float("-inf"), DataType.INT8, Scalar(ScalarType.I32, -128)),
        (1 + 2.0**-11 + 2.0**-30, DataType.HALF, Scalar(ScalarType.F32, 1 + 2.0**-10)),
        (7, DataType.BOOLEAN, Scalar(ScalarType.I32, 1)),
        (float("nan"), DataType.INT32, Scalar(ScalarType.I32, 0)),
    ],
)
def test_constants_fit_their_fields(value: float, data_type: DataType, field: Scalar) -> None:
    builder = CaseBuilder()
    x = builder.tensor((8,), data_type)
    builder.pointwise(MODES.MUL, x, builder.constant(1, data_type, value), store=data_type)
    operations = tuple(op for op in builder.graph().operations if isinstance(op, PointwiseOperation))
    functor = generate(dag_of((8,), operations), accumulator=None, vector_axis=0)
    assert field in functor.arguments.fields


@pytest.mark.parametrize(("is_in_place", "path"), [(False, "Stream"), (True, "Plain")])
def test_what_the_kernel_writes_is_read_through_no_cache_of_constants(is_in_place: bool, path: str) -> None:
    builder = CaseBuilder()
    x, b = (builder.tensor((64,), DataType.FLOAT) for _ in range(2))
    y = x if is_in_place else builder.tensor((64,), DataType.FLOAT)
    add = PointwiseOperation(Pointwise(MODES.ADD, DataType.FLOAT), x=x, b=b, y=y)
    functor = generate(dag_of((64,), (add,)), accumulator=None, vector_axis=0)
    reads = [line.strip() for line in functor.text.splitlines() if "load_row" in line]
    assert sorted(line.partition(",")[0] for line in reads) == sorted([f"load_row<{path}", "load_row<Stream"])


def test_an_index_alone_has_a_field_all_the_same() -> None:
    """An empty struct would have size 1 in C++ and 0 in a plan."""
    builder = CaseBuilder()
    x = builder.tensor((8,), DataType.FLOAT)
    y = builder.pointwise(Pointwise(MODES.GEN_INDEX, DataType.FLOAT, axis=0), x)
    operations = tuple(op for op in builder._operations if isinstance(op, PointwiseOperation))
    dag = dag_of((8,), operations, result=y)
    functor = generate(dag, accumulator=None, vector_axis=0)
    assert len(functor.arguments.fields) >= 1


def _block(text: str, opening: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index(opening) + 1
    return lines[start : lines.index("};", start)]


if __name__ == "__main__":
    for golden_name, golden_graph in goldens().items():
        (GOLDEN / f"{golden_name}.cuh").write_text(golden_graph.functor().text, encoding="utf-8")
