"""The gradients of a convolution through descriptors."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from lowdnn.backend import Descriptor, Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import LowdnnError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType

X, W, DY = (1, 2, 4, 4), (3, 2, 3, 3), (1, 3, 2, 2)


def geometry() -> Descriptor:
    return made(
        DescriptorType.CONVOLUTION,
        (N.CONVOLUTION_COMP_TYPE, T.DATA_TYPE, DataType.FLOAT),
        (N.CONVOLUTION_SPATIAL_DIMS, T.INT64, 2),
        (N.CONVOLUTION_PRE_PADDINGS, T.INT64, (0, 0)),
        (N.CONVOLUTION_POST_PADDINGS, T.INT64, (0, 0)),
        (N.CONVOLUTION_FILTER_STRIDES, T.INT64, (1, 1)),
        (N.CONVOLUTION_DILATIONS, T.INT64, (1, 1)),
    )


def packed(uid: int, dims: tuple[int, ...]) -> Descriptor:
    return tensor(uid, dims, packed_strides(dims))


def data_gradient() -> Descriptor:
    return made(
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
        (N.OPERATION_CONVOLUTION_BWD_DATA_ALPHA, T.FLOAT, 2.0),
        (N.OPERATION_CONVOLUTION_BWD_DATA_BETA, T.FLOAT, 1.0),
        (N.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, T.BACKEND_DESCRIPTOR, geometry()),
        (N.OPERATION_CONVOLUTION_BWD_DATA_W, T.BACKEND_DESCRIPTOR, packed(1, W)),
        (N.OPERATION_CONVOLUTION_BWD_DATA_DY, T.BACKEND_DESCRIPTOR, packed(2, DY)),
        (N.OPERATION_CONVOLUTION_BWD_DATA_DX, T.BACKEND_DESCRIPTOR, packed(3, X)),
    )


def filter_gradient() -> Descriptor:
    return made(
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER,
        (N.OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, T.DOUBLE, 2.0),
        (N.OPERATION_CONVOLUTION_BWD_FILTER_BETA, T.DOUBLE, 1.0),
        (N.OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, T.BACKEND_DESCRIPTOR, geometry()),
        (N.OPERATION_CONVOLUTION_BWD_FILTER_X, T.BACKEND_DESCRIPTOR, packed(1, X)),
        (N.OPERATION_CONVOLUTION_BWD_FILTER_DY, T.BACKEND_DESCRIPTOR, packed(2, DY)),
        (N.OPERATION_CONVOLUTION_BWD_FILTER_DW, T.BACKEND_DESCRIPTOR, packed(3, W)),
    )


def run(handle: Handle, operation: Descriptor, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> Any:
    """The output, from ones everywhere, the old output included."""
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    buffers = [upload(handle.runtime, np.ones(prod(dims), np.float32)) for dims in (*inputs, output)]
    workspace = upload(handle.runtime, np.zeros(1 << 16, np.uint8))
    pointers = {uid: buffer.address for uid, buffer in enumerate(buffers, 1)}
    execute(handle, plan, variant_pack(pointers, workspace.address))
    return download(buffers[-1], np.dtype(np.float32)).reshape(output)


def test_data_gradient(handle: Handle) -> None:
    """Every element of dx meets 3 filters at each output that reads it."""
    result = run(handle, data_gradient(), (W, DY), X)
    reads = np.outer((1, 2, 2, 1), (1, 2, 2, 1))
    np.testing.assert_array_equal(result, np.broadcast_to(2 * 3 * reads + 1, X))


def test_filter_gradient(handle: Handle) -> None:
    """Every weight takes part in 4 outputs."""
    np.testing.assert_array_equal(run(handle, filter_gradient(), (X, DY), W), np.full(W, 2 * 4 + 1))


def test_missing_attributes_are_named() -> None:
    with pytest.raises(LowdnnError, match="OPERATION_CONVOLUTION_BWD_DATA_DX"):
        made(
            DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA,
            (N.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, T.BACKEND_DESCRIPTOR, geometry()),
            (N.OPERATION_CONVOLUTION_BWD_DATA_W, T.BACKEND_DESCRIPTOR, packed(1, W)),
            (N.OPERATION_CONVOLUTION_BWD_DATA_DY, T.BACKEND_DESCRIPTOR, packed(2, DY)),
        )


def test_attention_gradients(handle: Handle) -> None:
    """Two queries that see one key: weights are 1, so dv is the sum of d_o, and nothing depends on q and k."""
    queries, key, stats = (1, 1, 2, 8), (1, 1, 1, 8), (1, 1, 2, 1)
    ports = {
        N.OPERATION_SDPA_BWD_QDESC: queries,
        N.OPERATION_SDPA_BWD_KDESC: key,
        N.OPERATION_SDPA_BWD_VDESC: key,
        N.OPERATION_SDPA_BWD_ODESC: queries,
        N.OPERATION_SDPA_BWD_DODDESC: queries,
        N.OPERATION_SDPA_BWD_STATSDESC: stats,
        N.OPERATION_SDPA_BWD_DQDESC: queries,
        N.OPERATION_SDPA_BWD_DKDESC: key,
        N.OPERATION_SDPA_BWD_DVDESC: key,
    }
    tensors = [
        tensor(uid, dims, packed_strides(dims), data_type=DataType.FLOAT if dims is stats else DataType.HALF)
        for uid, dims in enumerate(ports.values(), 1)
    ]
    attributes = ((name, T.BACKEND_DESCRIPTOR, one) for name, one in zip(ports, tensors, strict=True))
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, made(DescriptorType.OPERATION_SDPA_BWD, *attributes)),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    values = [np.full(dims, 8, np.float32) if dims is stats else np.ones(dims, np.float16) for dims in ports.values()]
    buffers = [upload(handle.runtime, value.reshape(-1)) for value in values]
    workspace = upload(handle.runtime, np.zeros(1 << 14, np.uint8))
    execute(handle, plan, variant_pack({uid: one.address for uid, one in enumerate(buffers, 1)}, workspace.address))
    dq, dk, dv = (download(buffer, np.dtype(np.float16)) for buffer in buffers[-3:])
    np.testing.assert_array_equal(dv, np.full(8, 2))
    assert not dq.any()
    assert not dk.any()
