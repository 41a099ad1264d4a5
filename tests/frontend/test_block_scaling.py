"""Block-scale quantisation through pygraph and through descriptors, end to end."""

from __future__ import annotations

import numpy as np

import lowdnn.frontend as cudnn
from lowdnn import dtypes
from lowdnn.backend import Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import packed_strides
from lowdnn.status import BadParamError
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.errors import raises
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType
#: Every number is a power of two, so that nothing is lost.
X = np.exp2(np.random.default_rng(3).integers(-3, 4, (4, 64))).astype(np.float32)


def test_there_and_back(handle: Handle) -> None:
    values = {}
    graph = pygraph("quantize", cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, handle)
    x = graph.tensor(X.shape)
    y, scale = graph.block_scale_quantize(x, 32)
    y.set_output(True).set_data_type(cudnn.data_type.FP8_E4M3)
    scale.set_output(True).set_data_type(cudnn.data_type.FP8_E8M0)
    graph.build([cudnn.heur_mode.A])
    assert (scale.get_dim(), scale.get_stride()) == ([4, 2], [2, 1])
    values[x] = cudnn.from_numpy(X, handle)
    for output in (y, scale):
        zeros = np.zeros(output.get_dim(), np.float32)
        values[output] = cudnn.from_numpy(zeros, handle, output.get_data_type())
    graph.execute(values, cudnn.from_numpy(np.zeros(1, np.uint8), handle))

    back = pygraph("dequantize", cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, handle)
    coded, scales = back.tensor_like(y), back.tensor_like(scale)
    coded.set_is_virtual(False), scales.set_is_virtual(False)
    restored = back.block_scale_dequantize(coded, scales, [1, 32]).set_output(True)
    back.build([cudnn.heur_mode.A])
    result = cudnn.from_numpy(np.zeros_like(X), handle)
    back.execute({coded: values[y], scales: values[scale], restored: result}, cudnn.from_numpy(np.zeros(1), handle))
    np.testing.assert_array_equal(result.numpy(), X)


def test_axis_and_transposition() -> None:
    graph = pygraph(compute_data_type=cudnn.data_type.FLOAT)
    x = graph.tensor((2, 64, 48), data_type=cudnn.data_type.HALF)
    y, scale = graph.block_scale_quantize(x, 32, 1, True)
    y.set_output(True).set_data_type(cudnn.data_type.FP8_E5M2)
    scale.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    assert (y.get_stride(), scale.get_dim()) == ([64 * 48, 1, 64], [2, 2, 48])


def test_scales_in_tiles(handle: Handle) -> None:
    graph = pygraph("tiles", *[cudnn.data_type.FLOAT] * 3, handle)
    x = graph.tensor(X.shape)
    y, scale = graph.block_scale_quantize(x, 32)
    y.set_output(True).set_data_type(cudnn.data_type.FP8_E4M3)
    scale.set_output(True).set_data_type(cudnn.data_type.FP8_E8M0)
    scale.set_reordering_type(cudnn.tensor_reordering.F8_128x4)
    graph.build([cudnn.heur_mode.A])
    assert (scale.get_dim(), scale.get_stride()) == ([128, 4], [4, 1])
    arrays = {x: X.ravel(), y: np.zeros(X.size, np.uint8), scale: np.zeros(512, np.uint8)}
    buffers = {t: upload(handle.runtime, values) for t, values in arrays.items()}
    graph.execute({t: buffer.address for t, buffer in buffers.items()}, 0)
    expected = np.zeros((32, 4, 4))  # (row % 32, row / 32, column)
    expected[:4, 0, :2] = np.exp2(np.ceil(np.log2(X.reshape(4, 2, 32).max(2) / 448)))
    found = dtypes.to_float64(download(buffers[scale], np.uint8), DataType.FP8_E8M0).reshape(32, 4, 4)
    np.testing.assert_array_equal(np.where(expected == 0, 2.0**-127, expected), found)


def test_checks() -> None:
    graph = pygraph(io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
    x = graph.tensor((2, 64))
    with raises(BadParamError, "block_scale_dequantize.block_size", expected="one size that is not 1", got="[2, 32]"):
        graph.block_scale_dequantize(x, x, [2, 32])
    graph.block_scale_quantize(x, 32, 2)
    with raises(BadParamError, "block_scale_quantize.axis", expected="0 to 1", got="2"):
        graph.validate()


def test_descriptors(handle: Handle) -> None:
    tensors = {
        1: tensor(1, X.shape, packed_strides(X.shape)),
        2: tensor(2, X.shape, packed_strides(X.shape), data_type=DataType.FP8_E4M3),
        3: tensor(3, (4, 2), (2, 1), data_type=DataType.FP8_E8M0),
    }
    quantize = made(
        DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
        (N.OPERATION_BLOCK_SCALE_QUANTIZE_XDESC, T.BACKEND_DESCRIPTOR, tensors[1]),
        (N.OPERATION_BLOCK_SCALE_QUANTIZE_YDESC, T.BACKEND_DESCRIPTOR, tensors[2]),
        (N.OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC, T.BACKEND_DESCRIPTOR, tensors[3]),
        (N.OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
        (N.OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE, T.INT32, 32),
    )
    dequantize = made(
        DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
        (N.OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC, T.BACKEND_DESCRIPTOR, tensors[2]),
        (N.OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC, T.BACKEND_DESCRIPTOR, tensors[3]),
        (N.OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC, T.BACKEND_DESCRIPTOR, tensor(4, X.shape, packed_strides(X.shape))),
        (N.OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
        (N.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, T.INT32, 32),
    )
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, (quantize, dequantize)),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    arrays = {1: X.ravel(), 2: np.zeros(X.size, np.uint8), 3: np.zeros(8, np.uint8), 4: np.zeros(X.size, np.float32)}
    buffers = {uid: upload(handle.runtime, values) for uid, values in arrays.items()}
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in buffers.items()}))
    scales = dtypes.to_float64(download(buffers[3], np.uint8), DataType.FP8_E8M0)
    np.testing.assert_array_equal(scales, np.exp2(np.ceil(np.log2(X.reshape(8, 32).max(1) / 448))))
    np.testing.assert_array_equal(download(buffers[4], np.float32), X.ravel())
