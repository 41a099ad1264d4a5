"""Norms of residual networks, written as for cudnn-frontend, each in one launch and one more for a mask.

Add, ReLU and its mask follow the forward pass; the mask, or ReLU's gradient, precedes the backward pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.tensor import channels_last_strides
from tests.support.data import fresh_seed

HALF, FLOAT, BOOLEAN = cudnn.data_type.HALF, cudnn.data_type.FLOAT, cudnn.data_type.BOOLEAN
DIMS, CHANNELS, AXES = (3, 16, 5, 6), (1, 16, 1, 1), (0, 2, 3)
EPSILON = 1e-3
Arrays = dict[cudnn.Tensor, NDArray[Any]]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(fresh_seed())


def new_graph(handle: Handle) -> pygraph:
    return pygraph("norms", HALF, FLOAT, FLOAT, handle)


def images(graph: pygraph, count: int, data_type: cudnn.data_type = HALF) -> list[cudnn.Tensor]:
    return [graph.tensor(DIMS, channels_last_strides(DIMS), data_type) for _ in range(count)]


def channels(graph: pygraph, count: int) -> list[cudnn.Tensor]:
    return [graph.tensor(CHANNELS, data_type=FLOAT) for _ in range(count)]


def run(graph: pygraph, handle: Handle, inputs: Arrays, outputs: list[cudnn.Tensor]) -> list[NDArray[Any]]:
    """The values of the outputs; the graph is one launch, and one for the bits of a mask."""
    for output in outputs:
        output.set_output(True)
    graph.build([cudnn.heur_mode.A])
    has_mask = any(t.get_data_type() is BOOLEAN for t in (*inputs, *outputs))
    assert graph.get_plan_name_at_index(0).startswith("eng6_composite" if has_mask else "eng20_norm_rows")
    arrays = inputs | {t: np.zeros(t.get_dim(), np.float32) for t in outputs}
    values = {
        t: bits(array, handle)
        if t.get_data_type() is BOOLEAN
        else cudnn.from_numpy(array, handle, t.get_data_type(), t.get_stride())
        for t, array in arrays.items()
    }
    graph.execute(values, cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle))
    return [values[t].numpy().astype(np.float64) for t in outputs]


def bits(mask: NDArray[Any], handle: Handle) -> cudnn.DeviceTensor:
    """A bit for each element in the order of memory, in as many bytes as that takes."""
    return cudnn.from_numpy(np.packbits(mask.astype(bool).transpose(0, 2, 3, 1), bitorder="little"), handle)


def normalised(x: NDArray[np.float16]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(xhat, mean, inverse variance)."""
    exact = x.astype(np.float64)
    mean, inverse = exact.mean(AXES, keepdims=True), 1 / np.sqrt(exact.var(AXES, keepdims=True) + EPSILON)
    return (exact - mean) * inverse, mean, inverse


def test_batch_norm_add_relu_and_mask(handle: Handle, rng: np.random.Generator) -> None:
    x, residual = (rng.normal(0, 1, DIMS).astype(np.float16) for _ in range(2))
    scale, bias = (rng.normal(0, 1, CHANNELS).astype(np.float32) for _ in range(2))
    graph = new_graph(handle)
    tx, tr, zeros = images(graph, 3)
    ts, tb = channels(graph, 2)
    normal, mean, inverse, _, _ = graph.batchnorm(tx, ts, tb, None, None, graph.tensor_scalar(EPSILON), None)
    y = graph.relu(graph.add(normal, tr))
    mask = graph.cmp_gt(y, zeros).set_data_type(BOOLEAN)
    inputs = {tx: x, tr: residual, zeros: np.zeros(DIMS, np.float16), ts: scale, tb: bias}
    for statistic in (mean, inverse):
        statistic.set_data_type(FLOAT)
    got_y, got_mask, got_mean, got_inverse = run(graph, handle, inputs, [y, mask, mean, inverse])
    xhat, *statistics = normalised(x)
    expected = np.maximum(xhat * scale + bias + residual, 0)
    np.testing.assert_allclose(got_y, expected, rtol=1e-3, atol=2e-3)
    in_memory = (got_y > 0).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(got_mask, np.packbits(in_memory, bitorder="little"))
    np.testing.assert_allclose([got_mean, got_inverse], statistics, rtol=1e-5, atol=1e-6)


def gradients(x: NDArray[np.float16], dy: NDArray[np.float16], scale: NDArray[np.float32]) -> list[NDArray[np.float64]]:
    """dx, dscale, dbias."""
    xhat, _, inverse = normalised(x)
    dscale, dbias = (xhat * dy).sum(AXES, keepdims=True), dy.astype(np.float64).sum(AXES, keepdims=True)
    return [inverse * scale * (dy - (dbias + xhat * dscale) * (x.shape[1] / x.size)), dscale, dbias]


