"""The gradients of attention by descriptor: sub-graphs, cumulated lengths and dropout, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.descriptors import add, best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
B, H, QUERIES, KEYS, SIZE = 2, 2, 8, 12, 16
SCORES = (B, H, QUERIES, KEYS)
Attributes = tuple[tuple[AttributeName, AttributeType, object], ...]
#: Ports, in the order of their uids from 1 on.
PORTS = {
    "q": (N.OPERATION_SDPA_BWD_QDESC, (B, H, QUERIES, SIZE)),
    "k": (N.OPERATION_SDPA_BWD_KDESC, (B, H, KEYS, SIZE)),
    "v": (N.OPERATION_SDPA_BWD_VDESC, (B, H, KEYS, SIZE)),
    "o": (N.OPERATION_SDPA_BWD_ODESC, (B, H, QUERIES, SIZE)),
    "d_o": (N.OPERATION_SDPA_BWD_DODDESC, (B, H, QUERIES, SIZE)),
    "stats": (N.OPERATION_SDPA_BWD_STATSDESC, (B, H, QUERIES, 1)),
    "dq": (N.OPERATION_SDPA_BWD_DQDESC, (B, H, QUERIES, SIZE)),
    "dk": (N.OPERATION_SDPA_BWD_DKDESC, (B, H, KEYS, SIZE)),
    "dv": (N.OPERATION_SDPA_BWD_DVDESC, (B, H, KEYS, SIZE)),
}
UIDS = {port: uid for uid, port in enumerate(PORTS, 1)}
S, M, BIAS, CU_Q, CU_KV, SEED, OFFSET, SINK, DSINK = range(20, 29)


def packed(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.HALF, **more: Any) -> Descriptor:
    return tensor(uid, dims, packed_strides(dims), data_type=data_type, **more)


def gradients(*more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    """The operation, not finalized."""
    descriptor = create(D.OPERATION_SDPA_BWD)
    for port, (name, dims) in PORTS.items():
        data_type = DataType.FLOAT if port == "stats" else DataType.HALF
        descriptor.set_attribute(name, T.BACKEND_DESCRIPTOR, packed(UIDS[port], dims, data_type))
    for attribute in more:
        descriptor.set_attribute(*attribute)
    return descriptor


def subgraph(operation: Descriptor) -> Attributes:
    part = made(D.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation))
    return (
        (N.OPERATION_SDPA_BWD_SUBGRAPH, T.BACKEND_DESCRIPTOR, part),
        (N.OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, T.INT64, S),
        (N.OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, T.INT64, M),
    )


def scores(uid: int) -> Descriptor:
    return packed(uid, SCORES, DataType.FLOAT, is_virtual=True)


def lengths() -> Attributes:
    ends = packed(CU_Q, (B + 1, 1, 1, 1), DataType.INT32), packed(CU_KV, (B + 1, 1, 1, 1), DataType.INT32)
    return (
        (N.OPERATION_SDPA_BWD_CU_SEQ_LEN_QDESC, T.BACKEND_DESCRIPTOR, ends[0]),
        (N.OPERATION_SDPA_BWD_CU_SEQ_LEN_KVDESC, T.BACKEND_DESCRIPTOR, ends[1]),
    )


def dropout(probability: float = 0.25) -> Attributes:
    seed, offset = (tensor(uid, (1,) * 4, (1,) * 4, data_type=DataType.INT64) for uid in (SEED, OFFSET))
    return (
        (N.OPERATION_SDPA_BWD_DROPOUT_SEED_DESC, T.BACKEND_DESCRIPTOR, seed),
        (N.OPERATION_SDPA_BWD_DROPOUT_OFFSET_DESC, T.BACKEND_DESCRIPTOR, offset),
        (N.OPERATION_SDPA_BWD_DROPOUT_PROBABILITY, T.FLOAT, probability),
    )


def sink() -> Attributes:
    names = {SINK: N.OPERATION_SDPA_BWD_SINK_DESC, DSINK: N.OPERATION_SDPA_BWD_DSINK_DESC}
    return tuple((name, T.BACKEND_DESCRIPTOR, packed(uid, (1, H, 1, 1), DataType.FLOAT)) for uid, name in names.items())


def pointwise(mode: PointwiseMode, **more: Descriptor) -> Descriptor:
    """A pointwise operation in FLOAT that makes modified scores."""
    arithmetic = made(
        D.POINTWISE,
        (N.POINTWISE_MODE, T.POINTWISE_MODE, mode),
        (N.POINTWISE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
    )
    return made(
        D.OPERATION_POINTWISE,
        (N.OPERATION_POINTWISE_PW_DESCRIPTOR, T.BACKEND_DESCRIPTOR, arithmetic),
        (N.OPERATION_POINTWISE_XDESC, T.BACKEND_DESCRIPTOR, scores(S)),
        *((N[f"OPERATION_POINTWISE_{port.upper()}DESC"], T.BACKEND_DESCRIPTOR, one) for port, one in more.items()),
        (N.OPERATION_POINTWISE_YDESC, T.BACKEND_DESCRIPTOR, scores(M)),
    )


CASES: dict[str, Attributes] = {
    "plain": (),
    "bounded": subgraph(pointwise(PointwiseMode.TANH_FWD)),
    "bias": subgraph(add(scores(S), packed(BIAS, SCORES, DataType.FLOAT), scores(M))),
    "lengths": lengths(),
    "dropout": dropout(),
    "sink": sink(),
    "all": (
        *subgraph(add(scores(S), packed(BIAS, SCORES, DataType.FLOAT), scores(M))),
        *lengths(),
        *dropout(),
        *sink(),
    ),
}


def kept_weights(operation: SdpaBackward, inputs: dict[int, NDArray[Any]]) -> NDArray[np.float64]:
    """The factors of the weights."""
    if operation.inner is None:
        return np.ones(SCORES)
    for op in operation.inner.operations:
        if isinstance(op, RngOperation):
            kept = op.reference({"seed": inputs[SEED], "offset": inputs[OFFSET]})["y"]
            assert 0 < kept.sum() < kept.size
            return kept / 0.75
    return np.ones(SCORES)


def forward(
    values: dict[str, NDArray[Any]],
    modified: Callable[[NDArray[Any]], NDArray[Any]],
    exists: NDArray[Any],
    factors: NDArray[Any],
    sink_weights: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(weights before dropout, o, stats)."""
    raw = np.where(exists, modified(values["q"] @ np.swapaxes(values["k"], 2, 3)), -np.inf)
    largest = np.where(exists.any(-1, keepdims=True), raw.max(-1, keepdims=True), 0)
    weights = np.exp(raw - largest)
    total = weights.sum(-1, keepdims=True) + np.where(exists.any(-1, keepdims=True), sink_weights / np.exp(largest), 0)
    weights = weights / np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        return weights, factors * weights @ values["v"], largest + np.log(total)


