from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.matmul.matmul_prologue_wgmma import MatmulPrologueWgmma
from lowdnn.engines.matmul.pixel_matmul import as_matmul
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_case

ONE_TAP = Convolution(DataType.FLOAT, 2, (0, 0), (0, 0), (1, 1), (1, 1))


@pytest.mark.parametrize(
    "words",
    [
        "dir=fprop raw=int8 prologue=scale before=filter epilogue=bias",
        "dir=fprop raw=int8 prologue=scale before=filter layout=nchw",
        "dir=dgrad prologue=scale+bias",
    ],
)
def test_what_is_computed_of_an_operand_is_its_matrix(device: Runtime, words: str) -> None:
    check_case(device, MatmulPrologueWgmma(), f"conv n=2 c=64 hw=5x8 k=32 rs=1x1 dtype=bf16 {words}")


def test_operands_of_filter_gradients_are_those_of_all_images() -> None:
    product = as_matmul(parse_case("conv n=3 c=6 hw=4 k=8 rs=1 dir=wgrad prologue=bias+relu dtype=bf16").graph())
    assert isinstance(product, OperationGraph)
    (matmul,) = (op for op in product.operations if isinstance(op, MatmulOperation))
    assert (matmul.a.dims, matmul.b.dims, matmul.c.dims) == ((1, 8, 12), (1, 12, 6), (1, 8, 6))


def test_both_gradients_in_one_graph_are_no_product() -> None:
    """The two gradients read the same dy as different matrices."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    dy, x, w = (builder.tensor(dims, DataType.HALF) for dims in ((2, 8, 4, 4), (2, 16, 4, 4), (8, 16, 1, 1)))
    builder.convolution_data_gradient(dy, w, x.dims, geometry=ONE_TAP, store=DataType.HALF)
    builder.convolution_filter_gradient(x, dy, w.dims, geometry=ONE_TAP, store=DataType.HALF)
    graph = builder.graph()
    found = as_matmul(graph)
    assert isinstance(found, str)
    assert "exactly one ConvolutionOperation, got 2" in found
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
    assert best is not None
    assert best.engine.name == "composite"


def test_a_tensor_is_one_matrix() -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, 8, 4, 4), DataType.HALF)
    builder.convolution_filter_gradient(x, x, (8, 8, 1, 1), geometry=ONE_TAP, store=DataType.HALF)
    found = as_matmul(builder.graph())
    assert isinstance(found, str)
    assert "expected one matrix" in found