@pytest.mark.parametrize("forks", [True, False])
def test_mask_and_batch_norm_backward(handle: Handle, rng: np.random.Generator, forks: bool) -> None:
    """With a fork the masked gradient is stored too, for the residual branch."""
    x, dy = (rng.normal(0, 1, DIMS).astype(np.float16) for _ in range(2))
    mask, scale = rng.random(DIMS) > 0.5, rng.normal(0, 1, CHANNELS).astype(np.float32)
    graph = new_graph(handle)
    tx, tdy = images(graph, 2)
    (tmask,) = images(graph, 1, BOOLEAN)
    ts, tm, ti = channels(graph, 3)
    masked = graph.scale(tdy, tmask).set_data_type(HALF)
    dx, dscale, dbias = graph.batchnorm_backward(masked, tx, ts, tm, ti)
    for gradient in (dscale, dbias):
        gradient.set_data_type(FLOAT)
    _, mean, inverse = normalised(x)
    inputs = {tx: x, tdy: dy, tmask: mask, ts: scale, tm: mean, ti: inverse}
    *got, got_masked = run(graph, handle, inputs, [dx, dscale, dbias, *([masked] if forks else [dx])])
    for actual, expected in zip(got, gradients(x, dy * mask, scale), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)
    if forks:
        np.testing.assert_array_equal(got_masked, dy * mask)


def test_a_mask_that_is_stored_is_read_in_the_same_graph(handle: Handle, rng: np.random.Generator) -> None:
    x, dy = (rng.normal(0, 1, DIMS).astype(np.float16) for _ in range(2))
    graph = new_graph(handle)
    tx, tdy = images(graph, 2)
    ts, tb = channels(graph, 2)
    normal, *_ = graph.batchnorm(tx, ts, tb, None, None, graph.tensor_scalar(EPSILON), None)
    mask = graph.cmp_gt(normal, graph.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST)).set_data_type(BOOLEAN)
    inputs = {tx: x, tdy: dy, ts: np.ones(CHANNELS, np.float32), tb: np.full(CHANNELS, 0.03, np.float32)}
    got_mask, got = run(graph, handle, inputs, [mask, graph.scale(tdy, mask).set_data_type(HALF)])
    held = np.unpackbits(got_mask.astype(np.uint8).reshape(-1), bitorder="little")
    np.testing.assert_array_equal(got != 0, (dy != 0) & held.reshape(3, 5, 6, 16).transpose(0, 3, 1, 2).astype(bool))


def test_an_array_of_booleans_lends_its_memory_to_bits(handle: Handle) -> None:
    """Programs may allocate a mask like the activation; the first eighth of it then has the bits."""
    x = np.linspace(-1, 1, np.prod(DIMS)).astype(np.float16).reshape(DIMS)
    graph = new_graph(handle)
    (tx,), (ts, tb) = images(graph, 1), channels(graph, 2)
    normal, *_ = graph.batchnorm(tx, ts, tb, None, None, graph.tensor_scalar(EPSILON), None)
    mask = graph.cmp_gt(normal, graph.tensor_scalar(0.0, cudnn.scalar_type.COMPILE_TIME_CONST)).set_data_type(BOOLEAN)
    mask.set_output(True)
    graph.build([cudnn.heur_mode.A])
    memory = cudnn.from_numpy(np.zeros(DIMS, np.bool_), handle, BOOLEAN, tx.get_stride())
    values = {tx: cudnn.from_numpy(x, handle, HALF, tx.get_stride()), mask: memory}
    values |= {t: cudnn.from_numpy(np.full(CHANNELS, value, np.float32), handle) for t, value in ((ts, 1), (tb, 0))}
    graph.execute(values, cudnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle))
    expected = np.packbits((normalised(x)[0] > 0).transpose(0, 2, 3, 1), bitorder="little")
    found = memory.numpy().transpose(0, 2, 3, 1).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(found[: expected.size], expected)
    assert not found[expected.size :].any()


def test_relu_backward_of_a_recomputed_activation(handle: Handle, rng: np.random.Generator) -> None:
    """Instead of a mask: y again from x and the statistics that the backward pass reads anyway."""
    x, dy = (rng.normal(0, 1, DIMS).astype(np.float16) for _ in range(2))
    scale, bias = (rng.normal(0, 1, CHANNELS).astype(np.float32) for _ in range(2))
    graph = new_graph(handle)
    tx, tdy = images(graph, 2)
    ts, tb, tm, ti = channels(graph, 4)
    y = graph.batchnorm_inference(tx, tm, ti, ts, tb)
    dy_of_relu = graph.relu_backward(tdy, y).set_data_type(HALF)
    dx, dscale, dbias = graph.batchnorm_backward(dy_of_relu, tx, ts, tm, ti)
    for gradient in (dscale, dbias):
        gradient.set_data_type(FLOAT)
    xhat, mean, inverse = normalised(x)
    inputs = {tx: x, tdy: dy, ts: scale, tb: bias, tm: mean, ti: inverse}
    got = run(graph, handle, inputs, [dx, dscale, dbias])
    for actual, expected in zip(got, gradients(x, dy * (xhat * scale + bias > 0), scale), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)
