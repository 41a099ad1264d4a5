"""Ragged attention touches only the rows that offsets describe: tensors have no memory behind these rows.

On a GPU, nothing is mapped there.
"""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.data import real_values
from lowdnn.cases.families.attention import AttentionCase
from lowdnn.cases.families.attention_backward import AttentionBackwardCase
from lowdnn.engines.attention.attention_backward_mma import AttentionBackwardMma
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.engines.base import Engine
from lowdnn.enums import KnobType
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.ragged import with_padded, with_sequences
from tests.support.running import check_outputs

DECODE, MMA, WGMMA, BACKWARD = AttentionDecode(), AttentionMma(), AttentionWgmma(), AttentionBackwardMma()


of_each_engine = pytest.mark.parametrize("engine", [DECODE, MMA, WGMMA], ids=lambda engine: engine.name)


@pytest.mark.parametrize("engine", [DECODE, MMA, WGMMA, BACKWARD], ids=lambda engine: engine.name)
def test_every_tail_of_a_tile(guarded: Runtime, engine: Engine) -> None:
    """Lengths of queries and keys cross tiles; tensors end with the last sequence. Tails leave every remainder of the
    rows that instructions take."""
    most = 32 if engine is DECODE else 66
    line = f"b=2 h=2 hk=1 q={2 * most} kv=70 d=16 ragged=yes" + (" stats=yes" if engine is not BACKWARD else "")
    for tail in (*range(0, 64, 3), 64, 65, 66):
        _check(guarded, engine, line, (3, tail % (most + 1)), (67 - tail, tail))


@of_each_engine
@pytest.mark.parametrize(
    ("lengths", "mask"),
    [("no", "causal=bottom_right left=40"), ("yes", ""), ("both", "causal=bottom_right left=40")],
)
def test_sequences_without_rows(guarded: Runtime, engine: Engine, lengths: str, mask: str) -> None:
    line = f"b=3 h=1 q=90 kv=120 d=24 dv=40 ragged=yes {mask} lengths={lengths}"
    sequences = [((0, 5, 0), (7, 0, 0)), ((0, 0, 9), (0, 0, 64)), ((63, 64, 0), (65, 0, 33))]
    for queries, keys in [*sequences, ((3, 0, 4), (0, 0, 0)), ((0, 0, 0), (3, 0, 4))]:
        _check(guarded, engine, line, queries, keys)


@of_each_engine
def test_one_row(guarded: Runtime, engine: Engine) -> None:
    """A batch has room for one query, or for one key."""
    _check(guarded, engine, "b=4 h=2 q=1 kv=40 d=16 ragged=yes stats=lse", (1, 0, 1, 0), (3, 40, 0, 20))
    _check(guarded, engine, "b=4 h=2 q=38 kv=1 d=16 ragged=yes stats=lse", (3, 38, 0, 20), (1, 0, 1, 0))


@of_each_engine
@pytest.mark.parametrize("padded", ["q", "v", "qc", "kvc", "stats"])
def test_some_tensors_are_padded(guarded: Runtime, engine: Engine, padded: str) -> None:
    case, seed = parse_case("sdpa b=3 h=2 q=60 kv=150 d=40 ragged=yes lengths=both stats=lse"), fresh_seed()
    graph = with_padded(case.graph(), (padded,) if padded == "stats" else tuple(padded))
    inputs = case.inputs(seed, exact=False)
    rng = np.random.default_rng(seed)
    others = [tensor for tensor in graph.inputs if tensor.uid not in inputs and tensor.constant_value is None]
    inputs |= {tensor.uid: real_values(rng, tensor.dims, tensor.data_type) for tensor in others}
    inputs = with_sequences(graph, inputs, {60: (60, 0, 17), 150: (1, 66, 128)})
    check_outputs(guarded, engine.plan(graph, SM_90A, {}), graph, inputs, case.length, f"seed {seed}, {padded}")


@pytest.mark.parametrize(("queries", "keys"), [(64, 80), (128, 32), (192, 128)])
def test_tiles(guarded: Runtime, queries: int, keys: int) -> None:
    choices = {KnobType.TILE_M: queries, KnobType.TILE_N: keys}
    line = "b=2 h=3 hk=1 q=200 kv=220 d=64 ragged=yes causal=top_left stats=lse"
    for tail in (1, 63, 65):
        _check(guarded, WGMMA, line, (tail, 190 - tail), (tail + 1, 210 - tail), choices)


def _check(
    guarded: Runtime,
    engine: Engine,
    words: str,
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    choices: dict[KnobType, int] | None = None,
) -> None:
    """Runs and compares the case; its tensors have room for half as many rows again."""
    case, seed = parse_case(f"sdpa{'_bwd' if engine is BACKWARD else ''} {words}"), fresh_seed()
    assert isinstance(case, AttentionCase | AttentionBackwardCase)
    graph = case.graph()
    refusal = engine.refuse(graph, SM_90A)
    assert refusal is None, str(refusal)
    inputs = with_sequences(graph, case.inputs(seed, exact=False), {case.q: queries, case.kv: keys})
    context = f"seed {seed}, {case}, queries {queries}, keys {keys}"
    check_outputs(guarded, engine.plan(graph, SM_90A, choices or {}), graph, inputs, case.length, context)
