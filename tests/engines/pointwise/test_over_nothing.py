"""Convolutions of empty tensors: their sums have no terms and are 0, and the epilogue is pointwise arithmetic."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import DataType, HeurMode, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_exact

ENGINE = engine_named("pointwise")
GEOMETRY = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (2, 1), (1, 1))


def graph_of(line: str) -> OperationGraph:
    return parse_case(f"conv {line}").graph()


@pytest.mark.parametrize(
    ("line", "launches"),
    [
        ("n=0 c=4 hw=5x6 k=4 rs=3x3", 0),
        ("n=1 c=4 hw=5x6 k=0 rs=3x3", 0),
        ("n=0 c=4 hw=5x6 k=4 rs=3x3 dir=dgrad", 0),
        ("n=1 c=4 hw=5x6 k=0 rs=3x3 dir=dgrad", 1),
        ("n=2 c=4 hw=5x6 k=0 rs=3x3 dir=dgrad dtype=bf16", 1),
        ("n=0 c=4 hw=5x6 k=4 rs=3x3 dir=wgrad", 1),
        ("n=1 c=4 hw=5x6 k=0 rs=3x3 dir=wgrad", 0),
        ("n=0 c=8 hw=5x6 k=8 rs=3x3 groups=8 dir=wgrad", 1),
    ],
)
def test_three_directions(device: Runtime, line: str, launches: int) -> None:
    assert len(check_exact(device, ENGINE, graph_of(line)).launches) == launches


def test_an_empty_image_with_padding(device: Runtime) -> None:
    builder = CaseBuilder()
    dy, w = builder.tensor((1, 8, 1, 3), DataType.FLOAT), builder.tensor((8, 16, 2, 3), DataType.FLOAT)
    builder.convolution_data_gradient(dy, w, (1, 16, 0, 3), geometry=GEOMETRY, store=DataType.FLOAT)
    assert not check_exact(device, ENGINE, builder.graph()).launches


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_factors_and_an_epilogue(device: Runtime, beta: float) -> None:
    builder = CaseBuilder()
    dy, w = builder.tensor((2, 0, 5, 6), DataType.FLOAT), builder.tensor((0, 4, 3, 3), DataType.FLOAT)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    dx = builder.convolution_data_gradient(
        dy, w, (2, 4, 5, 6), geometry=geometry, store=DataType.FLOAT, alpha=2.0, beta=beta
    )
    bias = builder.tensor((1, 4, 1, 1), DataType.FLOAT)
    builder.pointwise(PointwiseMode.SUB, dx, bias, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_no_engine_of_convolutions_takes_them() -> None:
    ranking = rank(graph_of("n=1 c=4 hw=5x6 k=0 rs=3x3 dir=dgrad"), SM_90A, HeurMode.A, ENGINES)
    assert [candidate.engine.name for candidate in ranking.candidates] == ["pointwise"]
    assert "expected an empty tensor" in str(ENGINE.refuse(graph_of("n=1 c=4 hw=5x6 k=4 rs=3x3"), SM_90A))