@pytest.mark.parametrize("case", CASES)
def test_gradients(handle: Handle, case: str) -> None:
    descriptor = gradients(*CASES[case])
    descriptor.finalize()
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, descriptor),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    operation = next(op for op in graph.value.graph.operations if isinstance(op, SdpaBackward))
    rng = np.random.default_rng(5)
    values = {port: (rng.standard_normal(PORTS[port][1]) / 2).astype(np.float16) for port in ("q", "k", "v", "d_o")}
    inputs: dict[int, NDArray[Any]] = {
        BIAS: rng.standard_normal(SCORES).astype(np.float32),
        CU_Q: np.array([0, 5, 13], np.int32),
        CU_KV: np.array([0, 12, 19], np.int32),
        SEED: np.array([123], np.int64),
        OFFSET: np.array([7], np.int64),
        SINK: np.array([0.5, -1], np.float32),
        DSINK: np.full(H, np.nan, np.float32),
    }
    exists = np.ones(SCORES, bool)
    if case in ("lengths", "all"):
        for batch, (rows, columns) in enumerate(((5, 12), (8, 7))):
            exists[batch, :, rows:], exists[batch, :, :, columns:] = False, False
    exact = {port: value.astype(np.float64) for port, value in values.items()}
    bias = inputs[BIAS].astype(np.float64) if case in ("bias", "all") else np.zeros(SCORES)
    factors = kept_weights(operation, inputs)
    has_sink = case in ("sink", "all")
    sink_weights = np.exp(inputs[SINK].astype(np.float64)).reshape(1, H, 1, 1) * has_sink
    is_bounded = case == "bounded"
    modified = np.tanh if is_bounded else lambda products: products + bias
    weights, o, stats = forward(exact, modified, exists, factors, sink_weights)
    d_o, v = exact["d_o"] * exists.any(-1, keepdims=True), np.swapaxes(exact["v"], 2, 3)
    ds = weights * (factors * (d_o @ v) - (d_o * o).sum(-1, keepdims=True))
    if is_bounded:
        ds *= 1 - np.tanh(exact["q"] @ np.swapaxes(exact["k"], 2, 3)) ** 2
    expected = {
        "dq": ds @ exact["k"],
        "dk": np.swapaxes(ds, 2, 3) @ exact["q"],
        "dv": np.swapaxes(factors * weights, 2, 3) @ d_o,
    }
    values |= {"o": o.astype(np.float16), "stats": stats.astype(np.float32)}
    values |= {port: np.full(PORTS[port][1], np.nan, np.float16) for port in expected}
    buffers = {UIDS[port]: upload(handle.runtime, value) for port, value in values.items()}
    buffers |= {uid: upload(handle.runtime, value) for uid, value in inputs.items()}
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    (size,) = plan.get_attribute(N.EXECUTION_PLAN_WORKSPACE_SIZE, T.INT64)
    workspace = upload(handle.runtime, np.zeros(max(size, 1), np.uint8))
    execute(handle, plan, variant_pack({uid: one.address for uid, one in buffers.items()}, workspace.address))
    for port, wanted in expected.items():
        found = download(buffers[UIDS[port]], np.float16).reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3 * np.abs(wanted).max(), err_msg=port)
    if has_sink:
        has_keys = exists.any(-1, keepdims=True)
        share = sink_weights / np.exp(np.where(has_keys, stats, 0))
        terms = np.where(has_keys, share * (d_o * o).sum(-1, keepdims=True), 0)
        wanted = -terms.sum((0, 2)).reshape(H)
        np.testing.assert_allclose(download(buffers[DSINK], np.float32), wanted, rtol=4e-3, atol=4e-3)


