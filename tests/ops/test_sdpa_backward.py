"""The gradients of attention against differences of a plain attention, written here a second time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, with_tensors
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import (
    BadParamError,
    NotSupportedError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
    UnsupportedShapeError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises

B, H, QUERIES, KEYS, D, D_V = 2, 4, 5, 7, 3, 2
Arrays = dict[str, NDArray[Any]]


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.HALF) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def operation(heads_k: int = H, heads_v: int = H, **changes: Any) -> SdpaBackward:
    q, k, v, o = (B, H, QUERIES, D), (B, heads_k, KEYS, D), (B, heads_v, KEYS, D_V), (B, H, QUERIES, D_V)
    ports: dict[str, Any] = {
        "q": tensor(1, q),
        "k": tensor(2, k),
        "v": tensor(3, v),
        "o": tensor(4, o),
        "d_o": tensor(5, o),
        "stats": tensor(6, (B, H, QUERIES, 1), DataType.FLOAT),
        "dq": tensor(7, q),
        "dk": tensor(8, k),
        "dv": tensor(9, v),
    }
    return SdpaBackward(**(ports | changes))


def lengths(uid: int, data_type: DataType = DataType.INT32) -> Tensor:
    return tensor(uid, (B, 1, 1, 1), data_type)


def attention(op: SdpaBackward, inputs: Arrays) -> Arrays:
    """o and stats, query by query."""
    o, stats = np.zeros(op.o.dims), np.full(op.stats.dims, -np.inf)
    scale = float(inputs["scale"].reshape(())) if "scale" in inputs else 1.0
    for b, h, r in np.ndindex(*op.q.dims[:3]):
        queries = int(inputs["seq_len_q"][b, 0, 0, 0]) if "seq_len_q" in inputs else QUERIES
        keys = int(inputs["seq_len_kv"][b, 0, 0, 0]) if "seq_len_kv" in inputs else KEYS
        place = r + keys - queries if op.is_bottom_right else r
        first = 0 if op.left is None else place - op.left
        last = keys - 1 if op.right is None else place + op.right
        seen = [c for c in range(keys) if first <= c <= last] if r < queries else []
        if not seen:
            continue
        k = inputs["k"][b, h * op.k.dims[1] // H, seen]
        scores = scale * (k @ inputs["q"][b, h, r])
        weights = np.exp(scores)
        o[b, h, r] = weights @ inputs["v"][b, h * op.v.dims[1] // H, seen] / weights.sum()
        stats[b, h, r] = np.log(weights.sum())
    return {"o": o, "stats": stats}


def drawn(op: SdpaBackward) -> Arrays:
    rng = np.random.default_rng(fresh_seed())
    values = {port: rng.normal(0, 1, t.dims) for port, t in inputs_of(op).items()}
    for port, extent in (("seq_len_q", QUERIES), ("seq_len_kv", KEYS)):
        if port in values:
            values[port] = rng.integers(1, extent + 1, (B, 1, 1, 1))
    return values


@pytest.mark.parametrize(
    ("op", "without"),
    [
        (operation(), ""),
        (operation(2, 2, right=0), ""),
        (operation(1, 2, left=2, is_bottom_right=True, scale=tensor(10, (1, 1, 1, 1), DataType.FLOAT)), ""),
        (operation(right=0, is_bottom_right=True), ""),
        (operation(left=1, right=2, seq_len_q=lengths(11), seq_len_kv=lengths(12, DataType.INT64)), ""),
        (operation(2, right=0, is_bottom_right=True, seq_len_q=lengths(11), seq_len_kv=lengths(12)), ""),
        (operation(seq_len_q=lengths(11), seq_len_kv=lengths(12)), "seq_len_q"),
        (operation(2, seq_len_q=lengths(11), seq_len_kv=lengths(12)), "seq_len_kv"),
        (operation(left=0, right=-1), ""),
    ],
    ids=["full", "causal", "heads", "corner", "lengths", "both", "no_queries", "no_keys", "nothing"],
)
def test_reference_agrees_with_differences(op: SdpaBackward, without: str) -> None:
    """Along a random direction of q, of k and of v; ``without``: the length that is 0 in the first batch."""
    inputs = drawn(op)
    if without:
        inputs[without][0] = 0
    expected = attention(op, inputs)
    own = op.forward(inputs)
    np.testing.assert_allclose(own["o"], expected["o"], atol=1e-12)
    np.testing.assert_allclose(own["stats"], expected["stats"], atol=1e-12)
    gradients = op.reference(inputs | expected)
    for port in ("q", "k", "v"):
        direction = np.random.default_rng(fresh_seed()).normal(0, 1, inputs[port].shape)
        ends = [attention(op, inputs | {port: inputs[port] + step * direction})["o"] for step in (1e-5, -1e-5)]
        slope = float(((ends[0] - ends[1]) * inputs["d_o"]).sum()) / 2e-5
        assert slope == pytest.approx(float((gradients[f"d{port}"] * direction).sum()), rel=1e-6, abs=1e-8)


def test_what_lies_past_the_lengths_and_rows_that_see_nothing_add_nothing() -> None:
    op = operation(seq_len_q=lengths(11), seq_len_kv=lengths(12))
    inputs = drawn(op)
    inputs["seq_len_q"][:], inputs["seq_len_kv"][:] = 3, 4
    inputs |= attention(op, inputs)
    expected = op.reference(inputs)
    for port, length in {"q": 3, "o": 3, "d_o": 3, "k": 4, "v": 4}.items():
        inputs[port][:, :, length:] = np.nan
    inputs["stats"][:, :, 3:] = np.nan
    actual = op.reference(inputs)
    for port, values in expected.items():
        np.testing.assert_array_equal(actual[port], values)
    assert not expected["dq"][:, :, 3:].any()
    assert not expected["dk"][:, :, 4:].any()
    inputs["stats"][:, :, 0] = -np.inf
    assert not op.reference(inputs)["dq"][:, :, 0].any()


@pytest.mark.parametrize("stats", [-20.0, -1000.0], ids=["of_fp16", "of_fp64"])
def test_a_query_without_d_o_adds_nothing(stats: float) -> None:
    """Though its weights are infinite in that type."""
    op = operation()
    inputs = drawn(op)
    inputs |= attention(op, inputs)
    inputs["d_o"][:, :, 2] = 0
    expected = [op.reference(inputs), op.rounded_reference(inputs)]
    inputs["stats"][:, :, 2] = stats
    for own, found in zip(expected, [op.reference(inputs), op.rounded_reference(inputs)], strict=True):
        for port, values in own.items():
            np.testing.assert_array_equal(found[port], values)


def test_band_and_determinism_are_part_of_the_graph() -> None:
    operations = (operation(), operation(right=0), operation(left=0), operation(is_deterministic=True))
    graphs = [OperationGraph([op]) for op in operations]
    assert len({graph.key for graph in graphs}) == 4
    assert all(OperationGraph.from_json(graph.to_json()).operations == graph.operations for graph in graphs)
    assert graphs[0].operations[0].flops == 2 * B * H * QUERIES * KEYS * (3 * D + 2 * D_V)


def test_checks() -> None:
    with raises(UnsupportedShapeError, "sdpa_backward.k.dims", expected="[batch, heads, length, size]", got="[2, 4]"):
        operation(k=tensor(2, (2, 4)))
    with raises(ShapeMismatchError, "sdpa_backward.k.dims", expected="[2, H_k, S_kv, 3]", got="[2, 4, 7, 2]"):
        operation(k=tensor(2, (B, H, KEYS, 2)))
    with raises(ShapeMismatchError, "sdpa_backward.v.dims", expected="[2, H_v, 7, D_v]", got="[2, 4, 8, 2]"):
        operation(v=tensor(3, (B, H, 8, D_V)))
    with raises(ShapeMismatchError, "sdpa_backward.k.dims[1]", expected="a divisor of q's 4 heads", got="3"):
        operation(heads_k=3)
    with raises(ShapeMismatchError, "sdpa_backward.d_o.dims", expected="[2, 4, 5, 2]", got="[2, 4, 5, 3]"):
        operation(d_o=tensor(5, (B, H, QUERIES, D)))
    with raises(ShapeMismatchError, "sdpa_backward.dk.dims", expected="[2, 2, 7, 3]", got="[2, 4, 7, 3]"):
        operation(heads_k=2, dk=tensor(8, (B, H, KEYS, D)))
    with raises(UnsupportedDataTypeError, "sdpa_backward.dq.data_type", expected="a float type", got="INT8"):
        operation(dq=tensor(7, (B, H, QUERIES, D), DataType.INT8))
    with raises(UnsupportedDataTypeError, "sdpa_backward.stats.data_type", expected="FLOAT", got="HALF"):
        operation(stats=tensor(6, (B, H, QUERIES, 1)))
    with raises(BadParamError, "sdpa_backward.scale.dims", expected="one element", got="[2]"):
        operation(scale=tensor(10, (2,)))
    with raises(ShapeMismatchError, "sdpa_backward.seq_len_kv.dims", expected="[2, 1, 1, 1]", got="[2]"):
        operation(seq_len_kv=replace(lengths(11), dims=(2,), strides=(1,)))
    with raises(UnsupportedDataTypeError, "sdpa_backward.seq_len_q.data_type", expected="INT32 or INT64", got="FLOAT"):
        operation(seq_len_q=lengths(11, DataType.FLOAT))


def test_the_rounded_reference_is_off_by_what_16_bits_lose() -> None:
    op = operation(2, right=0)
    inputs = drawn(op)
    inputs |= attention(op, inputs)
    exact, rounded = op.reference(inputs), op.rounded_reference(inputs)
    for port, values in exact.items():
        error = np.abs(rounded[port] - values).max()
        assert 2.0**-16 * np.abs(values).max() < error < 2.0**-8 * np.abs(values).max()


def modified(**more: Any) -> SdpaBackward:
    """With a bias, a soft cap of 2 behind it, and dropout of what a tensor says."""
    dims = (B, H, QUERIES, KEYS)
    scores, gradient, weights, *between = (virtual(uid, dims) for uid in range(20, 28))
    bias, kept, cap = tensor(30, (1, H, QUERIES, KEYS)), tensor(31, dims), number(32, 2)
    share, bounded, capped, d_scores, dropped = between
    biased = virtual(40, dims)
    operations = (
        step(PointwiseMode.ADD, x=scores, b=bias, y=biased),
        step(PointwiseMode.DIV, x=biased, b=cap, y=share),
        step(PointwiseMode.TANH_FWD, x=share, y=bounded),
        step(PointwiseMode.MUL, x=bounded, b=cap, y=capped),
        step(PointwiseMode.TANH_BWD, dy=gradient, x=share, dx=d_scores),
        step(PointwiseMode.MUL, x=weights, b=kept, y=dropped),
    )
    inner = Subgraph((scores, gradient, weights), (capped, d_scores, dropped), operations)
    return operation(2, right=2, inner=inner, dbias=tensor(33, bias.dims), **more)


def virtual(uid: int, dims: tuple[int, ...]) -> Tensor:
    return replace(tensor(uid, dims, DataType.FLOAT), is_virtual=True)


def number(uid: int, value: float) -> Tensor:
    return Tensor(uid, DataType.FLOAT, (1,), (1,), 4, constant_value=value)


def step(mode: PointwiseMode, **ports: Tensor) -> PointwiseOperation:
    return PointwiseOperation(Pointwise(mode, DataType.FLOAT), **ports)  # type: ignore[arg-type]


def test_reference_of_modified_scores_agrees_with_differences() -> None:
    op = modified()
    inputs = drawn(op)
    ports = {tensor.uid: port for port, tensor in inputs_of(op).items()}
    bias, kept, cap = (ports[uid] for uid in (30, 31, 32))
    inputs[kept], inputs[cap] = 2.0 * (inputs[kept] > 0), np.full((1,), 2.0)
    gradients = op.reference(inputs | op.forward(inputs))
    for port, of in {"q": "dq", "k": "dk", "v": "dv", bias: "dbias"}.items():
        direction = np.random.default_rng(fresh_seed()).normal(0, 1, inputs[port].shape)
        ends = [
            modified_attention(inputs | {port: inputs[port] + sign * 1e-5 * direction}, bias, kept) for sign in (1, -1)
        ]
        slope, terms = float(((ends[0] - ends[1]) * inputs["d_o"]).sum()) / 2e-5, gradients[of] * direction
        rounded = 2.0**-22 * float(np.abs(terms).sum())  # inner arithmetic is in FLOAT, and terms cancel out
        assert slope == pytest.approx(float(terms.sum()), rel=0, abs=rounded)


def modified_attention(inputs: Arrays, bias: str, kept: str) -> NDArray[Any]:
    """o, written here a second time."""
    k, v = (np.repeat(inputs[port], H // 2 if port == "k" else H // inputs["v"].shape[1], axis=1) for port in "kv")
    scores = 2 * np.tanh((inputs["q"] @ np.swapaxes(k, -1, -2) + inputs[bias]) / 2)
    seen = np.arange(KEYS) <= np.arange(QUERIES)[:, None] + 2
    weights = np.where(seen, np.exp(scores), 0)
    return (inputs[kept] * weights / weights.sum(-1, keepdims=True)) @ v


def test_what_is_inside_is_part_of_the_graph() -> None:
    op = modified()
    graph = OperationGraph([op])
    assert OperationGraph.from_json(graph.to_json()).operations == graph.operations
    assert {30, 31, 32} <= {tensor.uid for tensor in graph.inputs}
    assert graph.key != OperationGraph([operation(2, right=2)]).key
    moved = {30: replace(tensor(30, (1, H, QUERIES, KEYS)), strides=(0, 1, KEYS * H, H))}
    assert moved[30] in inputs_of(with_tensors(op, moved)).values()


def test_checks_of_what_is_inside() -> None:
    dims = (B, H, QUERIES, KEYS)
    given = tuple(virtual(uid, dims) for uid in (20, 21, 22))
    squared = step(PointwiseMode.MUL, x=given[2], b=given[2], y=virtual(23, dims))
    with raises(NotSupportedError, "sdpa_backward.inner", expected="products of the weights with other tensors"):
        operation(inner=Subgraph(given, (*given[:2], virtual(23, dims)), (squared,)))
    with raises(BadParamError, "sdpa_backward.inner", expected="3 tensors that are given", got="(1, 1)"):
        operation(inner=Subgraph(given[:1], given[:1]))
    with raises(
        ShapeMismatchError, "sdpa_backward.dbias.dims", expected="with 1 for batch or heads", got="[1, 1, 5, 1]"
    ):
        operation(dbias=tensor(33, (1, 1, QUERIES, 1)))
