"""Limits that engines declare of the graphs that they take, and intervals that grow within them."""

from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.composite.growth import Growth, rules_of
from lowdnn.engines.limits import UNLIMITED, are_compatible
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from tests.support.random_graphs.steps import random_graph

#: Graphs of all operations, each of which several engines take in part or whole.
SEEDS = range(60)


def names_within(graph: OperationGraph) -> list[str]:
    """The engines whose limits the operations are within, in the graph's order."""
    growth = Growth(rules_of(tuple(ENGINES)))
    for operation in graph.operations:
        growth.add(operation)
    return [engine.name for engine in growth.engines if engine.limits is not UNLIMITED]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_engine_takes_a_graph_beyond_its_limits(seed: int) -> None:
    whole = random_graph(seed).graph
    count = len(whole.operations)
    intervals = [(start, end) for start in range(count) for end in range(start + 1, min(start + 4, count) + 1)]
    for start, end in (*intervals, (0, count)):
        graph = whole.subgraph(whole.operations[start:end])
        within = names_within(graph)
        for engine in ENGINES:
            if engine.limits is not UNLIMITED and engine.name not in within:
                assert all(engine.refuse(graph, arch) is not None for arch in (SM_80, SM_90A)), engine.name


def test_a_list_of_products_is_no_chain_of_them() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((1, 16, 16), DataType.HALF) for _ in range(2))
    first = builder.matmul(a, b, store=DataType.HALF)
    builder.pointwise(PointwiseMode.RELU_FWD, builder.matmul(b, a), store=DataType.HALF)
    assert "matmul_list_wgmma" in names_within(OperationGraph(builder.operations))
    builder.matmul(first, b, store=DataType.HALF)
    assert names_within(OperationGraph(builder.operations)) == []


def test_an_operation_apart_from_every_product_waits_for_one() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((1, 16, 16), DataType.HALF) for _ in range(2))
    scale = builder.pointwise(PointwiseMode.ADD, a, b)
    builder.matmul(a, b, store=DataType.HALF)
    second = builder.matmul(b, a)
    graph = OperationGraph([*builder.operations[1:]])
    assert "matmul_list_wgmma" in names_within(graph)
    growth = Growth(rules_of(tuple(ENGINES)))
    for operation in builder.operations:
        growth.add(operation)
    assert "matmul_list_wgmma" not in [engine.name for engine in growth.engines]
    builder.pointwise(PointwiseMode.MUL, second, scale, store=DataType.HALF)
    growth.add(builder.operations[-1])
    assert "matmul_list_wgmma" in [engine.name for engine in growth.engines]


@pytest.mark.parametrize(
    ("dims", "others", "expected"),
    [
        ((2, 3), (2, 3), True),
        ((2, 3), (1, 3), True),
        ((2, 1), (1, 3), True),
        ((2, 3), (2, 4), False),
        ((2, 3), (2, 3, 1), False),
        ((1, 1), (2, 3, 4), True),
    ],
)
def test_index_spaces_fit_where_extents_repeat(dims: tuple[int, ...], others: tuple[int, ...], expected: bool) -> None:
    assert are_compatible(dims, others) is expected
    assert are_compatible(others, dims) is expected
