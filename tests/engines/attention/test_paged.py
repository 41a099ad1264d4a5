"""Attention forward of keys and values in pages of a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.compare import expected_outputs
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.engines.base import Engine
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import run_plan
from tests.support.tolerance import assert_close

WGMMA = AttentionWgmma()


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        (AttentionDecode(), "sdpa b=3 h=2 hk=1 q=5 kv=150 d=16 page=8 lengths=yes layout=bshd"),
        (AttentionDecode(), "sdpa b=3 h=2 hk=1 q=5 kv=150 d=16 page=32 lengths=yes"),
        (AttentionMma(), "sdpa b=3 h=2 hk=1 q=20 kv=150 d=16 page=4 lengths=yes"),
        (WGMMA, "sdpa b=3 h=2 hk=1 q=80 kv=150 d=16 page=8 lengths=yes causal=bottom_right layout=bshd stats=lse"),
        (WGMMA, "sdpa b=3 h=1 q=80 kv=150 d=72 dv=16 page=128 lengths=yes"),
    ],
)
def test_pages_behind_the_length_are_not_read(racing: Runtime, engine: Engine, line: str) -> None:
    """Entries of the table past the length may be anything, and rows of its last page past the length are NaN."""
    case = parse_case(line)
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor.uid for tensor in graph.inputs}
    inputs[of["lengths"]] = np.array(lengths := (150, 13, 0), np.int32).reshape(3, 1, 1, 1)
    expected = expected_outputs(graph, inputs, engine.numerical_notes, case.length)
    for name in "kv":
        table = inputs[of[f"{name}page_table"]]
        exists = np.zeros((inputs[of[name]].shape[0], case.page), bool)
        for entries, length in zip(table[:, 0, :, 0], lengths, strict=True):
            rows = np.arange(length)
            exists[entries[rows // case.page], rows % case.page] = True
            entries[-(-length // case.page) :] = 1 << 30
        inputs[of[name]] = np.where(exists[:, None, :, None], inputs[of[name]], 0x7FC0).astype(np.uint16)
    found = run_plan(racing, engine.plan(graph, replace(SM_90A, sm_count=2), {}), graph, inputs)
    for uid, wanted in expected.items():
        tensor = graph.tensors[uid]
        assert_close(found[uid], wanted.values, tensor.data_type, wanted.allowed, tensor.label)


def test_small_pages_are_refused() -> None:
    graph = parse_case("sdpa b=1 h=1 q=80 kv=150 d=16 page=4 lengths=yes").graph()
    assert "expected pages of at least 8 rows, got 4" in str(WGMMA.refuse(graph, SM_90A))
