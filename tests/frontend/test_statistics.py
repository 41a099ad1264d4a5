"""Channel statistics through pygraph and through descriptors, end to end."""

from __future__ import annotations

import numpy as np

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, GenStatsMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from tests.support.data import fresh_seed
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.runtime import download, upload

N, T = AttributeName, AttributeType


def test_statistics_of_a_convolution(handle: Handle) -> None:
    """conv -> y, stored, and the statistics of y as it is stored."""
    rng = np.random.default_rng(fresh_seed())
    x, w = (rng.integers(-1, 2, dims).astype(np.float32) for dims in ((2, 8, 5, 5), (4, 8, 1, 1)))
    graph = pygraph("stats", cudnn.data_type.HALF, cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, handle)
    tx, tw = (graph.tensor(a.shape, channels_last_strides(a.shape)) for a in (x, w))
    y = graph.conv_fprop(tx, tw).set_output(True)
    total, squares = graph.genstats(y)
    for output in (total, squares):
        output.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    graph.build([cudnn.heur_mode.A])
    arrays = {tx: x, tw: w} | {t: np.zeros(t.get_dim(), np.float32) for t in (y, total, squares)}
    values = {t: cudnn.from_numpy(array, handle, t.get_data_type(), t.get_stride()) for t, array in arrays.items()}
    workspace = np.zeros(max(graph.get_workspace_size(), 1), np.uint8)
    graph.execute(values, cudnn.from_numpy(workspace, handle))
    expected = np.einsum("nchw,kc->nkhw", x, w[..., 0, 0])
    np.testing.assert_array_equal(values[y].numpy().astype(np.float32), expected)
    np.testing.assert_array_equal(values[total].numpy().ravel(), expected.sum((0, 2, 3)))
    np.testing.assert_array_equal(values[squares].numpy().ravel(), (expected**2).sum((0, 2, 3)))


def test_descriptor(handle: Handle) -> None:
    dims, results = (2, 3, 4), (1, 3, 1)
    operation = made(
        DescriptorType.OPERATION_GEN_STATS,
        (N.OPERATION_GENSTATS_MODE, T.GENSTATS_MODE, GenStatsMode.SUM_SQSUM),
        (N.OPERATION_GENSTATS_MATH_PREC, T.DATA_TYPE, DataType.FLOAT),
        (N.OPERATION_GENSTATS_XDESC, T.BACKEND_DESCRIPTOR, tensor(1, dims, packed_strides(dims))),
        (N.OPERATION_GENSTATS_SUMDESC, T.BACKEND_DESCRIPTOR, tensor(2, results, packed_strides(results))),
        (N.OPERATION_GENSTATS_SQSUMDESC, T.BACKEND_DESCRIPTOR, tensor(3, results, packed_strides(results))),
    )
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    x = np.arange(24, dtype=np.float32).reshape(dims)
    buffers = [
        upload(handle.runtime, values) for values in (x.ravel(), np.zeros(3, np.float32), np.zeros(3, np.float32))
    ]
    execute(handle, plan, variant_pack({uid: buffer.address for uid, buffer in enumerate(buffers, 1)}))
    for buffer, expected in zip(buffers[1:], (x.sum((0, 2)), (x**2).sum((0, 2))), strict=True):
        np.testing.assert_array_equal(download(buffer, np.dtype(np.float32)), expected)
