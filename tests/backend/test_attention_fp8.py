"""Attention in fp8 by descriptor: the numbers that tensors are scaled by, and the largest magnitudes, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.backend import Descriptor, Handle, create, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import UnsupportedDataTypeError, UnsupportedShapeError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T, D = AttributeName, AttributeType, DescriptorType
HEADS, ONE = (1, 2, 32, 32), (1, 1, 1, 1)
TENSORS = {
    "q": N.OPERATION_SDPA_FWD_QDESC,
    "k": N.OPERATION_SDPA_FWD_KDESC,
    "v": N.OPERATION_SDPA_FWD_VDESC,
    "o": N.OPERATION_SDPA_FWD_ODESC,
}
NUMBERS = {
    "descale_q": (N.OPERATION_SDPA_FWD_DESCALE_QDESC, 0.5),
    "descale_k": (N.OPERATION_SDPA_FWD_DESCALE_KDESC, 0.25),
    "descale_v": (N.OPERATION_SDPA_FWD_DESCALE_VDESC, 2.0),
    "descale_s": (N.OPERATION_SDPA_FWD_DESCALE_SDESC, 1 / 64),
    "scale_s": (N.OPERATION_SDPA_FWD_SCALE_SDESC, 64.0),
    "scale_o": (N.OPERATION_SDPA_FWD_SCALE_ODESC, 3.0),
}
LARGEST = {"amax_s": N.OPERATION_SDPA_FWD_AMAX_SDESC, "amax_o": N.OPERATION_SDPA_FWD_AMAX_ODESC}
UIDS = {port: uid for uid, port in enumerate((*TENSORS, *NUMBERS, *LARGEST), 1)}


def attention(changes: dict[str, Descriptor] | None = None) -> Descriptor:
    """The operation, not finalized."""
    names = TENSORS | {port: name for port, (name, _) in NUMBERS.items()} | LARGEST
    descriptor = create(D.OPERATION_SDPA_FWD)
    for port, name in names.items():
        data_type = DataType.FP8_E4M3 if port in "qkv" else DataType.FLOAT
        dims = HEADS if port in TENSORS else ONE
        own = tensor(UIDS[port], dims, packed_strides(dims), data_type=data_type)
        descriptor.set_attribute(name, T.BACKEND_DESCRIPTOR, (changes or {}).get(port, own))
    return descriptor


def test_attention_in_fp8(handle: Handle) -> None:
    descriptor = attention()
    descriptor.finalize()
    graph = made(
        D.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, descriptor),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    assert isinstance(match_attention(graph.value.graph), Attention)
    rng = np.random.default_rng(3)
    stored = {port: dtypes.from_float64(rng.standard_normal(HEADS), DataType.FP8_E4M3) for port in "qkv"}
    q, k, v = (dtypes.to_float64(values, DataType.FP8_E4M3) for values in stored.values())
    given: dict[str, Any] = {port: np.array([value], np.float32) for port, (_, value) in NUMBERS.items()}
    outputs = {"o": np.full(HEADS, np.nan, np.float32)} | {port: np.full(1, np.nan, np.float32) for port in LARGEST}
    buffers = {UIDS[port]: upload(handle.runtime, values) for port, values in (stored | given | outputs).items()}
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    (size,) = plan.get_attribute(N.EXECUTION_PLAN_WORKSPACE_SIZE, T.INT64)
    workspace = upload(handle.runtime, np.zeros(max(size, 1), np.uint8))
    execute(handle, plan, variant_pack({uid: one.address for uid, one in buffers.items()}, workspace.address))

    scores = 0.5 * 0.25 * (q @ np.swapaxes(k, 2, 3))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = 2.0 * weights @ v
    found = {port: download(buffers[UIDS[port]], np.float32) for port in outputs}
    # A weight is rounded to 3 bits behind its leading one.
    allowed = 2.0 * 2.0**-4 * np.sqrt(np.square(weights) @ np.square(v))
    assert np.all(np.abs(found["o"].reshape(HEADS) / 3 - expected) <= 4 * allowed)
    # Scores are sums by fp8 instructions, which keep some 14 bits.
    np.testing.assert_allclose(found["amax_s"], weights.max(), rtol=1e-3)
    np.testing.assert_allclose(found["amax_o"], np.abs(found["o"]).max() / 3, rtol=1e-5)


@pytest.mark.parametrize("port", [*NUMBERS, *LARGEST])
def test_each_has_one_element_in_fp32(port: str) -> None:
    several = tensor(UIDS[port], (1, 2, 1, 1), (2, 1, 1, 1))
    with pytest.raises(
        UnsupportedShapeError, match=rf"sdpa_forward\.{port}\.dims: expected \[1, 1, 1, 1\], got \[1, 2, 1, 1\]"
    ):
        attention({port: several}).finalize()
    half = tensor(UIDS[port], ONE, ONE, data_type=DataType.HALF)
    with pytest.raises(UnsupportedDataTypeError, match=rf"sdpa_forward\.{port}\.data_type: expected FLOAT, got HALF"):
        attention({port: half}).finalize()
