from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.matmul.matmul_list_wgmma import MatmulListWgmma
from lowdnn.enums import DataType, HeurMode
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import matmul_graph
from tests.support.cases import check_case, wgmma_tile
from tests.support.running import check_exact

ENGINE = MatmulListWgmma()
COOPERATIVE, PING_PONG = range(2)
#: A device on which a block takes tiles of several products.
FEW = SM_90A.with_sm_count(2)


def test_products_of_different_extents_under_races(racing: Runtime) -> None:
    """Each tile has an odd number of chunks, so that buffers of two products follow each other in every order."""
    text = "matmuls m=64x70x33 n=96x104x8 k=40x136x72 layout=nt dtype=bf16"
    plan = check_case(racing, ENGINE, text, wgmma_tile(64, 96, warps=PING_PONG, stages=3), FEW)
    assert len(plan.launches) == 1


def test_epilogues_have_operands_of_their_own(device: Runtime) -> None:
    text = "matmuls m=130x70 n=64x128 k=72x64 layout=nt dtype=fp16 epilogue=bias+relu"
    plan = check_case(device, ENGINE, text, wgmma_tile(128, 64, warps=COOPERATIVE, cluster_m=2, by_map=False))
    assert plan.launches[0].cluster == (2, 1, 1)


def test_batches_and_operands_that_products_share(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((3, 40, 64), DataType.BFLOAT16)
    for n in (16, 48):
        b = builder.tensor((3, 64, n), DataType.BFLOAT16, layout=Layout.TRANSPOSED)
        builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=64)


def test_batches_that_share_matrices(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((4, 40, 64), DataType.BFLOAT16)
    for n in (16, 48):
        b = builder.tensor((2, 64, n), DataType.BFLOAT16, layout=Layout.TRANSPOSED)
        builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=64)


def test_a_list_too_long_for_the_parameters_takes_several_launches() -> None:
    def launches(count: int) -> int:
        extents = "x".join(["64"] * count)
        graph = parse_case(f"matmuls m={extents} n={extents} k={extents} dtype=bf16").graph()
        plan = ENGINE.plan(graph, SM_90A, {})
        assert len(plan.tensors) == 3 * count
        return len(plan.launches)

    assert [launches(count) for count in (2, 32, 96)] == [1, 1, 3]


def test_the_deepest_products_come_first() -> None:
    plan = ENGINE.plan(parse_case("matmuls m=64x64 n=64x64 k=64x640 dtype=bf16").graph(), SM_90A, {})
    reverse = ENGINE.plan(parse_case("matmuls m=64x64 n=64x64 k=640x64 dtype=bf16").graph(), SM_90A, {})
    assert plan.kernels == reverse.kernels
    assert plan.launches[0].grid == reverse.launches[0].grid


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("matmul m=64 n=64 k=64 dtype=bf16", "several independent products, got 1 part"),
        ("matmuls m=64x64 n=64x64 k=64x64 dtype=fp64", "expected one of"),
        ("matmuls m=64x64 n=64x63 k=64x64 dtype=bf16", "products of one"),
    ],
)
def test_what_it_refuses(text: str, reason: str) -> None:
    refusal = ENGINE.refuse(parse_case(text).graph(), SM_90A)
    assert refusal is not None
    assert reason in refusal.reason
    assert ENGINE.refuse(matmul_graph(), SM_80) is not None


def test_it_comes_before_one_launch_for_each(handle: Handle) -> None:
    graph = parse_case("matmuls m=64x64 n=64x64 k=64x64 layout=nt dtype=bf16").graph()
    ranking = rank(graph, SM_90A, HeurMode.A, handle.engines)
    assert ranking.candidates[0].engine.name == ENGINE.name
