"""Random graphs through heuristics, engines, runtime and device, bit for bit against the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cli.execution import run_graph
from lowdnn.enums import HeurMode
from lowdnn.graph.data import exact_values
from lowdnn.graph.oracle import evaluate
from lowdnn.heuristics.ranking import rank
from tests.support.data import fresh_seed
from tests.support.random_graphs import random_graph
from tests.support.tolerance import assert_exact

_LONGEST = 8


@pytest.fixture(scope="module")
def handle() -> Iterator[Handle]:
    with Handle.open("emulated") as opened:
        yield opened


@pytest.mark.parametrize("operations", range(1, _LONGEST + 1))
def test_random_graphs(handle: Handle, operations: int) -> None:
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, operations)
    inputs = {tensor.uid: exact_values(rng, tensor.dims, tensor.data_type) for tensor in graph.inputs}
    ranking = rank(graph, handle.arch, HeurMode.A, handle.engines)
    assert ranking.candidates, f"seed {seed}: {graph}: {ranking.explain()}"
    outputs = run_graph(handle, graph, ranking.candidates[0].plan, inputs).outputs
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(outputs[uid], expected, graph.tensors[uid].data_type, f"seed {seed}: {graph}: uid {uid}")
