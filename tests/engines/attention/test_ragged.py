"""Attention forward of ragged tensors: sequences of queries, keys and outputs packed one behind the other."""

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
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import with_tensors
from lowdnn.ops.ragged import RaggedLoad, RaggedMove, RaggedStore
from lowdnn.ops.tensor import packed_strides
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import assert_outputs, check_case, check_outputs, run_plan

DECODE, MMA, WGMMA = AttentionDecode(), AttentionMma(), AttentionWgmma()
ENGINES: tuple[Engine, ...] = (DECODE, MMA, WGMMA)

of_each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)

LINES = (
    "sdpa b=4 h=4 hk=2 q=9 kv=40 d=16 ragged=yes lengths=yes stats=yes",
    "sdpa b=3 h=1 q=36 kv=20 d=8 dv=24 left=9 ragged=yes scores=bias dropout=0.25 out=fp32",
)


@of_each_engine
@pytest.mark.parametrize("line", LINES)
def test_lines(racing: Runtime, engine: Engine, line: str) -> None:
    check_case(racing, engine, line)


def test_parts_of_the_keys(device: Runtime) -> None:
    check_case(device, DECODE, "sdpa b=2 h=2 q=3 kv=1100 d=16 ragged=yes stats=yes", {KnobType.SPLIT_K_SLC: 2})


@of_each_engine
def test_rows_of_no_sequence_stay_as_they_are(racing: Runtime, engine: Engine) -> None:
    """The first sequence begins behind the first row, the second has no rows, and there are rows behind the last."""
    case = parse_case("sdpa b=3 h=2 q=12 kv=20 d=16 ragged=yes stats=yes")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    first = {"c": (2, 5, 5, 9), "stats": (1, 7, 7, 12)}
    stores = [op for op in graph.operations if isinstance(op, RaggedStore)]
    ends = {store.y.uid: first[store.offsets.name.removesuffix("_ragged_offset")] for store in stores}
    for store in stores:
        inputs[store.offsets.uid] = np.array(ends[store.y.uid], np.int64).reshape(store.offsets.dims)
    check_outputs(racing, engine.plan(graph, SM_90A, {}), graph, inputs, case.length)


def test_only_the_output_is_ragged(racing: Runtime) -> None:
    """A query beyond its sequence is computed where its statistics are stored all the same."""
    case = parse_case("sdpa b=3 h=2 q=12 kv=20 d=16 ragged=yes stats=lse")
    graph = case.graph()
    moves = [op for op in graph.operations if isinstance(op, RaggedMove) and op.packed.name != "c"]
    padded = {op.padded.uid: replace(op.padded, is_virtual=False) for op in moves}
    graph = OperationGraph(with_tensors(op, padded) for op in graph.operations if op not in moves)
    rng = np.random.default_rng(fresh_seed())
    inputs = {tensor.uid: case._values(rng, tensor, False) for tensor in graph.inputs if tensor.constant_value is None}
    for engine in ENGINES:
        check_outputs(racing, engine.plan(graph, SM_90A, {}), graph, inputs, case.length)


@pytest.mark.parametrize(("queries", "mask"), [(64, "causal=top_left left=90"), (128, "")])
def test_sequences_of_any_lengths(racing: Runtime, queries: int, mask: str) -> None:
    """Several tiles for each block. Rows before the first sequence, behind the last one, and of keys behind a length
    are NaN; of outputs they stay as they are."""
    case = parse_case(f"sdpa b=9 h=2 hk=1 q=200 kv=220 d=16 ragged=yes lengths=yes stats=lse {mask}")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor for tensor in graph.inputs}
    rows, lengths = [0, 64, 128, 129, 63, 1, 0, 192, 65], [33, 112, 0, 113, 224 - 4, 1, 17, 111, 2]
    first, nan = {"q": 3, "k": 5, "v": 1, "c": 2, "stats": 4}, 0x7FC0
    ends = {name: np.cumsum([first[name], *rows]) for name in ("q", "c", "stats")}
    ends |= {name: np.cumsum([first[name], *(min(length + 6, 220) for length in lengths)]) for name in ("k", "v")}
    inputs[of["lengths"].uid] = np.array(lengths, np.int32).reshape(9, 1, 1, 1)
    for name, own in ends.items():
        offsets = graph.tensors[of[f"{name}_ragged_offset"].uid]
        inputs[offsets.uid] = own.astype(inputs[offsets.uid].dtype).reshape(offsets.dims)
    for name in "qkv":
        exists = np.zeros(of[name].dims[2], bool)
        for begin, length in zip(ends[name], rows if name == "q" else lengths, strict=False):
            exists[begin : begin + length] = True
        inputs[of[name].uid] = np.where(exists[:, None], inputs[of[name].uid], 0)
    expected = expected_outputs(graph, inputs, WGMMA.numerical_notes, case.length)
    for name in "qkv":
        array = inputs[of[name].uid]
        inputs[of[name].uid] = np.where((array == 0).all(axis=(1, 3), keepdims=True), nan, array).astype(array.dtype)
    plan = WGMMA.plan(graph, replace(SM_90A, sm_count=2), {KnobType.TILE_M: queries})
    assert_outputs(run_plan(racing, plan, graph, inputs), expected, graph, inputs)


def test_what_cannot_be_packed_is_refused() -> None:
    graph = parse_case("sdpa b=2 h=2 q=3 kv=40 d=16 ragged=yes").graph()
    (store,) = (op for op in graph.operations if isinstance(op, RaggedStore))
    by_heads = {store.y.uid: replace(store.y, strides=packed_strides(store.y.dims))}
    changed = OperationGraph(with_tensors(op, by_heads) for op in graph.operations)
    assert f"{store.y.label}.strides: expected rows of all heads" in str(DECODE.refuse(changed, SM_90A))


def test_ragged_operands_beside_q_k_and_v_are_refused() -> None:
    """Nothing would read their offsets."""
    graph = parse_case("sdpa b=2 h=2 q=3 kv=40 d=16 ragged=yes scores=add").graph()
    load = next(op for op in graph.operations if isinstance(op, RaggedLoad))
    (scores,) = (t for t in graph.inputs if t.dims == (2, 2, 3, 40))
    uid = max(graph.tensors) + 1
    packed = replace(scores, uid=uid, dims=(1, 2, 6, 40), strides=packed_strides((1, 2, 6, 40)), name="packed")
    padded = {scores.uid: replace(scores, is_virtual=True)}
    ragged = RaggedLoad(packed, padded[scores.uid], load.offsets)
    changed = OperationGraph((ragged, *(with_tensors(op, padded) for op in graph.operations)))
    for engine in ENGINES:
        assert f"{packed.label}: expected ragged offsets of q, k and v" in str(engine.refuse(changed, SM_90A))
