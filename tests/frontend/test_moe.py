"""Grouped products of a mixture of experts through pygraph and through descriptors, end to end."""

from __future__ import annotations

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend import Descriptor, Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, MoeGroupedMatmulMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import NotSupportedError
from tests.support.data import fresh_seed
from tests.support.descriptors import best_config, made, plan_of, variant_pack
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType
FLOAT, INT32 = cudnn.data_type.FLOAT, cudnn.data_type.INT32
MODE = cudnn.moe_grouped_matmul_mode

#: 6 routed rows of 3 experts.
OFFSETS = np.array([0, 4, 4], np.int32).reshape(3, 1, 1)
ROWS = (slice(0, 4), slice(4, 4), slice(4, 6))


def integers(*dims: int) -> np.ndarray:
    return np.random.default_rng(fresh_seed()).integers(-3, 4, dims).astype(np.float32)


def new_graph(handle: Handle) -> pygraph:
    return pygraph("moe", FLOAT, FLOAT, FLOAT, handle)


def run(graph: pygraph, handle: Handle, values: dict[cudnn.Tensor, np.ndarray], output: cudnn.Tensor) -> np.ndarray:
    output.set_output(True)
    graph.build([cudnn.heur_mode.A])
    arrays = values | {output: np.zeros(output.get_dim(), np.float32)}
    given = {t: cudnn.from_numpy(array, handle, t.get_data_type(), t.get_stride()) for t, array in arrays.items()}
    graph.execute(given, cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle))
    return given[output].numpy()


def test_gathered_tokens_through_pygraph(handle: Handle) -> None:
    token, weight = integers(1, 3, 8), integers(3, 8, 4)
    index = np.array([2, 0, 1, 2, 1, 0], np.int32).reshape(1, 6, 1)
    graph = new_graph(handle)
    t, w = graph.tensor(token.shape), graph.tensor(weight.shape)
    offsets, i = graph.tensor(OFFSETS.shape, data_type=INT32), graph.tensor(index.shape, data_type=INT32)
    y = graph.moe_grouped_matmul(t, w, offsets, i, mode=MODE.GATHER, name="up")
    got = run(graph, handle, {t: token, w: weight, offsets: OFFSETS, i: index}, y)
    assert (y.get_dim(), y.get_stride()) == ([1, 6, 4], [24, 4, 1])
    assert [tensor.get_name() for tensor in (t, w, offsets, i, y)] == [
        "up::TOKEN",
        "up::WEIGHT",
        "up::FIRST_TOKEN_OFFSET",
        "up::TOKEN_INDEX",
        "up::Output",
    ]
    for expert, rows in enumerate(ROWS):
        np.testing.assert_array_equal(got[0, rows], token[0, index[0, rows, 0]] @ weight[expert])


def test_the_weights_gradient_through_pygraph(handle: Handle) -> None:
    token, doutput = integers(1, 6, 8), integers(1, 6, 4)
    graph = new_graph(handle)
    d, t = graph.tensor(doutput.shape), graph.tensor(token.shape)
    offsets = graph.tensor(OFFSETS.shape, data_type=INT32)
    dweight = graph.moe_grouped_matmul_bwd(d, t, offsets)
    got = run(graph, handle, {d: doutput, t: token, offsets: OFFSETS}, dweight)
    assert dweight.get_dim() == [3, 8, 4]
    for expert, rows in enumerate(ROWS):
        np.testing.assert_array_equal(got[expert], token[0, rows].T @ doutput[0, rows])


def test_what_the_backend_does_not_have() -> None:
    graph = pygraph("moe", FLOAT, FLOAT, FLOAT, sm_version=90)
    t, w, offsets = graph.tensor([1, 6, 8]), graph.tensor([3, 8, 4]), graph.tensor([3, 1, 1], data_type=INT32)
    with pytest.raises(NotSupportedError, match=r"moe_grouped_matmul\.mode: .*got COMBINE"):
        graph.moe_grouped_matmul(t, w, offsets, mode=MODE.COMBINE)
    with pytest.raises(NotSupportedError, match=r"moe_grouped_matmul\.top_k_scores"):
        graph.moe_grouped_matmul(t, w, offsets, top_k_scores=t)


def described(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Descriptor:
    return made(
        DescriptorType.TENSOR,
        (N.TENSOR_UNIQUE_ID, T.INT64, uid),
        (N.TENSOR_DATA_TYPE, T.DATA_TYPE, data_type),
        (N.TENSOR_DIMENSIONS, T.INT64, dims),
        (N.TENSOR_STRIDES, T.INT64, packed_strides(dims)),
        (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 16),
    )


def test_scattered_rows_through_descriptors(handle: Handle) -> None:
    token, weight = integers(1, 6, 8), integers(3, 8, 4)
    index, ks = np.divmod(np.array([5, 0, 3, 1, 4, 2], np.int32).reshape(1, 6, 1), 2)
    arrays = (token, weight, OFFSETS, index, ks, np.zeros((1, 6, 4), np.float32))
    types = (DataType.FLOAT, DataType.FLOAT, *[DataType.INT32] * 3, DataType.FLOAT)
    tensors = [described(uid, a.shape, kind) for uid, (a, kind) in enumerate(zip(arrays, types, strict=True), 1)]
    ports = ("TOKEN", "WEIGHT", "FIRST_TOKEN_OFFSET", "TOKEN_INDEX", "TOKEN_KS", "OUTPUT")
    operation = made(
        DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
        (N.OPERATION_MOE_GROUPED_MATMUL_MODE, T.MOE_GROUPED_MATMUL_MODE, MoeGroupedMatmulMode.SCATTER),
        (N.OPERATION_MOE_GROUPED_MATMUL_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
        (N.OPERATION_MOE_GROUPED_MATMUL_TOP_K, T.INT32, 2),
        *(
            (N[f"OPERATION_MOE_GROUPED_MATMUL_{port}_DESC"], T.BACKEND_DESCRIPTOR, tensor)
            for port, tensor in zip(ports, tensors, strict=True)
        ),
    )
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    buffers = [upload(handle.runtime, array.ravel(), "x") for array in arrays]
    pack = variant_pack({uid: buffer.address for uid, buffer in enumerate(buffers, 1)})
    execute(handle, plan_of(best_config(graph)), pack)
    got = download(buffers[-1], np.dtype(np.float32)).reshape(6, 4)
    targets = (index * 2 + ks).ravel()
    for expert, rows in enumerate(ROWS):
        np.testing.assert_array_equal(got[targets[rows]], token[0, rows] @ weight[expert])
    for buffer in buffers:
        buffer.close()