def test_attributes_read_back() -> None:
    descriptor = gradients(*CASES["all"])
    descriptor.finalize()
    assert descriptor.get_attribute(N.OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, T.INT64) == [S]
    assert descriptor.get_attribute(N.OPERATION_SDPA_BWD_DROPOUT_PROBABILITY, T.FLOAT) == [0.25]
    (part,) = descriptor.get_attribute(N.OPERATION_SDPA_BWD_SUBGRAPH, T.BACKEND_DESCRIPTOR)
    assert part.type is D.OPERATIONGRAPH


def test_wrong_attributes() -> None:
    with pytest.raises(BadParamError, match="dropout_probability: expected 0 to 1, not 1, got 1"):
        gradients(*dropout(1.0)).finalize()
    with pytest.raises(BadParamError, match="dropout_seed: expected a tensor with dropout, got none"):
        gradients(dropout()[2]).finalize()
    with pytest.raises(BadParamError, match="dsink: expected none without a sink"):
        gradients(sink()[1]).finalize()
    part, _, last = CASES["bias"]
    with pytest.raises(
        BadParamError, match="subgraph_input_uid: expected the uid of an input of the sub-graph, got 99"
    ):
        gradients(part, (N.OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, T.INT64, 99), last).finalize()


def test_what_has_no_derivative_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"subgraph: expected operations with a pointwise derivative, got MOD"):
        gradients(*subgraph(pointwise(PointwiseMode.MOD, b=packed(BIAS, SCORES, DataType.FLOAT)))).finalize()


def test_the_gradient_of_a_bias_needs_sums() -> None:
    dbias = (N.OPERATION_SDPA_BWD_DBIAS_DESC, T.BACKEND_DESCRIPTOR, packed(BIAS + 100, SCORES, DataType.HALF))
    gradients(*CASES["bias"], dbias).finalize()
    with pytest.raises(NotSupportedError, match=r"subgraph: expected sums, and selections .* with dbias, got TANH_BWD"):
        gradients(*CASES["bounded"], dbias).finalize()
