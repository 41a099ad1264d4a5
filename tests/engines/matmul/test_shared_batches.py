"""Groups of batches that share a matrix, in every engine of matrix products."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.base import Engine
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.engines.matmul.matmul_prologue_wgmma import MatmulPrologueWgmma
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmma
from lowdnn.engines.matmul.shared_batches import split_batches
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_exact

BF16 = DataType.BFLOAT16
ENGINES = (MatmulSimt(), MatmulMma(), MatmulWgmma())
COMPOSITE = engine_named("composite")


def product(a_batch: tuple[int, ...], b_batch: tuple[int, ...], c_layout: Layout | None = None) -> OperationGraph:
    builder = CaseBuilder()
    a, b = builder.tensor((*a_batch, 9, 16), BF16), builder.tensor((*b_batch, 16, 24), BF16)
    builder.matmul(a, b, store=BF16, layout=c_layout)
    return builder.graph()


def indexed(axis: int) -> OperationGraph:
    builder = CaseBuilder()
    c = builder.matmul(builder.tensor((4, 9, 16), BF16), builder.tensor((2, 16, 24), BF16))
    index = builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.FLOAT, axis=axis), c)
    builder.pointwise(PointwiseMode.ADD, c, index, store=BF16)
    return builder.graph()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    ("a_batch", "b_batch"),
    [((2, 6), (2, 2)), ((2, 2), (2, 6)), ((6, 3), (2, 1)), ((6,), (3,))],
)
def test_either_operand_s_matrices_are_shared(
    device: Runtime, engine: Engine, a_batch: tuple[int, ...], b_batch: tuple[int, ...]
) -> None:
    check_exact(device, engine, product(a_batch, b_batch), length=16)


def test_both_operands_matrices_are_shared(device: Runtime) -> None:
    graph = product((4, 2), (2, 4))
    for engine in ENGINES[:2]:
        check_exact(device, engine, graph, length=16)
    assert "at most 3 batch axes that do not merge, got [2, 2, 2, 2]" in str(MatmulWgmma().refuse(graph, SM_90A))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_outputs_along_m(device: Runtime, engine: Engine) -> None:
    check_exact(device, engine, product((6,), (2,), Layout.TRANSPOSED), length=16)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_heads_that_lie_between_the_rows(device: Runtime, engine: Engine) -> None:
    batches, heads, shared, rows, depth = 2, 6, 2, 17, 24
    builder = CaseBuilder()
    a = builder.tensor((batches, heads, rows, depth), BF16, strides=(rows * heads * depth, depth, heads * depth, 1))
    b = builder.tensor((batches, shared, depth, rows), BF16, strides=(rows * shared * depth, depth, 1, shared * depth))
    builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, engine, builder.graph(), length=depth)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_epilogues_with_operands_of_batches_and_of_all(device: Runtime, engine: Engine) -> None:
    builder = CaseBuilder()
    c = builder.matmul(builder.tensor((2, 4, 9, 16), BF16), builder.tensor((2, 2, 16, 24), BF16))
    for dims in ((1, 4, 1, 1), (2, 1, 9, 1), (1,), (1, 1, 1, 1)):
        c = builder.pointwise(PointwiseMode.ADD, c, builder.tensor(dims, DataType.FLOAT))
    builder.pointwise(PointwiseMode.ADD, c, builder.tensor((2, 4, 9, 24), BF16), store=DataType.FLOAT)
    check_exact(device, engine, builder.graph(), length=20)


@pytest.mark.parametrize("engine", ENGINES[1:], ids=lambda engine: engine.name)
def test_reductions(device: Runtime, engine: Engine) -> None:
    graph = parse_case("matmul b=2x4 bb=2x2 m=40 n=48 k=24 dtype=bf16 exits=sum+rowmax").graph()
    check_exact(device, engine, graph, length=24)


@pytest.mark.parametrize("before", ["a", "b"])
@pytest.mark.parametrize("batches", ["b=4 bb=2", "b=2 bb=4"])
def test_prologues(device: Runtime, before: str, batches: str) -> None:
    layout = "nn" if before == "a" else "nt"
    line = f"matmul {batches} m=40 n=24 k=64 layout={layout} dtype=bf16 prologue=bias before={before}"
    check_exact(device, MatmulPrologueWgmma(), parse_case(line).graph(), length=128)


def test_batches_that_share_a_matrix_become_rows() -> None:
    for engine in ENGINES[1:]:
        lines = ("matmul b=4x32 bb=4x2 m=4 n=64 k=64 dtype=bf16", "matmul b=8 m=64 n=64 k=64 dtype=bf16")
        shared, plain = (engine.plan(parse_case(line).graph(), SM_90A, {}) for line in lines)
        assert (shared.kernels, shared.launches[0].grid) == (plain.kernels, plain.launches[0].grid)


def test_axes_are_split_in_front_of_the_matrix() -> None:
    graph = split_batches(parse_case("matmul b=3x8 bb=3x2 m=5 n=6 k=7 dtype=fp32 exits=sum").graph())
    assert isinstance(graph, OperationGraph)
    found, total = graph.operations
    assert isinstance(found, MatmulOperation)
    assert isinstance(total, ReductionOperation)
    assert (found.a.dims, found.a.strides) == ((3, 2, 4, 5, 7), (280, 140, 35, 7, 1))
    assert (found.b.dims, found.b.strides) == ((3, 2, 1, 7, 6), (84, 42, 42, 6, 1))
    assert (found.c.dims, total.y.dims) == ((3, 2, 4, 5, 6), (1, 1, 1, 1, 6))


def test_graphs_without_shared_matrices_stay_as_they_are() -> None:
    for line in ("matmul b=3 m=5 n=6 k=7 broadcast=b", "pointwise dims=4x4 ops=add", "matmuls m=4x4 n=4x4 k=4x4"):
        graph = parse_case(line).graph()
        assert split_batches(graph) is graph


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_index_along_the_rows(device: Runtime, engine: Engine) -> None:
    check_exact(device, engine, indexed(axis=1), length=20)


def test_an_index_along_the_batches_takes_a_launch_of_its_own(device: Runtime) -> None:
    refusal = MatmulSimt().refuse(indexed(axis=0), SM_90A)
    assert refusal is not None
    assert "expected no index along batches that share matrices, got axis 0" in refusal.reason
    assert len(check_exact(device, COMPOSITE, indexed(axis=0), length=20).launches) == 2


def test_axes_are_counted() -> None:
    refusal = MatmulSimt().refuse(parse_case("matmul b=1x1x2x2x2x4 bb=1x1x2x2x2x2 m=4 n=4 k=4").graph(), SM_90A)
    assert refusal is not None
    assert refusal.reason == "matmul.c.dims: expected at most 7 axes where batches share matrices, got 8"
