"""Attention, band masks and rotary position embedding through descriptors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.backend import Descriptor, Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, PointwiseMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType

HEADS, SCORES, STATS, ONE = (1, 2, 6, 8), (1, 2, 6, 6), (1, 2, 6, 1), (1, 1, 1, 1)
Q, K, V, OUT, BEFORE, AFTER, WEIGHTS, SUMS, BOUND = range(1, 10)


def packed(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT, **more: Any) -> Descriptor:
    return tensor(uid, dims, packed_strides(dims), data_type=data_type, **more)


def band_mask(x: Descriptor, y: Descriptor, *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    """Each query sees the keys up to BOUND behind its place."""
    bound = packed(BOUND, ONE, DataType.INT32, is_by_value=True)
    return made(
        DescriptorType.OPERATION_DIAGONAL_BAND_MASK,
        (N.OPERATION_DIAGONAL_BAND_MASK_XDESC, T.BACKEND_DESCRIPTOR, x),
        (N.OPERATION_DIAGONAL_BAND_MASK_YDESC, T.BACKEND_DESCRIPTOR, y),
        (N.OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, T.POINTWISE_MODE, PointwiseMode.CMP_GE),
        (N.OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC, T.BACKEND_DESCRIPTOR, bound),
        *more,
    )


def graph_of(operation: Descriptor, *more: tuple[AttributeName, AttributeType, object]) -> Descriptor:
    return made(DescriptorType.OPERATIONGRAPH, (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation), *more)


def attention() -> Descriptor:
    """With a band mask as the sub-graph, and sums of exponentials."""
    before, after, weights = (packed(uid, SCORES, is_virtual=True) for uid in (BEFORE, AFTER, WEIGHTS))
    softmax = made(
        DescriptorType.OPERATION_SOFTMAX,
        (N.OPERATION_SOFTMAX_XDESC, T.BACKEND_DESCRIPTOR, after),
        (N.OPERATION_SOFTMAX_YDESC, T.BACKEND_DESCRIPTOR, weights),
        (N.OPERATION_SOFTMAX_SUM_EXP_DESC, T.BACKEND_DESCRIPTOR, packed(SUMS, STATS)),
    )
    q, k, v, o = (packed(uid, HEADS, DataType.HALF) for uid in (Q, K, V, OUT))
    return made(
        DescriptorType.OPERATION_SDPA_FWD,
        (N.OPERATION_SDPA_FWD_QDESC, T.BACKEND_DESCRIPTOR, q),
        (N.OPERATION_SDPA_FWD_KDESC, T.BACKEND_DESCRIPTOR, k),
        (N.OPERATION_SDPA_FWD_VDESC, T.BACKEND_DESCRIPTOR, v),
        (N.OPERATION_SDPA_FWD_ODESC, T.BACKEND_DESCRIPTOR, o),
        (N.OPERATION_SDPA_FWD_SUBGRAPH, T.BACKEND_DESCRIPTOR, graph_of(band_mask(before, after))),
        (N.OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, T.INT64, BEFORE),
        (N.OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, T.INT64, AFTER),
        (N.OPERATION_SDPA_FWD_SOFTMAX_DESC, T.BACKEND_DESCRIPTOR, softmax),
    )


def test_ragged_offsets_are_tensors_of_the_graph() -> None:
    offsets = packed(20, (2, 1, 1, 1), DataType.INT32)
    ragged = made(
        DescriptorType.TENSOR,
        (N.TENSOR_UNIQUE_ID, T.INT64, Q),
        (N.TENSOR_DATA_TYPE, T.DATA_TYPE, DataType.HALF),
        (N.TENSOR_DIMENSIONS, T.INT64, HEADS),
        (N.TENSOR_STRIDES, T.INT64, packed_strides(HEADS, (0, 2, 1, 3))),
        (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16),
        (N.TENSOR_RAGGED_OFFSET_DESC, T.BACKEND_DESCRIPTOR, offsets),
        (N.TENSOR_RAGGED_OFFSET_MULTIPLIER, T.INT64, 16),
    )
    k, v, o = (packed(uid, HEADS, DataType.HALF) for uid in (K, V, OUT))
    operation = made(
        DescriptorType.OPERATION_SDPA_FWD,
        (N.OPERATION_SDPA_FWD_QDESC, T.BACKEND_DESCRIPTOR, ragged),
        (N.OPERATION_SDPA_FWD_KDESC, T.BACKEND_DESCRIPTOR, k),
        (N.OPERATION_SDPA_FWD_VDESC, T.BACKEND_DESCRIPTOR, v),
        (N.OPERATION_SDPA_FWD_ODESC, T.BACKEND_DESCRIPTOR, o),
    )
    graph = graph_of(operation).value.graph
    found = match_attention(graph)
    assert isinstance(found, Attention), found
    assert [(uid, move.offsets.uid, move.multiplier) for uid, move in found.ragged.items()] == [(Q, 20, 16)]
    assert 20 in graph.tensors


def run(
    handle: Handle, operation: Descriptor, values: dict[int, NDArray[Any]], by_value: dict[int, NDArray[Any]]
) -> dict[int, NDArray[Any]]:
    """``values`` by uid afterwards."""
    graph = graph_of(operation, (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle))
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    buffers = {uid: upload(handle.runtime, value.reshape(-1)) for uid, value in values.items()}
    workspace = upload(handle.runtime, np.zeros(1 << 12, np.uint8))
    pointers = {uid: buffer.address for uid, buffer in buffers.items()}
    pointers |= {uid: value.ctypes.data for uid, value in by_value.items()}
    execute(handle, plan, variant_pack(pointers, workspace.address))
    return {uid: download(buffers[uid], value.dtype).reshape(value.shape) for uid, value in values.items()}


def test_attention(handle: Handle) -> None:
    """Scores are 0, so a query gives the average of the values that it sees, which are 0, 1, 2 and so on."""
    inputs = {uid: np.zeros(HEADS, np.float16) for uid in (Q, K, V, OUT)} | {SUMS: np.zeros(STATS, np.float32)}
    inputs[V] += np.arange(6, dtype=np.float16)[:, None]
    found = run(handle, attention(), inputs, {BOUND: np.ones(1, np.int32)})
    last = np.minimum(np.arange(6) + 1, 5)
    np.testing.assert_array_equal(found[SUMS], np.broadcast_to((last + 1)[:, None], STATS))
    np.testing.assert_allclose(found[OUT], np.broadcast_to((last / 2)[:, None], HEADS), rtol=1e-3)


def test_engines_find_attention() -> None:
    assert isinstance(match_attention(graph_of(attention()).value.graph), Attention)


def test_a_band_mask_alone(handle: Handle) -> None:
    x = np.arange(72, dtype=np.float32).reshape(SCORES)
    operation = band_mask(packed(BEFORE, SCORES), packed(AFTER, SCORES))
    values = {BEFORE: x, AFTER: np.zeros(SCORES, np.float32)}
    found = run(handle, operation, values, {BOUND: np.ones(1, np.int32)})
    np.testing.assert_array_equal(found[AFTER], np.where(np.tri(6, k=1, dtype=bool), x, -np.inf))


def test_a_sub_graph_alone_is_no_graph() -> None:
    part = graph_of(band_mask(packed(BEFORE, SCORES, is_virtual=True), packed(AFTER, SCORES)))
    with pytest.raises(BadParamError, match="an operation that writes a virtual tensor"):
        _ = part.value.graph


@pytest.mark.parametrize("direction", ["FWD", "BWD"])
def test_rope(handle: Handle, direction: str) -> None:
    """By a right angle: half a row becomes the other half, or its negative."""
    ports = ("XDESC", "YDESC", "FREQSDESC") if direction == "FWD" else ("DYDESC", "DXDESC", "FREQSDESC")
    tensors = [packed(1, HEADS), packed(2, HEADS), packed(3, (6, 1, 1, 4))]
    names = [N[f"OPERATION_ROPE_{direction}_{port}"] for port in ports]
    operation = made(
        DescriptorType[f"OPERATION_ROPE_{direction}"],
        *((name, T.BACKEND_DESCRIPTOR, one) for name, one in zip(names, tensors, strict=True)),
        (N[f"OPERATION_ROPE_{direction}_OUTPUT_SCALE"], T.FLOAT, 2.0),
        (N[f"OPERATION_ROPE_{direction}_ROPE_DIM"], T.INT64, 4),
    )
    x = np.arange(96, dtype=np.float32).reshape(HEADS)
    values = {1: x, 2: np.zeros(HEADS, np.float32), 3: np.full((6, 1, 1, 4), np.pi / 2, np.float32)}
    found = run(handle, operation, values, {})[2]
    sign = 1 if direction == "FWD" else -1
    wanted = 2 * np.concatenate([x[..., :4], -sign * x[..., 6:], sign * x[..., 4:6]], axis=-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
