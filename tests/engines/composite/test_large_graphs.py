"""Planning grows with the graph: counts of what is made double at most where a graph does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.data import real_values
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Argument, Plan, Struct, TensorPointer
from lowdnn.runtime.runtime import Runtime
from tests.support.large_graphs import SHAPES, blocks, convolutions, norms, pointwise
from tests.support.random_graphs.checking import problem_of
from tests.support.random_graphs.growth import Grown


def planned(graph: OperationGraph) -> Plan:
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
    assert best is not None
    return best.plan


class Made:
    """Sub-graphs that are made, and the operations in them, while a graph is planned."""

    def __init__(self) -> None:
        self.graphs = 0
        self.operations = 0

    def of(self, graph: OperationGraph) -> tuple[int, int]:
        self.graphs = self.operations = 0
        planned(graph)
        return self.graphs, self.operations


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    counts, make = Made(), OperationGraph.__init__

    def counted(self: OperationGraph, operations: object) -> None:
        make(self, operations)  # type: ignore[arg-type]
        counts.graphs += 1
        counts.operations += len(self.operations)

    monkeypatch.setattr(OperationGraph, "__init__", counted)
    return counts


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_operations_at_most_double_the_work(made: Made, shape: str) -> None:
    """Nothing repeats, so that every interval that is tried is planned."""
    (graphs, operations), (more_graphs, more_operations) = (
        made.of(SHAPES[shape](count, is_varied=True)) for count in (32, 64)
    )
    assert more_graphs <= 2.1 * graphs + 20
    assert more_operations <= 2.4 * operations + 200


@pytest.mark.parametrize("make", [convolutions, norms, blocks])
def test_what_repeats_is_planned_once(made: Made, make: Callable[[int], OperationGraph]) -> None:
    (graphs, _), (more_graphs, _) = (made.of(make(count)) for count in (60, 240))
    assert more_graphs <= graphs + 4


def test_parts_of_one_form_differ_in_their_tensors_alone() -> None:
    plan = planned(norms(24))
    assert len(plan.kernels) <= 3
    named = [uid for launch in plan.launches for argument in launch.arguments for uid in uids_in(argument)]
    assert sorted(named) == sorted(tensor.uid for tensor in plan.tensors)


def uids_in(argument: Argument) -> Iterator[int]:
    """The uids of tensors that are given, each as often as it is named."""
    if isinstance(argument, Struct):
        for field in argument.fields:
            yield from uids_in(field)
    elif isinstance(argument, TensorPointer):
        yield argument.uid


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thousand_operations_have_a_plan_and_a_short_explanation(shape: str) -> None:
    graph = SHAPES[shape](1000)
    ranking = rank(graph, SM_90A, HeurMode.A, ENGINES)
    assert ranking.best is not None
    assert {tensor.uid for tensor in ranking.best.plan.tensors if tensor.is_output} >= {graph.outputs[-1].uid}
    assert max(map(len, ranking.explain().splitlines())) < 2000


@pytest.mark.parametrize("shape", SHAPES)
def test_results_agree_with_the_oracle(device: Runtime, shape: str) -> None:
    graph = SHAPES[shape](20, is_varied=True)
    rng = np.random.default_rng(3)
    inputs = {
        tensor.uid: real_values(rng, tensor.dims, tensor.data_type)
        for tensor in graph.inputs
        if tensor.constant_value is None
    }
    assert not problem_of(device, Grown(graph, inputs, is_exact=False), planned(graph))


def test_one_operation_that_nobody_takes_is_told_in_bounds(made: Made) -> None:
    """A product stands behind many pointwise operations, where only those have an engine."""
    composite = Composite((PointwiseEngine(),))
    found = []
    for count in (64, 128):
        whole = pointwise(count)
        graph = whole.subgraph(whole.operations[1:])
        made.graphs = made.operations = 0
        refusal = composite.refuse(graph, SM_90A)
        assert refusal is not None
        assert "no engine takes MatmulOperation" in refusal.reason
        found.append((made.graphs, made.operations, len(refusal.reason)))
    (graphs, operations, length), (more_graphs, more_operations, more_length) = found
    assert more_graphs <= 2.1 * graphs + 20
    assert more_operations <= 2.4 * operations + 200
    assert more_length <= length + 10
