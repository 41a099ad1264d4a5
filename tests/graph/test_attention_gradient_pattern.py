"""Gradients of attention are recognised in graphs, and the operations beside them stay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.attention_gradient_pattern import with_attention_gradients
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, outputs_of, with_tensors
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.sdpa_centred_backward import SdpaCentredBackward
from tests.support.near_misses.attention_gradients import PATTERNS
from tests.support.near_misses.drawing import exact

MODES = PointwiseMode


def found(name: str) -> tuple[OperationGraph, SdpaBackward]:
    """(the graph of a pattern with its gradients as one operation, that operation)."""
    graph = OperationGraph(with_attention_gradients(PATTERNS[name].pattern.operations))
    (operation,) = (op for op in graph.operations if isinstance(op, SdpaBackward))
    return graph, operation


def modes(operation: SdpaBackward) -> list[PointwiseMode | str]:
    operations = () if operation.inner is None else operation.inner.operations
    return [op.mode if isinstance(op, PointwiseOperation) else type(op).__name__ for op in operations]


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("shared_keys", []),
        ("causal", [MODES.ADD, MODES.GEN_INDEX, MODES.GEN_INDEX, MODES.CMP_GE, MODES.BINARY_SELECT]),
        ("causal_with_lengths", [MODES.ADD, MODES.GEN_INDEX, MODES.GEN_INDEX, MODES.CMP_GE, MODES.BINARY_SELECT]),
        ("biased", [MODES.ADD]),
        ("biased_with_lengths", [MODES.ADD]),
        ("dropout", ["RngOperation", MODES.MUL, MODES.MUL]),
        ("capped", [MODES.TANH_FWD, MODES.TANH_FWD, MODES.MUL, MODES.SUB, MODES.MUL]),
    ],
)
def test_what_happens_to_scores_and_weights(name: str, inner: list[object]) -> None:
    """Masks behind lengths are left out; what else happens is inside of the operation."""
    graph, operation = found(name)
    assert modes(operation) == inner
    assert len(graph.operations) == 1 + (name == "shared_keys")
    has_lengths = "lengths" in name
    assert [tensor is not None for tensor in (operation.seq_len_q, operation.seq_len_kv)] == [has_lengths] * 2
    assert (operation.dbias is None) == (not name.startswith("biased"))
    assert (operation.scale is None) == (name == "biased")
    assert isinstance(operation, SdpaCentredBackward)
    assert len(operation.centre_scales) == 1 + (name == "dropout")


def test_sums_that_are_stored_in_fp32_first() -> None:
    """dq is the sum; what rounds it comes behind. Its order is free, that of sums in the type of q is not."""
    graph, operation = found("shared_keys")
    (rounding,) = (op for op in graph.operations if isinstance(op, PointwiseOperation))
    assert rounding.operands["x"].uid == operation.dq.uid
    assert operation.dq.data_type is DataType.FLOAT
    assert not operation.is_deterministic
    assert found("causal")[1].is_deterministic


def test_keys_lie_as_they_are_given() -> None:
    _, operation = found("causal")
    (size, length), k = operation.k.strides[3:1:-1], operation.k
    assert (k.dims[2:], size, length) == ((5, 8), 1, 8)


@pytest.mark.parametrize("mode", [MODES.EXP, MODES.SUB, MODES.MUL])
def test_intermediates_that_are_stored(mode: PointwiseMode) -> None:
    """Each stored intermediate is made beside the operation, as without it."""
    pattern = PATTERNS["causal"].pattern
    chosen = [op for op in pattern.operations if isinstance(op, PointwiseOperation) and op.mode is mode]
    for op in chosen:
        stored = {op.output.uid: replace(op.output, is_virtual=False)}
        graph = OperationGraph(with_tensors(other, stored) for other in pattern.operations)
        one = OperationGraph(with_attention_gradients(graph.operations))
        assert any(isinstance(other, SdpaBackward) for other in one.operations)
        assert {tensor.uid for tensor in one.outputs} == {tensor.uid for tensor in graph.outputs}
        inputs = exact(replace(pattern, operations=graph.operations), np.random.default_rng(3)).inputs
        given = {
            uid: array if array.shape == one.tensors[uid].dims else array.swapaxes(-1, -2)
            for uid, array in inputs.items()
        }
        wanted = evaluate(graph, inputs)[op.output.uid]
        np.testing.assert_array_equal(evaluate(one, given)[op.output.uid], wanted)


def test_engines() -> None:
    """One kernel of attention for each gradient, without scores in memory."""
    graph, operation = found("dropout")
    plan = next(engine for engine in ENGINES if engine.refuse(graph, SM_90A) is None).plan(graph, SM_90A, {})
    assert plan.engine == "attention_backward_mma"
    scores = int(np.prod(operation.scores_dims)) * dtypes.info(DataType.HALF).size_bytes
    assert plan.workspace_bytes < max(scores, 1024)


def test_two_attentions() -> None:
    """Both attentions are found, and results of one are operands of the other."""
    first = PATTERNS["capped"].pattern.operations
    outputs = [tensor for op in first for tensor in outputs_of(op).values() if not tensor.is_virtual]
    d_q = next(tensor for tensor in outputs if tensor.dims == (2, 2, 4, 8))
    tensors = {t.uid: t for op in first for t in (*outputs_of(op).values(), *inputs_of(op).values())}
    moved = {uid: replace(tensor, uid=uid + 1000) for uid, tensor in tensors.items()}
    q = next(tensor for tensor in tensors.values() if tensor.name == "q")
    moved[q.uid] = d_q
    graph = OperationGraph(with_attention_gradients((*first, *(with_tensors(op, moved) for op in first))))
    assert [type(op).__name__ for op in graph.operations] == ["SdpaCentredBackward"] * 2
    one, other = graph.operations
    assert isinstance(one, SdpaBackward)
    assert isinstance(other, SdpaBackward)
    assert other.q.uid == one.dq.uid
    uids = [{tensor.uid for tensor in outputs_of(op).values()} for op in graph.operations]
    assert all(before.isdisjoint(behind) for before, behind in pairwise(uids))
