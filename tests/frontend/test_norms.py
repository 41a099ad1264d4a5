"""Norms and softmax through pygraph and through descriptors, end to end, and what is inferred for them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle, execute
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, NormFwdPhase, NormMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import channels_last_strides, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.data import fresh_seed
from tests.support.descriptors import best_config, made, plan_of, tensor, variant_pack
from tests.support.errors import raises
from tests.support.runtime import download, upload

FLOAT = cudnn.data_type.FLOAT
TRAINING, INFERENCE = cudnn.norm_forward_phase.TRAINING, cudnn.norm_forward_phase.INFERENCE
N, T = AttributeName, AttributeType
Arrays = dict[cudnn.Tensor, NDArray[np.float32]]


def new_graph(handle: Handle | None = None) -> pygraph:
    return pygraph("norms", FLOAT, FLOAT, FLOAT, handle)


def run(graph: pygraph, handle: Handle, inputs: Arrays, *outputs: cudnn.Tensor | None) -> list[NDArray[np.float32]]:
    """The values of the outputs."""
    wanted = [tensor.set_output(True) for tensor in outputs if tensor is not None]
    graph.build([cudnn.heur_mode.A])
    arrays = inputs | {t: np.zeros(t.get_dim(), np.float32) for t in wanted}
    values = {t: cudnn.from_numpy(array, handle, FLOAT, t.get_stride()) for t, array in arrays.items()}
    workspace = np.zeros(max(graph.get_workspace_size(), 1), np.uint8)
    graph.execute(values, cudnn.from_numpy(workspace, handle))
    return [values[t].numpy() for t in wanted]


def test_layer_norm_and_its_gradients(handle: Handle) -> None:
    rng = np.random.default_rng(fresh_seed())
    x, dy = (rng.normal(1, 2, (6, 64)).astype(np.float32) for _ in range(2))
    scale, bias = (rng.normal(0, 1, (1, 64)).astype(np.float32) for _ in range(2))
    graph = new_graph(handle)
    tx, ts, tb = (graph.tensor(a.shape) for a in (x, scale, bias))
    y, mean, inverse = graph.layernorm(TRAINING, tx, ts, tb, graph.tensor_scalar(1e-3))
    got_y, got_mean, got_inverse = run(graph, handle, {tx: x, ts: scale, tb: bias}, y, mean, inverse)
    xhat = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(got_y, xhat * scale + bias, rtol=1e-5, atol=1e-5)

    graph = new_graph(handle)
    tdy, tx, ts = (graph.tensor(a.shape) for a in (dy, x, scale))
    tm, ti = (graph.tensor((6, 1)) for _ in range(2))
    outputs = graph.layernorm_backward(tdy, tx, ts, tm, ti)
    dx, dscale, dbias = run(graph, handle, {tdy: dy, tx: x, ts: scale, tm: got_mean, ti: got_inverse}, *outputs)
    g = dy * scale
    expected = got_inverse * (g - g.mean(1, keepdims=True) - xhat * (g * xhat).mean(1, keepdims=True))
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dscale, (dy * xhat).sum(0, keepdims=True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dbias, dy.sum(0, keepdims=True), rtol=1e-4, atol=1e-4)


def test_batch_norm_carries_statistics_on(handle: Handle) -> None:
    rng = np.random.default_rng(fresh_seed())
    x, ones = rng.normal(1, 2, (4, 8, 3, 3)).astype(np.float32), np.ones((1, 8, 1, 1), np.float32)
    graph = new_graph(handle)
    tx = graph.tensor(x.shape, channels_last_strides(x.shape))
    ts, tb, tm, tv = (graph.tensor(ones.shape) for _ in range(4))
    epsilon, momentum = graph.tensor_scalar(1e-3), graph.tensor_scalar(0.25)
    outputs = graph.batchnorm(tx, ts, tb, tm, tv, epsilon, momentum)
    y, mean, _, next_mean, next_var = run(graph, handle, {tx: x} | dict.fromkeys((ts, tb, tm, tv), ones), *outputs)
    axes = (0, 2, 3)
    np.testing.assert_allclose(mean, x.mean(axes, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(next_mean, 0.75 + 0.25 * x.mean(axes, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(next_var, 0.75 + 0.25 * x.var(axes, keepdims=True, ddof=1), rtol=1e-5)
    expected = 1 + (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_two_graphs(handle: Handle) -> None:
    """Sums where x is made, then what the next graph applies to x."""
    rng = np.random.default_rng(fresh_seed())
    x = rng.normal(1, 2, (4, 8, 3, 3)).astype(np.float32)
    scale, bias, before = (rng.normal(0, 1, (1, 8, 1, 1)).astype(np.float32) for _ in range(3))
    graph = new_graph(handle)
    tx = graph.tensor(x.shape, channels_last_strides(x.shape))
    total, squares = run(graph, handle, {tx: x}, *graph.genstats(tx))

    graph, channels = new_graph(handle), (total, squares, scale, bias, before, np.abs(before))
    tensors = [graph.tensor(values.shape) for values in channels]
    scalars = (graph.tensor_scalar(1e-3), graph.tensor_scalar(x.size // 8))
    outputs = graph.bn_finalize(*tensors[:4], *scalars, *tensors[4:], graph.tensor_scalar(0.25))
    given = dict(zip(tensors, channels, strict=True))
    eq_scale, eq_bias, mean, inverse, next_mean, next_var = run(graph, handle, given, *outputs)
    axes = (0, 2, 3)
    np.testing.assert_allclose(mean, x.mean(axes, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-3), rtol=1e-4)
    np.testing.assert_allclose(eq_scale, scale * inverse, rtol=1e-5)
    np.testing.assert_allclose(eq_bias, bias - mean * eq_scale, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(next_mean, 0.75 * before + 0.25 * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(next_var, 0.75 * abs(before) + 0.25 * x.var(axes, keepdims=True, ddof=1), rtol=1e-4)
    assert new_graph().bn_finalize(*tensors[:4], *scalars)[4:] == (None, None)


def test_batch_norm_inference_is_pointwise() -> None:
    graph = new_graph()
    x, *statistics = (graph.tensor(dims) for dims in ((2, 8, 3, 3), *[(1, 8, 1, 1)] * 4))
    y = graph.batchnorm_inference(x, *statistics).set_output(True)
    graph.validate()
    assert y.get_dim() == [2, 8, 3, 3]


def test_softmax_and_its_gradient(handle: Handle) -> None:
    rng = np.random.default_rng(fresh_seed())
    x, dy = (rng.normal(0, 2, (4, 40)).astype(np.float32) for _ in range(2))
    graph = new_graph(handle)
    tx = graph.tensor(x.shape)
    y, stats = run(graph, handle, {tx: x}, *graph.softmax(tx, generate_stats=True))
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(stats, np.log(np.exp(x).sum(1, keepdims=True)), rtol=1e-5)
    graph = new_graph(handle)
    tdy, ty = (graph.tensor(x.shape) for _ in range(2))
    (dx,) = run(graph, handle, {tdy: dy, ty: y}, graph.softmax_backward(tdy, ty, axis=1))
    assert "softmax" in graph.get_plan_name_at_index(0)
    np.testing.assert_allclose(dx, y * (dy - (dy * y).sum(1, keepdims=True)), rtol=1e-4, atol=1e-6)


X = (2, 6, 3, 4)
CHANNELS = (1, 6, 1, 1)


@pytest.mark.parametrize(
    ("method", "scale_dims", "arguments", "statistics"),
    [
        ("layernorm", (1, 6, 3, 4), (), (2, 1, 1, 1)),
        ("layernorm", (1, 1, 1, 4), (), (2, 6, 3, 1)),
        ("layernorm", None, (), (2, 1, 1, 1)),
        ("adalayernorm", (2, 6, 1, 4), (), (2, 1, 3, 1)),
        ("instancenorm", CHANNELS, (), (2, 6, 1, 1)),
        ("groupnorm", CHANNELS, (3,), (2, 3, 1, 1)),
        ("rmsnorm", (1, 6, 3, 4), (), (2, 1, 1, 1)),
    ],
)
def test_inference_of_dims(
    method: str, scale_dims: tuple[int, ...] | None, arguments: tuple[Any, ...], statistics: tuple[int, ...]
) -> None:
    graph = new_graph()
    x = graph.tensor(X, channels_last_strides(X))
    scale, bias = (scale_dims and graph.tensor(scale_dims) for _ in range(2))
    y, *stats = getattr(graph, method)(TRAINING, x, *arguments, scale, bias, graph.tensor_scalar(1e-5))
    for output in (y, *stats):
        output.set_output(True)
    graph.validate()
    assert (y.get_dim(), y.get_stride()) == (list(X), list(channels_last_strides(X)))
    assert [tuple(tensor.get_dim()) for tensor in stats] == [statistics] * len(stats)
    inferred = getattr(new_graph(), method)(INFERENCE, x, *arguments, scale, bias, graph.tensor_scalar(1e-5))
    assert inferred[1:] == (None,) * (len(inferred) - 1)


def test_gradients_have_the_dims_of_what_they_are_of() -> None:
    graph = new_graph()
    dy, x = (graph.tensor(X) for _ in range(2))
    scale, inverse = graph.tensor((1, 6, 3, 4)), graph.tensor((2, 1, 1, 1))
    dx, dscale, dbias = graph.rmsnorm_backward(dy, x, scale, inverse, False)
    assert dbias is None
    assert dscale is not None
    dx.set_output(True)
    dscale.set_output(True)
    graph.validate()
    assert (dx.get_dim(), dscale.get_dim()) == (list(X), [1, 6, 3, 4])


def test_what_is_refused() -> None:
    graph = new_graph()
    x, scale = graph.tensor(X), graph.tensor(CHANNELS)
    with raises(BadParamError, "layernorm.epsilon", expected="a by-value tensor or a number", got="None"):
        graph.layernorm(TRAINING, x)
    with raises(BadParamError, "rmsnorm.norm_forward_phase", expected="INFERENCE or TRAINING", got="NOT_SET"):
        graph.rmsnorm(cudnn.norm_forward_phase.NOT_SET, x, scale, epsilon=graph.tensor_scalar(1e-5))
    y, _ = graph.softmax(x, axis=4)
    y.set_output(True)
    with raises(BadParamError, "softmax.axis", expected="axes from -4 to 3", got="[4]"):
        graph.validate()


def scalar(uid: int, value_type: DataType = DataType.FLOAT) -> Any:
    return made(
        DescriptorType.TENSOR,
        (N.TENSOR_UNIQUE_ID, T.INT64, uid),
        (N.TENSOR_DATA_TYPE, T.DATA_TYPE, value_type),
        (N.TENSOR_DIMENSIONS, T.INT64, (1, 1)),
        (N.TENSOR_STRIDES, T.INT64, (1, 1)),
        (N.TENSOR_BYTE_ALIGNMENT, T.INT64, 4),
        (N.TENSOR_IS_BY_VALUE, T.BOOLEAN, True),
    )


def test_norm_descriptors(handle: Handle) -> None:
    """The layer norm of ``test_layer_norm_and_its_gradients``, with epsilon given at execute."""
    dims = {1: (6, 64), 2: (1, 64), 3: (1, 64), 4: (6, 64), 5: (6, 1), 6: (6, 1)}
    x, scale, bias, y, mean, inverse = (tensor(uid, own, packed_strides(own)) for uid, own in dims.items())
    ports = {"XDESC": x, "SCALE_DESC": scale, "BIAS_DESC": bias, "YDESC": y, "MEAN_DESC": mean}
    ports |= {"INV_VARIANCE_DESC": inverse, "EPSILON_DESC": scalar(7)}
    operation = made(
        DescriptorType.OPERATION_NORM_FORWARD,
        (N.OPERATION_NORM_FWD_MODE, T.NORM_MODE, NormMode.LAYER_NORM),
        (N.OPERATION_NORM_FWD_PHASE, T.NORM_FWD_PHASE, NormFwdPhase.TRAINING),
        *((N[f"OPERATION_NORM_FWD_{port}"], T.BACKEND_DESCRIPTOR, found) for port, found in ports.items()),
    )
    graph = made(
        DescriptorType.OPERATIONGRAPH,
        (N.OPERATIONGRAPH_OPS, T.BACKEND_DESCRIPTOR, operation),
        (N.OPERATIONGRAPH_HANDLE, T.HANDLE, handle),
    )
    plan = plan_of(best_config(graph), (N.EXECUTION_PLAN_HANDLE, T.HANDLE, handle))
    data = np.random.default_rng(fresh_seed()).normal(0, 1, (6, 64)).astype(np.float32)
    arrays = {1: data.ravel(), 2: np.full(64, 2, np.float32), 3: np.ones(64, np.float32)}
    arrays |= {uid: np.zeros(prod(dims[uid]), np.float32) for uid in (4, 5, 6)}
    buffers = {uid: upload(handle.runtime, values) for uid, values in arrays.items()}
    epsilon = np.array([1e-3], np.float32)
    addresses = {uid: buffer.address for uid, buffer in buffers.items()}
    execute(handle, plan, variant_pack(addresses | {7: epsilon.ctypes.data}))
    expected = 1 + 2 * (data - data.mean(1, keepdims=True)) / np.sqrt(data.var(1, keepdims=True) + 1e-3)
    got = download(buffers[4], np.dtype(np.float32)).reshape(6, 64)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_softmax_and_gradient_descriptors_are_finalized_and_checked() -> None:
    softmax = made(
        DescriptorType.OPERATION_SOFTMAX,
        (N.OPERATION_SOFTMAX_XDESC, T.BACKEND_DESCRIPTOR, tensor(1)),
        (N.OPERATION_SOFTMAX_YDESC, T.BACKEND_DESCRIPTOR, tensor(2)),
        (N.OPERATION_SOFTMAX_STATS_DESC, T.BACKEND_DESCRIPTOR, tensor(3, (4, 1), (1, 1))),
        (N.OPERATION_SOFTMAX_STATS_LOG2, T.BOOLEAN, True),
    )
    assert softmax.value.normalised_axes == (1,)
    assert softmax.get_attribute(N.OPERATION_SOFTMAX_MAX_DESC, T.BACKEND_DESCRIPTOR) == []
    ports = {
        "XDESC": tensor(1),
        "DYDESC": tensor(2),
        "DXDESC": tensor(3),
        "INV_VARIANCE_DESC": tensor(4, (4, 1), (1, 1)),
    }
    attributes = [(N[f"OPERATION_NORM_BWD_{port}"], T.BACKEND_DESCRIPTOR, found) for port, found in ports.items()]
    mode = (N.OPERATION_NORM_BWD_MODE, T.NORM_MODE, NormMode.RMS_NORM)
    assert made(DescriptorType.OPERATION_NORM_BACKWARD, mode, *attributes).value.compute_type is DataType.FLOAT
    wrong = (N.OPERATION_NORM_BWD_DSCALE_DESC, T.BACKEND_DESCRIPTOR, tensor(5, (4, 4), (4, 1)))
    with pytest.raises(ShapeMismatchError, match=r"norm_backward\.scale\.dims\[1\]: expected 1 or 8 as x, got 4"):
        made(DescriptorType.OPERATION_NORM_BACKWARD, mode, *attributes, wrong)
