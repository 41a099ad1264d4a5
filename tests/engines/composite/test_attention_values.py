"""Attention in parts: what lies behind the length of a sequence changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.registry import engine_named
from lowdnn.graph.attention_values import with_existing_values
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import run_plan

COMPOSITE = engine_named("composite")


@pytest.mark.parametrize("words", ["dtype=fp16", "dtype=fp32 stats=yes causal=top_left", "dtype=fp64 hv=1"])
def test_rows_behind_the_lengths_may_be_anything(device: Runtime, words: str) -> None:
    case = parse_case(f"sdpa b=2 h=2 q=5 kv=9 d=12 lengths=both {words}")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    uids = {tensor.name: tensor.uid for tensor in graph.inputs}
    existing = {"queries": (5, 3), "lengths": (4, 9)}
    for name, lengths in existing.items():
        inputs[uids[name]][:, 0, 0, 0] = lengths
    plan = COMPOSITE.plan(graph, SM_90A, {})
    expected = run_plan(device, plan, graph, inputs)
    rows = {name: inputs[uids[name]] for name in "qv"} | {"k": np.swapaxes(inputs[uids["k"]], 2, 3)}
    for name, lengths in {"q": (5, 3), "k": (4, 9), "v": (4, 9)}.items():
        for batch, length in enumerate(lengths):
            rows[name][batch, :, length:] = np.nan
    found = run_plan(device, plan, graph, inputs)
    for uid, array in expected.items():
        np.testing.assert_array_equal(found[uid], array)


@pytest.mark.parametrize(
    "words", ["", "lengths=yes page=4", "lengths=yes ragged=yes"], ids=["no_lengths", "pages", "ragged"]
)
def test_graphs_whose_values_are_zero_there_stay_as_they_are(words: str) -> None:
    graph = parse_case(f"sdpa b=2 h=2 q=5 kv=9 d=12 {words}").graph()
    assert with_existing_values(graph) is graph
